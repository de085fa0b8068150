"""The model as a folder: model.json, arrays.npz and a manifest; it loads without the rest of its run."""

from pathlib import Path

from pipeline.prediction.trained_model import ModelFormatError, SparseKernelModel
from storage.atomic_writes import new_folder, read_arrays, write_arrays
from storage.errors import CorruptDataError
from storage.folder_layouts import ModelLayout
from storage.manifest import read, verify
from storage.records import read_json, write_json
from storage.remedies import remedy_at


def save_model(folder: Path, model: SparseKernelModel) -> None:
    """Commit a model folder; equal models give equal bytes. Raises CannotWriteError."""
    model.check()
    with new_folder(folder, kind="model") as aside:
        layout = ModelLayout(aside)
        write_json(layout.description, model.description())
        write_arrays(layout.arrays, model.arrays())


def load_model(folder: Path) -> SparseKernelModel:
    """Return the model in a folder after checking every byte against its manifest.

    Raises CorruptDataError naming the damaged file, MissingDataError where there is none, ModelFormatError where the
    parts do not fit together or were written by another version of this software.
    """
    layout = ModelLayout(folder)
    problems = verify(folder, contents=True)  # before anything else is read
    if not problems:
        unnamed = {layout.description.name, layout.arrays.name} - set(read(folder).files)
        problems = [f"{name}: not in its manifest" for name in sorted(unnamed)]
    if problems:
        raise CorruptDataError(f"model {folder} is damaged: {problems[0]}; {remedy_at(folder)}", file=str(folder))
    description, arrays = read_json(layout.description), read_arrays(layout.arrays)
    try:
        return SparseKernelModel.from_parts(description, arrays)
    except ModelFormatError as error:
        raise ModelFormatError(f"model {folder}: {error}") from None
