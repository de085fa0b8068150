"""The page of a run: what it says agrees with the run, it needs no network, and a browser shows it."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from commands import IMAGES, TABLE_RUN, Capture, X, the_error
from features.open_source import open_source
from features.source import SourceSpec
from features.targets import labels_from_decision
from pipeline import train
from pipeline.config import settings as config
from pipeline.prediction.model_folder import load_model
from pipeline.report import main
from pipeline.reporting import examples as report_examples
from pipeline.reporting.run_facts import status
from pipeline.verify import main as verify
from runs import TrainedRuns, report_of, sizes_and_times, train_beside

VOID = {"meta", "img", "br"}
Element = tuple[str, dict[str, str], list[str]]  # its name, attributes and texts
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """The elements of a page with their attributes and direct text, after checking that all are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Element] = []
        self.open: list[Element] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop()[0] == tag

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


def test_the_numbers_are_those_of_the_report(trained: Callable[..., Path], capsys: Capture) -> None:
    run = trained(*IMAGES)
    before, report = sizes_and_times(run), report_of(run)
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert {name: of for name, of in sizes_and_times(run).items() if name != "report.html"} == before
    assert verify([str(run)]) == 0
    text = (run / "report.html").read_text()
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
    assert (run / "config.toml").read_text().strip() in found.texts("pre")
    titles = found.texts("title")
    for words in ("objective against seconds", "relative gap against seconds", "active candidates against sweeps"):
        assert any(title.startswith(words) for title in titles)
    assert "Not shown" not in text
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    made, full = sum(record["visited"] for record in records), 60 * len(records)
    words = " ".join(text.split())
    assert f"visited {made} coordinates where as many sweeps over all candidates would have visited {full}:" in words
    assert f"{100 * (full - made) / full:.0f} % saved" in words


def test_misclassified_images_are_those_the_model_is_wrong_about(images: Path, tmp_path: Path) -> None:
    model, source = load_model(images / "model"), open_source(SourceSpec("digits"))
    inputs, truth = source.read("test", 0, source.n_test)
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


def test_centers_are_the_training_images_of_the_largest_weights(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_examples, "MOST_CENTERS", 20)
    model, source = load_model(images / "model"), open_source(SourceSpec("digits"))
    shown = page_of(images, tmp_path / "page.html").pictures("training row")
    largest = np.argsort(-np.linalg.norm(model.weights, axis=1), kind="stable")[:20]
    assert list(shown) == model.center_index[largest].tolist()
    assert len(shown) == 20 < model.n_centers
    for m, (row, image) in zip(largest.tolist(), shown.items(), strict=True):
        np.testing.assert_array_equal(image, source.read("train", row, row + 1)[0][0])
        np.testing.assert_array_equal(model.features_of(image[None])[0], model.centers[m])


def test_a_selection_shows_its_curve(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    run = finished_run("--centers", "60", "--select", "greedy:25", dataset=tables / "classes.npz")
    found = page_of(run, tmp_path / "page.html")
    assert {"Error against size", "Solves"} & set(found.texts("h2")) == {"Error against size"}, "there is no iteration"
    points = [a["points"].split() for name, a, _ in found.found if name == "polyline"]
    curve = report_of(run)["selection"]["curve"]
    assert len(curve) > 20
    assert [len(one) for one in points[-2:]] == [len(curve)] * 2, "those of the probabilities come first"


def test_a_path_and_its_refit(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    arguments = ("--centers", "40", "--penalty", "path:max:0.1:4", "--refit", "ridge")
    found = page_of(finished_run(*arguments, dataset=tables / "classes.npz"), tmp_path / "page.html")
    assert "Path of penalties" in found.texts("h2")
    assert "held-out error against penalty" in found.texts("title")
    assert "Before the refit:" in (tmp_path / "page.html").read_text()


@pytest.mark.ci
def test_a_working_set_shows_its_passes(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    arguments = ("--centers", "all", "--set", "centers.working_set=100", "--penalty", "2")
    run = finished_run(*arguments, dataset=tables / "classes.npz")
    assert report_of(run)["passes"], "else this test shows nothing"
    found = page_of(run, tmp_path / "page.html")
    assert "largest gap, all candidates against pass over all candidates" in found.texts("title")


def test_a_regression_shows_truth_against_prediction(rings: dict[str, Path], tmp_path: Path) -> None:
    report, found = report_of(rings["regression"]), page_of(rings["regression"], tmp_path / "page.html")
    assert f"{report['mse']:.6g}" in found.texts("b")
    assert "prediction against truth" in found.texts("title")
    assert "Confusion" not in found.texts("h2")
    assert not found.pictures("")
    circles = [a for name, a, _ in found.found if name == "circle" and a["fill"] == "#1f77b4"]
    assert len(circles) >= report["n_test"]


def test_labels_are_text_and_never_markup(tmp_path: Path) -> None:
    names = np.array(["<script>alert(1)</script>", '"><img src=x>', "&amp;"])
    np.savez(tmp_path / "words.npz", X=X, y=names[np.clip(np.abs(X[:, 0]) // 2, 0, 2).astype(int)])
    run = train_beside(tmp_path, "words", tmp_path / "words.npz", *TABLE_RUN)
    headings = page_of(run, tmp_path / "page.html").texts("th")
    assert [name for name in headings if name in names] == sorted(names)


def test_data_that_are_gone_leave_the_rest(tmp_path: Path) -> None:
    np.savez(tmp_path / "gone.npz", X=X, y=(X[:, 0] > 0).astype(int))
    run = train_beside(tmp_path, "gone", tmp_path / "gone.npz", "--centers", "20")
    whole = page_of(run, tmp_path / "whole.html")
    assert "Misclassified" in whole.texts("h2")
    assert whole.texts("th")[1:4] == ["error", "0", "1"]
    (tmp_path / "gone.npz").unlink()
    found = page_of(run, tmp_path / "page.html")
    assert "Misclassified" not in found.texts("h2")
    assert "Confusion" in found.texts("h2")
    assert f"Not shown or damaged: examples: dataset {tmp_path / 'gone.npz'}: no such file" in found.texts("p")


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
def test_damaged_files_are_named_and_the_rest_is_shown(
    rings: dict[str, Path], tmp_path: Path, name: str, damage: bytes
) -> None:
    run = shutil.copytree(rings["words"], tmp_path / "run")
    (run / name).write_bytes(damage)
    notes = [
        text for text in page_of(run, tmp_path / "page.html").texts("p") if text.startswith("Not shown or damaged")
    ]
    assert (str(run) in "".join(notes)) == (not name.endswith(".jsonl"))


def test_a_run_that_is_alive(features: Path, tables: Path, tmp_path: Path) -> None:
    """It is looked at by the callback of its own process, amid a solve."""
    run, pages = tmp_path / "run", []

    def look(record: dict[str, Any]) -> None:
        if "relative_gap" in record and not pages:
            pages.append(page_of(run, tmp_path / "page.html"))
            assert status(run)["state"] == "running", "it is left alone"

    train.train(
        tables / "classes.npz", run_dir=run, features_dir=features, callback=look, quiet=True, centers=40, penalty=0.01
    )
    (found,) = pages
    text = (tmp_path / "page.html").read_text()
    assert "This run is running" in text
    assert "Solves" in found.texts("h2")
    assert "relative gap against seconds of the solve" in found.texts("title")
    assert [words for words in found.texts("td") if words in ("features", "centers", "statistics")]
    assert f'dataset = "{tables / "classes.npz"}"' in text.replace("&#34;", '"')
    assert "stage: solve" in text
    assert "Misclassified" not in found.texts("h2")


def test_bad_input(images: Path, tmp_path: Path, capsys: Capture) -> None:
    for arguments, code, words in (
        ([str(tmp_path)], 66, f"{tmp_path} holds no run; name the folder of one"),
        ([str(images), "--out", str(images / "model" / "x.html")], 2, "--out"),
        ([str(images), "--out", str(images / "report.json")], 2, "--out"),
        ([str(images), "--out", str(tmp_path / "none" / "x.html")], 73, str(tmp_path / "none" / "x.html")),
    ):
        assert main(arguments) == code
        assert the_error(capsys).startswith(f"error: {words}")


@pytest.mark.ci
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
