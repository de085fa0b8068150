"""The settings of a run, as frozen dataclasses: one for each section of a TOML file; first their parsers.

Every field carries its help text, flag and parser, for the command line, TOML files, `--set` and `--print-config`. A
parser takes a text or a TOML value and returns a checked value, or raises ValueError with a reason that starts with
"must". Nothing here imports numpy, so that `--help` is quick.
"""

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral
from string import ascii_letters
from typing import Any

from features.cell_text import MOST_CATEGORIES
from features.words import has_controls, names_in

AUTO_KERNEL = "auto"
DATASETS = ("mnist", "usps", "boston", "abalone", "sinc", "digits")
PLAIN = "must be UTF-8 text without control characters"
NO_PENALTY = "none"
_WHOLE = re.compile(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*")


def whole(minimum: int, maximum: int = 2**63 - 1) -> Callable[[Any], int]:
    """Return a parser of whole numbers between two bounds."""
    words = f"at least {minimum}" if maximum > 2**62 else f"{minimum} to {maximum}"

    def parse(value: object) -> int:
        number = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value
        if isinstance(number, bool) or not isinstance(number, Integral) or not minimum <= int(number) <= maximum:
            raise ValueError(f"must be a whole number of {words}")
        return int(number)

    return parse


def real(
    minimum: float, maximum: float = math.inf, *, above: bool = False, closed: bool = False
) -> Callable[[Any], float]:
    """Return a parser of finite numbers: `minimum` is too low where `above`, `maximum` too high unless `closed`."""
    words = f"above {minimum:g}" if above else f"of at least {minimum:g}"
    if maximum < math.inf:
        words += f" and {'at most' if closed else 'below'} {maximum:g}"

    def parse(value: object) -> float:
        number = _number(value)
        if not minimum <= number <= maximum or (above and number == minimum) or (number == maximum and not closed):
            raise ValueError(f"must be a number {words}")
        return number

    return parse


def _number(value: Any) -> float:
    with suppress(TypeError, ValueError, OverflowError):
        return math.nan if isinstance(value, bool) else float(value)
    return math.nan


@dataclass(frozen=True)
class OneOf:
    """A parser that accepts the listed words; `otherwise` parses any other value."""

    choices: tuple[str, ...]
    otherwise: Callable[[Any], Any] | None = None

    def __call__(self, value: object) -> Any:
        if value in self.choices:
            return value
        if self.otherwise is None:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        try:
            return self.otherwise(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{', '.join([str(error), *self.choices[:-1]])}, or {self.choices[-1]}") from None


@dataclass(frozen=True)
class Optionally:
    """A parser that maps `word` to None (decided from the data) and hands the rest on."""

    parse: Callable[[Any], Any]
    word: str

    def __call__(self, value: object) -> Any:
        return None if value is None or value == self.word else self.parse(value)


def text(value: object) -> str:
    """Accept a non-empty text."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a non-empty text")
    if not is_plain(value):
        raise ValueError(f"{PLAIN}; rename the file or column")
    return value


def column(value: object) -> str:
    """Accept the name of a column, or its position."""
    is_position = isinstance(value, Integral) and not isinstance(value, bool)
    return text(str(value) if is_position else value)


def is_plain(value: str) -> bool:
    """Return whether a text can be a path and be printed; a name that is no UTF-8 has lone surrogates."""
    return not has_controls(value)


def address(value: object) -> str:
    """Accept the address of a dask scheduler; `settings.load` checks where it came from."""
    if is_address(value) and re.fullmatch(r"tls://[^/@]*[^/:@]:\d+", str(value)):
        return str(value)
    raise ValueError("must be tls://HOST:PORT")


def is_address(scheduler: object) -> bool:
    """Return whether a scheduler is the address of a dask scheduler, which sends code to run here."""
    return isinstance(scheduler, str) and scheduler.startswith("tls://")


def truth(value: object) -> bool:
    """Accept true or false."""
    words = {"true": True, "false": False}
    if str(value).lower() not in words:
        raise ValueError("must be true or false")
    return words[str(value).lower()]


def name_list(value: Any) -> tuple[str, ...]:
    """Accept names of columns, each once, as a list or separated by commas; one that has a comma is in quotes."""
    given = names_in(value) if isinstance(value, str) else value
    names = tuple("" if name == "" else column(name) for name in given)  # A column may have no name.
    if not names or len(set(names)) < len(names):
        raise ValueError("must be names of columns, each once, separated by commas")
    return names


def categories(value: object) -> str:
    """Accept onehot, alone or with columns after a colon."""
    kind, colon, names = text(value).partition(":")
    if kind != "onehot" or (colon and not names_in(names)):
        raise ValueError("must be onehot, or onehot with columns that hold codes: onehot:zip,month")
    return text(value)


def deformation(value: object) -> str:
    """Accept strengths such as rotation:12,smooth:0,flip."""
    from features.deformed_copies import strengths  # It imports numba.

    strengths(text(value))
    return text(value)


def picture_size(value: object) -> str:
    """Parse a side of pictures in pixels, or their height and width, to HEIGHTxWIDTH."""
    sides = str(value).split("x")
    if len(sides) > 2 or not all(side.isdecimal() and 2 <= int(side) <= 4096 for side in sides):
        raise ValueError("must be a number of pixels, 2 to 4096, or a height and a width such as 28x40")
    return f"{int(sides[0])}x{int(sides[-1])}"


def penalty(value: object) -> float | str:
    """Accept a penalty above 0, a fraction `max:F` of the largest, `auto`, or `none`."""
    if value in ("auto", NO_PENALTY):
        return str(value)
    is_fraction = isinstance(value, str) and value.startswith("max:")
    number = penalty_fraction(str(value)) if is_fraction else _number(value)
    if not (0 < number <= 1 if is_fraction else 0 < number < math.inf):
        raise ValueError("must be a number above 0, none, max:F with F above 0 and at most 1 such as max:1e-7, or auto")
    return str(value) if is_fraction else number


def penalty_fraction(value: str) -> float:
    """Return the F of `max:F`: a fraction of the penalty at which all weights are zero."""
    return _number(value.removeprefix("max:"))


def selection(value: object) -> str:
    """Accept `none`, or `greedy:K` with a number of centers K."""
    if value == "none":
        return "none"
    kind, _, size = str(value).partition(":")
    if kind != "greedy" or not size.isascii() or not size.isdigit() or int(size) < 1:
        raise ValueError("must be none, or greedy:K with a number of centers K such as greedy:400")
    return f"greedy:{int(size)}"


BYTE_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
BYTE_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def byte_size(value: object) -> int:
    """Accept a number of bytes: 1500000000, 2GiB, 800MB."""
    return max(int(_in_units(value, BYTE_UNITS, "a size above 0 such as 2GiB, 800MB or a number of bytes")), 1)


def duration(value: object) -> float:
    """Accept a time in seconds: 90, 90s, 55m, 12h, 2d."""
    units = {"": 1.0, "S": 1.0, "M": 60.0, "MIN": 60.0, "H": 3600.0, "D": 86400.0}
    return _in_units(value, units, "a time above 0 such as 90s, 55m, 12h or a number of seconds")


def _in_units(value: object, units: Mapping[str, float], words: str) -> float:
    typed = str(value).strip()
    digits = typed.rstrip(f"{ascii_letters} ")
    number = _number(digits) * units.get(typed[len(digits) :].strip().upper(), math.nan)
    if not 0 < number < math.inf:
        raise ValueError(f"must be {words}")
    return number


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
        column, "auto", "column of a table (name or position), or array of .npz or .npy, that holds y", "--target"
    )
    weights: str | None = optional(
        column, "none", "column of a table, or array of .npz or .npy, that says how much each row counts (0 or more)"
    )
    groups: str | None = optional(
        column,
        "none",
        "column of a table, or array of .npz or .npy, that holds the group of each row; the rows of a group "
        "stay together, in the fit or the held-out rows, and in the training or the test part",
    )
    copies: int = option(1, whole(1), "rows that each training image becomes: it, and deformed copies", "--copies")
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
    categories: int = option(MOST_CATEGORIES, whole(2, 1000), "the most categories of a column; more are refused")
    missing: str | None = optional(
        OneOf(("median",)), "none", "replace missing cells of a table by medians, and add inputs that mark them"
    )
    task: str | None = optional(
        OneOf(("multiclass", "binary", "regression")), "auto", "kind of task; auto finds it from the targets"
    )
    standardise: bool | None = optional(
        truth, "auto", "subtract from inputs their mean in the training rows, divide by the deviation (auto: tables)"
    )
    skip_bad: bool = option(False, truth, "leave out pictures that cannot be read, and train on the others")


@dataclass(frozen=True)
class FeaturesConfig:
    """Which features are computed from the data."""

    name: str = option(
        "auto",
        OneOf(("auto", "soft-hog", "sphog", "raw")),
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
        0.0, real(0, 1, closed=True), "shear images upright before all else: 0 not at all, 0.5 halfway, 1 fully"
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
        "core seconds that a fit may take, instead of a number of candidates (default: 30 for raw features)",
        "--budget",
    )
    working_set: int | None = optional(
        whole(2), "auto", "number of candidates whose Gram matrix may be in memory (auto: all, if memory allows)"
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

    @property
    def learns_scales(self) -> bool:
        """Whether scales are learned; False where the setting is not filled in yet."""
        return self.scale not in (None, "none")


@dataclass(frozen=True)
class StatisticsConfig:
    """The rows that statistics are computed from."""

    hold_out: float = option(
        0.1,
        real(0, 0.9),
        "share of the training rows that is held out to choose settings by (of 5 to 999 different rows, folds "
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
        OneOf(("none", "ridge")),
        "fit the selected centers again by least squares, with a ridge chosen on held-out rows (ridge; the default of "
        "images without a --penalty of yours)",
        "--refit",
    )
    move_centers: int = option(
        0, whole(0), "steps, at most, that move the chosen centers to lower the squared error", "--move-centers"
    )
    tolerance: float = option(
        1e-3, real(0, 1), "relative duality gap to reach; 0: as far as float64 allows, and 1e-3 at least", "--tol"
    )
    max_sweeps: int = option(1000, whole(1), "sweeps or Newton rounds after which a solve gives up", "--max-sweeps")
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
    def n_selected(self) -> int:
        """The K of greedy:K; 0 where nothing is selected."""
        return int(self.select.partition(":")[2] or 0)

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
        "who computes: serial, threads or processes; tls://HOST:PORT of dask only as a flag, and for one start",
        "--scheduler",
    )
    workers: int | None = optional(whole(1, 4096), "auto", "tasks at a time (auto: the processors)", "--workers")
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
        f"`kernel.scale={kernel.scale}`": kernel.learns_scales,
        f"`kernel.sigma2={kernel.sigma2}`": kernel.sigma2 == "auto",
    }
    return next((setting for setting, needed in needs.items() if needed), None)
