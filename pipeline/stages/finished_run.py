"""A finished run: its report, and what it keeps of its statistics, its largest files.

It keeps all, those of the model's centers, which `pipeline.resize` reads, or none.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.train_config import TrainConfig
from pipeline.errors import ConfigError
from pipeline.runtime import run_folder
from pipeline.runtime.run_folder import finished_report
from pipeline.stages import final_weights
from pipeline.stages.accumulate_statistics import COLUMNS, load_statistics, statistics_from_arrays, statistics_to_arrays
from pipeline.stages.greedy_selection import AT_ONCE, FINALISTS, StatisticsNames, load_chosen
from pipeline.stages.out_of_core.working_set_loop import PricingRule
from pipeline.stages.workspace import names_of
from storage.arrays import read_arrays, write_arrays
from storage.errors import ANEW, CorruptDataError
from storage.files import aside_of
from storage.folder_layouts import MANIFEST_NAME, RunLayout
from storage.folders import check_folder, read_manifest, remove_folder, remove_stale, verify
from storage.lock import FolderLock

MEMBERS = "rows"  # the array of statistics of a round that names its candidates


def finish(layout: RunLayout, config: TrainConfig, report: dict[str, Any]) -> None:
    """Commit the report of a run whose stages are done, and drop the statistics that it is not to keep.

    The run's lock must be held. What goes is first named nowhere: a kill leaves a whole run. Raises CorruptDataError,
    CannotWriteError.
    """
    names = last_names(layout)
    dropped = []
    for folder in excess(layout, config):
        if config.resources.keep_statistics == "centers" and names is not None and folder.name in names:
            _cut(layout, config, names, folder.name)
        else:
            dropped.append(folder)
    run_folder.finish(layout, report, without=dropped)
    for folder in dropped:
        remove_folder(folder)


def excess(layout: RunLayout, config: TrainConfig) -> list[Path]:
    """Return the folders of statistics that a finished run is not to keep, or not whole."""
    keep = config.resources.keep_statistics
    if keep == "all":
        return []
    names = last_names(layout) if keep == "centers" else None
    return [folder for folder in _folders(layout) if folder.name not in (names or ()) or not _is_cut(folder)]


def last_names(layout: RunLayout) -> StatisticsNames | None:
    """Return the names of the statistics of a run's last working set; None where it has none of held-out rows."""
    folders = [folder.name for folder in _folders(layout)]
    for names in (AT_ONCE, FINALISTS):
        if names.everything in folders:
            return names
    return None


def note_on_statistics(layout: RunLayout) -> str | None:
    """Return a note on the statistics that a finished run no longer has; None where all are there."""
    folders = _folders(layout)
    if not folders:
        return "none are kept (--keep-statistics): resize cannot cut this run"
    if any(_is_cut(folder) for folder in folders):
        return "those of the model's centers alone are kept (--keep-statistics centers)"
    return None


def names_to_cut(layout: RunLayout, config: TrainConfig) -> StatisticsNames:
    """Return the names of the statistics that fewer centers are chosen from.

    Raises ConfigError where the run keeps none of held-out rows, or a kill while they were cut has left some aside.
    """
    for path in layout.statistics.glob(".*"):
        aside = aside_of(path.name)
        if aside is not None and aside.replaced and not path.with_name(aside.name).exists():
            raise ConfigError(f"{path}: a kill left these statistics aside; resume the run, and they come back")
    names = last_names(layout)
    if names is not None and load_statistics(layout, names.held_out, np.empty(0, np.int64)).weight_sum > 0:
        return names
    in_rounds = layout.markers(PricingRule.markers).exists() and config.solver.select == "none"
    if _folders(layout) or in_rounds:
        why = (
            "keeps no statistics of held-out rows, which the weights of fewer centers need; train with "
            "statistics.hold_out above 0 and --select greedy:K, or with fewer --centers"
        )
    else:
        why = (
            "its statistics were dropped (--keep-statistics none), and fewer centers need them; train again with "
            "--keep-statistics centers, or straight to that size with --select greedy:K"
        )
    raise ConfigError(f"{layout.root}: {why}")


def _folders(layout: RunLayout) -> list[Path]:
    return sorted(path.parent for path in layout.statistics.glob(f"[!.]*/{MANIFEST_NAME}"))


def _is_cut(folder: Path) -> bool:
    return f"{COLUMNS}.npy" in read_manifest(folder).files


def _cut(layout: RunLayout, config: TrainConfig, names: StatisticsNames, name: str) -> None:
    """Keep the columns that `resize` reads, in rising order, of the statistics of a name."""
    if config.solver.select == "none":
        columns = np.unique(final_weights.load(layout).active)
    else:
        chosen = load_chosen(layout, names)
        columns = np.union1d(chosen.chosen, chosen.tried)
    folder = layout.statistics_file(name)
    check_folder(folder, remedy=ANEW)  # what is cut has digests of its own
    stored = read_arrays(folder, mapped=True)
    members = {MEMBERS: np.array(stored[MEMBERS])} if MEMBERS in stored else {}
    kept = statistics_to_arrays(statistics_from_arrays(stored, columns, where=str(folder)))
    write_arrays(folder, kept | {COLUMNS: columns} | members)


def column_names(
    layout: RunLayout, names: StatisticsNames, columns: NDArray[np.int64], n_train: int
) -> NDArray[np.int64] | None:
    """Return the candidates, by name, of some columns of the statistics; None where a round's are no longer known."""
    if names == AT_ONCE:
        return names_of(read_arrays(layout.centers, mapped=True), n_train)[columns]
    members = read_arrays(layout.statistics_file(names.everything), mapped=True).get(MEMBERS)
    return None if members is None else np.array(members[columns])


def report_of(layout: RunLayout) -> dict[str, Any] | None:
    """Return the report of a finished run, None where there is something left to do.

    Raises CorruptDataError where its model or its report is damaged.
    """
    if not layout.report.exists():
        return None
    problems = verify(layout.model, contents=True)
    if problems:
        raise CorruptDataError(
            f"model {layout.model}: {problems[0]}; restore it, or delete the folder model and report.json and "
            "resume: they are made again"
        )
    return finished_report(layout)


def drop_statistics(root: Path, config: TrainConfig, report: dict[str, Any]) -> None:
    """Drop the statistics of a finished run that it is no longer to keep, after what a kill amid that has left aside.

    Raises LockedError, CannotWriteError.
    """
    layout = RunLayout(root.absolute())
    aside = layout.statistics.is_dir() and any(aside_of(path.name) for path in layout.statistics.iterdir())
    if aside or excess(layout, config):
        with FolderLock(layout.lock, "dropping statistics"):
            remove_stale(layout.statistics)
            finish(layout, config, report)
