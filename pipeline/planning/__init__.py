"""Before a run: which settings fit together, memory, disk, and what it starts from."""
