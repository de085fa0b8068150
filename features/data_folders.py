"""Where the published data sets lie on this machine, as far as the names of files tell."""

import os
from dataclasses import dataclass
from pathlib import Path

from features.downloads import cache_folder
from features.published import PUBLISHED, folder_with


@dataclass(frozen=True)
class DataFolder:
    """The folder of a data set. `missing`: the names of its files that the folder lacks.

    source is data-dir, SLKL_DATA_DIR or cache.
    """

    name: str
    folder: Path
    source: str
    missing: tuple[str, ...]


def locate(name: str, data_dir: str | None) -> DataFolder | None:
    """Return where training would find a published data set without a download, None where it is not here.

    Reads the names of files only.
    """
    named = os.environ.get("SLKL_DATA_DIR")
    places: list[tuple[str | Path, str]] = [(data_dir, "data-dir")] if data_dir else []
    if not data_dir:
        places = [(named, "SLKL_DATA_DIR")] if named else []
        places.append((cache_folder(name), "cache"))
    for place, source in places:
        folder = folder_with(name, place)
        if folder is not None:
            missing = tuple(file for file in PUBLISHED[name].files if not (folder / file).is_file())
            return DataFolder(name, folder, source, missing)
    return None
