"""`python -m pipeline.resize RUN --size K --out MODEL`: cut a trained run to fewer centers, from its statistics.

Centers of a run with --select are in the order chosen: the first K are kept. Those of any other run are chosen now, by
the same rule. The weights are refitted; the temperature of a classifier takes a pass over the rows.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.command_line import command_parser
from pipeline.errors import ConfigError, ExitCode, MissingRunError
from pipeline.runtime.answers import answered, describe
from storage.errors import ANEW

if TYPE_CHECKING:  # imported late, so that --help answers at once
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.config.train_config import TrainConfig
    from pipeline.solvers.ridge import Refit
    from pipeline.stages.greedy_selection import StatisticsNames
    from storage.folder_layouts import RunLayout


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser(
        "resize",
        "Cut a trained run to fewer centers, from its statistics, in seconds; the temperature of a "
        "classifier's probabilities takes a pass over the rows.",
        "Exit codes: 0 done, 2 usage, 65 damaged run, 66 no such run, 73 cannot create.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--size", type=int, required=True, metavar="K", help="number of centers of the smaller model")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="MODEL", help="folder of the smaller model, a new one"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    arguments = parser.parse_args(argv)

    def work() -> None:
        resized = resize_run(arguments.run, arguments.size, arguments.out)
        if not arguments.quiet:
            values = "" if resized.rmse is None else f", RMSE {resized.rmse:.6g}"
            values += "" if resized.r2 is None else f", R2 {resized.r2:.4f}"
            values += "" if resized.temperature is None else f", temperature {resized.temperature:.3g}"
            print(
                f"{arguments.out}: {resized.n_centers} centers of {resized.n_before}, ridge {resized.ridge:.3g}, "
                f"held-out mean squared error {resized.held_out_error:.6g}{values}"
            )
        if resized.no_temperature is not None:
            print(f"warning: no temperature, and so no probabilities: {resized.no_temperature}", file=sys.stderr)

    return answered(work)


@dataclass(frozen=True)
class Resized:
    """What became of a run: centers now and before, the ridge, and the held-out mean squared error of the fit rows.

    rmse, r2: of a regression. temperature: of a classifier, or None, and no_temperature says why.
    """

    n_centers: int
    n_before: int
    ridge: float
    held_out_error: float
    rmse: float | None = None
    r2: float | None = None
    temperature: float | None = None
    no_temperature: str | None = None


def resize_run(root: Path, size: int, out: Path) -> Resized:
    """Write the model of a run cut to `size` centers as the folder `out`.

    Raises MissingRunError for a folder without a finished run, ConfigError for a size out of range or a run without
    held-out statistics, CannotWriteError where `out` exists, CorruptDataError.
    """
    import numpy as np  # which --help does without

    # Bring numpy and numba, which --help does without, and scipy's BLAS.
    from threadpoolctl import threadpool_limits

    from pipeline.prediction.model_folder import load_model, save_model
    from pipeline.runtime import run_folder
    from pipeline.solvers import ridge  # noqa: F401
    from pipeline.stages import final_weights
    from pipeline.stages.finished_run import names_to_cut
    from pipeline.stages.target_facts import facts_of
    from storage.arrays import read_arrays
    from storage.folder_layouts import RunLayout  # likewise
    from storage.output_files import check_output  # which brings numpy too

    layout = RunLayout(root)
    if not layout.report.exists():
        raise MissingRunError(f"{root} holds no finished run; train it to its end first")
    check_output(out, replace=None)
    config, model = run_folder.frozen_config(layout), load_model(layout.model)
    if final_weights.load(layout).points is not None:
        raise ConfigError(
            f"{root}: its centers were moved (--polish-centers), its statistics are of where they were chosen; train "
            f"with --select greedy:{size} --polish-centers {config.solver.polish_centers}"
        )
    if not 1 <= size <= model.n_centers:
        raise ConfigError(f"--size {size}: the model has {model.n_centers} centers; ask for 1 to {model.n_centers}")
    names = names_to_cut(layout, config)
    with threadpool_limits(1):  # as in a run: the bits depend on it
        refit, order, tried = _fitted(layout, config, names, size)
        temperature, why = None, None
        if model.task != "regression":
            temperature, why = _temperature(layout, config, names, refit, tried)
    smaller = replace(
        model,
        expansion=replace(
            model.expansion,
            centers=np.ascontiguousarray(model.centers[order]),
            sigma2=model.center_sigma2[order],
            weights=refit.weights.weights,
            intercept=refit.weights.intercept + facts_of(read_arrays(layout.centers, mapped=True)).mean,
        ),
        center_index=model.center_index[order],
        selection_order=np.arange(len(order)),
        temperature=temperature,
    )
    save_model(out, smaller)
    error = min(error for _, error in refit.held_out_errors)
    resized = Resized(smaller.n_centers, model.n_centers, refit.ridge, error)
    if model.task != "regression":
        return replace(resized, temperature=temperature, no_temperature=why)
    return replace(resized, rmse=math.sqrt(error), r2=_r2(layout, names, error))


def _r2(layout: "RunLayout", names: "StatisticsNames", held_out_error: float) -> float | None:
    """Return the share of the variance of the held-out rows that is explained, None where their targets are equal."""
    import numpy as np  # which --help does without

    from pipeline.models.scores import r_squared  # likewise
    from pipeline.stages.accumulate_statistics import load_statistics  # likewise

    # Of no columns: a run may have kept those of its centers alone, and sums of targets need none.
    rows = load_statistics(layout, names.held_out, np.empty(0, np.int64))
    variance = float(rows.yty[0] / rows.weight_sum - (rows.target_sums[0] / rows.weight_sum) ** 2)
    return r_squared(held_out_error, max(variance, 0.0))


def _temperature(
    layout: "RunLayout", config: "TrainConfig", names: "StatisticsNames", refit: "Refit", tried: "NDArray[np.int64]"
) -> tuple[float | None, str | None]:
    """Return the temperature of a smaller model, or None and why: it takes a pass over the rows."""
    # Bring numpy and numba, which --help does without.
    from pipeline.reporting.examples import needs_download
    from pipeline.runtime.run_folder import finished_report
    from pipeline.solvers.weights import CalibrationWeights
    from pipeline.stages.finished_run import column_names
    from pipeline.stages.temperature import temperature_of_finished_run

    candidates = column_names(layout, names, tried, finished_report(layout)["n_train"])
    if candidates is None:
        return None, "the statistics that were kept do not name the candidates tried on the fit rows; train again"
    remedy = needs_download(config)
    if remedy:
        return None, f"{config.dataset}: {remedy}"
    weights = CalibrationWeights(refit.of_fit.weights.named(candidates), fit=refit.of_fit)
    try:
        return temperature_of_finished_run(layout, config, weights), None
    except Exception as error:
        code, line = describe(error)
        if code == ExitCode.BUG and not isinstance(error, OSError):
            raise
        return None, line


def _fitted(
    layout: "RunLayout", config: "TrainConfig", names: "StatisticsNames", size: int
) -> "tuple[Refit, NDArray[np.int64], NDArray[np.int64]]":
    """Return the refit of a smaller model, its centers among those of the model, and the columns tried, in order."""
    # Bring numpy and numba, which --help does without.
    import numpy as np

    from pipeline.solvers.forward_backward_selection import select
    from pipeline.stages import accumulate_statistics as statistics
    from pipeline.stages import final_weights
    from pipeline.stages import greedy_selection as selection
    from storage.folders import check_folder

    intercept = bool(config.solver.intercept)
    for name in names:
        check_folder(layout.statistics_file(name), remedy=ANEW)
    if config.solver.select != "none":
        chosen = selection.load_chosen(layout, names)
        refit = selection.fit_prefix(layout, chosen, names, size, intercept=intercept)
        return refit, np.arange(size), chosen.tried[: len(refit.of_fit.weights.columns)]
    columns = final_weights.load(layout).active
    fit, held_out, everything = (statistics.load_statistics(layout, name, columns) for name in names)
    tried, order = (select(part, size, intercept=intercept).chosen for part in (fit, everything))
    parts = fit.cut(tried), held_out.cut(tried), everything.cut(order)
    return selection.refit_chosen(*parts, intercept=intercept), order, columns[tried]


if __name__ == "__main__":
    sys.exit(main())
