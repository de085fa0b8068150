"""Training of sparse, certified kernel machines: columns, statistics, solvers, and the run itself."""

__version__ = "0.1.0"
