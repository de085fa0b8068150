"""Options of the commands: all of `train`, with a flag for each setting that has one, and those that others share."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import filterfalse
from pathlib import Path
from typing import Any, NoReturn

from pipeline.config.settings import FLAGS, SETTINGS
from pipeline.config.train_config import PLAIN, is_plain
from pipeline.errors import ConfigError

DATASETS = """\
DATASET is mnist, usps, digits, boston, abalone, sinc, or the path of your data: a folder of pictures with a folder for
each class, a folder in MNIST's IDX layout or of .npy files, a .npz, or a table: .csv, .tsv, .parquet.
Settings come from: defaults < jobs/mnist.toml (for mnist) < --config < flags and --set.
Exit codes: 0 done, 3 tolerance not reached, 2 usage, 65 bad data, 66 missing input, 69 unavailable, 71 out of memory,
73 cannot create or locked, 75 stopped and resumable, 78 other settings than the run has."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a run, from a command or from Python: dataset, settings, and options that are no settings.

    dataset : a name or a path, "" for the one in the configuration file
    assignments : settings by key: the value, or its text, and where it came from
    command : what was typed or called
    names : names of the settings for whoever asks, see `config.settings`
    callback : called with every record of the log and of the metrics; None from a command
    """

    command: str
    dataset: str
    assignments: Mapping[str, tuple[Any, str]]
    config: Path | None
    run_dir: Path | None
    resume: str
    quiet: bool = False
    print_config: bool = False
    dry_run: bool = False
    callback: Callable[[dict[str, Any]], object] | None = None
    names: Mapping[str, str] = field(default_factory=lambda: FLAGS)


RESUME = ("never", "auto", "require")
# The options that --help lists first; the sections of the configuration follow.
FIRST = (
    "data.target",
    "data.test",
    "centers.count",
    "kernel.sigma2",
    "solver.penalty",
    "solver.select",
    "resources.workers",
    "resources.memory_limit",
)


def program(command: str) -> str:
    """Return a command as it is typed here: `slkl train`, or `python -m pipeline.train`."""
    by_name = Path(sys.argv[0]).name == "slkl"
    return f"slkl {command}" if by_name else f"python -m pipeline.{command}"


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        check_plain(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        typed = message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
        near = get_close_matches(typed, self._option_string_actions, 1) if typed.startswith("--") else []
        advice = f"did you mean {near[0]}?" if near else f"{self.prog} --help lists all options"
        raise ConfigError(f"{message}; {advice}")


def command_parser(command: str, description: str, epilog: str, usage: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a command, which raises ConfigError; an epilog of more than a line is shown as it is."""
    shown = argparse.RawDescriptionHelpFormatter if "\n" in epilog else argparse.HelpFormatter
    return _Parser(program(command), usage, description, epilog, formatter_class=shown, allow_abbrev=False)


def add_set_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup", meaning: str) -> None:
    """Add --set KEY=VALUE, which may be given several times: a list of keys and values."""
    parser.add_argument("--set", action="append", type=_assignment, default=[], metavar="KEY=VALUE", help=meaning)


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: must be KEY=VALUE; --print-config lists the keys")
    return key.strip(), value.strip()


def check_plain(words: Iterable[str]) -> None:
    """Raise ConfigError where a word is no plain text, as all that is typed and all paths must be."""
    word = next(filterfalse(is_plain, words), None)
    if word is not None:
        raise ConfigError(f"{word!r}: {PLAIN}; rename the file or folder")


def parse(argv: Sequence[str] | None) -> Arguments:
    """Return the arguments typed; ConfigError for an unknown or malformed option. `--help` prints and exits."""
    words = sys.argv[1:] if argv is None else argv
    typed = vars(_train_parser().parse_args(words))
    given = {key: (typed.pop(key), flag) for key, setting in SETTINGS.items() if (flag := setting.flag)}
    given |= {key: (value, "--set") for key, value in typed.pop("set")}
    assignments = {key: named for key, named in given.items() if named[0] is not None}
    return Arguments(f"{program('train')} {shlex.join(words)}", assignments=assignments, **typed)


def _train_parser() -> argparse.ArgumentParser:
    usage = f"{program('train')} DATASET [options]"
    parser = command_parser("train", "Train a sparse, certified kernel machine.", DATASETS, usage)
    told = "what to train on, see below (default: that of the run, or of the file of --config)"
    parser.add_argument("dataset", metavar="DATASET", nargs="?", default="", help=told)
    first = parser.add_argument_group("most used")
    first.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of the run (default: a new one in runs/)")
    first.add_argument(
        "--resume",
        choices=RESUME,
        default="never",
        help="continue the run in --run-dir: never (default), auto: if there is one, require",
    )
    asked = parser.add_argument_group("instead of a run, and around it")
    asked.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings; that of a run repeats it")
    add_set_option(asked, "any setting by its key")
    asked.add_argument("--print-config", action="store_true", help="print every value and where it came from, and stop")
    asked.add_argument("--dry-run", action="store_true", help="print memory, disk and time, and stop")
    asked.add_argument("-q", "--quiet", action="store_true", help="print errors and warnings only")
    groups = {"most used": first}
    for key in (*FIRST, *(key for key in SETTINGS if key not in FIRST)):
        title = "most used" if key in FIRST else key.rpartition(".")[0] or "all of the run"
        if (flag := SETTINGS[key].flag) is not None:
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            text = SETTINGS[key].help.replace("%", "%%")
            groups[title].add_argument(flag, dest=key, metavar="VALUE", help=text)
    return parser


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which rows of DATA are meant."""
    parser.add_argument("--part", choices=("train", "test", "all"), help="part of a data set that has parts")
    parser.add_argument("--target", metavar="NAME", help="column of a table, or array of .npz or .npy, that holds y")
    add_set_option(parser, "seed or data.KEY of a named data set")
