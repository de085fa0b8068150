"""`from pipeline import train`: the command's own engine, called in Python."""

import json
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pandas
import pytest

import runs
from features.errors import DataError, MissingInputError
from pipeline import train
from pipeline.errors import ConfigError, ConfigMismatchError, FolderInUseError, MissingRunError, PlanError, StoppedError
from pipeline.prediction.predictor import Predictor
from runs import files_of, model_bytes

SMALL: dict[str, Any] = {"centers": 40, "penalty": 0.01, "quiet": True}


def test_it_is_the_command_of_that_name(finished_run, classes, features, tmp_path):
    words = ("--centers", "40", "--refit", "ridge", "--set", "data.standardise=false")
    command = finished_run(*words, dataset=classes)
    asked = {"refit": "ridge", "settings": {"data": {"standardise": False}}, "penalty": None}
    asked["centers"] = np.int64(40)
    run = train(classes, run_dir=tmp_path / "run", quiet=True, **asked, features_dir=features)
    assert model_bytes(run.folder) == model_bytes(command)
    assert (run.folder / "config.toml").read_bytes() == (command / "config.toml").read_bytes()
    assert set(files_of(run.folder)) == set(files_of(command))
    kept = runs.report_of(tmp_path / "run")
    assert run.report == {name: value for name, value in kept.items() if name != "digest"}
    assert f"{kept['model_n_centers']} centers" in repr(run)
    assert isinstance(run.model, Predictor)
    assert "refit='ridge', " in json.loads((run.folder / "env.json").read_text())["command"]


@pytest.mark.parametrize(
    "imports",
    [
        "from pipeline import train",
        "import pipeline.train as train",
        "from pipeline.train import train as call; from pipeline import train, __main__",
    ],
)
def test_the_name_is_the_function_and_the_command_however_it_is_imported(imports):
    done = runs.python("-c", f"{imports}; train.main(['digits', '--print-config']); train('digits', resume='no')")
    assert "seed = 0" in done.stdout
    assert "ConfigError: resume = 'no': must be one of never, auto, require" in done.stderr


def test_a_callback_gets_the_records_of_both_files(classes, features, tmp_path):
    """A handler of the process hears of a signal meanwhile."""
    heard: list[int] = []
    records: list[dict[str, Any]] = []

    def note(record: dict[str, Any]) -> None:
        records.append(record)
        if not heard:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        train(classes, run_dir=tmp_path / "run", callback=note, **SMALL, features_dir=features)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]
    lines = [(tmp_path / "run" / name).read_text().splitlines() for name in ("log.jsonl", "metrics.jsonl")]
    assert [one for one in records if "event" in one] == [json.loads(line) for line in lines[0]]
    assert [one for one in records if "event" not in one] == [json.loads(line) for line in lines[1]]
    assert any("relative_gap" in one for one in records)


def test_an_error_of_the_callback_ends_a_run_that_goes_on_to_the_same_bytes(finished_run, classes, features, tmp_path):
    told: list[dict[str, Any]] = []

    def fails(record: dict[str, Any]) -> None:
        told.append(record)
        if "iteration" in record:
            raise ZeroDivisionError("of the callback")

    asked = {"run_dir": tmp_path / "run"} | SMALL | {"features_dir": features}
    with pytest.raises(ZeroDivisionError, match="of the callback"):
        train(classes, callback=fails, **asked)
    assert sum("iteration" in record for record in told) == 1
    assert told[-1].get("event") != "error", "an error has no second one"
    whole = finished_run("--centers", "40", "--penalty", "0.01", dataset=classes)
    assert model_bytes(train(classes, resume="auto", **asked).folder) == model_bytes(whole)


def test_exit_reasons_are_exceptions_that_speak_of_arguments(images, features, tmp_path):
    new = {"run_dir": tmp_path / "new", "features_dir": features, "quiet": True}
    used, no_zone = new | {"run_dir": images}, new | {"settings": {"data.drop": "zone"}}
    table = pandas.DataFrame({"area": np.arange(40) / 7, "zone": ["a", "b"] * 20, "y": np.sin(np.arange(40))})
    rows = tmp_path / "rows.parquet"
    table.to_parquet(rows)
    settings_of_words = r"columns .* zone \(2 words, .* settings=\{'data.categorical': 'onehot'\}"
    for error, words, data, asked in (
        (ConfigError, "did you mean centers", "digits", new | {"centres": 60}),
        (ConfigError, "savez", (np.eye(3), np.arange(3)), new),
        (DataError, settings_of_words, rows, new | {"target": "y"}),
        (ConfigError, "centers=1000: .* has 30 training rows", rows, no_zone | {"centers": 1000}),
        (PlanError, r"; use memory_limit='\d+MiB' or more", rows, no_zone | {"memory_limit": "1MiB"}),
        (ConfigError, "callback is a int", "digits", new | {"callback": 3}),
        (MissingInputError, r"nowhere\.csv", tmp_path / "nowhere.csv", new),
        (MissingRunError, "holds no run", "digits", new | {"resume": "require"}),
        (FolderInUseError, "resume auto", "digits", used),
        (ConfigMismatchError, r"kernel\.sigma2", "digits", used | {"resume": "auto", "sigma2": 99}),
    ):
        with pytest.raises(error, match=words) as refused:
            train(data, **asked)
        assert ("--" in str(refused.value)) == (error is FolderInUseError), "arguments are named as in Python"
        assert not (tmp_path / "new").exists()
    with pytest.raises(StoppedError, match=r"the time limit; continue with: .*--resume auto"):
        train("digits", time_limit=0.01, **new)


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.ci)])
def test_a_thread_trains_alone_and_touches_no_handler(finished_run, classes, features, tmp_path, scheduler):
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    runs_in, refused = [], []

    def second(record: dict[str, Any]) -> None:
        if not refused:
            with pytest.raises(ConfigError, match="under way in this process") as error:
                train(classes, run_dir=tmp_path / "second")
            refused.append(error)
            assert [signal.getsignal(number) for number in signal.valid_signals()] == before

    asked = {"scheduler": scheduler, "workers": 2, "callback": second, **SMALL, "features_dir": features}
    thread = threading.Thread(target=lambda: runs_in.append(train(classes, run_dir=tmp_path / "run", **asked)))
    thread.start()
    thread.join()
    assert refused
    whole = finished_run("--centers", "40", "--penalty", "0.01", dataset=classes)
    assert model_bytes(runs_in[0].folder) == model_bytes(whole)
