"""Kernel columns and their sums: the kernels, their compiled loops, the Gram and what goes with it."""
