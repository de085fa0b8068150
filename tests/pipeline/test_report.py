"""The page of a run: what it says agrees with the run, it needs no network, and a browser shows it."""

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from features.open_source import open_source
from features.source import SourceSpec
from features.targets import labels_from_decision
from pipeline.config import settings as config
from pipeline.prediction.model_folder import load_model
from pipeline.report import main
from pipeline.reporting import examples as report_examples
from pipeline.reporting.run_facts import status
from pipeline.verify import main as verify
from runs import LONG_SOLVE, ROOT, train_beside

SETTINGS = ("--set", "data.n_train=300", "--set", "data.n_test=200", "--set", "seed=3")
SOURCE = SourceSpec("synthetic", n_train=300, n_test=200, seed=3)
LONG = [*LONG_SOLVE, "--checkpoint-every", "0.1s"]
PATIENCE_SECONDS = 120
VOID = {"meta", "img", "br"}
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """The elements of a page with their attributes and direct text, after checking that all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str], list[str]]] = []
        self.open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open[-1][2].append(data)

    def texts(self, tag: str) -> list[str]:
        return ["".join(words).strip() for name, _, words in self.found if name == tag]

    def pictures(self, words: str) -> dict[int, np.ndarray]:
        """The pictures whose description begins with some words, by the row that it names."""
        shown = {}
        for name, attributes, _ in self.found:
            if name == "img" and attributes["alt"].startswith(words):
                data = base64.b64decode(attributes["src"].removeprefix("data:image/png;base64,"))
                shown[int(attributes["alt"].split()[-1])] = np.asarray(Image.open(io.BytesIO(data)))
        return shown


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs and their features; they are read only."""
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def images(place: Path) -> Path:
    """A run on rendered digits, ten classes."""
    return train_beside(place, "images", "synthetic", "--centers", "80", "--sigma2", "2", *SETTINGS)


X = np.random.default_rng(0).uniform(-5, 5, (160, 2))


def page_of(run: Path, out: Path) -> Page:
    assert main([str(run), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    bare = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", text)
    assert not re.search(r"https?:|//[a-z]|@import|<script|url\(", bare), "no network"
    found = Page(text)
    assert all(a["src"].startswith("data:") for _, a, _ in found.found if "src" in a)
    assert not [a for _, a, _ in found.found if {"href", "srcset", "data", "action"} & set(a)]
    assert any("http-equiv" in a for _, a, _ in found.found)
    return found


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "report.html")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_numbers_are_those_of_the_report(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, report = contents(images), json.loads((images / "report.json").read_text())
    assert main([str(images)]) == 0
    assert capsys.readouterr().out == f"{images / 'report.html'}\n"
    assert contents(images) == before
    assert verify([str(images)]) == 0
    text = (images / "report.html").read_text()
    found = Page(text)
    assert f"{100 * report['error_rate']:.2f} %" in found.texts("b")
    cells = [int(words) for words in found.texts("td") if words.isdigit()]
    matrix = [count for row in report["confusion"] for count in row]
    starts = [k for k in range(len(cells)) if cells[k] == 0 and cells[k + 1 : k + 11] == matrix[:10]]
    read = [cells[starts[0] + 11 * k + 1 : starts[0] + 11 * k + 11] for k in range(10)]
    assert read == report["confusion"], "a label and its row"
    for one in report["solves"]:
        assert f"{one['objective']:.6g}" in found.texts("td")
        assert f"{one['relative_gap']:.1e}" in found.texts("td")
    for name, cost in report["stages"].items():
        assert found.texts("td")[found.texts("td").index(name) + 1] == f"{cost['wall_seconds']:.2f}"
    assert f"Peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB" in text
    assert (images / "config.toml").read_text().strip() in found.texts("pre")
    titles = found.texts("title")
    for words in ("objective against seconds", "relative gap against seconds", "active candidates against sweeps"):
        assert any(title.startswith(words) for title in titles)
    assert "Not shown" not in text


def test_visits_are_summed_over_the_records(images: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (images / "metrics.jsonl").read_text().splitlines()]
    made = sum(record["visited"] for record in records)
    full = 80 * len(records)
    page_of(images, tmp_path / "page.html")
    text = " ".join((tmp_path / "page.html").read_text().split())
    assert f"visited {made} coordinates where as many sweeps over all candidates would have visited {full}:" in text
    assert f"{100 * (full - made) / full:.0f} % saved" in text


def test_misclassified_images_are_those_the_model_is_wrong_about(images: Path, tmp_path: Path) -> None:
    model, source = load_model(images / "model"), open_source(SOURCE)
    inputs, truth = source.read("test", 0, 200)
    decision = model.decision_function(model.features_of(inputs))
    predicted = labels_from_decision(decision, model.task)
    wrong = np.flatnonzero(predicted != truth)
    assert len(wrong) > 3, "else this test shows nothing"
    found = page_of(images, tmp_path / "page.html")
    excess = decision[wrong, predicted[wrong]] - decision[wrong, truth[wrong]]
    expected = wrong[np.argsort(-excess, kind="stable")][: report_examples.MOST_MISTAKES]
    shown = found.pictures("test row")
    assert list(shown) == expected.tolist()
    for row, image in shown.items():
        np.testing.assert_array_equal(image, inputs[row])
    words = " ".join(" ".join(found.texts("div")).split())
    for row in expected.tolist():
        assert f"is {source.classes[truth[row]]}, predicted {source.classes[predicted[row]]}" in words


def test_centers_are_the_training_images_of_the_largest_weights(images: Path, tmp_path: Path) -> None:
    model, source = load_model(images / "model"), open_source(SOURCE)
    shown = page_of(images, tmp_path / "page.html").pictures("training row")
    largest = np.argsort(-np.linalg.norm(model.weights, axis=1), kind="stable")[:60]
    assert list(shown) == model.center_index[largest].tolist()
    assert len(shown) == 60 < model.n_centers
    for m, (row, image) in zip(largest.tolist(), shown.items(), strict=True):
        np.testing.assert_array_equal(image, source.read("train", row, row + 1)[0][0])
        np.testing.assert_array_equal(model.features_of(image[None])[0], model.centers[m])


def test_a_selection_shows_its_curve(place: Path, tmp_path: Path) -> None:
    run = train_beside(place, "selected", "synthetic", "--centers", "80", "--select", "greedy:25", *SETTINGS)
    found = page_of(run, tmp_path / "page.html")
    assert {"Error against size", "Solves"} & set(found.texts("h2")) == {"Error against size"}, "there is no iteration"
    points = [a["points"].split() for name, a, _ in found.found if name == "polyline"]
    curve = json.loads((run / "report.json").read_text())["selection"]["curve"]
    assert len(curve) > 20
    assert [len(one) for one in points[-2:]] == [len(curve)] * 2, "those of the probabilities come first"


def test_a_path_and_its_refit(place: Path, tmp_path: Path) -> None:
    arguments = ("--centers", "50", "--penalty", "path:max:0.1:4", "--refit", "ridge", *SETTINGS)
    run = train_beside(place, "path", "synthetic", *arguments)
    found = page_of(run, tmp_path / "page.html")
    assert "Path of penalties" in found.texts("h2")
    assert "held-out error against penalty" in found.texts("title")
    assert "Before the refit:" in (tmp_path / "page.html").read_text()


def test_a_working_set_shows_its_passes(place: Path, tmp_path: Path) -> None:
    arguments = ("--centers", "all", "--set", "centers.working_set=200", "--features", "sphog", "--penalty", "2")
    arguments += tuple(SETTINGS)
    run = train_beside(place, "passes", "synthetic", *arguments)
    assert json.loads((run / "report.json").read_text())["passes"], "else this test shows nothing"
    found = page_of(run, tmp_path / "page.html")
    assert "largest gap, all candidates against pass over all candidates" in found.texts("title")


def test_a_regression_shows_truth_against_prediction(place: Path, tmp_path: Path) -> None:
    np.savez(place / "regression.npz", X=X, y=np.sinc(np.linalg.norm(X, axis=1) / np.pi))
    run = train_beside(place, "regression", str(place / "regression.npz"), "--centers", "40", "--sigma2", "0.3")
    report = json.loads((run / "report.json").read_text())
    found = page_of(run, tmp_path / "page.html")
    assert f"{report['mse']:.6g}" in found.texts("b")
    assert "prediction against truth" in found.texts("title")
    assert "Confusion" not in found.texts("h2")
    assert not found.pictures("")
    circles = [a for name, a, _ in found.found if name == "circle" and a["fill"] == "#1f77b4"]
    assert len(circles) >= report["n_test"]


def test_labels_are_text_and_never_markup(place: Path, tmp_path: Path) -> None:
    names = np.array(["<script>alert(1)</script>", '"><img src=x>', "&amp;"])
    np.savez(place / "words.npz", X=X, y=names[np.clip(np.linalg.norm(X, axis=1) // 2, 0, 2).astype(int)])
    run = train_beside(place, "words", str(place / "words.npz"), "--centers", "40", "--sigma2", "0.3")
    found = page_of(run, tmp_path / "page.html")
    headings = found.texts("th")
    assert [name for name in headings if name in names] == sorted(names)


def test_data_that_are_gone_leave_the_rest(place: Path, tmp_path: Path) -> None:
    np.savez(place / "gone.npz", X=X, y=(X[:, 0] > 0).astype(int))
    run = train_beside(place, "gone", str(place / "gone.npz"), "--centers", "20")
    whole = page_of(run, tmp_path / "whole.html")
    assert "Misclassified" in whole.texts("h2")
    assert whole.texts("th")[1:4] == ["error", "0", "1"]
    (place / "gone.npz").unlink()
    found = page_of(run, tmp_path / "page.html")
    assert "Misclassified" not in found.texts("h2")
    assert "Confusion" in found.texts("h2")
    assert f"Not shown or damaged: examples: dataset {place / 'gone.npz'}: no such file" in found.texts("p")


def test_nothing_is_downloaded_for_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLKL_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = config.load("mnist", None, {}).config
    assert report_examples.needs_download(settings) == "not here: python -m pipeline.data fetch mnist"
    assert report_examples.needs_download(config.load("digits", None, {}).config) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["report.json", "env.json", "config.toml", "model/arrays.npz", "metrics.jsonl", "log.jsonl"]
)
@pytest.mark.parametrize("damage", [b'{"stage": "sol', b"\xff\xfe\x00"])
def test_damaged_files_are_named_and_the_rest_is_shown(images: Path, tmp_path: Path, name: str, damage: bytes) -> None:
    run = tmp_path / "run"
    shutil.copytree(images, run)
    (run / name).write_bytes(damage)
    notes = [
        text for text in page_of(run, tmp_path / "page.html").texts("p") if text.startswith("Not shown or damaged")
    ]
    assert (str(run) in "".join(notes)) == (not name.endswith(".jsonl"))


@pytest.fixture(scope="module")
def live(place: Path) -> Iterator[Path]:
    """A run in a process of its own that is in the middle of a solve; ended by force."""
    run = place / "live"
    line = [sys.executable, "-m", "pipeline.train", "digits", "--run-dir", str(run), *LONG]
    process = subprocess.Popen([*line, "--features-dir", str(place / "features")], cwd=ROOT)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ((run / "config.toml").exists() and status(run)["stage"] == "solve" and status(run)["solve"]):
            assert process.poll() is None, "it ended before a solve was seen"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield run
    finally:
        process.kill()
        process.wait()


def test_a_run_that_is_alive(live: Path) -> None:
    assert main([str(live)]) == 0
    text = (live / "report.html").read_text()
    found = Page(text)
    assert "This run is running" in text
    assert "Solves" in found.texts("h2")
    assert "relative gap against seconds of the solve" in found.texts("title")
    assert [words for words in found.texts("td") if words in ("features", "centers", "statistics")]
    assert 'dataset = "digits"' in text.replace("&#34;", '"')
    assert "stage: solve" in text
    assert "python -m pipeline.train digits --run-dir" in text
    assert "Misclassified" not in found.texts("h2")
    assert status(live)["state"] == "running", "it is left alone"


def test_bad_input(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, words in (
        ([str(tmp_path)], 66, f"{tmp_path} holds no run; name the folder of one"),
        ([str(images), "--out", str(images / "model" / "x.html")], 2, "--out"),
        ([str(images), "--out", str(images / "report.json")], 2, "--out"),
        ([str(images), "--out", str(tmp_path / "none" / "x.html")], 73, str(tmp_path / "none" / "x.html")),
    ):
        assert main(arguments) == code
        told = capsys.readouterr().err
        assert told.startswith(f"error: {words}")
        assert told.count("\n") == 1


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine: apt-get install chromium")
def test_a_browser_shows_it_without_a_network(images: Path, tmp_path: Path) -> None:
    assert main([str(images), "--out", str(tmp_path / "page.html")]) == 0
    alone = ["unshare", "--map-root-user", "--net"]  # a network of its own, without any device; not all may make one
    trial = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True, check=False)
    line = [*(alone if trial and trial.returncode == 0 else []), str(BROWSER), "--headless", "--no-sandbox"]
    line += ["--disable-gpu", "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}"]
    line += ["--proxy-server=http://127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1200,2400"]
    line += [f"--screenshot={tmp_path / 'page.png'}", (tmp_path / "page.html").as_uri()]
    done = subprocess.run(
        line, capture_output=True, timeout=120, check=False, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    shown = np.asarray(Image.open(tmp_path / "page.png").convert("RGB")).astype(int)
    assert shown.shape == (2400, 1200, 3)
    dark = (shown.max(axis=2) < 60).mean()
    colourful = (shown.max(axis=2) - shown.min(axis=2) > 60).mean()
    assert 0.02 < dark < 0.5, "text and pictures"
    assert 0.002 < colourful < 0.3, "plots and bars"
    assert [band for band in range(0, 2400, 400) if (shown[band : band + 400] < 200).any()] == list(range(0, 2400, 400))
