"""The settings of a run, as frozen dataclasses: one for each section of a TOML file.

Every field carries its help text, flag and check, for the command line, TOML files, `--set` and `--print-config`.
Nothing here imports numpy, so that `--help` is quick.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from features.cell_text import MOST_CATEGORIES
from pipeline.config.parsers import (
    NO_PENALTY,
    OneOf,
    Optionally,
    address,
    byte_size,
    categories,
    column,
    deformation,
    duration,
    learns_scales,
    name_list,
    penalty,
    picture_size,
    real,
    selection,
    text,
    truth,
    whole,
)

AUTO_KERNEL = "auto"
REFITS = ("none", "ridge")
DATASETS = ("mnist", "usps", "boston", "abalone", "sinc", "digits")
FEATURES = ("auto", "soft-hog", "sphog", "raw")
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
        whole(2), "auto", "number of training rows: the first so many of the data, or how many of sinc to generate"
    )
    test_fraction: float = option(
        0.25, real(0, 1, above=True), "share of the rows set aside for testing, where the data have no test part"
    )
    target: str | None = optional(
        column,
        "auto",
        "column of a table (name, or position from 0), or key of an .npz or .zarr, that holds the target",
        "--target",
    )
    weights: str | None = optional(
        column, "none", "column of a table, or key of an .npz or .zarr, that says how much each row counts (0 or more)"
    )
    groups: str | None = optional(
        column,
        "none",
        "column of a table, or key of an .npz or .zarr, that holds the group of each row; the rows of a group "
        "stay together, in the fit or the held-out rows, and in the training or the test part",
    )
    copies: int = option(
        1, whole(1), "rows that each training image becomes: itself, and deformed copies of it", "--copies"
    )
    deform: str | None = optional(
        deformation,
        "default",
        "how strongly copies are deformed, at most, such as rotation:12,smooth:0, which leaves the rest as it is: "
        "degrees of rotation, shares of scale and shear, shares of the sides of shift and smooth displacement; flip "
        "mirrors half of them, for photographs (default: rotation:8,scale:0.08,shear:0.08,shift:0.03,smooth:0.03)",
    )
    class_weight: str | None = optional(
        OneOf(("balanced",)), "none", "give every class the same total weight (balanced)", "--class-weight"
    )
    test: str | None = optional(
        text,
        "none",
        "table, or folder of pictures, with the test part; all rows of DATASET are then trained on",
        "--test",
    )
    header: bool = option(
        True, truth, "whether a table of text begins with the names of its columns (false: they are f0, f1, ...)"
    )
    decimal: str = option(".", OneOf((".", ",")), "what stands before the decimals of numbers in a table of text")
    columns: tuple[str, ...] | None = optional(name_list, "all", "columns of a table that are inputs, by name")
    drop: tuple[str, ...] | None = optional(name_list, "none", "columns of a table that are not inputs, by name")
    categorical: str | None = optional(
        categories,
        "none",
        "encode words of a table as categories, with an input for each; onehot:A,B also encodes the columns A and B, "
        "which hold numbers",
    )
    categories: int = option(
        MOST_CATEGORIES, whole(2, 1000), "the most categories of a column; one with more words is refused"
    )
    missing: str | None = optional(
        OneOf(("median",)),
        "none",
        "replace missing cells of a table by the median of their column, and add an input that marks them",
    )
    task: str | None = optional(OneOf(TASKS), "auto", "kind of task; auto finds it from the targets")
    standardise: bool | None = optional(
        truth,
        "auto",
        "subtract the mean of each input and divide by its deviation, both of the training rows (auto: for tables)",
    )
    skip_bad: bool = option(False, truth, "leave out pictures that cannot be read, and train on the others")

    @property
    def is_grouped(self) -> bool:
        return self.groups is not None or self.copies > 1


@dataclass(frozen=True)
class FeaturesConfig:
    """Which features are computed from the data."""

    name: str = option(
        "auto",
        OneOf(FEATURES),
        "features of images: soft-hog (the default; 512 for 28x28 pixels), sphog (the paper's 2172), "
        "or raw for the pixels; tables are raw",
        "--features",
    )
    size: str | None = optional(
        picture_size,
        "auto",
        "height and width that pictures of a folder are resized to, such as 28 or 28x40 (auto: their median, and at "
        "most 128 pixels)",
    )
    deskew: float = option(
        0.0,
        real(0, 1, closed=True),
        "shear each image upright before its features are computed: 0 not at all, 0.5 halfway, 1 fully",
    )
    brightness: float | None = optional(
        real(0, closed=True),
        "auto",
        "weight of the mean brightness of each cell beside its histogram, of colour images of each channel (for "
        "soft-hog; auto: 0.8 for grey and 1 for colour images without deskew, else 0)",
    )
    power: float | None = optional(
        real(0, 1, above=True, closed=True),
        "auto",
        "exponent of every histogram value: 0.5 takes square roots (default for soft-hog), 1 changes nothing "
        "(default for the others)",
    )


@dataclass(frozen=True)
class CentersConfig:
    """Which training points are candidates."""

    count: int | str | None = optional(
        OneOf(("all",), whole(1)),
        "auto",
        "number of candidates, drawn at random, or all (auto: 1000 for image features, with a penalty or with "
        "a selection; else as many as lower the held-out error within --budget)",
        "--centers",
    )
    budget: float | None = optional(
        duration,
        "default",
        "core seconds that a fit may take, instead of a number of candidates (default: 60 for raw features)",
        "--budget",
    )
    working_set: int | None = optional(
        whole(2),
        "auto",
        "number of candidates whose Gram matrix may be in memory (auto: all, if memory allows)",
    )
    columns: str | None = optional(
        OneOf(("at-once", "on-demand")),
        "auto",
        "which candidates get a row of the Gram matrix: at-once for all (or a working set, if they do not "
        "fit), on-demand for those whose weight would become non-zero (auto: at-once; a working set also for more "
        "than 8000 candidates at one penalty, which is quicker)",
    )

    @property
    def on_demand(self) -> bool:
        return self.columns == "on-demand"


@dataclass(frozen=True)
class KernelConfig:
    """The kernel and its width."""

    name: str | None = optional(
        OneOf(("gaussian", "product-laplace", AUTO_KERNEL)),
        "default",
        "kernel: gaussian; product-laplace exp(-Σ |x_j-z_j|/σ), for targets with edges; auto takes the better by "
        "held-out error (default: auto for least squares on tables, else gaussian)",
        "--kernel",
    )
    sigma2: float | str | None = optional(
        OneOf(("median", "auto"), real(0, above=True)),
        "default",
        "width σ² of the kernel: a number; median of the squared distances; auto for the lowest held-out error "
        "(default: 0.25 for soft-hog, 4 for sphog, 8 with a power, median with product-laplace; for tables "
        "auto, or median with a penalty or a selection)",
        "--sigma2",
    )
    scale: str | None = optional(
        OneOf(("none", "learned", "diagonal", "metric")),
        "auto",
        "factors for the features, learned from how steep the fit is along them: diagonal (a factor each), "
        "metric (a matrix, for at most 200 features, not for product-laplace), or learned (the simplest that "
        "held-out rows support)",
        "--scale",
    )


@dataclass(frozen=True)
class StatisticsConfig:
    """The rows that statistics are of."""

    hold_out: float = option(
        0.1,
        real(0, 0.9),
        "share of the training rows that is held out to choose settings by (of 50 to 999 different rows, five folds "
        "choose kernel, width and scales, and their ridge)",
    )


@dataclass(frozen=True)
class SolverConfig:
    """The problem's penalty and how it is solved."""

    penalty: float | str | None = optional(
        penalty,
        "default",
        "penalty λν of the paper (τ² of the Lasso), in squared units of the targets: a number; max:F for a "
        "fraction of the smallest penalty at which all weights are zero; auto for the lowest held-out error; "
        "none for least squares on all candidates (default: 0.01 for images, none for tables)",
        "--penalty",
    )
    intercept: bool = option(True, truth, "fit an intercept, without a penalty")
    select: str = option(
        "none",
        selection,
        "choose K centers for all classes without a penalty, each by how much it lowers the squared error (greedy:K)",
        "--select",
    )
    refit: str = option(
        "none",
        OneOf(REFITS),
        "fit the selected centers again by least squares, with a ridge chosen on held-out rows (ridge; the default of "
        "images without a --penalty of yours)",
        "--refit",
    )
    move_centers: int = option(
        0, whole(0), "steps, at most, that move the chosen centers to lower the squared error", "--move-centers"
    )
    tolerance: float = option(
        1e-3,
        real(0, 1),
        "relative duality gap to reach; 0 goes as far as float64 allows, and asks for 1e-3 at least",
        "--tol",
    )
    max_sweeps: int = option(
        1000, whole(1), "iterations (sweeps or Newton rounds) after which a solve gives up", "--max-sweeps"
    )
    schedule: str = option(
        "newton",
        OneOf(("newton", "shrinking", "uniform", "paper")),
        "how a solve goes on: newton solves for all weights of the active set at once; shrinking visits coordinates "
        "one by one, without those that stay at zero; uniform visits them at random; paper does with the steps and the "
        "stopping rule of the paper",
        "--schedule",
    )

    @property
    def selects(self) -> bool:
        return self.select != "none"

    @property
    def is_penalised(self) -> bool:
        return not self.selects and self.penalty != NO_PENALTY

    @property
    def is_least_squares(self) -> bool:
        return not self.selects and self.penalty == NO_PENALTY


@dataclass(frozen=True)
class Resources:
    """What the run may use; the only settings that may change when it is resumed."""

    scheduler: str = option(
        "threads",
        OneOf(("serial", "threads", "processes"), address),
        "who computes: serial, threads or processes; tls://HOST:PORT of a dask scheduler only as a flag, and "
        "for one start",
        "--scheduler",
    )
    workers: int | None = optional(
        whole(1, 4096), "auto", "tasks at a time (auto: the processors at hand)", "--workers"
    )
    memory_limit: int | None = optional(
        byte_size,
        "auto",
        "memory for all processes of the run together, such as 4GiB (auto: three quarters of the machine's)",
        "--memory-limit",
    )
    features_dir: str = option(
        "runs/features",
        text,
        "folder of the feature stores, which runs share, or none: features are computed whenever they are read",
        "--features-dir",
    )
    checkpoint_every: float = option(60.0, duration, "time between two checkpoints of a solve", "--checkpoint-every")
    time_limit: float | None = optional(
        duration, "none", "time after which the run stops and can be resumed, such as 55m or 12h", "--time-limit"
    )
    worker_timeout: float = option(
        300.0, duration, "time to wait for a worker of a cluster, or an answer of its scheduler", "--worker-timeout"
    )

    @property
    def stores_features(self) -> bool:
        return self.features_dir != "none"


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

    @property
    def clips(self) -> bool:
        """Whether the predictions of a regression are kept within limits: its final weights are least squares."""
        return not self.solver.is_penalised or self.solver.refit != "none"


def what_needs_held_out_rows(config: TrainConfig) -> str | None:
    """Return the first setting, `key=value`, whose choice is by held-out rows; None where nothing is chosen by them."""
    solver, kernel = config.solver, config.kernel
    needs = {
        f"`solver.select={solver.select}`": solver.selects,
        f"`solver.penalty={solver.penalty}`": solver.penalty in ("auto", NO_PENALTY),
        "`solver.refit=ridge`": solver.refit != "none",
        f"`kernel.name={kernel.name}`": kernel.name == AUTO_KERNEL,
        f"`kernel.scale={kernel.scale}`": learns_scales(kernel.scale),
        f"`kernel.sigma2={kernel.sigma2}`": kernel.sigma2 == "auto",
    }
    return next((setting for setting, needed in needs.items() if needed), None)
