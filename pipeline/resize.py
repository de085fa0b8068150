"""`python -m pipeline.resize RUN --size K --out MODEL`: cut a trained run to fewer centers, without a pass over data.

A run with --select has its centers in the order chosen: the first K are what training to that size would give (in
rounds: what was chosen from the last working set). Those of any other run are chosen now, by the same rule. The
weights are refitted either way.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.resize",
        description="Cut a trained run to fewer centers: from its statistics alone, in seconds.",
        epilog="Exit codes: 0 done, 2 usage, 65 damaged run, 66 no such run, 73 cannot create.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--size", type=int, required=True, metavar="K", help="number of centers of the smaller model")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="MODEL", help="folder of the smaller model, a new one"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    arguments = parser.parse_args(argv)
    from pipeline.errors import answered

    def tell() -> None:
        found = resize_run(arguments.run, arguments.size, arguments.out)
        if not arguments.quiet:
            print(
                f"{arguments.out}: {found.n_centers} centers of {found.n_before}, ridge {found.ridge:.3g}, "
                f"held-out mean squared error {found.hold_out_error:.6g}"
            )

    return answered(tell)


@dataclass(frozen=True)
class Resized:
    """What became of a run: centers now and before, the ridge, and the held-out mean squared error of the fit rows."""

    n_centers: int
    n_before: int
    ridge: float
    hold_out_error: float


def resize_run(root: Path, size: int, out: Path) -> Resized:
    """Write the model of a run cut to `size` centers as the folder `out`.

    Raises MissingRunError for a folder without a finished run, ConfigError for a size that the model does not have, or
    a run that keeps no held-out statistics, FolderInUseError where `out` exists, CorruptDataError for a damaged run.
    """
    import numpy as np

    from pipeline import run_folder
    from pipeline.errors import ConfigError, FolderInUseError, MissingRunError
    from pipeline.model_folder import load_model, save_model
    from storage.layout import RunLayout

    layout = RunLayout(root)
    if not layout.report.exists():
        raise MissingRunError(f"{root} holds no finished run; train it to its end first")
    if out.exists():
        raise FolderInUseError(f"{out} exists; choose another --out")
    config, model = run_folder.frozen_config(layout), load_model(layout.model)
    if not 1 <= size <= model.n_centers:
        raise ConfigError(f"--size {size}: the model has {model.n_centers} centers; ask for 1 to {model.n_centers}")
    found, order = _fitted(layout, config, size)
    smaller = replace(
        model,
        center_index=model.center_index[order],
        centers=np.ascontiguousarray(model.centers[order]),
        center_sigma2=model.center_sigma2[order],
        weights=found.weights,
        intercept=found.intercept,
        selection_order=np.arange(len(order)),
    )
    save_model(out, smaller)
    error = min(error for _, error in found.hold_out_errors)
    return Resized(smaller.n_centers, model.n_centers, found.ridge, error)


def _fitted(layout: Any, config: Any, size: int) -> tuple[Any, Any]:
    """Return the refit of a smaller model, and which centers of the model it has, in order."""
    import numpy as np

    from pipeline.solvers.greedy import select
    from pipeline.stages import final_weights, selection, statistics

    names, intercept = _names(layout), config.solver.intercept
    if config.solver.select != "none":
        chosen = selection.committed(layout, names)
        return selection.prefix(layout, chosen, names, size, intercept=intercept).refit, np.arange(size)
    columns = final_weights.load(layout).active
    fit, hold_out, everything = (statistics.load(layout, name).cut(columns) for name in names)
    tried, order = (select(part, size, intercept=intercept).chosen for part in (fit, everything))
    parts = fit.cut(tried), hold_out.cut(tried), everything.cut(order)
    return selection.weights_of(*parts, intercept=intercept), order


def _names(layout: Any) -> Any:
    """Return the names of the statistics of a run's last working set.

    Raises ConfigError where it keeps none of held-out rows.
    """
    from pipeline.errors import ConfigError
    from pipeline.stages import selection, selection_rounds, statistics
    from storage.manifest import MANIFEST_NAME

    if (layout.statistics_file("all") / MANIFEST_NAME).exists():
        names: selection.Names | None = selection.AT_ONCE
    else:
        rounds = (path.parent.name for path in layout.statistics.glob(f"round-*-fit/{MANIFEST_NAME}"))
        last = max((name.removesuffix("-fit") for name in rounds if re.fullmatch(r"round-\d+-fit", name)), default=None)
        names = None if last is None else selection_rounds.names_of(last)
    if names is None or not statistics.load(layout, names.hold_out).weight_sum > 0:
        raise ConfigError(
            f"{layout.root}: keeps no statistics of held-out rows, which the weights of fewer centers need; train "
            "with statistics.hold_out above 0 and --select greedy:K, or with fewer --centers"
        )
    return names


if __name__ == "__main__":
    sys.exit(main())
