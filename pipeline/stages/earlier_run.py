"""What a run that adds rows (`--add-rows`) takes of the finished run before it, whose folder it leaves as it is.

Candidates with their features, widths and scales, the mean of targets, the weights to start from and which statistics
were those of its rows are committed at the start. The statistics are read where they are, once.
"""

from pathlib import Path

import numpy as np

from pipeline.config.parsers import learns_scales
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.runtime.stored_arrays import Arrays
from pipeline.stages import final_weights
from pipeline.stages.accumulate_statistics import COLUMNS, FIT, HELD_OUT, statistics_from_arrays
from pipeline.stages.choose_kernel import SCALES
from pipeline.stages.grow_candidates import RIDGES
from pipeline.stages.target_facts import facts_of, with_largest
from pipeline.stages.workspace import Workspace
from storage.arrays import read_arrays
from storage.errors import CorruptDataError, MissingDataError
from storage.folder_layouts import MANIFEST_NAME, RunLayout
from storage.folders import digest_file, read_manifest, verify

NAME = "init-model.npz"


def layout_of(path: str | None) -> RunLayout:
    """Return the layout of the run that `--init-from` names."""
    assert path is not None  # the plan has checked it
    return RunLayout(Path(path))


def take_candidates(work: Workspace) -> Arrays:
    """Commit what a run takes of an earlier one; return its candidates. Raises CorruptDataError, MissingDataError."""
    earlier = layout_of(work.config.solver.init_from)
    final = final_weights.load(earlier)
    if learns_scales(work.config.kernel.scale):
        work.commit(SCALES, read_arrays(earlier.feature_scales))
    start: Arrays = {"active": final.active, "weights": final.penalised_weights}
    work.commit(NAME, start | {"statistics": np.frombuffer(statistics_digest(earlier).encode(), np.uint8)})
    candidates = read_arrays(earlier.centers)
    candidates.pop(RIDGES, None)  # of its rows
    return candidates | with_largest(work, facts_of(candidates)).arrays()


def load(work: Workspace) -> Arrays:
    """Return columns "active" (a,) i8 and "weights" (a, T) f8 that the solves start from; "statistics" (128,) u1.

    These are the digests of the manifests of FIT and HELD_OUT in hexadecimal; (0,) where they were not there whole.
    """
    return work.stored(NAME).read()


def statistics_digest(earlier: RunLayout) -> str:
    """Return the digests of a run's statistics of fit and held-out rows; empty where it has not kept them whole."""
    digests = ""
    for folder in map(earlier.statistics_file, (FIT, HELD_OUT)):
        try:
            if f"{COLUMNS}.npy" in read_manifest(folder).files:
                return ""
            digests += digest_file(folder / MANIFEST_NAME).sha256
        except (CorruptDataError, MissingDataError):
            return ""
    return digests


def kept_statistics(work: Workspace) -> dict[str, GramStatistics]:
    """Return the statistics of the run before, by part; none where they are not there whole.

    Warns where they were there when this run began.
    """
    earlier = layout_of(work.config.solver.init_from)
    taken, now = load(work)["statistics"].tobytes().decode(), statistics_digest(earlier)
    folders = {part: earlier.statistics_file(part) for part in (FIT, HELD_OUT)}
    if now and now == taken and not any(verify(folder, contents=True) for folder in folders.values()):
        return {part: statistics_from_arrays(read_arrays(folder, mapped=True)) for part, folder in folders.items()}
    if taken:
        work.warn(f"{earlier.root}: its statistics are no longer there whole; all rows are passed over again")
    return {}
