"""`python -m pipeline.predict MODEL DATA --out F`: labels and decision values of new data, in bounded memory."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EPILOG = """\
MODEL is a model folder, or the folder of a run. DATA is a named data set (digits, mnist, ...), a .npz with X, a .zarr
(X, or a lone array), a .csv with or without its target, or a folder in IDX layout. A named data set, and files that
hold parts, give their test part (--part); any other file is taken whole. Images (n, H, W) and flat rows (n, H*W) do.

.npz and .zarr files hold label (n,) and decision (n, outputs); .csv the columns row, label, and decision, or
decision_CLASS for each class.
Exit codes: 0 done, 2 usage, 65 bad data or a damaged model, 66 missing input, 69 unavailable, 73 cannot create,
75 stopped."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.predict",
        description="Predict labels and decision values with a trained model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="model folder, or folder of a run")
    parser.add_argument("data", metavar="DATA", help="what to predict, see below")
    parser.add_argument("--out", required=True, metavar="F", help=".npz, .zarr or .csv; - is csv on standard output")
    parser.add_argument("--force", action="store_true", help="replace F where it exists")
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    add_data_options(parser)
    arguments = parser.parse_args(argv)
    from pipeline import stopping
    from pipeline.errors import answered, any_text_goes

    def tell() -> None:
        any_text_goes(sys.stdout)
        with stopping.listening():
            told = _predict(arguments)
        if told and not arguments.quiet:
            print(told)

    return answered(tell)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which rows of DATA are meant."""
    parser.add_argument("--part", choices=("train", "test", "all"), help="part of a data set that has parts")
    parser.add_argument("--target", metavar="NAME", help="column of a .csv, or array of an .npz or .zarr, that holds y")
    parser.add_argument("--data-dir", metavar="DIR", help="folder that holds the files of a published data set")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="seed or data.KEY of a named data set"
    )


def asked_of(arguments: argparse.Namespace, *, labelled: bool) -> Any:
    """Return the `example_files.Asked` that was typed."""
    from pipeline.example_files import Asked

    return Asked(
        data=arguments.data,
        labelled=labelled,
        part=arguments.part,
        target=arguments.target,
        data_dir=arguments.data_dir and str(Path(arguments.data_dir).expanduser().absolute()),
        settings=tuple(arguments.set),
    )


def _predict(arguments: argparse.Namespace) -> str:
    """Write the predictions; return a line that tells of them, empty where they went to standard output."""
    from features.errors import UsageError
    from pipeline import stopping
    from pipeline.errors import ConfigError
    from pipeline.prediction import locate, open_examples, predictions
    from storage.outputs import SUFFIXES, OutputSpec, check_output, csv_writer, writing

    out = None if arguments.out == "-" else Path(arguments.out)
    if out is not None:
        if out.suffix not in SUFFIXES:
            raise UsageError(f"--out {out}: suffix not known; give {', '.join(SUFFIXES)}, or - for csv")
        if out.resolve() == Path(arguments.data).resolve():
            raise ConfigError(f"--out {out}: is the data; choose another name")
        if out.resolve().is_relative_to(arguments.model.resolve()):
            raise ConfigError(f"--out {out}: lies in the folder of the model; choose a place outside of it")
        check_output(out, replace=arguments.force)
    located = locate(arguments.model)
    model = located.model
    examples = open_examples(asked_of(arguments, labelled=False), located)
    dtype, names, started = label_dtype(model), decision_names(model), time.perf_counter()
    if out is None:
        write = csv_writer(sys.stdout.write, names)
        for block in predictions(model, examples):
            write(labels_of(model, block.decision), block.decision)
        return ""
    spec = OutputSpec(examples.n_rows, dtype, names, model.labels)
    with stopping.working(), writing(out, spec, replace=arguments.force) as write:
        for block in predictions(model, examples):
            write(labels_of(model, block.decision), block.decision)
        stopping.check()
    seconds = time.perf_counter() - started
    part = f", {examples.part}" if examples.part else ""
    return f"{out}: {examples.n_rows} rows of {examples.name}{part}; {seconds:.2f} s"


def label_dtype(model: Any) -> Any:
    """Return the dtype of predicted labels: float64 for regression, else what holds every label of the model."""
    import numpy as np

    dtype = np.asarray(model.labels, np.float64 if model.task == "regression" else None).dtype
    return dtype if dtype.kind in "biufU" else np.asarray([str(label) for label in model.labels]).dtype


def labels_of(model: Any, decision: Any) -> Any:
    """Return the labels (rows,) of decision values (rows, T): the model's own, or the values of a regression."""
    import numpy as np

    from features.targets import labels_from_decision

    found = labels_from_decision(decision, model.task)
    return found if model.task == "regression" else np.asarray(model.labels, label_dtype(model))[found]


def decision_names(model: Any) -> tuple[str, ...]:
    """Return the names of the columns of decision values: after the classes, or one."""
    return tuple(f"decision_{label}" for label in model.labels) if model.task == "multiclass" else ("decision",)


if __name__ == "__main__":
    sys.exit(main())
