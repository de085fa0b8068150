"""The settings of a run, as frozen dataclasses: one for each section of a TOML file.

Every field carries its help text, flag and check, for the command line, TOML files, `--set` and `--print-config`.
Nothing here imports numpy, so that `--help` is quick.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.config.parsers import (
    NO_PENALTY,
    OneOf,
    Optionally,
    Scheduler,
    byte_size,
    categories,
    center_count,
    duration,
    is_searched,
    label,
    learns_scales,
    name_list,
    number_list,
    penalty,
    real,
    selection,
    share,
    text,
    texts,
    truth,
    whole,
    widths,
)

AUTO_KERNEL = "auto"
SCHEDULES = ("shrinking", "uniform")
STEPS = ("exact", "newton")
COUPLINGS = ("one-vs-all", "shared")
REFITS = ("none", "ridge")
DATASETS = ("mnist", "usps", "boston", "abalone", "sinc", "digits", "synthetic")
FEATURES = ("auto", "soft-hog", "sphog", "hog", "raw")
TASKS = ("multiclass", "binary", "regression")


def option(default: Any, parse: Callable[[Any], Any], description: str, flag: str | None = None) -> Any:
    """Declare one setting: its default, its check (text or TOML value → value) and its help."""
    return field(default=default, metadata={"parse": parse, "help": description, "flag": flag})


def optional(parse: Callable[[Any], Any], word: str, description: str, flag: str | None = None) -> Any:
    """Declare one setting that is None where `word` is given, or nothing: the data decide, or it is left out."""
    return option(None, Optionally(parse, word), description, flag)


@dataclass(frozen=True)
class DataConfig:
    """Which data, and how they are split."""

    n_train: int | None = optional(
        whole(2), "auto", "training rows (synthetic: how many to render; else: use the first)"
    )
    n_test: int | None = optional(whole(1), "auto", "test rows, likewise")
    test_fraction: float = option(
        0.25, real(0, 1, above=True), "share of rows held back for testing where the data has no split"
    )
    target: str | None = optional(
        text,
        "auto",
        "column of a table (a name, or a position from 0), or key of an .npz, that holds the target",
        "--target",
    )
    weights: str | None = optional(
        text,
        "none",
        "column of a table (likewise), or key of an .npz or .zarr, that holds how much each row counts: 0 or more",
    )
    groups: str | None = optional(
        text,
        "none",
        "column of a table (likewise), or key of an .npz or .zarr, that holds the group of each row: no group is split "
        "over fit and held-out rows, nor over training and test part where the run splits them",
    )
    class_weight: str | None = optional(
        OneOf(("balanced",)),
        "none",
        "balanced: every class counts as much as the others, by factors of its rows' weights; or none",
        "--class-weight",
    )
    test: str | None = optional(text, "none", "file with the test part of a table, all of which then trains", "--test")
    columns: tuple[str, ...] | None = optional(name_list, "all", "inputs of a table, by name")
    drop: tuple[str, ...] | None = optional(name_list, "none", "columns of a table that are no inputs")
    categorical: str | None = optional(
        categories,
        "none",
        "words of a table are categories: onehot, ordinal, or auto (one-hot up to 32); onehot:A,B: A and B hold codes",
    )
    missing: str | None = optional(
        OneOf(("median",)), "none", "median: fills missing cells of a table in, and marks their columns"
    )
    dates: str | None = optional(
        text,
        "none",
        "parts of dates that are inputs too (year, month, day, weekday, hour): month,weekday:A,B of A and B",
    )
    task: str | None = optional(OneOf(TASKS), "auto", "multiclass, binary or regression; else found from the targets")
    standardise: bool | None = optional(truth, "auto", "z-score the inputs with the training part's moments")
    positive: str | None = optional(
        label, "none", "label that is set against all others: a binary task with labels 1 and -1"
    )
    centre_targets: bool | None = optional(
        truth, "auto", "regression: fit targets less their mean (default: where there is an intercept)"
    )
    target_transform: str | None = optional(
        OneOf(("none", "log", "rank", "auto", "outliers")),
        "default",
        "regression: what is fitted of targets with long tails or outliers: log (of distances from the median), rank "
        "(normal scores) or none; auto: by held-out error; outliers: likewise where they ruin the fit, else none "
        "(default: outliers; none with a penalty)",
    )
    noise: float | None = optional(
        real(0), "default", "sinc: variance of the noise on the training targets (default: 0.1)"
    )
    add_rows: tuple[str, ...] | None = optional(
        texts,
        "none",
        "new training rows (a file or folder) for the finished run of --init-from, whose settings and candidates stay",
        "--add-rows",
    )


@dataclass(frozen=True)
class FeaturesConfig:
    """Which features are computed from the data."""

    name: str = option(
        "auto",
        OneOf(FEATURES),
        "soft-hog (512 for 28x28 images; default for images), sphog (the paper's 2172), hog (scikit-image) or raw",
        "--features",
    )
    cells: tuple[float, ...] | None = optional(
        number_list, "auto", "cell sizes in pixels (default: 14,7,4 for hog; for soft-hog 5 of 28, in proportion)"
    )
    orientations: int | None = optional(whole(1, 360), "auto", "orientation bins (default: 8 for soft-hog, 12 for hog)")
    stride: float = option(0.7, real(0.1, 2), "distance from cell to cell of soft-hog, in cells")
    gradient_scale: float | None = optional(
        real(0.3, 50), "auto", "scale of the gradient's Gaussian of soft-hog, in pixels (default: 0.8 of 28)"
    )
    deskew: float = option(0.0, share, "parts of the shear that makes each image upright first: 0 (off) to 1")
    power: float | None = optional(
        share,
        "auto",
        "exponent of every value of a histogram: 0.5 takes square roots (default for soft-hog), 1 is off (default for "
        "the others)",
    )


@dataclass(frozen=True)
class CentersConfig:
    """Which training points are candidates."""

    count: int | str | None = optional(
        center_count,
        "auto",
        "number of random candidate centers, or all (default: for raw features as many as lower the held-out error, "
        "within --budget; 1000 for image features, with a penalty or a selection)",
        "--centers",
    )
    budget: float | None = optional(
        duration,
        "default",
        "core seconds that a fit may take, instead of --centers (default: 60 for raw features)",
        "--budget",
    )
    list: str | None = optional(
        text, "none", "file that lists the candidates' training rows, not drawn", "--center-list"
    )
    working_set: int | None = optional(
        whole(2), "auto", "candidates with a Gram at once (default: all where memory allows)"
    )
    columns: str | None = optional(
        OneOf(("at-once", "on-demand")),
        "auto",
        "which candidates get a row of the Gram; at-once: all, or a working set that is drawn and grown where they do "
        "not fit; on-demand: those whose weight would become non-zero, block by block (default: at-once)",
    )

    @property
    def on_demand(self) -> bool:
        """Whether only candidates whose weight would become non-zero get a row of the Gram."""
        return self.columns == "on-demand"


@dataclass(frozen=True)
class KernelConfig:
    """The kernel and its widths."""

    name: str | None = optional(
        OneOf(("gaussian", "laplace", "product-laplace", "polynomial", "intersection", AUTO_KERNEL)),
        "default",
        "gaussian; laplace: exp(-‖x-z‖/σ); product-laplace: exp(-Σ |x_j-z_j|/σ), for targets with edges; polynomial: "
        "(1 + x·z/σ²)^degree; intersection: Σ min(x, z) of histograms such as sphog; auto: of the first three that of "
        "the lowest held-out error (default: auto for least squares on raw features, else gaussian)",
        "--kernel",
    )
    degree: int = option(2, whole(1, 20), "of the polynomial kernel")
    sigma2: float | str | tuple[float, ...] | None = optional(
        widths,
        "default",
        "σ² (default: 0.25 for soft-hog, 4 for sphog and hog, 8 for powers of theirs, median with a Laplace kernel; "
        "for raw features auto or, with a penalty or a selection, median); 1,2,4: every width at every candidate; "
        "median: of the squared distances; auto: of the lowest held-out error",
        "--sigma2",
    )
    scale: str | None = optional(
        OneOf(("none", "learned", "diagonal", "metric")),
        "auto",
        "of the features, in rounds, by how steep the fit is along them; diagonal: one each; metric: directions of all "
        "(200 at most; not of product-laplace); learned: z-scores, one scale for all, one each, or directions, as far "
        "as held-out rows gain",
        "--scale",
    )
    scale_rounds: int = option(12, whole(1, 100), "rounds in which scales are learned, at most")
    precision: str = option(
        "auto",
        OneOf(("auto", "float32", "float64")),
        "of kernel values: the certificate is of columns in it (auto: float64 for raw features with a penalty, else "
        "float32)",
    )


@dataclass(frozen=True)
class StatisticsConfig:
    """How the statistics are accumulated."""

    block_rows: int | None = optional(
        whole(1), "auto", "rows read at once, at least a block (default: some chunks of the store)", "--block-size"
    )
    hold_out: float = option(0.1, real(0, 0.9), "share of the training rows whose statistics are kept apart")


@dataclass(frozen=True)
class SolverConfig:
    """The problem's penalty and how it is solved."""

    penalty: float | str | None = optional(
        penalty,
        "default",
        "λν, the l1 penalty of the paper (τ² of the Lasso), in squared units of the targets; max:F: a fraction of the "
        "penalty at which all weights are zero; auto: by held-out error; path:FROM:TO:N, FROM may be max; none: least "
        "squares on all candidates (default: 0.01 for image features, none for raw ones)",
        "--penalty",
    )
    patience: int = option(
        3, whole(0), "penalties in a row without gain after which --penalty auto ends; 0: always 25, over 12 decades"
    )
    coupling: str = option(
        "one-vs-all", OneOf(COUPLINGS), "one-vs-all, or shared: one kernel (and support) for all classes", "--coupling"
    )
    intercept: bool | None = optional(
        truth, "auto", "fit an unpenalised intercept (default: for raw features)", "--intercept"
    )
    select: str = option(
        "none",
        selection,
        "greedy:K chooses K centers for all classes, each by how much it lowers the least-squares error, without a "
        "penalty; greedy:auto as many as lower the held-out error",
        "--select",
    )
    refit: str = option("none", OneOf(REFITS), "ridge: least squares on the selected centers, or none", "--refit")
    polish_centers: int = option(0, whole(0), "steps, at most, that move the chosen centers", "--polish-centers")
    tolerance: float = option(
        1e-3, real(0, 1), "relative duality gap to reach; 0: as far as float64 takes it, at least 1e-3", "--tol"
    )
    max_sweeps: int = option(
        1000, whole(1), "iterations (sweeps or Newton rounds) of a solve before giving up", "--max-sweeps"
    )
    schedule: str = option("shrinking", OneOf(SCHEDULES), "shrinking, or uniform (the paper's)", "--schedule")
    step: str = option("exact", OneOf(STEPS), "exact minimum along a coordinate, or newton (the paper's)", "--step")
    stop: str = option("gap", OneOf(("gap", "paper")), "gap, or paper: the paper's rule (needs schedule = uniform)")
    init_from: str | None = optional(
        text, "none", "run or model folder whose weights the solves start from", "--init-from"
    )


@dataclass(frozen=True)
class Resources:
    """What the run may use; the only settings that may change when it is resumed."""

    scheduler: str = option(
        "threads",
        Scheduler(("serial", "threads", "processes")),
        "serial, threads or processes; as a flag, for one start, also tls://HOST:PORT of a dask scheduler",
        "--scheduler",
    )
    workers: int | None = optional(
        whole(1, 4096), "auto", "tasks at once (default: the processors at hand)", "--workers"
    )
    memory_limit: int | None = optional(
        byte_size, "auto", "memory for the whole process tree (default: 3/4 of the machine's)", "--memory-limit"
    )
    data_dir: str | None = optional(text, "auto", "folder that holds the data set", "--data-dir")
    features_store: str = option(
        "zarr", OneOf(("zarr", "none")), "zarr, or none: compute features whenever they are read", "--features-store"
    )
    features_dir: str = option("runs/features", text, "folder of the feature stores that runs share", "--features-dir")
    keep_statistics: str = option(
        "all",
        OneOf(("all", "centers", "none")),
        "of a finished run: all, centers (those of the model, all that resize needs) or none",
        "--keep-statistics",
    )
    checkpoint_every: float = option(
        60.0, duration, "time between the checkpoints of a solve that is under way: 60s, 5m", "--checkpoint-every"
    )
    keep: int = option(2, whole(2, 1000), "checkpoints kept of each solve, at least 2", "--keep")
    time_limit: float | None = optional(
        duration, "none", "stop cleanly after this time (55m, 12h), to be resumed", "--time-limit"
    )


@dataclass(frozen=True)
class TrainConfig:
    """All settings of one training run."""

    dataset: str
    seed: int = option(0, whole(0, 2**63 - 1), "seed of every random choice", "--seed")
    data: DataConfig = field(default_factory=DataConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    centers: CentersConfig = field(default_factory=CentersConfig)
    kernel: KernelConfig = field(default_factory=KernelConfig)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    resources: Resources = field(default_factory=Resources)


def what_needs_held_out_rows(config: TrainConfig) -> str | None:
    """Return the first flag of a run whose choice is by held-out rows; None where nothing is chosen by them."""
    solver, kernel = config.solver, config.kernel
    needs = {
        f"--select {solver.select}": solver.select != "none",
        f"--penalty {solver.penalty}": is_searched(solver.penalty) or solver.penalty == NO_PENALTY,
        "--refit ridge": solver.refit != "none",
        f"--kernel {kernel.name}": kernel.name == AUTO_KERNEL,
        f"--scale {kernel.scale}": learns_scales(kernel.scale),
        f"--sigma2 {kernel.sigma2}": kernel.sigma2 == "auto",
    }
    return next((flag for flag, needed in needs.items() if needed), None)
