"""README's commands and every block of Python run on a small stand-in; what the other pages name is there.

A command of the pages is read: its program, options and files exist. The pages of docs/ make a site.
"""

import functools
import inspect
import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import IMAGES, code_of
from features.open_source import open_source
from features.source import SourceSpec
from pipeline.config.settings import SETTINGS
from pipeline.estimators import SLKLClassifier
from runs import ROOT, TrainedRuns, python

PAGES = tuple(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "jobs/README.md", *PAGES)
PROGRAMS = ("python", "make", "sbatch", "kubectl", "docker", "export", "git", "python3.11", ".ci/run")
COMMANDS = ("train", "predict", "evaluate", "report", "status")
OF_OTHERS = {"--cpus-per-task", "--mem", "--mem-per-cpu", "--signal", "--time", "--job-name", "--require-hashes"}
OF_OTHERS |= {"--array", "--output"}
OF_OTHERS |= {"--tls-ca-file", "--tls-cert", "--tls-key", "--out", "--compare"}  # of dask, and of benchmarks
STAND_INS = {  # what the documents leave to the reader
    **{"<name>": "name", "images.npz": "../images.npz", "new.npz": "../new.npz", "DATASET": "digits", "DATA": "digits"},
    **{"FILE.toml": "../more.toml", "FILE": "../rows.txt", "DIR": "out", "HOST": "127.0.0.1", "PORT": "8786"},
    **{"K": "20", "N": "60", "S": "2", "P": "0.01", "T": "0.01"},
}


def fences(document: str) -> list[tuple[str, str]]:
    """Language and content of the code blocks of a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```([{}\w-]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def spans(document: str | Path) -> list[str]:
    """The code within sentences and tables, each on one line."""
    text = (ROOT / document).read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(*documents: str) -> list[str]:
    """All commands, each once: the lines of blocks without a language, and those within sentences."""
    found: list[str] = []
    for document in documents:
        for language, block in fences(document):
            if not language and not block.startswith("runs/features/"):  # which shows what a run leaves behind
                lines = re.sub(r"\\\n *", "", block).splitlines()
                found += [re.sub(r"\s+# .*", "", line) for line in lines if line.strip()]
        found += [span for span in spans(document) if span.removeprefix(".venv/bin/").startswith(PROGRAMS)]
    return list(dict.fromkeys(one for one in found if " " in one or one == ".ci/run"))


def filled_in(command: str) -> list[str]:
    """The words of a command with all its options in brackets, and with stand-ins for its names."""
    command = re.sub(r"[][]| \.\.\.|\|\w+", "", command)
    for word, value in STAND_INS.items():
        command = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w.])", value, command)
    return shlex.split(command)


@functools.cache
def options_of(script: str) -> set[str]:
    """The options that a script, or `-m module`, has by its --help."""
    done = python(*script.split(), "--help")
    assert done.returncode == 0, done.stderr
    return options_in(done.stdout)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text)) - {"--help"}


def known_options() -> set[str]:
    modules = ("jobs.slurm.dask_cluster", *(f"pipeline.{name}" for name in COMMANDS))
    return OF_OTHERS.union(*(options_of(f"-m {module}") for module in modules))


@pytest.fixture(scope="module")
def place(finished_run: TrainedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of digits, images to predict, and files that options name."""
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(finished_run(*IMAGES), folder / "work" / "runs" / "name")
    (folder / "work" / "jobs").symlink_to(ROOT / "jobs")  # commands are typed in the checkout
    images, digits = (getattr(open_source(SourceSpec("digits", seed=0)).train, name)[:20] for name in "Xy")
    np.savez(folder / "images.npz", X=images)
    np.savez(folder / "new.npz", X=images, y=digits)
    (folder / "more.toml").write_text("seed = 1\n")
    np.savetxt(folder / "rows.txt", np.arange(60), fmt="%d")
    np.savetxt(folder / "work" / "table.csv", np.eye(4), delimiter=",", header="a,b,c,y", comments="")
    return folder


@pytest.fixture(autouse=True)
def work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place / "work")


@pytest.mark.parametrize(
    "command", [one for one in commands("README.md") if re.match(r"python -m pipeline\.\w+ ", one)]
)
def test_a_command_of_the_readme_works(command):
    """The settings of a training are read, it is not started."""
    _, _, module, *arguments = filled_in(command)
    words = [module.removeprefix("pipeline."), *arguments]
    assert code_of([*words, "--print-config"] if words[0] == "train" else words) == 0


def of_benchmarks(command: str) -> bool:
    return "jobs/benchmarks/" in command or "jobs/paper/" in command


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=[pytest.mark.ci] * of_benchmarks(one)) for one in commands(*DOCUMENTS)],
)
def test_a_command_has_its_program_options_and_files(command):
    match shlex.split(command):
        case ["python", "-m", module, *words] if module.startswith(("pipeline.", "jobs.")):
            assert options_in(" ".join(words)) <= options_of(f"-m {module}")
        case ["python", path, *words] if of_benchmarks(path):
            assert options_in(" ".join(words)) <= options_of(path)
        case ["make", *words]:
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            assert {word for word in words if "=" not in word} <= set(targets)
        case _:
            assert options_in(re.sub(r'".*?"', "", command)) <= known_options()
    assert SETTINGS.keys() >= set(re.findall(r"--set (\S+?)=", command))
    for file in re.findall(r"(?<!\S)(?:jobs|tests|\.ci)/[\w./-]+|[\w-]+\.lock", command):
        assert (ROOT / file).exists()


@pytest.mark.parametrize("options", sorted({one for page in DOCUMENTS for one in spans(page) if one.startswith("--")}))
def test_an_option_that_is_mentioned_is_one(options):
    """With a value it is a setting of some data set; without one, or of another command, a known option."""
    words = filled_in(options)
    if options_in(options) <= options_of("-m pipeline.train") and len(words) > 1:
        names = ("digits", "sinc", "table.csv")
        assert 0 in [code_of(["train", name, *words, "--print-config"]) for name in names]
    else:
        assert options_in(options) <= known_options()


@pytest.mark.ci
@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_in_the_documentation_runs(document, capsys):
    """Each block prints something, and may use what those before it in its document have made."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = [block for language, block in fences(document) if language == "python"]
    assert blocks or document != "README.md"
    for block in blocks:
        exec(compile(block, document, "exec"), names)
        assert capsys.readouterr().out.strip()


def test_files_that_the_documentation_names_exist():
    for document in DOCUMENTS:
        for span in spans(document):
            if re.fullmatch(r"(jobs|tests|pipeline|features|storage)/[\w./-]*", span) and "DATASET" not in span:
                assert (ROOT / span).exists(), f"{document} names {span}"
    named = spans("pipeline/solvers/mathematics.md")
    files = [span for span in named if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/([\w-]+\.\w+)?", span)]
    assert files
    assert not [span for span in files if not (ROOT / "pipeline" / span).exists()]


def test_the_pages_of_options_and_of_the_api_have_what_the_code_has():
    table = runpy.run_path(str(ROOT / "docs" / "settings_page.py"))["settings_page"]()
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8").endswith(table), "python docs/settings_page.py"
    parameters = set(inspect.signature(SLKLClassifier).parameters)
    assert parameters <= set(spans("docs/api.md"))


def test_the_house_that_is_described_is_the_one_that_stands():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    house = text.split("## Packages", 1)[1].split("\n\n", 2)[1]
    described = set(re.findall(r"(?:^ +|  )(\w+)/ ", house, re.MULTILINE))
    packages = ("pipeline", "features", "storage")
    stand = {path.parent.name for package in packages for path in (ROOT / package).rglob("*.py")}
    assert described == stand | {"jobs", "tests"}


@pytest.mark.ci
def test_the_pages_make_a_site_with_every_setting_and_the_public_classes(tmp_path):
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
