"""The model as a folder: model.json, arrays.npz and a manifest; it loads without the rest of its run."""

from contextlib import suppress
from pathlib import Path

from pipeline.prediction.trained_model import ModelFormatError, SparseKernelModel
from storage.arrays import read_arrays, write_arrays
from storage.errors import CannotWriteError, StorageError
from storage.files import read_json, write_json
from storage.folder_layouts import MANIFEST_NAME, ModelLayout
from storage.folders import check_folder, new_folder, read_manifest

_PARTS = (MANIFEST_NAME, "model.json", "arrays.npz")


def save_model(folder: Path, model: SparseKernelModel, *, in_run: bool = False) -> None:
    """Commit a model folder, replacing a model there; equal models give equal bytes.

    in_run: the folder is the run's own. Raises CannotWriteError, elsewhere also where anything but a model is there.
    """
    model.check()
    replace = in_run or _is_replaced(folder)
    with new_folder(folder, kind="model", replace=replace) as aside:
        layout = ModelLayout(aside)
        write_json(layout.description, model.description())
        write_arrays(layout.arrays, model.arrays())


def _is_replaced(folder: Path) -> bool:
    """Return whether a model would replace another. Raises CannotWriteError where something else is there."""
    if not (folder.exists() or folder.is_symlink()):
        return False
    is_model = False
    with suppress(LookupError, TypeError, AttributeError, StorageError):
        named = all((folder / name).is_file() for name in _PARTS)
        is_model = not folder.is_symlink() and named and read_manifest(folder).kind == "model"
    if not is_model:
        raise CannotWriteError(f"{folder}: exists and is no model; choose another name")
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder).as_posix()
        if name not in _PARTS:
            raise CannotWriteError(
                f"{folder}: holds {name}, which is no part of a model; move it away, or choose another name"
            )
    return True


def load_model(folder: Path) -> SparseKernelModel:
    """Return the model in a folder after checking every byte against its manifest."""
    layout = ModelLayout(folder)
    check_folder(folder, "train again or restore it")  # before anything else is read
    description, arrays = read_json(layout.description), read_arrays(layout.arrays)
    try:
        return SparseKernelModel.from_parts(description, arrays)
    except ModelFormatError as error:
        raise ModelFormatError(f"model {folder}: {error}") from None
