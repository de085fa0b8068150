"""`python -m pipeline.evaluate RUN|MODEL [DATA]`: the error of a model on labelled data, as a table or as JSON."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from features.words import counted
from pipeline.config.command_line import add_data_options, command_parser
from pipeline.config.settings import worded
from pipeline.reporting.run_facts import (
    class_lines,
    coverage_words,
    missed_words,
    probability_words,
    ranking_words,
    value_words,
)
from pipeline.runtime import stopping
from pipeline.runtime.console import answered

MOST_SHOWN_CLASSES = 20  # A wider confusion matrix fits no screen.


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser(
        "evaluate",
        "Test error, confusion matrix, recall and precision of classes, ROC AUC; mean squared error of a regression.",
        "Without DATA: the test part of the run's own data. Exit codes: 0 done, 2 usage, 65 bad data or a "
        "damaged model, 66 missing input, 69 unavailable, 75 stopped, 78 the data of the run have changed.",
    )
    parser.add_argument("model", type=Path, metavar="RUN|MODEL", help="folder of a run, or model folder")
    parser.add_argument("data", nargs="*", metavar="DATA", help="labelled data, as pipeline.predict takes them")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, for programs")
    add_data_options(parser)

    def work() -> None:
        arguments = parser.parse_args(argv)
        result = _evaluate(arguments)
        print(json.dumps(result, indent=2) if arguments.json else "\n".join(table(result)))
        for line in result["warnings"]:
            print(f"warning: {line}", file=sys.stderr)

    return answered(work)


@stopping.listening()
def _evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    # Bring numpy and numba, which --help does without.
    from pipeline.prediction.predictor import ExampleRequest, load_predictor, open_examples, score_examples, warnings_of

    predictor = load_predictor(arguments.model)
    first, *more = arguments.data or [None]
    asked = ExampleRequest(first, True, tuple(more), arguments.part, arguments.target, dict(arguments.set))
    examples, model = open_examples(asked, predictor), predictor.model
    started = time.perf_counter()
    numbers, n_far = score_examples(model, examples)
    seconds = time.perf_counter() - started
    config, warnings = predictor.config, warnings_of(model, examples, n_far)
    if config is not None and config.data.class_weight is None and numbers["by_class"]:
        warnings += map(worded, missed_words(numbers["by_class"]))
    return {
        "model": str(arguments.model),
        "data": examples.name,
        "part": examples.part,
        "task": model.task,
        "n_centers": model.n_centers,
        "n_rows": examples.n_rows,
        **numbers,
        "labels": list(model.labels) or None,
        "weighted": any(piece.weights is not None for piece in examples.pieces),
        "n_far": n_far,
        "warnings": warnings,
        "seconds": seconds,
        "rows_per_second": examples.n_rows / seconds,
    }


def table(result: dict[str, Any]) -> list[str]:
    """Return the result as lines for people: the confusion matrix, the error, recall and precision of each class."""
    part = f", {result['part']}" if result["part"] else ""
    counts = f"{counted(result['n_rows'], 'row')}, {counted(result['n_centers'], 'center')}"
    weighted = ", errors by their weights" if result["weighted"] else ""
    lines = [f"{result['model']} on {result['data']}{part}: {counts}{weighted}"]
    if result["task"] == "regression":
        lines.append(f"mean squared error: {value_words(result)}")
    else:
        lines += _confusion_table(result["labels"], result["confusion"])
        lines.append(f"error: {100 * result['error_rate']:.2f} % ({result['n_errors']} of {result['n_rows']})")
        lines += [*class_lines(result, few=False), *ranking_words(result)]
        lines += [probability_words(result["probabilities"])] if result["probabilities"] else []
    lines += [coverage_words(result["coverage"], result["task"])] if result["coverage"] else []
    return [*lines, f"{result['seconds']:.2f} s, {result['rows_per_second']:.0f} rows/s"]


def _confusion_table(labels: list[object], confusion: list[list[int]]) -> list[str]:
    if len(labels) > MOST_SHOWN_CLASSES:
        return [f"(--json has the confusion matrix of the {len(labels)} classes)"]
    width = max(8, *(len(str(label)) + 1 for label in labels))
    column = max(width, *(len(str(count)) + 1 for row in confusion for count in row))
    lines = ["", f"{'truth':<{width}}" + "".join(f"{label!s:>{column}}" for label in labels) + "  predicted"]
    for label, row in zip(labels, confusion, strict=True):
        lines.append(f"{label!s:<{width}}" + "".join(f"{count:>{column}}" for count in row))
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main())
