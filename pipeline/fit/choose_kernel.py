"""The kernel of a fit, its width and the scales of the features: as asked for, or chosen by held-out rows of a sample.

The sample is committed; each kernel climbs each rung of the ladder (`solvers.ladder`) in a task of its own.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_folds
from features.words import counted
from pipeline.datasets.feature_rows import ScaledFeatures, open_features
from pipeline.errors import InvalidDataError
from pipeline.fit.filled_settings import count_candidates, is_chosen, kernels_of, last_rung
from pipeline.fit.grow_candidates import RIDGE_ERRORS
from pipeline.fit.row_blocks import Needs, RunSize
from pipeline.fit.target_facts import Labels, TargetFacts
from pipeline.fit.workspace import FOLD_ROWS, Workspace
from pipeline.kernels.kernel_functions import DIAGONAL, MEDIAN_POINTS, METRIC, Kernel, kernel_named, scaled
from pipeline.runtime import progress, stopping
from pipeline.solvers.candidate_budget import DEFAULT_BUDGET, FOLDED_ROWS, OPERATIONS_A_SECOND, SHARE_OF_TRIALS
from pipeline.solvers.kernel_trials import (
    PLAIN,
    Sample,
    Trial,
    choose,
    constants_of_folds,
    kinds_of,
    least_gain,
    trial_bytes,
    try_kernel,
)
from pipeline.solvers.ladder import LARGER, RUNGS, SAMPLE_ROWS, Rung, Search, surviving
from pipeline.work.store import TaskCheckpoints
from storage.arrays import Arrays, Stored, as_dataclass, as_json, from_json

SCALES, PASS = "scales/learned.npz", "kernels"
# A sample holds out the rows that are not fitted anyway, within these numbers, and no more than this share.
LEAST_HELD_OUT, LARGEST_SHARE, MOST_HELD_OUT = 1500, 1 / 3, 3000
FIRST_WIDTH = 0.5  # The search for a width begins at this multiple of the typical one.
CONSTANT_RIDGE = 1e100  # It makes weights 0, to the last digit of any prediction.
CONSTANT_WORDS = "a constant is predicted: by folds, no kernel tells more than that"
TrialRecord = dict[str, Any]  # A trial in JSON.
FIELDS = ("n_centers", "sigma2", "error", "ridge", "typical")  # The record of a trial has these as they are.
WORDS = {PLAIN: "features as they are", DIAGONAL: "a scale for each feature", METRIC: "a metric"}


def choose_kernel(work: Workspace, index: NDArray[np.int64], labels: Labels, facts: TargetFacts) -> Arrays:
    """Return the `choice`, as JSON, to be committed with the candidates at training rows `index`.

    Its `kernel` is a name, `sigma2` the width. Where something was chosen it also has the `scales`, one of SCALE_KINDS,
    the `ridge` and `n_centers` of the trial, the `operations` of all trials, and all that was `tried`. Scales of the
    features are committed under SCALES.
    """
    asked = work.config.kernel
    if is_chosen(asked) or facts.by_folds:
        return _climb(work, index, labels, facts)
    (kernel,), sigma2 = kernels_of(asked), asked.sigma2
    if isinstance(sigma2, str):  # It is the median.
        sigma2 = kernel.default_sigma2(open_features(work.features).X[_drawn(work, index)[:MEDIAN_POINTS]])
    return {"choice": as_json({"kernel": kernel.name, "sigma2": float(sigma2 or 0.0)})}


def _climb(work: Workspace, index: NDArray[np.int64], labels: Labels, facts: TargetFacts) -> Arrays:
    """Climb the ladder, rung by rung; return the choice. Raises InvalidDataError where no width gives a usable Gram."""
    asked, records, operations = work.config.kernel, list[TrialRecord](), 0.0
    rungs = rungs_of(last_rung(work.config, work.shape.n_train, len(index)), len(index) if facts.by_folds else 0)
    points = _drawn(work, index)[: max(MEDIAN_POINTS, rungs[-1].n_centers)]
    stored = f"passes/{PASS}/sample.npz"
    sample = as_dataclass(work.store.once(stored, lambda: read_sample(work, points, labels, facts)), Sample)
    climbing = {kernel.name: [_first(kernel, sample, asked.sigma2)] for kernel in kernels_of(asked)}
    budget = SHARE_OF_TRIALS * (work.config.centers.budget or DEFAULT_BUDGET) * OPERATIONS_A_SECOND
    scale = asked.scale if asked.learns_scales else None
    for rung in rungs:
        left = (budget - operations) / len(climbing)
        searching = partial(search_rung, work.store.stored(stored), rung, scale, left, has_width=asked.sigma2 != "auto")
        items = {f"passes/{PASS}/{rung.n_centers}-{name}.npz": trials for name, trials in climbing.items()}
        words = f"trying {counted(len(items), 'kernel')} on {rung.n_centers} candidates"
        found = work.runner.compute(searching, items, unit="", words=words)
        tried = {name: _trials(arrays) for name, arrays in zip(climbing, found, strict=True)}
        records += [record for arrays in found for record in from_json(arrays["tried"])]
        operations += sum(float(arrays["operations"]) for arrays in found)
        climbing = surviving(tried)
        if operations > budget and not facts.by_folds:
            break
    best = choose([trial for trials in tried.values() for trial in trials], sample.n_held_out)
    if not np.isfinite(best.error):
        best.kernel(scaled(sample.points, best.scales), best.sigma2)  # The kernel may say why.
        raise InvalidDataError(
            f"`kernel.sigma2={asked.sigma2}`: no width gives a Gram that least squares can use; give a number"
        )
    constant, error_of_constant = constants_of_folds(sample) if facts.by_folds else (None, np.inf)
    is_constant = best.error > (1 - least_gain(sample.n_held_out)) * error_of_constant
    if scale:
        work.store.put(SCALES, {"scales": best.scales})
    error = "log loss" if sample.of_classes else "mean squared error"
    work.events.log(
        CONSTANT_WORDS
        if is_constant
        else f"chosen: {best.kernel.name} kernel, {WORDS[best.kind]}, sigma2 {best.sigma2:g}; the held-out {error} is "
        f"{best.error:.6g} on {best.n_centers} candidates, fitted to a sample of the rows"
    )
    choice = {"choice": as_json(_record(best) | {"operations": operations, "tried": records, "constant": is_constant})}
    if not facts.by_folds:
        return choice
    last = try_kernel(sample, best)
    if is_constant:
        last = replace(last, held_out=constant, ridges=np.array([[CONSTANT_RIDGE, error_of_constant]]))
    return choice | _of_folds(sample, last)


def _first(kernel: type[Kernel], sample: Sample, sigma2: float | str | None) -> Trial:
    """Return the first trial of the search of a kernel: features as they are, at the width if one is given."""
    ones = np.ones(sample.points.shape[1], np.float32)
    typical = kernel.default_sigma2(sample.points[:MEDIAN_POINTS])
    named = {"auto": FIRST_WIDTH * typical, "median": typical}
    width = named[sigma2] if isinstance(sigma2, str) else float(sigma2 or 0)
    return Trial(kernel, PLAIN, ones, width, 0, typical=typical)


def _of_folds(sample: Sample, found: Trial) -> Arrays:
    """Return the RIDGE_ERRORS of a fit by folds of all rows, and the FOLD_ROWS that calibrate it."""
    rows = sample.held_out
    assert found.ridges is not None
    assert found.held_out is not None
    assert rows.groups is not None
    truth = rows.truth if sample.of_classes else rows.targets[:, 0]
    calibrating = found.held_out, truth, rows.counts, rows.groups, np.array(sample.n_held_out)
    return {RIDGE_ERRORS: found.ridges} | dict(zip(FOLD_ROWS, calibrating, strict=True))


def folds_of(n_rows: int) -> int:
    """Return the number of folds for few rows."""
    return 5 if n_rows >= 100 else 10


def rungs_of(most: int, by_folds: int) -> list[Rung]:
    """Return the rungs up to `most` candidates, or up to all `by_folds` of them where folds choose the fit."""
    last = by_folds or most
    rungs = [rung for rung in RUNGS if 1.5 * rung.n_centers <= last]
    if not rungs and last > 1 and not by_folds:  # Folds have few candidates, which cost little; a draw decides much.
        rungs = [Rung(last // 2, SAMPLE_ROWS)]
    return [*rungs, Rung(last, SAMPLE_ROWS, begins=not rungs or (not by_folds and last <= RUNGS[-2].n_centers))]


def candidates_needs(run: RunSize) -> Needs:
    """Return the needs of candidates: their features while they are stored, or the sample and trials of kernels."""
    config, shape = run.config, run.shape
    n_candidates = count_candidates(config, shape.n_train)
    few = n_candidates < FOLDED_ROWS  # Candidates are no more than the different rows.
    drawn = 4 * run.n_columns * shape.n_features
    needs = Needs(2**23 + (2 * drawn if run.n_columns >= n_candidates else 0), drawn)
    if not (is_chosen(config.kernel) or (config.solver.is_least_squares and shape.n_train < FOLDED_ROWS)):
        return needs
    rows = min(SAMPLE_ROWS if few else SAMPLE_ROWS + SAMPLE_ROWS // 2, shape.n_train)
    last = last_rung(config, shape.n_train, n_candidates)
    most = max(rung.n_centers * (LARGER if rung.begins else 1) for rung in rungs_of(last, 0))
    trial = trial_bytes(rows, min(most, n_candidates), shape.n_features, by_folds=few)
    trials = 2 * 4 * rows * shape.n_features + min(run.workers.threads, len(kernels_of(config.kernel))) * trial
    return needs._replace(memory=max(needs.memory, 2**23 + trials))


def _drawn(work: Workspace, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the candidates in an order drawn by the seed; the rows may be sorted by class."""
    return np.random.default_rng([work.config.seed, 7]).permutation(np.sort(index))


def read_sample(work: Workspace, points: NDArray[np.int64], labels: Labels, facts: TargetFacts) -> Arrays:
    """Return the sample that kernels are tried on: SAMPLE_ROWS to fit, and at most half as many that are held out.

    Rows that the fit holds out are held out here. If rows are few, more are; if they are very few, all are, in folds.
    """
    n, seed, features = work.shape.n_train, work.config.seed, work.features
    store = open_features(features.features if isinstance(features, ScaledFeatures) else features)
    spared = min(max(n - SAMPLE_ROWS, LEAST_HELD_OUT), MOST_HELD_OUT)
    share = max(work.config.statistics.hold_out, min(LARGEST_SHARE, spared / n))
    limit = labels.held_out_limit(seed, share) if facts.held_out_limit else 0.0
    held_out = labels.held_out(seed, max(limit, facts.held_out_limit))
    folds = np.where(held_out, 0, -1)
    if facts.few_rows:
        classes = np.zeros(n, np.int64) if work.shape.task == "regression" else labels.y
        folds = draw_folds(seed, folds_of(n), labels.groups, classes)
    elif held_out.all() or not held_out.any():
        raise InvalidDataError(
            f"{int(held_out.sum())} of the {n} rows that kernels are tried on are held out; give "
            "`kernel.name`, `kernel.sigma2` as a number and `kernel.scale=none`",
            "`statistics.hold_out=0.1`",
        )
    order = np.random.default_rng([seed, 6]).permutation(n)
    fit, others = (order[(folds[order] >= 0) == part] for part in (False, True))
    rows = np.concatenate([fit[:SAMPLE_ROWS], others[: SAMPLE_ROWS // 2 if len(fit) else SAMPLE_ROWS]])
    y, groups = labels.y[rows], labels.groups[rows]
    weights = facts.weights(y, None if labels.weights is None else labels.weights[rows])
    arrays = {
        "X": store.X[rows],
        "groups": groups,
        "targets": facts.encoded(y, work.shape),
        "folds": folds[rows],
        "points": store.X[points],
        "n_held_out": np.array(float(len(np.unique(groups[folds[rows] >= 0])))),
        "of_classes": np.array(work.shape.task != "regression"),
        "limits": np.array(facts.limits),
    }
    return arrays if weights is None else arrays | {"weights": weights}


def search_rung(
    stored: Stored,
    rung: Rung,
    scale: str | None,
    most_operations: float,
    survivors: list[Trial],
    checkpoints: TaskCheckpoints,
    *,
    has_width: bool,
) -> Arrays:
    """Return the trials of a kernel on a rung that may climb, the records of all trials, and their operations."""
    sample, kernel = as_dataclass(stored.read(), Sample).first(rung.n_rows), survivors[0].kernel

    def on_trial(trial: Trial) -> None:
        stopping.check()
        progress.advance(0.0, f"{trial.kernel.name} kernel on {trial.n_centers} candidates")

    search = Search(sample, rung, kinds_of(scale, kernel, sample), has_width, most_operations, on_trial)
    tried = search.climb(survivors)
    (kept,) = surviving({kernel.name: tried}).values()
    scales = {f"scales{number}": trial.scales for number, trial in enumerate(kept)}
    records = {"kept": as_json([*map(_record, kept)]), "tried": as_json([*map(_record, tried)])}
    return records | {"operations": np.array(search.operations)} | scales


def _record(trial: Trial) -> TrialRecord:
    """Return a trial in JSON, without its scales."""
    return {"kernel": trial.kernel.name, "scales": trial.kind} | {name: getattr(trial, name) for name in FIELDS}


def _trials(arrays: Arrays) -> list[Trial]:
    records = enumerate(from_json(arrays["kept"]))
    found = ((kernel_named(of["kernel"]), of["scales"], arrays[f"scales{k}"], of) for k, of in records)
    return [Trial(*trial, **{name: of[name] for name in FIELDS}) for *trial, of in found]
