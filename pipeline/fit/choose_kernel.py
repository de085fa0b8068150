"""The kernel of a fit, its width and the scales of the features: as asked for, or chosen by held-out rows of a sample.

The sample is committed, and each kernel is searched by a task of its own (`solvers.kernel_trials`); the best are tried
again on more candidates, and what is simple is taken where the gain may be chance.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.cell_text import counted
from features.row_draws import draw_folds
from pipeline.datasets.feature_rows import ScaledFeatures, open_features
from pipeline.errors import InvalidDataError
from pipeline.fit.filled_settings import count_candidates, grows, is_chosen, kernels_of, trial_sizes
from pipeline.fit.grow_candidates import RIDGE_ERRORS
from pipeline.fit.row_blocks import Needs, RunSize
from pipeline.fit.target_facts import Labels, TargetFacts
from pipeline.fit.workspace import FOLD_ROWS, Workspace
from pipeline.kernels.kernel_functions import DIAGONAL, MEDIAN_POINTS, METRIC, Kernel, kernel_named, lengths, scaled
from pipeline.runtime import progress, stopping
from pipeline.solvers.candidate_budget import FOLDED_ROWS
from pipeline.solvers.kernel_trials import (
    COMMON,
    PLAIN,
    START_CENTERS,
    Sample,
    Search,
    Trial,
    best_width,
    choose,
    kinds_of,
    search_from,
    search_kernel,
    trial_bytes,
    try_kernel,
)
from pipeline.work.events import CANDIDATES
from pipeline.work.store import TaskCheckpoints
from storage.arrays import Arrays, Stored, as_dataclass, as_json, from_json

SCALES, PASS = "scales/learned.npz", "kernels"
# Held-out rows of a sample: the fewest, where they are no more than that share; the most, of what is not fitted anyway.
LEAST_HELD_OUT, LARGEST_SHARE, MOST_HELD_OUT = 1500, 1 / 3, 4000
# Where features as they are come as CLOSE to learned scales, both are tried on RIVALS times as many candidates.
CLOSE, RIVALS, KEPT = 1.5, 2, "kept"
N_FOLDS = 5  # of few rows; ten are no better
TrialRecord = dict[str, Any]  # of a trial, as JSON has it
FIELDS = ("n_centers", "sigma2", "error", "ridge", "typical")  # of a trial that stand in its record as they are
Start = tuple[type[Kernel], Trial | None]  # a kernel that is searched: from the beginning, or from scales of a trial
WORDS = {PLAIN: "features as they are", COMMON: "inputs on one scale", METRIC: "a metric"}


@dataclass(frozen=True)
class KernelTask:
    """What a worker needs to try kernels: where the sample is, and how it is searched."""

    sample: Stored
    few: int
    scale: str | None
    sigma2: float | str | None  # the width, "median", KEPT: that of each trial, or None where it is chosen as well

    @property
    def given(self) -> float | None:
        """The width that trials have, where it is a number: rounds find theirs where the median is asked for."""
        return self.sigma2 if isinstance(self.sigma2, float) else None


def choose_kernel(work: Workspace, index: NDArray[np.int64], labels: Labels, facts: TargetFacts) -> Arrays:
    """Return what is committed with candidates at training rows `index`: the `choice`, as JSON.

    Its `kernel` is a name, `sigma2` the width. Where something was chosen it has also the `scales`, one of SCALE_KINDS,
    and all that was `tried`. Scales of the features are committed under SCALES.
    """
    asked = work.config.kernel
    if is_chosen(asked) or facts.by_folds:
        choice = _Choice(work, index, labels, facts)
        best = choice.best()
        return {"choice": as_json(choice.committed(best))} | choice.of_folds(best)
    (kernel,), sigma2 = kernels_of(asked), asked.sigma2
    if isinstance(sigma2, str):  # the median
        sigma2 = kernel.default_sigma2(open_features(work.features).X[_drawn(work, index)[:MEDIAN_POINTS]])
    return {"choice": as_json({"kernel": kernel.name, "sigma2": float(sigma2 or 0.0)})}


class _Choice:
    """The choice of kernel, width and scales on a sample of the rows; all that was tried is kept for the report."""

    def __init__(self, work: Workspace, index: NDArray[np.int64], labels: Labels, facts: TargetFacts) -> None:
        self._work, self._asked, self._by_folds = work, work.config.kernel, facts.by_folds
        sizes = trial_sizes(work.config, work.shape)
        if self._by_folds:  # the last trial is the fit
            sizes = replace(sizes, most=len(index))
        rivals = RIVALS * sizes.more if grows(work.config) and not self._by_folds else 0
        points = _drawn(work, index)[: max(MEDIAN_POINTS, sizes.most, rivals)]
        self._few, self._more, self._rivals, self._most = (
            min(size, len(points)) for size in (sizes.few, sizes.more, rivals, sizes.most)
        )
        name = f"passes/{PASS}/sample.npz"
        self._sample = work.store.once(name, lambda: read_sample(work, points, labels, facts, sizes.n_rows))
        self._n_held_out = float(self._sample["n_held_out"])
        self._task = KernelTask(
            sample=work.store.stored(name),
            few=self._few,
            scale=self._asked.scale if self._asked.learns_scales else None,
            sigma2=None if self._asked.sigma2 == "auto" else self._asked.sigma2,
        )
        self._searches, self._records = list[Arrays](), list[TrialRecord]()

    def best(self) -> Trial:
        """Return the trial that is chosen. Raises InvalidDataError where no width gives a Gram that can be used."""
        tried = self._tried_again(self._task, self._more, _finalists(self._of_kernels()))
        best = self._with_slopes_of_more(choose(tried, self._n_held_out))
        best = self._against_plain(tried[0], best)
        if self._most > best.n_centers:  # the best width is smaller with more candidates
            (best,) = self._tried_again(self._task, self._most, [best])
        if not np.isfinite(best.error):
            # The kernel may refuse the candidates in words of its own.
            best.kernel(scaled(self._sample["points"], best.scales), best.sigma2)
            raise InvalidDataError(
                f"`kernel.sigma2={self._asked.sigma2}`: no width gives a Gram that least squares can use; give a number"
            )
        return best

    def _of_kernels(self) -> list[list[Trial]]:
        """Return the trials of each kernel; one that is not the best begins again with the scales of that."""
        kernels = kernels_of(self._asked)
        of_items = self._searched([(kernel, None) for kernel in kernels])
        found = {kernel: _trials(arrays) for kernel, arrays in zip(kernels, of_items, strict=True)}
        best = min(found.values(), key=lambda trials: trials[-1].error)[-1]
        others = [kernel for kernel in kernels if kernel != best.kernel] if best.kind == DIAGONAL else []
        for kernel, arrays in zip(others, self._searched([(kernel, best) for kernel in others]), strict=True):
            trials = _trials(arrays)
            found[kernel] += trials if trials[-1].error < found[kernel][-1].error else []
        return list(found.values())

    def _with_slopes_of_more(self, best: Trial) -> Trial:
        """Return the best of a trial and of one more round of its scales: more candidates have better slopes."""
        if not self._task.scale or best.kind not in (DIAGONAL, METRIC):
            return best
        (arrays,) = self._searched([(best.kernel, best)], replace(self._task, few=best.n_centers), "-more")
        best = min(best, _trials(arrays)[0], key=lambda trial: trial.error)
        self._records += _records([best], final=True)
        return best

    def _against_plain(self, plain: Trial, best: Trial) -> Trial:
        """Return the better of a trial and of features as they are, on more candidates, where these come close."""
        if best.n_centers >= self._rivals or best.kind == PLAIN or plain.error >= CLOSE * best.error:
            return best
        tried = self._tried_again(replace(self._task, sigma2=KEPT), self._rivals, [plain, best])
        return choose(tried, self._n_held_out)

    def _tried_again(self, task: KernelTask, n_centers: int, trials: list[Trial]) -> list[Trial]:
        items = {f"passes/{PASS}/{n_centers}-{number}.npz": trial for number, trial in enumerate(trials)}
        words = f"trying {counted(len(trials), 'kernel')} on {n_centers} candidates"
        trying = partial(try_again, task, n_centers)
        found = self._work.runner.compute(CANDIDATES, trying, items, unit="", words=words)
        self._records += [record for arrays in found for record in from_json(arrays["tried"])]
        return [_trials(arrays)[0] for arrays in found]

    def _searched(self, starts: list[Start], task: KernelTask | None = None, suffix: str = "") -> list[Arrays]:
        names = [f"{kernel.name}{'-from' if trial else ''}{suffix}" for kernel, trial in starts]
        items = {f"passes/{PASS}/{name}.npz": start for name, start in zip(names, starts, strict=True)}
        searching = partial(search_item, task or self._task)
        found = self._work.runner.compute(CANDIDATES, searching, items, unit="", words="trying kernels")
        self._searches += found
        return found

    def committed(self, best: Trial) -> dict[str, Any]:
        """Return the choice as JSON has it; commit the scales."""
        work, searches = self._work, [from_json(arrays["tried"]) for arrays in self._searches]
        if self._task.scale:
            mine = [k for k, records in enumerate(searches) if records[0]["kernel"] == best.kernel.name]
            rounds = np.concatenate([self._searches[k]["rounds"] for k in mine])  # round 0 is without scales
            distances = np.abs(rounds - lengths(best.scales)).max(axis=1)
            scales: Arrays = {
                "scales": best.scales,
                "rounds": rounds,
                "hold_out_errors": np.array([record["error"] for k in mine for record in searches[k]]),
                "chosen": np.array(0 if best.kind == PLAIN else 1 + int(np.argmin(distances[1:]))),
            }
            work.store.put(SCALES, scales)
        words = WORDS.get(best.kind, "a scale for each feature")
        error = "log loss" if self._sample["of_classes"] else "mean squared error"
        work.events.log(
            f"chosen: {best.kernel.name} kernel, {words}, sigma2 {best.sigma2:g}; the held-out {error} is "
            f"{best.error:.6g} on {best.n_centers} candidates, fitted to a sample of the rows"
        )
        tried = [record for records in searches for record in records] + self._records
        return {"kernel": best.kernel.name, "sigma2": best.sigma2, "scales": best.kind, "tried": tried}

    def of_folds(self, best: Trial) -> Arrays:
        """Return what folds of all rows tell of a fit: RIDGE_ERRORS; of classes also rows that calibrate it."""
        return _of_folds(as_dataclass(self._sample, Sample), best) if self._by_folds else {}


def _of_folds(sample: Sample, trial: Trial) -> Arrays:
    """Return what folds of all rows tell of a fit: RIDGE_ERRORS; of classes also rows that calibrate it, FOLD_ROWS."""
    found, rows = try_kernel(sample, trial), sample.part(sample.by_fold)
    assert found.ridges is not None
    assert found.held_out is not None
    if not sample.of_classes:
        return {RIDGE_ERRORS: found.ridges}
    pairs = np.stack([rows.keys, rows.truth.astype(np.uint64)])  # equal rows of a class are one
    _, one, of_rows = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
    counts = np.bincount(of_rows.ravel(), rows.counts)
    calibrating = found.held_out[one], rows.truth[one], counts, np.array(sample.n_held_out)
    return {RIDGE_ERRORS: found.ridges} | dict(zip(FOLD_ROWS, calibrating, strict=True))


def candidates_needs(run: RunSize) -> Needs:
    """Return what candidates need: their features while these are stored, or the sample and trials of kernels."""
    config, shape = run.config, run.shape
    n_candidates = count_candidates(config, shape.n_train)
    few = n_candidates < FOLDED_ROWS  # there are no more of them than different rows
    drawn = 4 * run.n_columns * shape.n_features
    needs = Needs(len(kernels_of(config.kernel)), 2**23 + (2 * drawn if run.n_columns >= n_candidates else 0), drawn)
    if not (is_chosen(config.kernel) or (config.solver.is_least_squares and shape.n_train < FOLDED_ROWS)):
        return needs
    sizes = trial_sizes(config, shape)
    rows = min(sizes.n_rows + sizes.n_rows // 2, shape.n_train)
    rivals = RIVALS * sizes.more if grows(config) else 0
    m = n_candidates if few and config.solver.is_least_squares else max(MEDIAN_POINTS, sizes.most, rivals)
    of_some, of_most = (
        trial_bytes(rows, min(m, most, n_candidates), shape.n_features, N_FOLDS if few else 1)
        for most in (max(sizes.more, rivals, START_CENTERS * sizes.few), m)
    )
    beside_each_other = min(run.workers.threads, needs.pieces + 1)  # of finalists more
    trials = 2 * 4 * rows * shape.n_features + max(beside_each_other * of_some, of_most)  # the last trial is alone
    return needs._replace(memory=max(needs.memory, 2**23 + trials))


def _drawn(work: Workspace, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the candidates in an order drawn by the seed: all rows may be sorted by class."""
    return np.random.default_rng([work.config.seed, 7]).permutation(np.sort(index))


def _finalists(of_kernels: list[list[Trial]]) -> list[Trial]:
    """Return the trials that more candidates decide between, in the order of the kernels: those of every kernel.

    Each with the scales that were chosen for it, the better one also with those before; and the first kernel with
    features as they are.
    """
    order = sorted(of_kernels, key=lambda trials: trials[-1].error)
    finalists = [of_kernels[0][0], *order[0][-2:], *(trials[-1] for trials in order[1:])]
    return [trial for trials in of_kernels for trial in trials if any(trial is one for one in finalists)]


def read_sample(work: Workspace, points: NDArray[np.int64], labels: Labels, facts: TargetFacts, n_rows: int) -> Arrays:
    """Return the rows that kernels are tried on: `n_rows` that are fitted, at most half as many that are held out.

    Rows that choices of the fit hold out are held out here; of few rows more are, and of fewer all, in folds.
    """
    n, seed, features = work.shape.n_train, work.config.seed, work.features
    store = open_features(features.features if isinstance(features, ScaledFeatures) else features)
    spared = min(max(n - n_rows, LEAST_HELD_OUT), MOST_HELD_OUT)
    share = max(work.config.statistics.hold_out, min(LARGEST_SHARE, spared / n))
    limit = labels.held_out_limit(seed, share) if facts.held_out_limit else 0.0
    held_out = labels.held_out(seed, max(limit, facts.held_out_limit))
    folds = np.where(held_out, 0, -1)
    if facts.few_rows:
        classes = np.zeros(n, np.int64) if work.shape.task == "regression" else labels.y
        folds = draw_folds(seed, N_FOLDS, labels.groups, classes)
    elif held_out.all() or not held_out.any():
        raise InvalidDataError(
            f"{int(held_out.sum())} of the {n} rows that kernels are tried on are held out; give "
            "`kernel.name`, `kernel.sigma2` as a number and `kernel.scale=none`",
            "`statistics.hold_out=0.1`",
        )
    order = np.random.default_rng([seed, 6]).permutation(n)
    fit, others = (order[(folds[order] >= 0) == part] for part in (False, True))
    most = max(n_rows // 2, 1) if len(fit) else 2 * n_rows
    rows = np.sort(np.concatenate([fit[:n_rows], others[:most]]))
    y, keys = labels.y[rows], labels.keys[rows]
    weights = facts.weights(y, None if labels.weights is None else labels.weights[rows])
    fitted, n_features = store.standardisation, work.shape.n_features
    deviations = fitted.scale if fitted and work.config.data.standardise else np.ones(n_features)
    arrays = {
        "X": store.X[rows],
        "keys": keys,
        "targets": facts.encoded(y, work.shape),
        "folds": folds[rows],
        "points": store.X[points],
        "common": common_scales(np.where(np.isinf(deviations), 1.0, deviations)),  # inf: of an input that is 0 then
        "n_held_out": np.array(float(len(np.unique(keys[folds[rows] >= 0])))),
        "of_classes": np.array(work.shape.task != "regression"),
        "limits": np.array(facts.limits),
    }
    return arrays if weights is None else arrays | {"weights": weights}


def common_scales(deviations: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the factors (d,) f4 that put z-scores of inputs back on one scale, of mean square 1."""
    largest = float(deviations.max(initial=0.0))
    relative = deviations / largest if largest > 0 else np.ones_like(deviations)
    return (relative / np.sqrt(np.mean(relative**2))).astype(np.float32)


def _resumed(checkpoints: TaskCheckpoints) -> Callable[[Callable[[], Arrays]], Arrays]:
    """Return what makes the steps of a search, or takes those that an earlier session has made from its checkpoint.

    A search takes its next step by what the steps before have found: it is the same in every session. Raises
    StoppedError between steps, when what was found is kept.
    """
    earlier, numbers = checkpoints.load(), count()
    known = {} if earlier is None else dict(earlier.arrays)

    def once(make: Callable[[], Arrays]) -> Arrays:
        number = next(numbers)
        step = f"{number}-"
        found = {name.removeprefix(step): values for name, values in known.items() if name.startswith(step)}
        if not found:
            found = make()
            known.update({f"{step}{name}": values for name, values in found.items()})
            if checkpoints.is_due():
                checkpoints.save(number + 1, known, {})
        stopping.check()
        return found

    return once


def search_item(task: KernelTask, start: Start, checkpoints: TaskCheckpoints) -> Arrays:
    """Return the trials of a kernel that more candidates decide between, and records and scales of all rounds."""
    sample, rounds, (kernel, found) = as_dataclass(task.sample.read(), Sample), list[Trial](), start

    def on_round(trial: Trial) -> None:
        rounds.append(trial)
        progress.advance(0.0, f"{trial.kernel.name} kernel on {trial.n_centers} candidates")

    kinds = kinds_of(task.scale, kernel, sample.X.shape[1], float(np.count_nonzero(sample.fitted)))
    search = Search(task.few, kinds, task.given, on_round, _resumed(checkpoints))
    if found is None:
        kept = search_kernel(sample, kernel, search)
    else:
        kept = search_from(sample, kernel, found.kind, found.scales, search)
    return _as_arrays(kept, _records(rounds)) | {"rounds": np.stack([lengths(one.scales) for one in rounds])}


def try_again(task: KernelTask, n_centers: int, trial: Trial, checkpoints: TaskCheckpoints) -> Arrays:
    """Return the trial with the best width on more candidates, or with the one asked for, and records of all widths."""
    sample, sigma2 = as_dataclass(task.sample.read(), Sample), trial.sigma2 if task.sigma2 == KEPT else task.given
    if task.sigma2 == "median":
        sigma2 = trial.kernel.default_sigma2(scaled(sample.points[:MEDIAN_POINTS], trial.scales))
    trial = replace(trial, n_centers=n_centers, sigma2=trial.sigma2 if sigma2 is None else sigma2)
    tried = best_width(sample, trial, Search(n_centers, sigma2=sigma2, once=_resumed(checkpoints)))
    return _as_arrays(tried[:1], _records(tried, final=True))


def _records(trials: list[Trial], *, final: bool = False) -> list[TrialRecord]:
    """Return trials as JSON has them; `final`: more candidates decide between them."""
    return [
        {"kernel": one.kernel.name, "scales": one.kind, "final": final} | {name: getattr(one, name) for name in FIELDS}
        for one in trials
    ]


def _as_arrays(kept: list[Trial], tried: list[TrialRecord]) -> Arrays:
    """Return trials that `_trials` reads, and the records of all that was tried."""
    scales = {f"scales{number}": trial.scales for number, trial in enumerate(kept)}
    return {"kept": as_json(_records(kept)), "tried": as_json(tried), **scales}


def _trials(arrays: Arrays) -> list[Trial]:
    return [
        Trial(
            kernel=kernel_named(of["kernel"]),
            kind=of["scales"],
            scales=arrays[f"scales{number}"],
            **{name: of[name] for name in FIELDS},
        )
        for number, of in enumerate(from_json(arrays["kept"]))
    ]
