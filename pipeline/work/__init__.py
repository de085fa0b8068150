"""Sessions: what one start of a run does, from its settings to its report."""
