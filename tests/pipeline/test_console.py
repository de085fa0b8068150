"""`slkl COMMAND`: every command under one name, with its own exit codes and words."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import runs
from commands import Capture
from pipeline import __version__
from pipeline.__main__ import COMMANDS, main
from pipeline.config.command_line import program
from runs import TrainedRuns
from storage.records import read_record, write_record


def test_every_command_is_there(capsys: Capture) -> None:
    files = {path.stem for path in (runs.ROOT / "pipeline").glob("*.py")}
    assert {name for name in files if not name.startswith("_")} - {"errors"} == set(COMMANDS)
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in COMMANDS)
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["trian"], ["train.py"], ["stages"]])
def test_what_is_no_command_is_refused(words: list[str], capsys: Capture) -> None:
    assert main(words) == 2
    assert "slkl COMMAND" in capsys.readouterr().err


def test_a_command_gets_its_arguments_and_its_exit_code_is_the_answer(capsys: Capture) -> None:
    assert main(["train", "digits", "--print-config", "--centers", "7"]) == 0
    assert "centers.count = 7  # --centers" in capsys.readouterr().out
    assert main(["status", "nowhere"]) == 66


def test_a_run_keeps_the_arguments_of_its_command(
    tables: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(tables / "values.npz"), "--centers", "20", "-q", "--run-dir", str(tmp_path / "run")]
    words += ["--features-dir", str(features)]
    monkeypatch.setattr(sys, "argv", ["slkl", "train", *words])
    assert main() == 0
    assert json.loads((tmp_path / "run" / "env.json").read_text())["arguments"] == words


def test_a_run_of_another_version_is_refused(trained: Callable[..., Path], tables: Path, capsys: Capture) -> None:
    data = tables / "values.npz"
    run = trained("--centers", "20", dataset=data)
    environment = read_record(run / "env.json")
    assert environment["format_version"] == 1
    write_record(run / "env.json", environment | {"format_version": 2})
    for words in (["train", str(data), "--run-dir", str(run), "--resume", "auto"], ["evaluate", str(run)]):
        assert main(words) == 78
        assert "is of another version of this software" in capsys.readouterr().err


def test_a_python_without_libraries_says_what_to_type(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> None:
    run = finished_run("--centers", "20", dataset=tables / "values.npz")
    words = {"train": ["digits"], "predict": [run, tables / "values.npz", "--out", tmp_path / "out.csv"]}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for command in set(COMMANDS) - {"status"}:  # which needs none
        done = runs.python("-S", "-m", "pipeline", command, *words.get(command, [run]), env=environment)
        assert (done.returncode, done.stdout) == (69, "")
        advice = f" is not installed for {sys.executable}: run `make run` once, then `. .venv/bin/activate`"
        assert re.fullmatch(rf"error: \w+{re.escape(advice)}\n", done.stderr), done.stderr


def test_messages_name_the_command_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program("status") == "python -m pipeline.status"
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/slkl", "train"])
    assert program("status") == "slkl status"
