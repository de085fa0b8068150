"""The main command, end to end, on data that need no download."""

import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pipeline import predict, status
from pipeline.prediction.model_folder import load_model
from runs import files_of, model_bytes, python, report_of, train
from storage.zarr_arrays import open_arrays

SMALL = ["--centers", "60", "-q"]


@pytest.fixture(scope="module")
def serial(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the reference executor, which the others must match."""
    run = tmp_path_factory.mktemp("runs") / "serial"
    train(run, features, *SMALL, "--scheduler", "serial")
    return run


REPORT_KEYS = {
    *("format_version", "dataset", "task", "n_train", "n_test", "n_features", "features", "n_centers", "sigma2"),
    *(
        "penalty",
        "coupling",
        "select",
        "refit",
        "intercept",
        "tolerance",
        "seed",
        "converged",
        "error_rate",
        "n_errors",
    ),
    *("mse", "hold_out", "path", "confusion", "model_n_centers", "kernel_entries", "peak_rss_bytes", "wall_seconds"),
    *("stages", "solves"),
}


def test_the_report_holds_its_contract(serial: Path) -> None:
    report = report_of(serial)
    assert set(report) >= REPORT_KEYS
    assert set(report["stages"]) == {"features", "centers", "statistics", "solve", "evaluate"}
    for cost in report["stages"].values():
        assert set(cost) == {"wall_seconds", "cpu_seconds", "items"}
    keys = {
        "outputs",
        "objective",
        "relative_gap",
        "converged",
        "n_active",
        "sweeps",
        "visits",
        "moves",
        "wall_seconds",
    }
    assert all(set(solve) >= keys for solve in report["solves"])
    assert [solve["outputs"] for solve in report["solves"]] == [[digit] for digit in range(10)]
    assert np.sum(report["confusion"]) == report["n_test"]
    assert report["n_errors"] == report["n_test"] - np.trace(report["confusion"])
    assert report["error_rate"] == report["n_errors"] / report["n_test"]
    assert report["kernel_entries"] == report["n_train"] * 60
    assert all(solve["relative_gap"] <= 1e-3 for solve in report["solves"])
    assert report["converged"] is True
    assert report["error_rate"] < 0.05


def test_the_model_loads_alone_and_predicts_what_the_report_counted(serial: Path, tmp_path: Path) -> None:
    from features.open_source import open_source
    from features.source import SourceSpec

    shutil.copytree(serial / "model", tmp_path / "elsewhere")
    model = load_model(tmp_path / "elsewhere")
    source = open_source(SourceSpec("digits"))
    inputs, truth = source.read("test", 0, source.n_test)
    wrong = int(np.sum(model.predict_targets(model.features_of(inputs)) != truth))
    assert wrong == report_of(serial)["n_errors"]
    assert model.n_centers == report_of(serial)["model_n_centers"] <= 60
    assert (np.abs(model.weights).max(axis=1) > 0).all()


def test_the_objective_is_that_of_the_saved_weights(serial: Path, features: Path) -> None:
    """2P recomputed from the model and the features alone, in float64."""
    from features.targets import one_vs_all
    from pipeline.kernels.column_generator import ColumnGenerator

    model, report = load_model(serial / "model"), report_of(serial)
    (store,) = features.glob("*/arrays.zarr")
    arrays = open_arrays(store)
    X = arrays["train/X"].read(0, report["n_train"])
    Y = one_vs_all(arrays["train/y"].read(0, report["n_train"]), 10)
    residual = Y - ColumnGenerator(model.centers, model.center_sigma2, np.float64).block(X) @ model.weights
    objective = (residual**2).sum(0) + 2 * np.sqrt(report["penalty"]) * np.abs(model.weights).sum(0)
    assert np.allclose(objective, [solve["objective"] for solve in report["solves"]], rtol=1e-4)


@pytest.mark.parametrize("scheduler", ["threads", "processes"])
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.nightly), "3"])
def test_every_executor_gives_the_same_model_bytes(
    serial: Path, features: Path, tmp_path: Path, scheduler: str, workers: str
) -> None:
    train(tmp_path / "run", features, *SMALL, "--scheduler", scheduler, "--workers", workers)
    assert model_bytes(tmp_path / "run") == model_bytes(serial)


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.nightly), "4"])
def test_blas_threads_do_not_change_the_bytes(serial: Path, features: Path, tmp_path: Path, threads: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    words = ("digits", "--run-dir", tmp_path / "run", "--features-dir", features, *SMALL)
    assert python("-m", "pipeline.train", *words, env=environment).returncode == 0
    assert model_bytes(tmp_path / "run") == model_bytes(serial)


def test_model_files_hold_no_path_or_host(serial: Path) -> None:
    import socket

    binary = b"".join(path.read_bytes() for path in (serial / "model").iterdir())
    assert str(serial.parent).encode() not in binary
    words = re.findall(r"\w+", "".join(path.read_text() for path in (serial / "model").glob("*.json")))
    assert "sphog" in words
    assert socket.gethostname() not in words


def test_a_used_folder_is_refused_and_resume_answers_from_it(
    serial: Path, features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(serial, features, *SMALL, code=73)
    assert "--resume auto" in capsys.readouterr().err
    before = files_of(serial)
    train(serial, features, *SMALL, "--resume", "require")
    assert {k: v for k, v in files_of(serial).items() if k != "run.lock"} == {
        k: v for k, v in before.items() if k != "run.lock"
    }


def test_resuming_with_other_settings_names_them(
    serial: Path, features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(serial, features, *SMALL, "--resume", "auto", "--penalty", "7", code=78)
    assert "solver.penalty: 0.01 in the run, 7.0 asked" in capsys.readouterr().err


def test_stages_done_are_not_done_again(serial: Path, features: Path, tmp_path: Path) -> None:
    """A run cut off after its statistics is taken up there, and ends with the same bytes."""
    run = tmp_path / "cut"
    shutil.copytree(serial, run)
    for name in ("model", "solutions"):
        shutil.rmtree(run / name)
    for markers in (run / "markers").glob("solve*"):
        shutil.rmtree(markers)
    (run / "report.json").unlink()
    before = (run / "statistics" / "all" / "gram.npy").stat().st_mtime_ns
    train(run, features, "-q", "--resume", "require")
    assert (run / "statistics" / "all" / "gram.npy").stat().st_mtime_ns == before
    assert model_bytes(run) == model_bytes(serial)


def test_resuming_after_the_data_changed_is_refused(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run = tmp_path / "data.npz", tmp_path / "run"
    train(run, features, "--centers", "20", "-q", dataset=table(data, *sine(100)))
    (run / "report.json").unlink()
    table(data, *sine(120))
    train(run, features, "-q", "--resume", "auto", dataset=str(data), code=78)
    assert "no longer those" in capsys.readouterr().err


def test_the_same_folder_may_hold_another_run_later(tmp_path: Path) -> None:
    """In one process: nothing of the first run may live on in a cache."""
    features, run = tmp_path / "features", tmp_path / "run"
    errors = []
    for width in ("2", "0.05"):
        train(run, features, *SMALL, "--sigma2", width)
        report, model = report_of(run), load_model(run / "model")
        store = next(features.glob("*/arrays.zarr"))
        arrays = open_arrays(store)
        X, truth = (arrays[f"test/{name}"].read(0, report["n_test"]) for name in "Xy")
        errors.append(int(np.sum(model.predict_targets(X) != truth)))
        assert report["n_errors"] == errors[-1]
        shutil.rmtree(run)
    assert errors[0] != errors[1]


def test_a_finished_run_with_a_damaged_model_is_not_answered_from(
    serial: Path, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(serial, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    train(tmp_path / "run", features, "-q", "--resume", "require", code=65)
    assert "model" in capsys.readouterr().err


def test_missing_the_tolerance_is_never_a_silent_success(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--centers", "60", "--max-sweeps", "1", "--schedule", "uniform", "--tol", "1e-9")
    train(tmp_path / "run", features, *arguments, quiet=False, code=3)
    assert report_of(tmp_path / "run")["converged"] is False
    assert "NOT CONVERGED" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["uniform", "shrinking"])
@pytest.mark.parametrize("step", ["newton", "exact"])
def test_schedules_and_steps_meet_at_the_same_optimum(
    serial: Path, features: Path, tmp_path: Path, schedule: str, step: str
) -> None:
    arguments = ("--centers", "60", "-q", "--schedule", schedule, "--step", step, "--max-sweeps", "5000")
    train(tmp_path / "run", features, *arguments)
    ours, reference = report_of(tmp_path / "run")["solves"], report_of(serial)["solves"]
    for one, other in zip(ours, reference, strict=True):
        assert abs(one["objective"] - other["objective"]) <= 1.1e-3 * other["objective"]


def table(path: Path, X: np.ndarray, y: np.ndarray) -> str:
    np.savez(path, X=X, y=y)
    return str(path)


def sine(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-5, 5, (n, 2))
    radius = np.linalg.norm(X, axis=1)
    return X, np.sin(radius) / radius


def test_regression_on_a_table(features: Path, tmp_path: Path) -> None:
    data = table(tmp_path / "sinc.npz", *sine())
    train(tmp_path / "run", features, "--centers", "100", "--sigma2", "0.2", "-q", dataset=data)
    report = report_of(tmp_path / "run")
    assert (report["task"], report["error_rate"], report["confusion"]) == ("regression", None, None)
    assert report["mse"] < 0.01
    assert load_model(tmp_path / "run" / "model").standardisation is not None


def test_binary_on_a_table(features: Path, tmp_path: Path) -> None:
    X, _y = sine()
    data = table(tmp_path / "inside.npz", X, (np.linalg.norm(X, axis=1) < 3).astype(int))
    train(tmp_path / "run", features, "--centers", "100", "--sigma2", "1", "--penalty", "max:1e-7", "-q", dataset=data)
    report = report_of(tmp_path / "run")
    assert (report["task"], report["n_errors"] + int(np.trace(report["confusion"]))) == ("binary", report["n_test"])
    assert report["error_rate"] < 0.1
    assert len(report["solves"]) == 1


def test_csv_and_all_centers(features: Path, tmp_path: Path) -> None:
    X, y = sine(200)
    np.savetxt(tmp_path / "sinc.csv", np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
    run = tmp_path / "run"
    train(run, features, "--centers", "all", "--sigma2", "0.5", "-q", dataset=str(tmp_path / "sinc.csv"))
    assert report_of(run)["n_centers"] == report_of(run)["n_train"] == 150


def test_zarr_data(features: Path, tmp_path: Path) -> None:
    import zarr

    X, y = sine(200)
    group = zarr.open_group(tmp_path / "sinc.zarr", mode="w", zarr_format=3)
    for name, values in {"X": X, "y": y}.items():
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(64, *values.shape[1:]))
        array[...] = values
    data = str(tmp_path / "sinc.zarr")
    train(tmp_path / "run", features, "--centers", "50", "--sigma2", "0.5", "-q", dataset=data)
    assert report_of(tmp_path / "run")["task"] == "regression"


def test_synthetic_digits(features: Path, tmp_path: Path) -> None:
    sizes = ("--set", "data.n_train=600", "--set", "data.n_test=200")
    arguments = ("--centers", "150", "--sigma2", "2", "-q", *sizes)
    train(tmp_path / "run", features, *arguments, dataset="synthetic")
    assert report_of(tmp_path / "run")["error_rate"] < 0.2


X, Y = sine(80)
NAN = X.copy()
NAN[37, 1] = np.nan
BAD_INPUT = {
    "unknown dataset": ("nonesuch", [], 2, "nonesuch"),
    "missing file": ("absent/file.npz", [], 66, "file.npz"),
    "unknown option": ("digits", ["--colour", "red"], 2, "--colour"),
    "unknown key": ("digits", ["--set", "solver.penatly=1"], 2, "solver.penalty"),
    "sigma2 not above 0": ("digits", ["--sigma2", "0"], 2, "kernel.sigma2"),
    "penalty not above 0": ("digits", ["--penalty=-1"], 2, "solver.penalty"),
    "more centers than rows": ("digits", ["--centers", "100000"], 2, "1348"),
    "a limit too small": ("digits", ["--memory-limit", "100MiB"], 71, "--memory-limit"),
    "resume what is not there": ("digits", ["--resume", "require"], 66, "holds no run"),
    "an unknown scheduler": ("digits", ["--scheduler", "carrier-pigeon"], 2, "tcp://"),
    "an unreachable scheduler": ("digits", ["--scheduler", "tcp://127.0.0.1:9"], 69, "does not answer"),
    "a setting without effect": ("digits", ["--set", "features.cells=8"], 2, "no effect"),
    "image features of a table": ("TABLE", ["--features", "sphog"], 2, "raw"),
    "a table made upright": ("TABLE", ["--set", "features.deskew=0.5"], 2, "features.deskew = 0.5 needs images"),
    "a power of pixels": ("digits", ["--features", "raw", "--set", "features.power=0.5"], 2, "features.power = 0.5"),
    "no power": ("digits", ["--set", "features.power=0"], 2, "features.power"),
    "more than upright": ("digits", ["--set", "features.deskew=1.5"], 2, "features.deskew"),
    "NaN in the data": ("NAN", [], 65, "row 37"),
    "labels of one class": ("ONE", [], 65, "one class"),
}


@pytest.mark.parametrize(("run", "shared"), [("a", "a/features"), ("a/run", "a"), ("a", "a"), ("link", "a/features")])
def test_a_run_and_the_shared_features_lie_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str, shared: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    train(tmp_path / run, tmp_path / shared, *SMALL, code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert "neither may lie inside the other" in line
    assert not (tmp_path / "a").exists()


def test_a_run_that_holds_the_shared_features_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions let such runs start."""
    run = tmp_path / "run"
    with monkeypatch.context() as older:
        older.setattr("pipeline.runtime.run_folder.check_apart", lambda root, features_dir: None)
        train(run, run / "features", *SMALL)
    assert status.main([str(run)]) == 0
    assert predict.main([str(run), "digits", "--out", str(tmp_path / "labels.csv")]) == 0
    train(run, run / "features", *SMALL, "--resume", "auto")
    (run / "report.json").unlink()
    train(run, run / "features", *SMALL, "--resume", "auto", code=2)
    train(run, tmp_path / "features", *SMALL, "--resume", "auto")


@pytest.mark.parametrize(
    "options", [(), ("--sigma2", "auto"), ("--set", "solver.intercept=false"), ("--penalty", "auto")]
)
@pytest.mark.parametrize(("scale", "word"), [(1e160, "large"), (1e300, "large"), (1e-170, "small")])
@pytest.mark.filterwarnings("error")
def test_targets_whose_squares_leave_float64_are_told_in_one_line(
    features: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scale: float,
    word: str,
    options: tuple[str, ...],
) -> None:
    X, y = sine()
    train(tmp_path / "run", features, *options, dataset=table(tmp_path / "t.npz", X, scale * y), code=65)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the targets are too {word}" in line


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gives_one_line_the_exit_code_and_leaves_nothing(
    case: str, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, arguments, code, words = BAD_INPUT[case]
    made = {"TABLE": (X, Y), "NAN": (NAN, Y), "ONE": (X, np.ones(80, int))}
    if dataset in made:
        dataset = table(tmp_path / "data.npz", *made[dataset])
    run = tmp_path / "run"
    monkeypatch.setattr("pipeline.runtime.dask_clients.CONNECT_SECONDS", 1)
    train(run, features, *arguments, "-q", dataset=dataset, code=code)
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert error.startswith("error: ")
    assert words in error
    # A row that turns out bad while features are computed leaves a folder; what is seen before leaves none.
    assert run.exists() == (case == "NaN in the data")
    assert not (run / "model").exists()
    assert not (run / "report.json").exists()


def test_an_unwritable_folder_is_refused() -> None:
    """As another user: root may write anywhere."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user without rights")
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    folder.chmod(0o755)
    code = (
        "import os, sys; from pipeline import train; import pipeline.planning.plan\n"
        "import pipeline.runtime.run_folder, distributed\n"
        "from features.open_source import SourceSpec, open_source; open_source(SourceSpec('digits'))\n"
        "os.setgid(65534); os.setuid(65534)\n"
        f"sys.exit(train.main(['digits', '-q', '--run-dir', {str(folder / 'run')!r}]))"
    )
    done = python("-c", code)
    assert done.returncode == 73, done.stderr
    assert str(folder) in done.stderr
    assert "permission denied" in done.stderr


def test_dry_run_and_print_config_write_nothing(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", features, "--dry-run", quiet=False)
    plan = capsys.readouterr().out
    assert all(stage in plan for stage in ("features", "centers", "statistics", "solve", "evaluate", "limit"))
    train(tmp_path / "run", features, "--print-config", "--penalty", "3", quiet=False)
    printed = capsys.readouterr().out
    assert "solver.penalty = 3.0  # --penalty" in printed
    assert "centers.count = 500  # digits.toml" in printed
    assert not (tmp_path / "run").exists()


def test_damaged_features_are_never_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "features"
    train(tmp_path / "first", store, *SMALL)
    chunk = next(path for path in store.glob("*/arrays.zarr/train/X/c/*/*"))
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    assert subprocess_train(tmp_path / "second", store) == 65
    chunk.unlink()
    assert subprocess_train(tmp_path / "third", store) == 65


def subprocess_train(run: Path, features: Path) -> int:
    """Train in a process of its own, which has no store open yet."""
    return python("-m", "pipeline.train", "digits", "--run-dir", run, "--features-dir", features, *SMALL).returncode


@pytest.mark.parametrize("data", ["digits", "table"])
def test_features_computed_on_the_fly_give_the_same_model_bytes(tmp_path: Path, data: str) -> None:
    dataset = "digits" if data == "digits" else table(tmp_path / "sinc.npz", *sine(300))
    for name, kind in (("stored", "zarr"), ("live", "none")):
        arguments = ("--centers", "40", "-q", "--features-store", kind, "--refit", "ridge")
        train(tmp_path / name, tmp_path / f"features-{name}", *arguments, dataset=dataset)
    assert model_bytes(tmp_path / "live") == model_bytes(tmp_path / "stored")
    assert not list((tmp_path / "features-live").glob("*/arrays.zarr"))
