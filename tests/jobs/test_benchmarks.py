"""Benchmarks on small data: peers (its rows, its claims, no row run twice), floor, scaling and descriptors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.alone]
FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "benchmarks"


def benchmark(script: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / script), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def call(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return benchmark("peers.py", out, "--dataset", "digits", "--n-train", "300", "--threads", "1", *arguments)


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((out / "peers.json").read_text())}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peers")


def test_peers_and_ours_are_measured_once(out: Path) -> None:
    done = call(out, "--methods", "svc,greedy-200-300,small")
    assert done.returncode == 0, done.stderr
    found = rows_of(out)
    cut = next(row for row in found.values() if row["kind"] == "cut")
    assert found.keys() == {"svc", "greedy-200-300", cut["name"]}
    for row in found.values():
        assert row["ended"] == "done"
        assert 0 < row["error_percent"] < 10
        assert min(row[key] for key in ("fit_seconds", "predict_seconds", "model_bytes")) > 0
        assert row["peak_bytes"] > 50 * 2**20, "the memory of a process with numpy"
        assert row["name"] in done.stdout
    assert found["greedy-200-300"]["size"] == 200
    assert dict(found["greedy-200-300"]["curve"])[cut["size"]] <= found["svc"]["error_percent"] + 0.2 + 1e-9
    smaller = [error for size, error in found["greedy-200-300"]["curve"] if size < cut["size"]]
    assert min(smaller) > found["svc"]["error_percent"] + 0.2
    near = [
        row for row in (cut, found["greedy-200-300"]) if row["error_percent"] <= found["svc"]["error_percent"] + 0.2
    ]
    assert all(f"{found['svc']['size'] / row['size']:.1f} times" in done.stdout for row in near)
    assert near or "NO  claim about SVC" in done.stdout
    assert (out / "peers.png").stat().st_size > 10_000


def test_a_row_is_not_run_again_and_the_cap_is_shown(out: Path) -> None:
    before = rows_of(out)
    done = call(out, "--methods", "svc,ridge-200", "--cap", "0.01")
    assert done.returncode == 0, done.stderr
    after = rows_of(out)
    assert {name: after[name] for name in before} == before
    assert after["ridge-200"]["ended"] == "capped"
    assert "> 0.01" in next(line for line in done.stdout.splitlines() if line.startswith("ridge-200"))


def test_an_unknown_method_is_refused(out: Path) -> None:
    done = call(out, "--methods", "svm")
    assert done.returncode == 2
    assert "unknown: svm" in done.stderr


def test_floor_and_statistics_take_turns(tmp_path: Path) -> None:
    small = ("--dataset", "synthetic", "--rows", "2500", "--centers", "100,300", "--workers", "1,2", "--repeats", "2")
    done = benchmark("floor.py", tmp_path, *small)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "floor.json").read_text())
    turns = facts["turns"]
    assert [(turn["repeat"], turn["centers"], turn["workers"]) for turn in turns] == [
        (repeat, centers, workers) for repeat in (0, 1) for centers in (100, 300) for workers in (1, 2)
    ]
    assert all(0 < turn["floor"] < turn["run"] and 0 < turn["statistics"] < turn["run"] for turn in turns)
    assert len(facts["summary"]) == 6
    for line in facts["summary"]:
        assert line in done.stdout
        assert line.startswith(("yes M = ", "NO  M = "))


def test_scaling_on_a_cluster(tmp_path: Path) -> None:
    small = ("--rows", "1000,2000", "--executors", "cluster", "--workers", "1,2", "--centers", "50")
    done = benchmark("scaling.py", tmp_path, *small)
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "scaling.json").read_text())
    places = [(run["rows"], run["workers"]) for run in facts["runs"]]
    assert places == [(1000, 1), (1000, 2), (2000, 1), (2000, 2)]
    for run in facts["runs"]:
        assert 0 < run["stages"]["statistics"]["wall_seconds"] < run["seconds"]
        assert run["stages"]["statistics"]["cpu_seconds"] < run["cpu_seconds"]
        assert run["peak_bytes"] > (1 + run["workers"]) * 50 * 2**20, "a training and its workers"
        assert sum(one["model_sha256"] == run["model_sha256"] for one in facts["runs"]) == 2
    assert [one["cost_to_first"] == 1 for one in facts["growth"]] == [True, True, False, False]
    for row in facts["speed_up"]:
        assert 1 <= row["computed_run"]["16"] <= row["computed_run"]["64"]
    assert "computed, not measured, 16: " in done.stdout
    assert (tmp_path / "scaling.png").stat().st_size > 10_000


def test_an_unknown_executor_is_refused(tmp_path: Path) -> None:
    done = benchmark("scaling.py", tmp_path, "--executors", "threads,dask")
    assert done.returncode == 2
    assert "unknown: dask" in done.stderr


def test_descriptors_are_compared_on_rows_apart(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--datasets", "digits", "--draws", "1", "--centers", "100", "--size", "30"]
    for _ in range(2):
        command = [sys.executable, str(FOLDER / "descriptors.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        rows = json.loads((tmp_path / "descriptors.json").read_text())
        assert len({(row["features"], row["deskew"], row["power"]) for row in rows}) == len(rows) >= 14
        assert {row["n_rows"] for row in rows} == {337}, "a quarter of the 1348 training rows"
        assert all(0 <= row["error_percent"] < 20 for row in rows)
        assert len({row["held_out_error"] for row in rows}) == len(rows)
        assert done.stdout.count("sphog") == len(rows) - 2


def test_feature_scales_on_generated_tables(tmp_path: Path) -> None:
    small = ("--tables", "noise,arm", "--draws", "1", "--centers", "150", "--size", "80")
    done = benchmark("feature_scales.py", tmp_path, *small)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "feature_scales.json").read_text())
    assert len(rows) == 10
    error = {(row["table"], row["way"]): row["rmse"] for row in rows}
    assert error["noise", "learned, median"] < 0.5 * error["noise", "median"]
    assert error["arm", "learned, median"] < 1.1 * error["arm", "median"]
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["table", "noise", "arm"]


def test_tables_are_compared_once(tmp_path: Path) -> None:
    done = benchmark("table_peers.py", tmp_path, "--tables", "digits")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "table_peers.json").read_text())
    errors = {row["method"]: row["error"] for row in rows if row["seed"] == 0}
    assert errors.keys() == {"slkl", "slkl 1000", "Nystroem 1000", "boosting", "SVC"}
    assert errors["slkl"] < 2.0 < errors["boosting"]
    again = benchmark("table_peers.py", tmp_path, "--tables", "digits")
    assert again.stdout == done.stdout
    assert json.loads((tmp_path / "table_peers.json").read_text()) == rows


def test_landmarks_are_compared_once(tmp_path: Path) -> None:
    done = benchmark("landmarks.py", tmp_path, "--tables", "digits", "--sizes", "20,60")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "landmarks.json").read_text())
    assert len(rows) == 3 * 2 * 3
    mean = {
        (way, size): sum(rows[f"digits: {way} {size}, draw {draw}"]["error"] for draw in range(3)) / 3
        for way in ("Nystroem", "GreedyNystroem", "GreedyNystroem, y")
        for size in (20, 60)
    }
    assert mean["GreedyNystroem, y", 60] < 0.8 * mean["Nystroem", 60]
    assert all(mean[way, 60] < 0.8 * mean[way, 20] for way in ("Nystroem", "GreedyNystroem", "GreedyNystroem, y"))
    assert benchmark("landmarks.py", tmp_path, "--tables", "digits", "--sizes", "20,60").stdout == done.stdout
