"""Stage 2: which training points are candidates, at which kernel widths, and their features in one small file."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.parsers import learns_scales
from pipeline.config.train_config import what_needs_held_out_rows
from pipeline.datasets.candidate_list import read_center_list
from pipeline.datasets.features_on_the_fly import open_features
from pipeline.errors import ConfigMismatchError, InvalidDataError
from pipeline.stages import earlier_run
from pipeline.stages.choose_bandwidth import choose_bandwidth
from pipeline.stages.learn_feature_scales import learn_feature_scales
from pipeline.stages.run_state import CENTERS, Run
from pipeline.stages.target_facts import are_drawn_by_keys, check_targets, find_target_facts
from storage.arrays import write_arrays
from storage.folder_layouts import MANIFEST_NAME
from storage.folders import check_folder


def draw_rows(n_train: int, count: int | str, seed: int) -> np.ndarray:
    """Return the training rows of the candidates, i8, in the order drawn.

    Drawn without replacement: the first k of a larger draw are the draw of size k. `all` gives every row in order.
    """
    if count == "all":
        return np.arange(n_train)
    return np.random.default_rng([seed, 1]).permutation(n_train)[: int(count)]


def draw_candidates(run: Run) -> None:
    """Draw the centers, learn scales and find kernel widths where the data decide; commit them with their features."""
    with run.stage(CENTERS) as cost:
        if (run.layout.centers / MANIFEST_NAME).exists():
            check_folder(run.layout.centers, remedy="delete the folder and resume: they are drawn again, the same")
            _check_version(run)
            return
        cost.items = 1
        if run.config.data.add_rows is not None:
            check_targets(run)
            earlier_run.take_candidates(run)
            return
        index = _candidates(run)
        facts = find_target_facts(run)
        if learns_scales(run.config.kernel.scale):
            learn_feature_scales(run, index, facts)
        arrays: dict[str, NDArray[Any]] = {"index": index, **choose_bandwidth(run, index, facts), **facts.arrays()}
        if run.config.data.centre_targets:
            arrays["target_mean"] = np.array(facts.mean)
        # Where their Gram would not fit, the candidates may be all rows: tasks take what they need of them.
        if (run.config.centers.working_set or 0) >= run.n_candidates and run.preselection is None:
            arrays["X"] = open_features(run.features).take(index)
        write_arrays(run.layout.centers, arrays)


def _check_version(run: Run) -> None:
    """Raise ConfigMismatchError for a run whose held-out rows an earlier version has drawn by their places."""
    asked = what_needs_held_out_rows(run.config)
    if asked is not None and not are_drawn_by_keys(run.layout) and not run.layout.report.exists():
        raise ConfigMismatchError(
            f"{run.layout.root}: an earlier version began this run and held out other rows, by which {asked} chooses; "
            "train anew in another folder"
        )


def _candidates(run: Run) -> NDArray[np.int64]:
    centers = run.config.centers
    assert centers.count is not None  # the plan has filled it in
    if centers.list is None:
        return draw_rows(run.shape.n_train, centers.count, run.config.seed)
    listed = read_center_list(centers.list, run.shape.n_train)
    if len(listed) != centers.count:
        raise InvalidDataError(
            f"--center-list {centers.list}: lists {len(listed)} rows, {centers.count} when the run was started; "
            "restore it, or start a new run"
        )
    return listed
