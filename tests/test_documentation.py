"""Every command of README.md, docs/ and jobs/README.md works: run on a small stand-in where that is cheap, else parsed.

A command that no case of `check` knows makes its test fail. The pages of docs/ make a site.
"""

import contextlib
import functools
import importlib
import io
import itertools
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
import pytest

from commands import IMAGES
from features.open_source import open_source
from features.source import SourceSpec
from pipeline.config.settings import SETTINGS
from runs import ROOT, TrainedRuns, python

PAGES = tuple(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "jobs/README.md", *PAGES)
COMMANDS = ("train", "predict", "evaluate", "report", "status", "export")
FIRST_WORDS = re.compile(r"(python|make|sbatch|kubectl|docker|export|\.venv/\S+) ")  # of commands within sentences
SLURM_OPTIONS = {"--cpus-per-task", "--mem", "--signal", "--time", "--job-name"}
DASK_OPTIONS = {"--tls-ca-file", "--tls-cert", "--tls-key"}
STAND_INS = {  # what the documents leave to the reader
    **{"<name>": "name", "slkl-1234": "name", "MODEL": "runs/name", "images.npz": "../images.npz", "NAME": "y"},
    **{"new.npz": "../new.npz", "FILE.toml": "../more.toml", "FILE": "../rows.txt", "DIR": "out", "FOLDER": "."},
    **{"DATASET": "digits", "DATA": "digits", "HOST": "127.0.0.1", "PORT": "8786", "FROM": "max", "TO": "0.1"},
    **{"K": "20", "N": "60", "S": "2", "P": "0.01", "T": "0.01"},
}


def fences(document: str) -> list[tuple[str, str]]:
    """Language and content of the code blocks of a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```([{}\w-]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    """The code within sentences and tables, each on one line."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def documented() -> list[str]:
    """All commands, in the order of the documents, each once."""
    found: list[str] = []
    for document in DOCUMENTS:
        for language, block in fences(document):
            if not language and not block.startswith("runs/features/"):  # which shows what a run leaves behind
                lines = re.sub(r"\\\n *", "", block).splitlines()
                found += [re.sub(r"\s+# .*", "", line) for line in lines if line.strip()]
        text = (ROOT / document).read_text(encoding="utf-8")
        found += [span for span in spans(text) if FIRST_WORDS.match(span)]
    return list(dict.fromkeys(found))


def flags() -> list[str]:
    """Options that are mentioned without a command, with their values: `--sigma2 2 --refit ridge`."""
    text = "".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    return list(dict.fromkeys(span for span in spans(text) if span.startswith("--")))


def variants(command: str) -> list[str]:
    """The commands that one with alternatives and options in brackets stands for, with stand-ins for its names."""
    command = command.replace(" ...", "").replace("[", "").replace("]", "")
    for word, value in STAND_INS.items():
        command = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w.])", value, command)
    choice = re.search(r"\S+(\|\S+)+", command)
    return [command.replace(choice[0], one) for one in choice[0].split("|")] if choice else [command]


def call(module: str, arguments: list[str]) -> None:
    """Run a command in this process."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        assert importlib.import_module(module).main(arguments) == 0, err.getvalue()


@functools.cache
def help_of(script: str) -> str:
    """What a script, or `-m module`, prints for --help."""
    done = python(*script.split(), "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))


@pytest.fixture(scope="session")
def place(finished_run: TrainedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of digits, images to predict, and files that options name."""
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(finished_run(*IMAGES), folder / "work" / "runs" / "name")
    (folder / "work" / "jobs").symlink_to(ROOT / "jobs")  # commands are typed in the checkout
    images, digits = open_source(SourceSpec("digits", seed=0)).read("train", 0, 20)
    np.savez(folder / "images.npz", X=images)
    np.savez(folder / "new.npz", X=images, y=digits)
    (folder / "more.toml").write_text("seed = 1\n")
    np.savetxt(folder / "rows.txt", np.arange(60), fmt="%d")
    return folder


@pytest.fixture
def work(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder to run commands in; what a command leaves beside its runs is removed."""
    folder = place / "work"
    monkeypatch.chdir(folder)
    yield folder
    for path in folder.iterdir():
        if path.name not in ("runs", "jobs"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_pipeline(module: str, arguments: list[str]) -> None:
    """Run a command on the run and the files here; the settings of a training are read, it is not started."""
    call(module, [*arguments, "--print-config"] if module == "pipeline.train" else arguments)


def check_submission(words: list[str]) -> None:
    script = words.index("jobs/slurm/train.sbatch")
    assert (ROOT / words[script]).is_file()
    assert options_in(" ".join(words[:script])) <= SLURM_OPTIONS
    call("pipeline.train", [*words[script + 1 :], "--print-config"])


def check_variables(assignments: list[str]) -> None:
    """Variables of dask set options that it has: those of its own defaults."""
    assert distributed.__version__
    for name in (one.partition("=")[0] for one in assignments):
        if name.startswith("DASK_"):
            dask.config.get(name.removeprefix("DASK_").lower().replace("__", "."))  # or KeyError
        else:
            assert name in (ROOT / "features" / "published.py").read_text()


def check_manifest(words: list[str]) -> None:
    """Files that docker and kubectl are given exist; what they run inside works on the run here."""
    files = [name for option, name in itertools.pairwise(words) if option == "-f" and not name.startswith("job/")]
    assert all((ROOT / name).is_file() for name in files)
    if "exec" in words:
        inner = words[words.index("--") + 1 :]
        check(" ".join(inner).replace(" /runs/slkl-mnist", " runs/name"))
    else:
        assert files or "job/slkl-mnist" in words or words[-2:] == ["job", "slkl-mnist"]
        assert "name: slkl-mnist" in (ROOT / "jobs" / "kubernetes" / "train.yaml").read_text()


def check(command: str) -> None:
    """Check one command without alternatives; fails for one that it does not know."""
    match shlex.split(command):
        case ["python", "-m", "jobs.slurm.dask_cluster", *arguments]:
            assert options_in(help_of("-m jobs.slurm.dask_cluster")) >= options_in(" ".join(arguments)) - {"--help"}
        case ["python", "-m", module] | ["python", "-m", module, "--help"]:
            assert help_of(f"-m {module}")
        case ["python", "-m", module, *arguments] if module.removeprefix("pipeline.") in COMMANDS:
            check_pipeline(module, arguments)
        case ["python", path] if path.startswith("jobs/examples/"):
            assert (ROOT / path).is_file()  # and each that is there is run by tests/jobs/test_examples.py
        case ["python", path, *arguments] if (ROOT / path).is_file():  # benchmarks take minutes to hours
            assert options_in(help_of(path)) >= options_in(" ".join(arguments))
        case ["make", *words] if targets := {word for word in words if "=" not in word}:
            assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
        case ["sbatch", *words]:
            check_submission(words)
        case [variable, "sbatch", *words] if variable.startswith("SLKL_DASK="):
            asked = options_in(variable) - {"--partition"}
            assert options_in(help_of("-m jobs.slurm.dask_cluster")) >= asked
            check_submission(words)
        case ["export", *assignments]:
            check_variables(assignments)
        case [".venv/bin/python", "-m", "pip", "install", "--require-hashes", "-r", file]:
            assert (ROOT / file).is_file()
        case [".venv/bin/python", "-m", "pip", "install", *packages]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            assert packages == project["optional-dependencies"]["slurm"]
        case ["docker" | "kubectl", *words]:
            check_manifest(words)
        case [".ci/run"]:
            assert (ROOT / ".ci" / "run").is_file()
        case [".venv/bin/python", "-m", "pytest", folder, "-x"]:
            assert list((ROOT / folder).glob("test_*.py"))
        case ["git", "clone", *_] | ["python3.11", "-m", "venv", ".venv"] | ["python", "-m", "pip", "install", "."]:
            pass
        case _:
            pytest.fail(f"the documentation has a command that this test does not know: {command}")


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[pytest.mark.ci] * ("jobs/benchmarks/" in one)) for one in documented()]
)
def test_a_documented_command_works(command: str, work: Path) -> None:
    for one in variants(command):
        check(one)


@pytest.mark.parametrize("options", flags())
def test_an_option_that_is_mentioned_is_one(options: str, work: Path) -> None:
    """With a value it is a setting of some data set; without one, or of another command, a known option."""
    (spelled,) = variants(options)
    known = options_in(help_of("-m pipeline.train"))
    if options_in(options) <= known and len(shlex.split(options)) > 1:
        np.savetxt("table.csv", np.eye(4), delimiter=",", header="a,b,c,y", comments="")
        names = ("digits", "sinc", "table.csv")
        module = importlib.import_module("pipeline.train")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
            codes = [module.main([name, *shlex.split(spelled), "--print-config"]) for name in names]
        assert 0 in codes, err.getvalue()
        return
    others = ("jobs.slurm.dask_cluster", *(f"pipeline.{name}" for name in COMMANDS[1:]))
    known |= {option for name in others for option in options_in(help_of(f"-m {name}"))}
    known |= SLURM_OPTIONS | DASK_OPTIONS | {"--out", "--compare"}
    assert options_in(options) <= known


@pytest.mark.ci
def test_python_in_the_documentation_runs(work: Path) -> None:
    """Each block prints something, and may use what those before it in its document have made."""
    n_blocks = 0
    for document in DOCUMENTS:
        names: dict[str, Any] = {"__name__": "__main__"}
        for block in (block for language, block in fences(document) if language == "python"):
            n_blocks += 1
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block, document, "exec"), names)
            assert out.getvalue().strip()
    assert n_blocks


def test_files_that_the_documentation_names_exist() -> None:
    for document in DOCUMENTS:
        for span in spans((ROOT / document).read_text(encoding="utf-8")):
            if re.fullmatch(r"(jobs|tests|pipeline|features|storage)/[\w./-]*", span) and "DATASET" not in span:
                assert (ROOT / span).exists(), f"{document} names {span}"
    named = spans((ROOT / "pipeline" / "solvers" / "mathematics.md").read_text(encoding="utf-8"))
    files = [span for span in named if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/([\w-]+\.\w+)?", span)]
    assert files
    assert not [span for span in files if not (ROOT / "pipeline" / span).exists()]


def test_the_house_that_is_described_is_the_one_that_stands() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    house = text.split("## Packages", 1)[1].split("\n\n", 2)[1]
    described = set(re.findall(r"(?:^ +|  )(\w+)/ ", house, re.MULTILINE))
    packages = ("pipeline", "features", "storage")
    stand = {path.parent.name for package in packages for path in (ROOT / package).rglob("*.py")}
    assert described == stand | {"jobs", "tests"}


@pytest.mark.ci
def test_the_pages_make_a_site_with_every_setting_and_the_public_classes(tmp_path: Path) -> None:
    """Warnings are errors: of links to no page, file or heading, and of docstrings among them."""
    pytest.importorskip("sphinx", reason="sphinx is not installed (requirements-dev.lock has it)")
    options = ("-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "trees")
    done = python("-m", "sphinx", *options, ROOT / "docs", tmp_path / "html")
    assert done.returncode == 0, done.stderr[-4000:]
    settings, api, mathematics, clusters = (
        (tmp_path / "html" / f"{page}.html").read_text(encoding="utf-8")
        for page in ("options", "api", "mathematics", "clusters")
    )
    shown = re.sub(r"<[^>]+>", "", settings)
    assert all(key in shown and (setting.flag or "") in shown for key, setting in SETTINGS.items())
    for name in ("train.train", "estimators.SLKLClassifier", "estimators.SLKLRegressor"):
        assert f'id="pipeline.{name}"' in api
    assert "Kernel columns" in mathematics, "it stands elsewhere, as the text of the clusters does"
    assert "SLURM" in clusters
