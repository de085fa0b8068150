"""Compiling as a stage of its own: told once, before the work, exactly what is used, and nothing where all is kept."""

import json
from pathlib import Path

import pytest

from runs import ROOT, python, report_of

COUNTED = """
import sys, pipeline
from numba.core import event
told = event.RecordingListener()
event.register("numba:compile", told)
from pipeline.train import main
code = main(sys.argv[1:])
print(len(told.buffer) // 2, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.ci
def test_a_fresh_checkout_compiles_before_the_work_and_later_runs_nothing(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PATH": "", "PYTHONPATH": str(ROOT)}
    (tmp_path / "numba").mkdir()
    words = ["digits", "--centers", "30", "--penalty", "1", "--features-dir", str(tmp_path / "features"), "--run-dir"]
    first = python("-c", COUNTED, *words, tmp_path / "first", env=environment)
    assert first.returncode == 0, first.stderr
    assert "compiling 11 loops (once a checkout)" in first.stderr
    report = report_of(tmp_path / "first")
    assert report["stages"]["compile"]["items"] == 11
    records = [json.loads(line) for line in (tmp_path / "first" / "log.jsonl").read_text().splitlines()]
    stages = [one["stage"] for one in records if one["event"] == "stage" and one["status"] == "started"]
    assert stages[:2] == ["compile", "features"]
    again = python("-c", COUNTED, *words, tmp_path / "again", env=environment)
    assert again.returncode == 0, again.stderr
    assert again.stderr.splitlines()[-1] == "0", "what was compiled is what is used"
    assert "compiling" not in again.stderr
    assert "compile" not in report_of(tmp_path / "again")["stages"]
