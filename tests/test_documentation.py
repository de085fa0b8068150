"""Every command of README.md, docs/ and jobs/README.md works: run on a small stand-in where that is cheap, else parsed.

A command that no case of `check` knows makes its test fail. The pages of docs/ make a site, whose links lead somewhere.
"""

import contextlib
import functools
import html
import importlib
import importlib.util
import io
import itertools
import re
import shlex
import shutil
import subprocess
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
from features.published import PUBLISHED, Published
from features.source import SourceSpec
from pipeline.config.settings import SETTINGS
from pipeline.errors import ExitCode
from runs import ROOT, TrainedRuns, python

PAGES = tuple(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "jobs/README.md", *PAGES)
COMMANDS = ("train", "predict", "evaluate", "report", "status", "verify", "export")
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


def mnist_rows() -> list[str]:
    """The options in the table of results on MNIST."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("<!-- measurements: mnist -->", 1)[1].split("<!-- end -->", 1)[0]
    return [span for span in spans(table) if span.startswith("--")]


def variants(command: str) -> list[str]:
    """The commands that one with alternatives and options in brackets stands for, with stand-ins for its names."""
    command = command.replace(" ...", "").replace("[", "").replace("]", "")
    for word, value in STAND_INS.items():
        command = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w.])", value, command)
    choice = re.search(r"\S+(\|\S+)+", command)
    return [command.replace(choice[0], one) for one in choice[0].split("|")] if choice else [command]


def call(module: str, arguments: list[str], *, code: int = 0) -> str:
    """Run a command in this process and return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert importlib.import_module(module).main(arguments) == code, err.getvalue()
    return out.getvalue()


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
    """A folder with a finished run of digits, images to train on and to predict, and files that options name."""
    folder = tmp_path_factory.mktemp("documentation")
    shutil.copytree(finished_run(*IMAGES), folder / "work" / "runs" / "name")
    (folder / "work" / "jobs").symlink_to(ROOT / "jobs")  # commands are typed in the checkout
    images, digits = open_source(SourceSpec("digits", seed=0)).read("train", 0, 400)
    np.savez(folder / "few.npz", X_train=images[:300], y_train=digits[:300], X_test=images[300:], y_test=digits[300:])
    np.savez(folder / "images.npz", X=images[:20])
    np.savez(folder / "new.npz", X=images[:20], y=digits[:20])
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


def smaller(arguments: list[str]) -> list[str]:
    """A fiftieth of the candidates, and of all that is counted in hundreds."""
    return [re.sub(r"\d{3,}", lambda number: str(int(number[0]) // 50), word) for word in arguments]


def check_train(arguments: list[str]) -> None:
    """Train for real on 300 images in the place of MNIST and digits; print the settings where a scheduler is needed."""
    if "--scheduler" not in arguments:
        is_new = "runs/name" not in arguments  # else it goes on with the data of the run here
        data = "../few.npz" if arguments[0] in ("mnist", "digits") and is_new else arguments[0]
        call("pipeline.train", [data, *smaller(arguments[1:]), "-q"])


def check_pipeline(module: str, arguments: list[str], cache: Path) -> None:
    if module == "pipeline.train":
        check_train(arguments)
        return
    with pytest.MonkeyPatch.context() as patch:  # a machine without data sets, and mirrors that do not answer
        patch.delenv("SLKL_DATA_DIR", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        for name, published in PUBLISHED.items():
            patch.setitem(PUBLISHED, name, Published(published.files, ("http://127.0.0.1:9/",)))
        call(module, smaller(arguments), code=ExitCode.UNAVAILABLE if "fetch" in arguments else ExitCode.DONE)


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
        check(" ".join(inner).replace(" /runs/slkl-mnist", " runs/name"), Path())
    else:
        assert files or "job/slkl-mnist" in words or words[-2:] == ["job", "slkl-mnist"]
        assert "name: slkl-mnist" in (ROOT / "jobs" / "kubernetes" / "train.yaml").read_text()


def check(command: str, cache: Path) -> None:
    """Check one command without alternatives; fails for one that it does not know."""
    match shlex.split(command):
        case ["python", "-m", "jobs.slurm.dask_cluster", *arguments]:
            assert options_in(help_of("-m jobs.slurm.dask_cluster")) >= options_in(" ".join(arguments)) - {"--help"}
        case ["python", "-m", module] | ["python", "-m", module, "--help"]:
            assert help_of(f"-m {module}")
        case ["python", "-m", module, *arguments] if module.removeprefix("pipeline.") in COMMANDS:
            check_pipeline(module, arguments, cache)
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
        case [".ci/run" | ".ci/nightly" as script, *families]:
            subprocess.run(["bash", "-n", ROOT / script], check=True)
            assert all((ROOT / "tests" / family).is_dir() or family in ("documents", "alone") for family in families)
        case [".venv/bin/python", "-m", "pytest", folder, "-x"]:
            assert list((ROOT / folder).glob("test_*.py"))
        case ["python", "-m", "pip", "install", "."]:
            assert (ROOT / "pyproject.toml").is_file()
        case ["git", "clone", *_] | ["python3.11", "-m", "venv", ".venv"]:
            pass
        case _:
            pytest.fail(f"the documentation has a command that this test does not know: {command}")


TRAINING = "python -m pipeline.train "
TAKES_SECONDS = (TRAINING, "python jobs/benchmarks/")


@pytest.mark.parametrize(
    "command", [pytest.param(one, marks=[pytest.mark.ci] * one.startswith(TAKES_SECONDS)) for one in documented()]
)
def test_a_documented_command_works(command: str, work: Path, tmp_path: Path) -> None:
    for one in variants(command):
        check(one, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("options", mnist_rows())
def test_a_row_of_the_results_trains(options: str, work: Path) -> None:
    check_train(["mnist", *shlex.split(options)])


def test_the_settings_of_every_documented_training_are_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no run stands that another test has started
    typed = [command for command in documented() if command.startswith(TRAINING) and "--help" not in command]
    trainings = [one for command in typed for one in variants(command)]
    trainings += [f"{TRAINING}mnist {options}" for options in mnist_rows()]
    assert len(trainings) > 10
    for command in trainings:
        call("pipeline.train", [*shlex.split(command.removeprefix(TRAINING)), "--print-config"])


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
    others = {option for name in COMMANDS[1:] for option in options_in(help_of(f"-m pipeline.{name}"))}
    known |= (
        others
        | options_in(help_of("-m jobs.slurm.dask_cluster"))
        | SLURM_OPTIONS
        | DASK_OPTIONS
        | {"--out", "--compare"}
    )
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


def test_contributing_is_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_every_setting_has_a_row_and_a_sentence() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "docs" / "settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.settings_page()
    rows = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in page.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 for row in rows)
    by_key = {re.findall("`([^`]+)`", row[0])[0]: row for row in rows}
    for key, setting in SETTINGS.items():
        assert setting.flag is None or setting.flag in by_key[key][0]
        assert by_key[key][1]
        assert by_key[key][2].strip("`")
        assert len(by_key[key][3].split()) >= 3, f"{key} has no sentence"
        assert by_key[key][3].endswith("."), key


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors: of links to no page or heading, and of docstrings among them."""
    pytest.importorskip("sphinx", reason="sphinx is not installed (requirements-dev.lock has it)")
    folder = tmp_path_factory.mktemp("site")
    done = python(
        "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "trees", ROOT / "docs", folder / "html"
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


@pytest.mark.ci
def test_links_within_the_site_lead_to_a_place(site: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    named = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    n_links = 0
    for page, text in texts.items():
        for link in map(html.unescape, re.findall(r'<a [^>]*href="([^"]+)"', text)):
            if re.match(r"\w+:", link):
                continue
            file, _, place = link.partition("#")
            target = page if not file else site / file
            n_links += 1
            assert target.exists(), f"{page.name} links to {link}"
            assert not place or target.suffix != ".html" or place in named[target], f"{page.name} links to {link}"
    assert n_links > 100


@pytest.mark.ci
def test_the_pages_hold_every_setting_the_public_classes_and_what_is_included(site: Path) -> None:
    """The texts of the mathematics and of the clusters stand elsewhere."""
    options, api, mathematics, clusters = (
        (site / f"{page}.html").read_text(encoding="utf-8") for page in ("options", "api", "mathematics", "clusters")
    )
    assert all(key in re.sub(r"<[^>]+>", "", options) for key in SETTINGS)
    for name in ("train.train", "estimators.SLKLClassifier", "estimators.SLKLRegressor"):
        assert f'id="pipeline.{name}"' in api
    assert "Kernel columns" in mathematics
    assert "SLURM" in clusters
