"""The page of a run: what it says agrees with the run, it needs no network, and a browser shows it."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from commands import IMAGES, TABLE_RUN, Capture, X, the_error
from features.open_source import open_source
from features.source import SourceSpec
from features.targets import labels_from_decision
from pipeline.config import settings as config
from pipeline.prediction.model_folder import load_model
from pipeline.report import main
from pipeline.reporting import examples as report_examples
from pipeline.verify import main as verify
from runs import TrainedRuns, report_of, sizes_and_times, train_beside

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def parsed(page: str) -> ElementTree.Element:
    """The elements of a page, read as XML: all are closed but those that never are in HTML."""
    page = page.removeprefix("<!doctype html>").replace("<details open>", "<details>")
    return ElementTree.fromstring(re.sub(r"<((?:meta|img|br)\b[^>]*?)/?>", r"<\1/>", page))


def texts(page: ElementTree.Element, tag: str) -> list[str]:
    """The text directly inside of each element of a kind."""
    return ["".join([one.text or "", *(inner.tail or "" for inner in one)]).strip() for one in page.iter(tag)]


def pictures(page: ElementTree.Element, words: str) -> dict[int, np.ndarray]:
    """The pictures whose description begins with some words, by the row that it names."""
    shown = {}
    for image in page.iter("img"):
        if image.attrib["alt"].startswith(words):
            data = base64.b64decode(image.attrib["src"].removeprefix("data:image/png;base64,"))
            shown[int(image.attrib["alt"].split()[-1])] = np.asarray(Image.open(io.BytesIO(data)))
    return shown


def page_of(run: Path, out: Path) -> ElementTree.Element:
    assert main([str(run), "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    bare = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", text)
    assert not re.search(r"https?:|//[a-z]|@import|<script|url\(", bare), "no network"
    found = parsed(text)
    assert all(one.get("src", "data:").startswith("data:") for one in found.iter())
    assert not [one for one in found.iter() if {"href", "srcset", "data", "action"} & set(one.attrib)]
    assert any(one.get("http-equiv") for one in found.iter())
    return found


def test_the_numbers_are_those_of_the_report(trained: Callable[..., Path], capsys: Capture) -> None:
    run = trained(*IMAGES)
    before, report = sizes_and_times(run), report_of(run)
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert {name: of for name, of in sizes_and_times(run).items() if name != "report.html"} == before
    assert verify([str(run)]) == 0
    text = (run / "report.html").read_text()
    found = parsed(text)
    assert f"{100 * report['error_rate']:.2f} %" in texts(found, "b")
    cells = [int(words) for words in texts(found, "td") if words.isdigit()]
    matrix = [count for row in report["confusion"] for count in row]
    starts = [k for k in range(len(cells)) if cells[k] == 0 and cells[k + 1 : k + 11] == matrix[:10]]
    read = [cells[starts[0] + 11 * k + 1 : starts[0] + 11 * k + 11] for k in range(10)]
    assert read == report["confusion"], "a label and its row"
    for one in report["solves"]:
        assert f"{one['objective']:.6g}" in texts(found, "td")
        assert f"{one['relative_gap']:.1e}" in texts(found, "td")
    for name, cost in report["stages"].items():
        assert texts(found, "td")[texts(found, "td").index(name) + 1] == f"{cost['wall_seconds']:.2f}"
    assert f"Peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB" in text
    assert (run / "config.toml").read_text().strip() in texts(found, "pre")
    titles = texts(found, "title")
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
    shown = pictures(found, "test row")
    assert list(shown) == expected.tolist()
    for row, image in shown.items():
        np.testing.assert_array_equal(image, inputs[row])
    words = " ".join(" ".join(texts(found, "div")).split())
    for row in expected.tolist():
        assert f"is {source.classes[truth[row]]}, predicted {source.classes[predicted[row]]}" in words


def test_centers_are_the_training_images_of_the_largest_weights(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_examples, "MOST_CENTERS", 20)
    model, source = load_model(images / "model"), open_source(SourceSpec("digits"))
    shown = pictures(page_of(images, tmp_path / "page.html"), "training row")
    largest = np.argsort(-np.linalg.norm(model.weights, axis=1), kind="stable")[:20]
    assert list(shown) == model.center_index[largest].tolist()
    assert len(shown) == 20 < model.n_centers
    for m, (row, image) in zip(largest.tolist(), shown.items(), strict=True):
        np.testing.assert_array_equal(image, source.read("train", row, row + 1)[0][0])
        np.testing.assert_array_equal(model.features_of(image[None])[0], model.centers[m])


def test_a_selection_shows_its_curve(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    run = finished_run("--centers", "60", "--select", "greedy:25", dataset=tables / "classes.npz")
    found = page_of(run, tmp_path / "page.html")
    assert {"Error against size", "Solves"} & set(texts(found, "h2")) == {"Error against size"}, "there is no iteration"
    points = [line.attrib["points"].split() for line in found.iter("polyline")]
    curve = report_of(run)["selection"]["curve"]
    assert len(curve) > 20
    assert [len(one) for one in points[-2:]] == [len(curve)] * 2, "those of the probabilities come first"


def test_a_path_and_its_refit(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    arguments = ("--centers", "40", "--penalty", "path:max:0.1:4", "--refit", "ridge")
    found = page_of(finished_run(*arguments, dataset=tables / "classes.npz"), tmp_path / "page.html")
    assert "Path of penalties" in texts(found, "h2")
    assert "held-out error against penalty" in texts(found, "title")
    assert "Before the refit:" in (tmp_path / "page.html").read_text()


@pytest.mark.ci
def test_a_working_set_shows_its_passes(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    arguments = ("--centers", "all", "--set", "centers.working_set=100", "--penalty", "2")
    run = finished_run(*arguments, dataset=tables / "classes.npz")
    assert report_of(run)["passes"], "else this test shows nothing"
    found = page_of(run, tmp_path / "page.html")
    assert "largest gap, all candidates against pass over all candidates" in texts(found, "title")


def test_a_regression_shows_truth_against_prediction(rings: dict[str, Path], tmp_path: Path) -> None:
    report, found = report_of(rings["regression"]), page_of(rings["regression"], tmp_path / "page.html")
    assert f"{report['mse']:.6g}" in texts(found, "b")
    assert "prediction against truth" in texts(found, "title")
    assert "Confusion" not in texts(found, "h2")
    assert not pictures(found, "")
    circles = [one for one in found.iter("circle") if one.attrib["fill"] == "#1f77b4"]
    assert len(circles) >= report["n_test"]


def test_labels_are_text_and_never_markup(tmp_path: Path) -> None:
    names = np.array(["<script>alert(1)</script>", '"><img src=x>', "&amp;"])
    np.savez(tmp_path / "words.npz", X=X, y=names[np.clip(np.abs(X[:, 0]) // 2, 0, 2).astype(int)])
    run = train_beside(tmp_path, "words", tmp_path / "words.npz", *TABLE_RUN)
    headings = texts(page_of(run, tmp_path / "page.html"), "th")
    assert [name for name in headings if name in names] == sorted(names)


def test_data_that_are_gone_leave_the_rest(tmp_path: Path) -> None:
    np.savez(tmp_path / "gone.npz", X=X, y=(X[:, 0] > 0).astype(int))
    run = train_beside(tmp_path, "gone", tmp_path / "gone.npz", "--centers", "20")
    whole = page_of(run, tmp_path / "whole.html")
    assert "Misclassified" in texts(whole, "h2")
    assert texts(whole, "th")[5:7] == ["0", "1"]
    (tmp_path / "gone.npz").unlink()
    found = page_of(run, tmp_path / "page.html")
    assert "Misclassified" not in texts(found, "h2")
    assert "Confusion" in texts(found, "h2")
    assert f"Not shown or damaged: examples: dataset {tmp_path / 'gone.npz'}: no such file" in texts(found, "p")


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
        text for text in texts(page_of(run, tmp_path / "page.html"), "p") if text.startswith("Not shown or damaged")
    ]
    assert (str(run) in "".join(notes)) == (not name.endswith(".jsonl"))


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
