"""Training of sparse, certified kernel machines: columns, statistics, solvers, and the run itself."""

from pipeline.compiled_cache import guard_imports

__version__ = "0.1.0"

guard_imports()
