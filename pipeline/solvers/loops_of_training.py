"""Which compiled loops a training needs: those of its columns, of their sums, and of its solves."""

from pipeline.kernels import kernel_loops
from pipeline.kernels.jit import Loop, loops_in
from pipeline.kernels.kernel_forms import Kernel
from pipeline.solvers import solver_loops
from pipeline.solvers.state import SolverOptions

_OF_KERNEL = {
    "gaussian": ("gaussian_float32", "gaussian_float64"),
    "polynomial": ("polynomial",),
    "intersection": ("intersections",),
}


def needed_loops(
    kernel: Kernel, dtypes: set[str], options: SolverOptions | None, n_outputs: int, *, in_rounds: bool = False
) -> list[Loop]:
    """Return the loops for columns of some dtypes, and for penalised solves of so many outputs each (None: for none).

    in_rounds: candidates are scored too, with columns in the dtype of their products.
    """
    columns = loops_in(kernel_loops, *_OF_KERNEL[kernel.name])
    loops = [loop for loop in columns if str(loop.types[0].dtype) in dtypes]
    if kernel.name != "intersection" and not in_rounds:
        loops = [loop for loop in loops if str(loop.types[5].dtype) == "float64"]
    loops += loops_in(kernel_loops, "add_lower_tile")
    if options is not None:
        loops += loops_in(
            solver_loops, *(name for name in solver_loops.SIGNATURES if name not in solver_loops.NEWTON_LOOPS)
        )
        loops += loops_in(solver_loops, *solver_loops.NEWTON_LOOPS) if options.polishes and n_outputs == 1 else []
    return loops
