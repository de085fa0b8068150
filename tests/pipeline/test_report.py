"""The page of a run: what it says agrees with the run, it needs no network, and a browser shows it."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from commands import IMAGES, TABLE_RUN, X
from features.open_source import open_source
from features.source import SourceSpec
from features.targets import labels_from_decision
from pipeline.config import settings as config
from pipeline.prediction.trained_model import load_model
from pipeline.report import main
from pipeline.reporting import page as report_page
from runs import report_of, sizes_and_times, train_beside

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


def test_the_numbers_are_those_of_the_report(trained, capsys):
    run = trained(*IMAGES)
    before, report = sizes_and_times(run), report_of(run)
    for _ in range(2):  # it replaces its own page
        assert main([str(run)]) == 0
        assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    assert {name: of for name, of in sizes_and_times(run).items() if name != "report.html"} == before
    text = (run / "report.html").read_text()
    found = parsed(text)
    assert f"{100 * report['error_rate']:.2f} %" in texts(found, "b")
    cells = texts(found, "td")
    counts = [words for words in cells if words.isdigit()]
    rows = [str(number) for label, row in enumerate(report["confusion"]) for number in (label, *row)]
    assert rows in [counts[k : k + len(rows)] for k in range(len(counts))], "a label and its row"
    for one in report["solves"]:
        assert {f"{one['objective']:.6g}", f"{one['relative_gap']:.1e}"} <= set(cells)
    for name, cost in report["stages"].items():
        assert cells[cells.index(name) + 1] == f"{cost['wall_seconds']:.2f}"
    assert f"Peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB" in text
    assert (run / "config.toml").read_text().strip() in texts(found, "pre")
    assert "deskew" in text
    titles = texts(found, "title")
    for words in ("objective against", "relative gap against", "active candidates against", "share that is right"):
        assert any(title.startswith(words) for title in titles)
    assert f"calibration error {100 * report['probabilities']['calibration_error']:.2f} %" in " ".join(text.split())
    assert "Not shown" not in text


def test_misclassified_images_are_those_the_model_is_wrong_about(images, tmp_path):
    model, source = load_model(images / "model"), open_source(SourceSpec("digits"))
    inputs, truth = source.test.X[:], source.test.y[:]
    decision = model.decision_function(model.features_of(inputs))
    predicted = labels_from_decision(decision, model.task)
    wrong = np.flatnonzero(predicted != truth)
    assert len(wrong) > 3, "else this test shows nothing"
    found = page_of(images, tmp_path / "page.html")
    excess = decision[wrong, predicted[wrong]] - decision[wrong, truth[wrong]]
    expected = wrong[np.argsort(-excess, kind="stable")][: report_page.MOST_MISTAKES]
    shown, data = pictures(found, "row"), load_digits().target
    rows = source.test.numbers
    assert rows is not None
    assert list(shown) == rows[expected].tolist()
    for row, image in zip(expected.tolist(), shown.values(), strict=True):
        np.testing.assert_array_equal(image, inputs[row])
        assert data[rows[row]] == truth[row], "the row of the data as they are given"
    words = " ".join(" ".join(texts(found, "div")).split())
    for row in expected.tolist():
        assert f"is {source.classes[truth[row]]}, predicted {source.classes[predicted[row]]}" in words


def test_centers_are_the_training_images_of_the_largest_weights(images, tmp_path):
    model, source = load_model(images / "model"), open_source(SourceSpec("digits"))
    shown = pictures(page_of(images, tmp_path / "page.html"), "training row")
    largest = np.argsort(-np.linalg.norm(model.weights, axis=1), kind="stable")[:40]
    rows = source.train.numbers
    assert rows is not None
    assert list(shown) == rows[model.center_index[largest]].tolist()
    assert len(shown) == 40 < model.n_centers
    for m, image in zip(largest.tolist(), shown.values(), strict=True):
        row = int(model.center_index[m])
        np.testing.assert_array_equal(image, source.train.X[row : row + 1][0])
        np.testing.assert_array_equal(model.features_of(image[None])[0], model.centers[m])


@pytest.mark.parametrize(
    ("asked", "heading", "title"),
    [
        ("--centers 60 --select greedy:25", "Error against size", "held-out mean squared error against centers"),
        ("--centers 40 --penalty auto --refit ridge", "Path of penalties", "held-out error against penalty"),
    ],
)
def test_what_a_run_did_has_its_plots(finished_run, tables, tmp_path, asked, heading, title):
    found = page_of(finished_run(*asked.split(), dataset=tables / "classes.npz"), tmp_path / "page.html")
    assert heading in texts(found, "h2")
    assert any(name.startswith(title) for name in texts(found, "title"))
    assert ("Before the refit:" in (tmp_path / "page.html").read_text()) == ("--refit" in asked)


def test_a_regression_shows_truth_against_prediction(rings, tmp_path):
    report, found = report_of(rings["regression"]), page_of(rings["regression"], tmp_path / "page.html")
    assert f"{report['mse']:.6g}" in texts(found, "b")
    assert "prediction against truth" in texts(found, "title")
    assert [texts(found, "span")[k] for k in range(3)] == ["test R²", "RMSE", "RMSE of always predicting the mean"]
    assert "Confusion" not in texts(found, "h2")
    assert not pictures(found, "")
    circles = [one for one in found.iter("circle") if one.attrib["fill"] == "var(--c0)"]
    assert len(circles) >= report["n_test"]


def test_a_table_is_told_by_the_rows_of_its_file_and_without_settings_of_images(tmp_path):
    y = np.where(np.arange(len(X)) % 7, X[:, 0] + 5, 100 + np.arange(len(X)))  # nothing tells the large ones
    lines = [f"{a},{b},{value}" for (a, b), value in zip(X.tolist(), y.tolist(), strict=True)]
    (tmp_path / "odd.csv").write_text("\n".join(["a,b,y", *lines]))
    run = train_beside(tmp_path, "odd", tmp_path / "odd.csv", *TABLE_RUN)
    found = page_of(run, tmp_path / "page.html")
    cells = texts(found, "td")
    truth = {str(row): f"{value:.6g}" for row, value in enumerate(y.tolist())}
    places = [k for k in range(len(cells) - 3) if truth.get(cells[k]) == cells[k + 1]]
    assert len(places) == report_of(run)["n_test"] == 40
    (settings,) = (text for text in texts(found, "pre") if text.startswith("dataset"))
    assert '[features]\nname = "raw"\n' in settings
    assert not re.search("deskew|power", settings)


def test_a_failed_run_says_why_and_how_it_goes_on(images, tmp_path):
    run = shutil.copytree(images, tmp_path / "run")
    for name in ("report.json", "report.html"):
        (run / name).unlink(missing_ok=True)
    error = {"time": "now", "event": "error", "error": "OSError", "traceback": "Traceback:\nOSError: no disk\nat 3\n"}
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps(error) + "\n")
    found = page_of(run, tmp_path / "page.html")
    status, log = texts(found, "pre")[0], texts(found, "pre")[-1]
    assert "last error: OSError\n" in status
    assert "continue with: " in status
    assert "OSError: no disk" in log


def test_labels_are_text_and_never_markup_and_data_that_are_gone_leave_the_rest(tmp_path):
    names = np.array(["<script>alert(1)</script>", '"><img src=x>', "&amp;"])
    np.savez(tmp_path / "words.npz", X=X, y=names[np.clip(np.abs(X[:, 0]) // 2, 0, 2).astype(int)])
    run = train_beside(tmp_path, "words", tmp_path / "words.npz", *TABLE_RUN)
    whole = page_of(run, tmp_path / "whole.html")
    assert [name for name in texts(whole, "th") if name in names] == sorted(names)
    assert "Misclassified" in texts(whole, "h2")
    (tmp_path / "words.npz").unlink()
    found = page_of(run, tmp_path / "page.html")
    assert "Misclassified" not in texts(found, "h2")
    assert "Confusion" in texts(found, "h2")
    assert f"Not shown or damaged: examples: dataset {tmp_path / 'words.npz'}: no such file" in texts(found, "p")


def test_nothing_is_downloaded_for_a_report(tmp_path, monkeypatch):
    monkeypatch.delenv("SLKL_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "mnist --dry-run downloads" in report_page.needs_download(config.load("mnist", None, {}).config)
    assert report_page.needs_download(config.load("digits", None, {}).config) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ci
@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_without_a_network(images, tmp_path, scheme):
    assert main([str(images), "--out", str(tmp_path / "page.html")]) == 0
    line = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    line += ["--proxy-server=http://127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND"]  # no network
    line += ["--hide-scrollbars", "--window-size=1200,2400", f"--screenshot={tmp_path / 'page.png'}"]
    line += [f"--blink-settings=preferredColorScheme={1 if scheme == 'light' else 0}"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([*line, (tmp_path / "page.html").as_uri()], timeout=120, check=True, env=environment)
    shown = np.asarray(Image.open(tmp_path / "page.png").convert("RGB")).astype(int)
    assert shown.shape == (2400, 1200, 3)
    paper = np.median(shown, axis=(0, 1))
    assert (paper > 230).all() if scheme == "light" else (paper < 40).all()
    written = (np.abs(shown - paper) > 160).all(axis=2)
    colourful = (shown.max(axis=2) - shown.min(axis=2) > 60) & (np.abs(shown - paper) > 60).any(axis=2)
    assert 0.01 < written.mean() < 0.5, "text and pictures"
    assert 0.002 < colourful.mean() < 0.3, "plots and bars, which stand out from the paper"
    bands = range(0, 2400, 400)
    assert [band for band in bands if written[band : band + 400].any()] == list(bands)
