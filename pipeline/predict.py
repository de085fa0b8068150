"""`python -m pipeline.predict MODEL DATA --out F`: labels and decision values of new data, in bounded memory."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from features.errors import UsageError
from features.words import counted
from pipeline.config.command_line import add_data_options, command_parser
from pipeline.errors import ConfigError
from pipeline.reporting.run_facts import limit_words
from pipeline.runtime import stopping
from pipeline.runtime.console import Console, StageLine, answered
from pipeline.runtime.progress import MEASURED_SECONDS, Progress
from storage.errors import CannotWriteError

if TYPE_CHECKING:  # imported late, so that --help answers at once
    from numpy.typing import NDArray

    from pipeline.prediction.trained_model import Explained
    from storage.output_files import Write

EPILOG = """\
MODEL is a model folder, or the folder of a run. DATA is a named data set (digits, mnist, ...), a .npz with X, a .npy,
a folder with X.npy, a table (.csv, .tsv, .parquet, or a folder or 'DIR/*.csv' of such) with or without its target, a
folder in IDX layout, a folder of pictures, or pictures one by one. A named data set, and data that hold parts, give
their test part (--part); all else is taken whole. Images (n, H, W) and flat rows (n, H*W) do.

Files have the columns row, label, and decision, or decision_CLASS for each class; of pictures also
file, their names. --probabilities adds columns probability_CLASS. --explain 3 adds for each of the three centers that
speak most for the prediction center_1, its training row (or file), and where MODEL is a run with its data
center_1_label; and center_1_share, its part of the absolute values that all centers add. Where center_total, the sum of
the parts of all centers, is near 0, they cancel, and no few of them explain the prediction.
--interval 0.9 adds lower and upper of a number, --labels 0.95 set_CLASS, 1 for the labels in the set and 0 for others:
of new rows like the training rows, at least that share lies between the bounds, or has its label in the set.
Exit codes: 0 done, 2 usage, 65 bad data or a damaged model, 66 missing input, 69 unavailable, 73 cannot create,
75 stopped."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser("predict", "Predict labels and decision values with a trained model.", EPILOG)
    parser.add_argument("model", type=Path, metavar="MODEL", help="model folder, or folder of a run")
    parser.add_argument("data", metavar="DATA", nargs="+", help="what to predict, see below")
    parser.add_argument("--out", required=True, metavar="F", help=".csv or .parquet; - is csv on standard output")
    level: dict[str, Any] = {"type": float, "metavar": "LEVEL"}
    parser.add_argument("--interval", **level, help="write bounds of numbers that hold this share of new rows: 0.9")
    parser.add_argument("--labels", **level, help="write sets of labels that hold this share of new rows: 0.95")
    parser.add_argument("--probabilities", action="store_true", help="write the probability of each class too")
    parser.add_argument("--explain", type=int, metavar="N", help="name the N centers that speak most for it")
    parser.add_argument("--force", action="store_true", help="replace F where it exists")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors and warnings only")
    add_data_options(parser)
    return answered(lambda: _predict(parser.parse_args(argv)))


def _why(explained: "Explained", of_centers: Mapping[str, "NDArray[Any]"]) -> list["NDArray[Any]"]:
    """Return the columns that explain a block: of each center what is told of it, and its share."""
    pairs = zip(explained.centers.T, explained.shares.T, strict=True)
    return [column for centers, shares in pairs for column in (*(of[centers] for of in of_centers.values()), shares)]


@stopping.listening()
def _predict(arguments: argparse.Namespace) -> None:
    # Bring numpy and numba, which --help does without.
    import numpy as np

    from features.input_files import is_table, table_files
    from pipeline.prediction import predictor as prediction
    from storage.output_files import SUFFIXES, check_output, csv_writer, writing  # numpy

    out = None if arguments.out == "-" else Path(arguments.out)
    if out is not None:
        if out.suffix not in SUFFIXES:
            raise UsageError(f"--out {out}: suffix not known; give {', '.join(SUFFIXES)}, or - for csv")
        data = Path(arguments.data[0])
        parts = [file.resolve() for file in (data, *(table_files(data) if is_table(data) else ()))]
        if out.resolve() in parts or (len(parts) > 1 and data.resolve() in out.resolve().parents):
            raise ConfigError(f"--out {out}: is the data, or lies in the folder of the data; choose another name")
        if out.resolve().is_relative_to(arguments.model.resolve()):
            raise ConfigError(f"--out {out}: lies in the folder of the model; choose a place outside of it")
        if not out.parent.is_dir():
            raise CannotWriteError(f"{out}: there is no folder {out.parent}; make it, or choose another")
        check_output(out, replace=arguments.force)
    predictor = prediction.load_predictor(arguments.model)
    model = predictor.model
    made: list[tuple[Sequence[str], type, Callable[..., Any]]] = []  # columns beside the decision values
    if arguments.probabilities:
        made.append((model.probability_names(), float, model.probabilities_of))
    if arguments.interval is not None:
        made.append((("lower", "upper"), float, partial(model.intervals_of, level=arguments.interval)))
    if arguments.labels is not None:
        sets = [f"set_{label}" for label in model.labels]
        made.append((sets, int, partial(model.sets_of, level=arguments.labels)))
    if arguments.labels is not None and not model.labels:
        raise ConfigError("--labels: the model is of a regression, which has no labels; use --interval")
    for _, _, of_decision in made:  # They refuse what the model does not support, before anything is written.
        of_decision(np.empty((0, len(model.intercept))))
    if arguments.explain is not None and arguments.explain < 1:
        raise UsageError(f"--explain {arguments.explain}: must be above 0")
    n_explained = min(arguments.explain or 0, model.n_centers)
    of_centers = prediction.centers_told(predictor) if arguments.explain else {}
    dtypes: dict[str, Any] = {"label": model.label_dtype()} | dict.fromkeys(model.decision_names(), np.float64)
    dtypes |= {name: kind for names, kind, _ in made for name in names}
    dtypes |= {
        f"center_{k + 1}{kind}": values.dtype
        for k in range(n_explained)
        for kind, values in {**of_centers, "_share": model.weights}.items()
    }
    dtypes |= {"center_total": model.weights.dtype} if n_explained else {}
    first, *more = arguments.data
    asked = prediction.ExampleRequest(first, False, tuple(more), arguments.part, arguments.target, dict(arguments.set))
    examples = prediction.open_examples(asked, predictor)
    started, counts = time.perf_counter(), Counter[str]()

    def write_all(write: "Write") -> None:
        for block in prediction.predictions(model, examples, n_explained):
            if out is None and isinstance(sys.stdout, Console) and sys.stdout.lost:  # the reader has seen enough
                return
            columns = [model.labels_of(block.decision), *block.decision.T]
            columns += [column.astype(kind) for _, kind, of in made for column in of(block.decision).T]
            if block.explained is not None:
                columns += [*_why(block.explained, of_centers), block.explained.total]
                counts.update(n_cancelled=block.explained.n_cancelled)
            write(columns)
            counts.update(n_far=block.n_far, n_at_limit=block.n_at_limit, n_done=len(block.decision))

    def words() -> str:
        done, seconds = counts["n_done"], time.perf_counter() - started
        left = seconds / done * (examples.n_rows - done) if done and seconds >= MEASURED_SECONDS else None
        return Progress(done, examples.n_rows, "rows", seconds_left=left).text()

    files, regression = examples.file_names, model.task == "regression"
    if out is None:
        write_all(csv_writer(sys.stdout.write, dtypes, files, regression=regression))
    else:
        file = writing(out, dtypes, examples.n_rows, files, regression=regression, replace=arguments.force)
        is_shown = not arguments.quiet and sys.stderr.isatty()
        shown = StageLine(sys.stderr, "predict", words) if is_shown else nullcontext()
        with stopping.current().working(), file as write, shown:
            write_all(write)
            stopping.check()
    for line in prediction.warnings_of(model, examples, counts["n_far"], counts["n_cancelled"]):
        print(f"warning: {line}", file=sys.stderr)
    seconds = time.perf_counter() - started
    part = f", {examples.part}" if examples.part else ""
    if out is not None and not arguments.quiet:
        limits = limit_words(counts)
        print(f"{out}: {counted(examples.n_rows, 'row')} of {examples.name}{part}{limits}; {seconds:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
