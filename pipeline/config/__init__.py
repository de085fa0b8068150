"""Settings: their types, layers (defaults, TOML, flags) and the command line."""
