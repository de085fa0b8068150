"""How much memory a run may take, and each of its worker processes."""

import psutil

from pipeline.config.train_config import Resources
from pipeline.runtime import control_groups

DRIVER_BYTES = 290 * 2**20  # of a process that solves: interpreter, libraries and compiled code; measured
LEADING_BYTES = 194 * 2**20  # of the process that leads worker processes, which share its libraries; measured
WORKER_ALONE_BYTES = 450 * 2**20  # of a worker process, shared libraries counted as its own, as its nanny does
LOADING_WORKER_BYTES = 310 * 2**20  # of one that compiles nothing


def default_limit_bytes() -> int:
    """Return three quarters of the machine's memory, or of what its control groups leave this process."""
    machine, group = psutil.virtual_memory().total, control_groups.memory_limit_bytes()
    return (machine if group is None else min(machine, group)) * 3 // 4


def limit_bytes(resources: Resources) -> int:
    """Return what the whole process tree of a run may take."""
    return resources.memory_limit or default_limit_bytes()


def worker_limit_bytes(resources: Resources, workers: int) -> int:
    """Return the memory of each worker process: an equal share of what the leading one leaves."""
    return max((limit_bytes(resources) - LEADING_BYTES) // workers, WORKER_ALONE_BYTES)
