"""`python -m pipeline.evaluate RUN|MODEL [DATA]`: the error of a model on labelled data, as a table or as JSON."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # numpy is imported late, so that --help answers at once
    from numpy.typing import NDArray

    from pipeline.prediction import Predicted

MOST_SHOWN_CLASSES = 20  # a wider confusion matrix fits no screen


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    from pipeline.predict import add_data_options

    parser = argparse.ArgumentParser(
        prog="python -m pipeline.evaluate",
        description="Test error, confusion matrix and errors of each class; mean squared error for a regression.",
        epilog="Without DATA: the test part of the run's own data. Exit codes: 0 done, 2 usage, 65 bad data or a "
        "damaged model, 66 missing input, 69 unavailable, 75 stopped, 78 the data of the run have changed.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="RUN|MODEL", help="folder of a run, or model folder")
    parser.add_argument("data", nargs="?", metavar="DATA", help="labelled data, as pipeline.predict takes them")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, for programs")
    add_data_options(parser)
    arguments = parser.parse_args(argv)
    from pipeline import stopping
    from pipeline.errors import answered, any_text_goes

    def tell() -> None:
        with stopping.listening():
            found = _evaluate(arguments)
        any_text_goes(sys.stdout)
        print(json.dumps(found, indent=2) if arguments.json else "\n".join(table(found)))

    return answered(tell)


def _evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is known of the model on the data; what does not apply is None."""
    from pipeline.predict import asked_of
    from pipeline.prediction import locate, open_examples, predictions

    located = locate(arguments.model)
    examples, model = open_examples(asked_of(arguments, labelled=True), located), located.model
    score: ClassScore | ValueScore = ValueScore() if model.task == "regression" else ClassScore(model.labels)
    started = time.perf_counter()
    for block in predictions(model, examples):
        score.add(block)
    seconds = time.perf_counter() - started
    return {
        "model": str(arguments.model),
        "data": examples.name,
        "part": examples.part,
        "task": model.task,
        "n_centers": model.n_centers,
        "n_rows": examples.n_rows,
        **dict.fromkeys(("error_rate", "n_errors", "labels", "confusion", "mse", "mae", "r2")),
        **score.numbers(),
        "seconds": seconds,
        "rows_per_second": examples.n_rows / seconds,
    }


@dataclass
class ClassScore:
    """The confusion matrix [truth][predicted] of the rows seen, in the order of the labels."""

    labels: tuple[Any, ...]
    confusion: Any = field(init=False)

    def __post_init__(self) -> None:
        import numpy as np

        self.confusion = np.zeros((len(self.labels), len(self.labels)), np.int64)

    def add(self, block: "Predicted") -> None:
        """Count a block. Raises DataError naming a row whose label the model does not know."""
        import numpy as np

        from features.targets import labels_from_decision

        truth = class_index(block, self.labels)
        task = "multiclass" if block.decision.shape[1] > 1 else "binary"
        np.add.at(self.confusion, (truth, labels_from_decision(block.decision, task)), 1)

    def numbers(self) -> dict[str, Any]:
        """Return errors, their share, labels and confusion matrix."""
        n_rows, correct = int(self.confusion.sum()), int(self.confusion.trace())
        return {
            "error_rate": (n_rows - correct) / n_rows,
            "n_errors": n_rows - correct,
            "labels": list(self.labels),
            "confusion": self.confusion.tolist(),
        }


@dataclass
class ValueScore:
    """Sums of the errors of the rows seen, and of their values, merged block by block."""

    n_rows: int = 0
    squared: float = 0.0
    absolute: float = 0.0
    mean: float = 0.0
    spread: float = 0.0  # Σ (y - mean)²

    def add(self, block: "Predicted") -> None:
        """Count a block. Raises DataError naming a row whose value is no finite number."""
        import numpy as np

        y = target_values(block)
        errors = block.decision[:, 0] - y
        self.squared += float(errors @ errors)
        self.absolute += float(np.abs(errors).sum())
        n, step = self.n_rows + len(y), float(y.mean()) - self.mean
        self.spread += float(((y - y.mean()) ** 2).sum()) + step**2 * self.n_rows * len(y) / n
        self.mean += step * len(y) / n
        self.n_rows = n

    def numbers(self) -> dict[str, Any]:
        """Return mean squared and absolute error, and R², which is None where all values are equal."""
        r2 = 1 - self.squared / self.spread if self.spread > 0 else None
        return {"mse": self.squared / self.n_rows, "mae": self.absolute / self.n_rows, "r2": r2}


def class_index(block: "Predicted", known_labels: tuple[Any, ...]) -> "NDArray[Any]":
    """Return the labels that the data have as indices into the model's, (rows,) i8; numbers may be written as text.

    Raises DataError naming the first row with a label that the model does not know.
    """
    import numpy as np

    from features.errors import DataError

    assert block.labels is not None
    known = {label: k for k, label in enumerate(known_labels)}
    values, inverse = np.unique(block.labels, return_inverse=True)
    codes = np.array([known.get(value, known.get(_number(value), -1)) for value in values.tolist()], np.int64)
    index = codes[inverse]
    unknown = np.flatnonzero(index < 0)
    if unknown.size:
        label, row = block.labels[unknown[0]].item(), block.piece_start + int(unknown[0])
        shown = ", ".join(repr(one) for one in known_labels[:12]) + (", ..." if len(known_labels) > 12 else "")
        raise DataError(f"{block.name}: row {row} has label {label!r}, which the model does not know; it knows {shown}")
    return index


def target_values(block: "Predicted") -> "NDArray[Any]":
    """Return the values that the data have, (rows,) f8. Raises DataError naming a row that is no finite number."""
    import numpy as np

    from features.errors import DataError

    assert block.labels is not None
    text = block.labels.dtype.kind == "U"
    values = np.array([_number(label) for label in block.labels.tolist()] if text else block.labels, np.float64)
    bad = np.flatnonzero(~np.isfinite(values))  # None, which stands for text that is no number, has become nan
    if bad.size:
        label, row = block.labels[bad[0]].item(), block.piece_start + int(bad[0])
        raise DataError(f"{block.name}: row {row} has the target {label!r}; a finite number is needed")
    return values


def _number(value: Any) -> int | float | None:
    """Return what a text reads as, None where it is no number; a whole one stays exact."""
    for kind in (int, float):
        try:
            number: int | float = kind(value)
            return number
        except (ValueError, OverflowError):
            continue
    return None


def table(found: dict[str, Any]) -> list[str]:
    """Return the result as lines for people: the error, the errors of each class, the confusion matrix."""
    part = f", {found['part']}" if found["part"] else ""
    lines = [f"{found['model']} on {found['data']}{part}: {found['n_rows']} rows, {found['n_centers']} centers"]
    if found["task"] == "regression":
        r2 = "" if found["r2"] is None else f", R2 {found['r2']:.4f}"
        lines.append(f"mean squared error: {found['mse']:.6g}, mean absolute error {found['mae']:.6g}{r2}")
    else:
        lines += _class_table(found["labels"], found["confusion"])
        lines.append(f"error: {100 * found['error_rate']:.2f} % ({found['n_errors']} of {found['n_rows']})")
    return [*lines, f"{found['seconds']:.2f} s, {found['rows_per_second']:.0f} rows/s"]


def _class_table(labels: list[Any], confusion: list[list[int]]) -> list[str]:
    width = max(8, *(len(str(label)) + 1 for label in labels))
    lines = ["", f"{'class':<{width}}{'rows':>9}{'errors':>9}{'error, %':>10}  most often taken for"]
    for k, row in enumerate(confusion):
        n_rows, wrong = sum(row), sum(row) - row[k]
        share = f"{100 * wrong / n_rows:.2f}" if n_rows else "-"
        other = max((j for j in range(len(row)) if j != k), key=lambda j: row[j])
        taken = f"  {labels[other]} ({row[other]})" if row[other] else ""
        lines.append(f"{labels[k]!s:<{width}}{n_rows:>9}{wrong:>9}{share:>10}{taken}")
    if len(labels) > MOST_SHOWN_CLASSES:
        return [*lines, f"(--json has the confusion matrix of the {len(labels)} classes)", ""]
    column = max(width, *(len(str(count)) + 1 for row in confusion for count in row))
    lines += ["", f"{'truth':<{width}}" + "".join(f"{label!s:>{column}}" for label in labels) + "  predicted"]
    for label, row in zip(labels, confusion, strict=True):
        lines.append(f"{label!s:<{width}}" + "".join(f"{count:>{column}}" for count in row))
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main())
