"""`python -m pipeline.export RUN|MODEL`: a model as an ONNX file, which other programs and languages predict with."""

import sys
from collections.abc import Sequence
from pathlib import Path

from features.cell_text import printable
from features.errors import UnavailableError
from pipeline.config.command_line import command_parser
from pipeline.errors import ConfigError
from pipeline.runtime.console import answered

EPILOG = """\
In: "inputs" (rows, d) float64 of a table, as they stand in its file ("encoded" ones, in the order that is told, where
categories or missing cells become numbers before); of images "features" (rows, d) float32, which
SparseKernelModel.features_of makes of them: extracting them is no part of the graph. Out: "decision" (rows, outputs),
"label" (rows,), strings, int64 or, where a class is 2^63 or more, uint64, and, of a classifier with a temperature,
"probability" (rows, classes). Standard operators, opset 18.
Needs onnx: pip install onnx.
Exit codes: 0 done, 2 usage, 65 a damaged model, 66 no such model, 69 onnx is not installed, 73 cannot create."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; errors become one line on standard error."""
    parser = command_parser("export", "Write a trained model for other programs.", EPILOG)
    parser.add_argument("model", type=Path, metavar="RUN|MODEL", help="folder of a run, or model folder")
    parser.add_argument("--format", choices=("onnx",), default="onnx", help="of the file: onnx")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: NAME.onnx, here)")
    parser.add_argument("--force", action="store_true", help="replace FILE where it exists")

    def work() -> None:
        arguments = parser.parse_args(argv)
        print("\n".join(export(arguments.model, arguments.out, replace=arguments.force)))

    return answered(work)


def export(root: Path, out: Path | None, *, replace: bool = False) -> list[str]:
    """Write the model of a run, or of a model folder, as an ONNX file; return lines for people."""
    # Bring numpy and numba, which --help does without.
    from pipeline.prediction.predictor import load_predictor
    from storage.files import write_file
    from storage.output_files import check_output

    path = out or Path(f"{root.resolve().name}.onnx")
    if path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"--out {path}: lies in the folder of the model; choose a place outside of it")
    check_output(path, replace=replace)
    model = load_predictor(root).model
    try:
        from pipeline.prediction.onnx_graph import to_onnx
    except ImportError:
        raise UnavailableError("onnx is not installed; pip install onnx") from None
    write_file(path, to_onnx(model).SerializeToString(deterministic=True), replace=replace)
    columns = model.table_columns
    if columns is None or columns.encoding is None:
        return [str(path)]
    names = ", ".join(map(printable, columns.input_names))
    return [str(path), f"takes cells that are encoded, as numbers: {names}"]


if __name__ == "__main__":
    sys.exit(main())
