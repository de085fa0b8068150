"""Kernel columns and their sums: the generator of columns, its compiled loops, the Gram and what goes with it."""
