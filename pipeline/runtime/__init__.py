"""How a run runs: executors, stopping, events, the environment, the run folder and its state."""
