"""The benchmark against peers on a few digits: its rows, its claims, and that it does not run a row twice."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "jobs" / "benchmarks"


def call(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "peers.py"), "--out", str(out), "--dataset", "digits", "--n-train", "300"]
    return subprocess.run([*command, "--threads", "1", *arguments], capture_output=True, text=True, timeout=200)


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
