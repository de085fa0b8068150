"""`python -m pipeline.status` on runs that work, ended well, were stopped, failed, and were killed."""

import json
import os
import shutil
import socket
from typing import Any

from commands import IMAGES, flip
from pipeline import report
from pipeline.reporting.run_facts import lines, overview, status
from pipeline.status import main
from pipeline.work.store import CheckpointsOnDisk
from runs import report_of, sizes_and_times, train, wait_until
from storage.files import read_record, write_record
from storage.folder_layouts import RunLayout


def test_a_finished_run_tells_what_its_report_tells(images, capsys):
    before = sizes_and_times(images)
    facts, report = status(images), report_of(images)
    assert main([str(images), "--json"]) == 0
    printed, expected = json.loads(capsys.readouterr().out), json.loads(json.dumps(facts))
    del printed["saved_seconds_ago"], expected["saved_seconds_ago"]
    assert printed == expected
    told = {"state": "finished", "dataset": "digits", "held_by": None, "stage": None, "resume": None, "damaged": []}
    assert {name: facts[name] for name in told} == told
    assert facts["report"] | {"digest": report["digest"]} == report
    assert 2**20 < facts["peak_rss_bytes"] <= report["peak_rss_bytes"]
    text = "\n".join(lines(facts))
    assert f"test error: {100 * report['error_rate']:.2f} %" in text
    assert ("continue with" in text, "saved last" in text, "\nfinished: " in text) == (False, False, True)
    assert sizes_and_times(images) == before, "reads only"


def test_a_live_run_and_then_a_killed_one(features, tables, tmp_path, monkeypatch):
    """The first, and its page, when its process has just written a checkpoint; the second is a copy of it then."""
    run, killed, page = tmp_path / "run", tmp_path / "killed", tmp_path / "page.html"
    seen, save, data = [], CheckpointsOnDisk.save, tables / "classes.npz"
    options = ("--centers", "40", "--penalty", "0.1", "--schedule", "uniform")
    options += ("--scheduler", "serial", "--checkpoint-every", "0.001s")

    def save_and_look(*arguments: Any, **named: Any) -> None:
        save(*arguments, **named)
        if not seen:
            wait_until(lambda: " gap " in (status(run)["progress"] or {"words": ""})["words"], 30)
            assert report.main([str(run), "--out", str(page)]) == 0
            seen.append(status(run))
            shutil.copytree(run, killed)

    monkeypatch.setattr(CheckpointsOnDisk, "save", save_and_look)
    train(run, features, *options, dataset=data)
    (facts,) = seen
    assert (facts["state"], facts["resume"], facts["damaged"]) == ("running", None, [])
    assert (facts["held_by"]["pid"], facts["held_by"]["host"]) == (os.getpid(), socket.gethostname())
    assert facts["progress"]["words"].startswith("output 0: objective ")
    assert 0 <= facts["saved_seconds_ago"] < 600
    text = "\n".join(lines(facts))
    held = f"running by process {os.getpid()} on {socket.gethostname()} since 20"
    told = (held, "stage: solve, ", facts["progress"]["words"], "saved last: ")
    assert [words for words in told if words not in text] == []
    assert "stage: solve" in page.read_text()

    facts = status(killed)
    assert (facts["state"], facts["held_by"], facts["stage"]) == ("killed", None, "solve")
    assert facts["progress"]["words"] == seen[0]["progress"]["words"], "where it was"
    assert facts["resume"] == f"python -m pipeline.train {tables / 'classes.npz'} --run-dir {killed} --resume auto"
    assert f"continue with: {facts['resume']}" in lines(facts)


def test_a_folder_of_runs_is_a_table_of_them(trained, images, classes, tmp_path, capsys):
    """Of a finished one, one that was killed, and one that is damaged; what is no run is not named."""
    runs = tmp_path / "runs"
    small = ("--centers", "20", "--penalty", "1")
    trained(*IMAGES, name="runs/a")
    killed, damaged = (RunLayout(trained(*small, dataset=classes, name=f"runs/{name}")) for name in "bc")
    (runs / "features").mkdir()
    for path in (killed.report, killed.log):
        path.unlink()
    under_way = read_record(killed.state) | {"stage": "solve", "progress": {"done": 1.0, "total": 4.0}}
    write_record(killed.state, under_way)
    flip(damaged.report)
    assert main([str(runs)]) == 65
    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.split() == ["state", "stage", "done", "error", "seconds", "centers", "folder"]
    report = report_of(images)
    assert rows[0].split()[:4] == ["finished", "100%", f"{100 * report['error_rate']:.2f}", "%"]
    assert rows[0].split()[-2:] == [str(report["model_n_centers"]), str(runs / "a")]
    assert rows[1].split()[:3] == ["killed", "solve", "25%"]
    assert [row.split()[0] for row in rows] == ["finished", "killed", "damaged"]
    assert f"{damaged.root}: report: " in rows[2], "why"
    assert main([str(runs), "--json"]) == 65
    assert [one["state"] for one in json.loads(capsys.readouterr().out)] == ["finished", "killed", "finished"]


def test_columns_of_a_table_of_runs_stay_apart():
    """Of the widest error."""
    report = {"error_rate": None, "rmse": 2.106e-104, "model_n_centers": 1000}
    facts = {"run": "r", "state": "finished", "damaged": [], "last_error": None, "report": report}
    assert overview([facts])[1].split() == ["finished", "100%", "rmse", "2.106e-104", "1000", "r"]


def test_no_run_hides_the_others(images, tmp_path, capsys):
    """Of one whose lock is a pipe, one that has lost its settings, and one of another version."""
    piped, lost, other = (RunLayout(tmp_path / name) for name in ("a", "b", "c"))
    for layout in (piped, lost, other):
        shutil.copytree(images, layout.root)
    piped.lock.unlink()
    os.mkfifo(piped.lock)
    lost.config.unlink()
    write_record(other.environment, read_record(other.environment) | {"format_version": 0})
    write_record(other.report, {"errors": "of another kind"})
    shutil.copytree(images, tmp_path / "d")
    assert main([str(tmp_path)]) == 65
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["unreadable", "damaged", "damaged", "finished"]
    assert main([str(lost.root)]) == 65
    assert f"{lost.config}: does not exist" in capsys.readouterr().out
