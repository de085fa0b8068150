"""The command line of `train`: one flag for each setting that has one, and what only the command knows."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pipeline.config import RESUME, SETTINGS
from pipeline.errors import ConfigError

DATASETS = """\
DATASET is mnist, usps, digits, boston, abalone, sinc, synthetic, or the path of your data: a folder in MNIST's IDX
layout, a .npz, .csv or .zarr.
Settings come from: defaults < jobs/DATASET.toml < --config < flags and --set.
Exit codes: 0 done, 3 tolerance not reached, 2 usage, 65 bad data, 66 missing input, 69 unavailable, 71 out of memory,
73 cannot create or locked, 75 stopped and resumable, 78 other settings than the run has."""


@dataclass(frozen=True)
class Arguments:
    """What was typed: dataset, settings as {key: (text, flag)}, and the command's own options."""

    dataset: str
    assignments: dict[str, tuple[Any, str]]
    config_file: Path | None
    run_dir: Path | None
    resume: str
    print_config: bool
    dry_run: bool
    quiet: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; python -m pipeline.train --help lists all options")


def parse(argv: Sequence[str] | None) -> Arguments:
    """Return what was typed; ConfigError for an unknown or malformed option. `--help` prints and exits."""
    found = vars(_parser().parse_args(argv))
    assignments = {key: (found[key], SETTINGS[key].flag or key) for key in SETTINGS if found.get(key) is not None}
    for text in found["set"]:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: must be KEY=VALUE; --print-config lists the keys")
        assignments[key.strip()] = (value.strip(), "--set")
    return Arguments(
        dataset=found["dataset"],
        assignments=assignments,
        config_file=found["config"],
        run_dir=found["run_dir"],
        resume=found["resume"],
        print_config=found["print_config"],
        dry_run=found["dry_run"],
        quiet=found["quiet"],
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m pipeline.train",
        description="Train a sparse, certified kernel machine.",
        epilog=DATASETS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("dataset", metavar="DATASET", help="what to train on, see below")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of the run (default: a new one in runs/)")
    parser.add_argument(
        "--resume",
        choices=RESUME,
        default="never",
        help="continue the run in --run-dir: never (default), auto: if there is one, require",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting by its key")
    parser.add_argument(
        "--print-config", action="store_true", help="print every value and where it came from, and stop"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print rows, blocks, memory and disk of each stage, and stop"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print errors and warnings only")
    for key, setting in SETTINGS.items():
        if setting.flag and key == "solver.intercept":
            parser.add_argument(setting.flag, dest=key, action="store_const", const=True, help=setting.help)
        elif setting.flag:
            parser.add_argument(setting.flag, dest=key, metavar="VALUE", help=setting.help.replace("%", "%%"))
    return parser
