"""The examples: each runs as its first lines say, writes where it was told to, and what it prints is true."""

import csv
import os
import re
from pathlib import Path

import pytest

from pipeline.prediction.trained_model import load_model
from runs import ROOT, python, report_of

FOLDER = ROOT / "jobs" / "examples"
NUMBER = r"([-+.0-9e]+)"


def output_of(name: str, tmp_path: Path, *options: str) -> str:
    """Run an example with tmp_path/out as its folder, in an empty folder that stays empty, without any data set."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SLKL_DATA_DIR")}
    words = ("-W", "error", FOLDER / f"{name}.py", tmp_path / "out", *options)
    done = python(*words, cwd=place, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    return done.stdout


def found(pattern: str, text: str) -> list[float]:
    """The numbers of the first match of a pattern, in which N stands for a number."""
    match = re.search(pattern.replace("N", NUMBER), text)
    assert match, f"{pattern} is not in:\n{text}"
    return [float(number) for number in match.groups()]


@pytest.mark.ci
def test_multiclass_digits(tmp_path):
    text = output_of("multiclass_digits", tmp_path)
    run = tmp_path / "out" / "runs" / "digits"
    wrong, n_test, _, gap = found(r"N of N wrong, N centers, largest gap N", text)
    assert wrong / n_test < 0.02
    assert gap <= 1e-3
    assert (wrong, n_test) == (report_of(run)["n_errors"], report_of(run)["n_test"])
    assert (run / "report.html").stat().st_size > 10_000
    with (tmp_path / "out" / "labels.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == n_test


@pytest.mark.ci
@pytest.mark.parametrize("kernel", ["gaussian", "product-laplace"])
def test_predict_with_numpy(tmp_path, kernel):
    text = output_of("predict_with_numpy", tmp_path, "--kernel", kernel)
    points = (r"\[0. 0.\]: inside \(N\)", r"10.\]: between \(N\)", r"-280. \]: outside \(N\)")
    for point in points:
        assert found(point, text)[0] > 0.7
    difference, deviation = found(r"largest difference N, of values that deviate by N", text)
    assert difference < 1e-3 * deviation


@pytest.mark.ci
def test_regression_sinc(tmp_path):
    text = output_of("regression_sinc", tmp_path)
    kept, mse = found(r"N of 500 candidates have a weight; test mse N\n", text)
    assert 20 < kept < 120, "sparse"
    assert mse < 0.01, "a tenth of the noise"
    primal, dual, gap = found(r"P = N, D = N, relative gap N", text)
    assert 0 <= gap < 1e-3
    assert primal == pytest.approx(dual, rel=1e-3)
    for way in ("refitted", "auto"):
        assert found(rf"{way}: penalty N, N centers, test mse N\n", text)[2] < 0.01


@pytest.mark.ci
def test_track_metrics(tmp_path):
    pytest.importorskip("tensorboardX")
    (n_forwarded,) = found(r"N iterations forwarded", output_of("track_metrics", tmp_path))
    (file,) = (tmp_path / "out" / "tensorboard" / "digits").iterdir()
    records = (tmp_path / "out" / "runs" / "digits" / "metrics.jsonl").read_text().splitlines()
    told = [file.read_bytes().count(name) for name in (b"objective/", b"error_rate")]
    assert told == [len(records), 1] == [n_forwarded, 1]


@pytest.mark.ci
def test_binary_own_arrays(tmp_path):
    text = output_of("binary_own_arrays", tmp_path)
    (right,) = found(r"N of 100 right", text)
    assert right >= 85
    first, second = re.findall(r"error: ([0-9.]+) %", text)
    assert max(float(first), float(second)) < 8
    assert load_model(tmp_path / "out" / "runs" / "tumours" / "model").labels == ("benign", "malignant")
    assert load_model(tmp_path / "out" / "runs" / "wine" / "model").task == "binary"


@pytest.mark.nightly
def test_compact_model(tmp_path):
    text = output_of("compact_model", tmp_path)
    curve = {int(size): float(error) for size, error in re.findall(r"(\d+) centers +([0-9.]+) %  ▪", text)}
    sizes = sorted(curve)
    assert sizes[0] < 10 < 50 < sizes[-1] == 100
    assert curve[sizes[0]] > curve[sizes[len(sizes) // 2]] > curve[100]
    assert curve[100] < found(r"50 chosen centers: N %", text)[0] < found(r"50 random centers: N %", text)[0]


@pytest.mark.nightly
def test_estimator_in_a_pipeline(tmp_path):
    text = output_of("estimator_in_a_pipeline", tmp_path)
    assert found(r"test accuracy N\n", text)[0] > 0.95
    gaps = [float(gap) for gap in re.findall(r"gap (\S+)  active", text)]
    assert gaps[-1] < 1e-3 < gaps[0]


@pytest.mark.nightly
def test_resume_after_a_stop(tmp_path):
    text = output_of("resume_after_a_stop", tmp_path)
    assert "exit code 75" in text
    assert "continue with: python -m pipeline.train digits --run-dir runs/stopped --resume auto" in text
    whole, resumed = re.findall(r"stopped(?: and resumed)?: +([0-9a-f]{16})", text)
    assert whole == resumed
    runs = tmp_path / "out" / "runs"
    iterations = [(runs / name / "metrics.jsonl").read_text().count("\n") for name in ("stopped", "whole")]
    assert iterations[0] == iterations[1], "it went on where it was"
