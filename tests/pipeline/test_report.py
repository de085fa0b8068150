"""The page of a run: what it says agrees with the run, it needs no network, and a browser shows it.

Its plots have points and ticks where their numbers say. What a run tells beside its error: of classes, also rare ones.
"""

import base64
import io
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from commands import IMAGES, TABLE_RUN, X
from features.open_source import open_source
from features.source import SourceSpec
from features.targets import labels_from_decision
from pipeline.config import settings as config
from pipeline.evaluate import main as evaluate
from pipeline.prediction.predictor import load_predictor
from pipeline.prediction.trained_model import load_model
from pipeline.report import main
from pipeline.reporting import page as report_page
from pipeline.reporting import run_facts
from pipeline.reporting.page import Axis, Lines, environment, plot
from runs import report_of, sizes_and_times, train, train_beside
from storage.files import read_record, write_record

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
    assert {"Content-Security-Policy", "viewport"} <= {one.get("http-equiv") or one.get("name") for one in found.iter()}
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
    assert (run / "config.toml").read_text().strip() in texts(found, "pre")
    titles = texts(found, "title")
    for words in ("objective against", "relative gap against", "active candidates against", "share that is right"):
        assert any(title.startswith(words) for title in titles)
    assert "Not shown" not in text
    advised = read_record(run / "report.json") | {"warnings": ["try `solver.penalty=auto`"]}
    write_record(run / "report.json", advised)
    assert main([str(run)]) == 0
    assert ">WARNING: try --penalty auto<" in (run / "report.html").read_text(), "as the terminal tells it"


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
    assert len(pictures(found, "training row")) == 40 < model.n_centers
    for row, image in zip(expected.tolist(), shown.values(), strict=True):
        np.testing.assert_array_equal(image, inputs[row])
        assert data[rows[row]] == truth[row], "the row of the data as they are given"
    words, why = (" ".join(" ".join(texts(found, tag)).split()) for tag in ("div", "span"))
    columns = model.columns(model.features_of(inputs[expected]))
    p = model.probabilities_of(decision)
    for k, row in enumerate(expected.tolist()):
        true, wrongly = source.classes[truth[row]], source.classes[predicted[row]]
        assert f"is {true}, predicted {wrongly} ({100 * p[row].max():.0f} %)" in words
        centers = [
            *np.argsort(-columns[k] * model.weights[:, wrongly])[:2],
            np.argmax(columns[k] * model.weights[:, true]),
        ]
        for center, label in zip(centers, (wrongly, wrongly, true), strict=True):
            number = source.train.numbers[model.center_index[center]]
            training = source.train.X[model.center_index[[center]]][0]
            np.testing.assert_array_equal(pictures(found, f"center row {number}")[number], training)
            assert re.search(rf"{data[number]}, [+-][\d.]+ % for {label}", why)


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
    assert ("error before the refit:" in (tmp_path / "page.html").read_text()) == ("--refit" in asked)


def test_a_failed_run_says_why_and_how_it_goes_on(images, tmp_path):
    run = shutil.copytree(images, tmp_path / "run")
    for name in ("report.json", "report.html"):
        (run / name).unlink(missing_ok=True)
    error = {"time": "now", "event": "error", "error": "OSError", "traceback": "Traceback:\nOSError: no disk\nat 3\n"}
    warning, note = "left out, as they number the rows: id", "2 pictures left out, which cannot be read: a.png"
    told = [{"event": "warning", "message": warning}] * 2 + [{"event": "message", "message": note}, error]
    with (run / "log.jsonl").open("a") as log:
        log.writelines(json.dumps(one) + "\n" for one in told)
    found = page_of(run, tmp_path / "page.html")
    status, log = texts(found, "pre")[0], texts(found, "pre")[-1]
    assert "last error: OSError\n" in status
    assert "continue with: " in status
    assert "OSError: no disk" in log
    boxes = [text for text in texts(found, "p") if text.startswith("Warning: ")]
    assert boxes[-2:] == [f"Warning: {warning}", f"Warning: {note}"], "each once, also those of earlier sessions"


def test_labels_are_text_and_never_markup_and_data_that_are_gone_leave_the_rest(tmp_path):
    names = np.array(["<script>alert(1)</script>", '"><img src=x>', "&amp;"])
    np.savez(tmp_path / "words.npz", X=X, y=names[np.clip(np.abs(X[:, 0]) // 2, 0, 2).astype(int)])
    run = train_beside(tmp_path, "words", tmp_path / "words.npz", *TABLE_RUN)
    whole = page_of(run, tmp_path / "whole.html")
    assert [name for name in texts(whole, "th") if name in names] == sorted(names)
    assert "Misclassified" in texts(whole, "h2")
    (tmp_path / "words.npz").unlink()
    found = page_of(run, tmp_path / "page.html")
    assert {"Misclassified", "Confusion"} <= set(texts(found, "h2"))
    (told,) = (words for words in texts(found, "p") if words.startswith("Not shown or damaged: "))
    assert f"{tmp_path / 'words.npz'}: no such file" in told


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
    line += ["--hide-scrollbars", "--window-size=1200,3600", f"--screenshot={tmp_path / 'page.png'}"]
    line += [f"--blink-settings=preferredColorScheme={1 if scheme == 'light' else 0}"]
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([*line, (tmp_path / "page.html").as_uri()], timeout=120, check=True, env=environment)
    shown = np.asarray(Image.open(tmp_path / "page.png").convert("RGB")).astype(int)
    assert shown.shape == (3600, 1200, 3)
    paper = np.median(shown, axis=(0, 1))
    assert (paper > 230).all() if scheme == "light" else (paper < 40).all()
    written = (np.abs(shown - paper) > 160).all(axis=2)
    colourful = (shown.max(axis=2) - shown.min(axis=2) > 60) & (np.abs(shown - paper) > 60).any(axis=2)
    assert 0.01 < written.mean() < 0.5, "text and pictures"
    assert 0.002 < colourful.mean() < 0.3, "plots and bars, which stand out from the paper"
    bands = range(0, 3600, 400)
    assert [band for band in bands if written[band : band + 400].any()] == list(bands)


DRAWING = environment().get_template("drawing.html.j2").module


def drawn(lines: Lines, y: Axis) -> str:
    figure = plot(lines, Axis("x"), y)
    assert figure
    return str(DRAWING.plot(figure))


def ticks_of(svg: str) -> list[tuple[str, float]]:
    found = re.findall(r'<text x="59" y="([0-9.]*)" text-anchor="end">([^<]*)', svg)
    return [(text, float(at) - 4) for at, text in found]


def places_of(svg: str) -> np.ndarray:
    found = re.search(r'<polyline points="([^"]*)"', svg)
    assert found
    return np.array([[float(number) for number in point.split(",")] for point in found[1].split()])


def test_a_plot_places_points_and_ticks_alike():
    svg = drawn({"": [(1, 1e-1), (2, 1e-3), (3, 1e-5)]}, Axis("y", log=True))
    places = places_of(svg)
    assert np.diff(places[:, 0]) == pytest.approx([places[1, 0] - places[0, 0]] * 2, abs=0.11)
    assert np.diff(places[:, 1]) == pytest.approx([places[1, 1] - places[0, 1]] * 2, abs=0.11)
    assert places[0, 1] < places[2, 1], "large values are above"
    ticks = dict(ticks_of(svg))
    assert ticks["1e-1"] == pytest.approx(places[0, 1], abs=0.2)
    assert ticks["1e-5"] == pytest.approx(places[2, 1], abs=0.2)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("ends", [(102.85, 103.41), (0.0004, 0.03), (5.0, 5.0), (1.0, 1e9)])
def test_ticks_differ_and_lie_inside(ends, log):
    ticks = ticks_of(drawn({"": [(0, ends[0]), (1, ends[1])]}, Axis("y", log)))
    assert 2 <= len(ticks) == len(dict(ticks))
    assert all(12 <= at <= 236.1 for _, at in ticks)


def test_what_has_no_place_is_left_out():
    assert plot({}, Axis("x"), Axis("y")) is None
    assert plot({"a": [(1, 0.0), (2, -1.0), (3, float("nan"))]}, Axis("x"), Axis("y", log=True)) is None
    assert len(places_of(drawn({"a": [(1, 0.0), (2, 1.0), (3, 2.0)]}, Axis("y", log=True)))) == 2
    assert len(places_of(drawn({"a": [(k, k) for k in range(10_000)]}, Axis("y")))) == 400


def test_a_run_tells_of_the_classes_that_it_misses(features, tmp_path, capsys):
    """Of 600 rows to train on and 300 to test 7 % are of the second class, amid others of the first."""
    X = np.random.default_rng(0).normal(size=(900, 3))
    near = np.linalg.norm(X - 1, axis=1) + 0.5 * np.random.default_rng(1).normal(size=900)
    y = np.where(near < np.quantile(near, 0.07), "yes", "no")
    np.savez(tmp_path / "rare.npz", X_train=X[:600], y_train=y[:600], X_test=X[600:], y_test=y[600:])
    run, n_rare = tmp_path / "a run", int((y[600:] == "yes").sum())
    few = ("--centers", "60", "--sigma2", "1", "--penalty", "none")
    report = train(run, features, *few, dataset=tmp_path / "rare.npz", quiet=False)
    shown = capsys.readouterr().out
    assert report["baseline"] == {"label": "no", "error_rate": n_rare / 300}
    recall = report["by_class"][1]["recall"]
    assert 0.1 < recall < 0.5, "else this test shows nothing"
    assert evaluate([str(run)]) == 0
    again = capsys.readouterr()
    assert "`" not in shown
    assert "--class-weight balanced" in shown
    assert "rare classes with a recall below 50 %: yes; --class-weight balanced" in again.err
    for told in (shown, again.out):
        assert f"{100 * n_rare / 300:.2f} % error (always no)" in told
        assert f"class yes: recall {100 * recall:.2f} %" in " ".join(told.split())
        assert f"({n_rare} rows, {report['confusion'][1][0]} taken for no)" in told
    assert f"python -m pipeline.report '{run}'\n" in shown, "what to do next"
    assert main([str(run)]) == 0
    assert f"{100 * recall:.2f} %</td>" in (run / "report.html").read_text()


@pytest.mark.parametrize(("kind", "asked"), [("words", ""), ("fractions", ""), ("numbers", "--sigma2 0.3")])
def test_without_its_data_a_run_is_told_by_the_predictions_that_it_keeps(tmp_path, kind, asked):
    """As with them, but for rows that explain; a file that holds no predictions is named."""
    labels = {"words": ("up", "down"), "fractions": (1 / 3, 2 / 3)}.get(kind)
    noise = np.random.default_rng(0).normal(size=len(X))
    y = np.where(X[:, 0] + noise > 0, *labels) if labels else X[:, 0] ** 2
    np.savez(data := tmp_path / "data.npz", X=X, y=y)
    run = train_beside(tmp_path, "run", data, "--centers", "40", *asked.split())
    with data.open("rb") as stream:
        X_of_file, y_of_file = (np.load(stream)[name] for name in ("X", "y"))
    found, model = pandas.read_csv(run / "predictions.csv"), load_model(run / "model")
    assert len(found) == report_of(run)["n_test"] == 40
    decision = model.decision_function(model.features_of(X_of_file[found["row"]]))
    np.testing.assert_allclose(found.filter(like="decision"), decision, rtol=1e-4, atol=1e-5)
    assert "weight" not in found
    np.testing.assert_array_equal(found["truth"], y_of_file[found["row"]])
    if labels:
        assert np.count_nonzero(found["truth"] != found["label"]) == report_of(run)["n_errors"]
    with_data = page_of(run, tmp_path / "page.html")
    assert labels or f"{report_of(run)['mse']:.6g}" in texts(with_data, "b")
    data.rename(tmp_path / "away.npz")
    without = page_of(run, tmp_path / "page.html")
    for titles in (texts(with_data, "title"), texts(without, "title")):
        title = "share of the class at or above against share of other rows" if labels else "prediction against truth"
        assert any(one.startswith(title) for one in titles)
    circles = [len([*page.iter("circle")]) for page in (with_data, without)]
    assert circles[0] == circles[1]
    assert [words for words in texts(without, "p") if words.startswith("Not shown")]
    (run / "predictions.csv").write_text("row,truth\n1,x\n")
    assert main([str(run), "--out", str(tmp_path / "page.html")]) == 65


def test_residuals_of_targets_far_from_zero_are_told_in_their_digits(tmp_path):
    """Of targets of 1.7e9 ± 100, which six digits do not tell apart, and of the centers that explain them.

    Of a table the inputs are named, and settings of images are not shown.
    """
    data, y = tmp_path / "data.csv", 1.7e9 + 100 * np.sin(X[:, 0])
    np.savetxt(data, np.column_stack([X, y]), "%.17g", ",", header="a,b,y", comments="")
    run = train_beside(tmp_path, "run", data, "--centers", "40")
    found = pandas.read_csv(run / "predictions.csv")
    rmse = np.sqrt(np.mean((found["truth"] - found["label"]) ** 2))
    assert rmse == pytest.approx(report_of(run)["rmse"], rel=1e-6)
    page = page_of(run, tmp_path / "page.html")
    assert "a, b; target: y" in texts(page, "details")
    (settings,) = (text for text in texts(page, "pre") if text.startswith("dataset"))
    assert '[features]\nname = "raw"\n' in settings
    assert not re.search("deskew|power", settings)
    ticks = [float(one) for one in texts(page, "text") if "e+09" in one]
    assert len(ticks) >= 6
    assert np.ptp(ticks) == pytest.approx(200, rel=0.3), "ticks differ"
    rows = [[*row.iter("td")] for row in page.iter("tr")]
    told = [[cell.text or "" for cell in row] for row in rows if len(row) == 5 and "row" in (row[4].text or "")]
    assert len(told) == 40
    for row, truth, predicted, off, why in told:
        line = found[found["row"] == int(row)].iloc[0]
        assert float(predicted) - float(truth) == pytest.approx(float(off), abs=0.02 * rmse + 0.01 * abs(float(off)))
        assert float(truth) == pytest.approx(line["truth"], abs=0.01 * abs(float(told[0][3])))
        targets = [float(one.split(": ")[1].split(",")[0]) for one in why.split("; ")]
        assert all(abs(target - 1.7e9) < 101 for target in targets)
        assert any(target % 1000 for target in targets)


def test_the_curve_has_the_area_that_is_told_where_rows_have_weights(tmp_path):
    rng = np.random.default_rng(0)
    y = (X[:, 0] + 3 * rng.normal(size=len(X)) > 0).astype(int)
    np.savez(data := tmp_path / "data.npz", X=X, y=y, w=rng.exponential(size=len(X)) * (1 + 5 * (X[:, 1] > 0)))
    run = train_beside(tmp_path, "run", data, "--centers", "40", "--set", "data.weights=w")
    predictor = load_predictor(run)
    kept = report_page._kept(predictor)
    assert kept is not None
    figure = report_page._roc(predictor.model, kept)
    assert figure is not None
    places = np.array(figure["lines"][0]["points"])
    low, high = places.min(axis=0), places.max(axis=0)
    false, true = (places[:, 0] - low[0]) / (high - low)[0], (high[1] - places[:, 1]) / (high - low)[1]
    assert np.trapezoid(true, false) == pytest.approx(report_of(run)["roc_auc"], abs=1e-9)


def test_a_calibration_curve_has_groups_of_equal_counts_that_are_told(images):
    predictor, report = load_predictor(images), report_of(images)
    kept = report_page._kept(predictor)
    assert kept is not None
    figure = report_page._reliability(predictor.model, kept)
    assert figure is not None
    n_groups = report["n_test"] // 100
    assert [len(line["points"]) for line in figure["lines"]] == [2, n_groups]
    assert figure["x"].endswith(f" {report['n_test'] // n_groups} test rows")
    few = replace(kept, weights=np.where(np.arange(len(kept.rows)) < 199, kept.weights, 0.0))
    assert report_page._reliability(predictor.model, few) is None, "199 rows make no two groups"


def test_a_rare_class_is_told_whatever_its_recall():
    """Of three classes with 45, 45 and 10 rows and then 50, 41 and 9, all of them found."""
    for rows, told in {(45, 45, 10): 0, (50, 41, 9): 1}.items():
        classes = [{"label": k, "rows": n, "recall": 1.0, "precision": 1.0} for k, n in enumerate(rows)]
        numbers = {"baseline": {"label": 0, "error_rate": 0.5}, "by_class": classes, "confusion": np.diag(rows)}
        assert len(run_facts.class_lines(numbers, few=True)) == 1 + told


def test_a_choice_between_equal_errors_is_no_constant():
    tried = [{"hold_out_error": 0.1, "chosen": True}, {"hold_out_error": 0.1, "chosen": False}]
    assert run_facts.chosen_words({"kernels_tried": tried}) == []
    assert "chosen: a constant" in run_facts.chosen_words({"kernels_tried": tried[1:]})[0]


def test_only_centers_that_speak_for_a_class_are_shown_for_it(tmp_path):
    """Of two centers, each speaks for one of two classes wherever a row is."""
    y = (X[:, 0] + 3 * np.random.default_rng(0).normal(size=len(X)) > 0).astype(int)
    np.savez(data := tmp_path / "data.npz", X=X, y=y)
    run = train_beside(tmp_path, "run", data, "--centers", "40", "--select", "greedy:2")
    weights = load_model(run / "model").weights
    assert weights.min() < 0 < weights.max(), "else this test shows nothing"
    why = [one for one in texts(page_of(run, tmp_path / "page.html"), "td") if " % for " in one]
    assert len(why) == report_of(run)["n_errors"] > 0
    assert all(
        re.fullmatch(r"row \d+: [01], \+[\d.]+ % for [01]; row \d+: [01], \+[\d.]+ % for [01]", one) for one in why
    )
