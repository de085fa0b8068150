"""The doctor on this machine, on one where nothing is installed, and where something is broken."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest

from commands import Capture
from pipeline import doctor
from pipeline.doctor import main, requirements
from pipeline.runtime.memory_limits import default_limit_bytes
from runs import ROOT, python

SECTIONS = {"python", "libraries", "blas", "numba", "machine", "disk", "data", "extras", "advice", "training_works"}


def test_it_tells_of_every_extra_that_a_command_uses() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    of_commands = [one for name in extras if name not in ("benchmarks", "development") for one in extras[name]]
    assert {one.partition(">=")[0] for one in of_commands} <= set(doctor.EXTRAS)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither data sets nor compiled code from before."""
    monkeypatch.delenv("SLKL_DATA_DIR", raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_here_training_can_work(elsewhere: Path, capsys: Capture) -> None:
    assert main(["--runs", str(elsewhere / "runs")]) == 0
    told = capsys.readouterr().out
    assert f"numpy {np.__version__}" in told
    assert told.endswith("training can work\n")
    for words in ("openblas", "threading layer", "for this process", "GiB free below", "digits, synthetic, sinc"):
        assert words in told
    for name in ("mnist", "usps", "boston", "abalone"):
        assert f"note: data set {name} is not here\n    python -m pipeline.data fetch {name}\n" in told
    assert "note: no compiled code is kept yet" in told
    assert list(elsewhere.iterdir()) == [], "writes nothing"


def test_the_json_form_is_one_object(elsewhere: Path, capsys: Capture) -> None:
    assert main(["--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts) == SECTIONS
    assert facts["training_works"] is True
    assert set(facts["libraries"]) == set(requirements())
    assert {"numpy", "zarr", "jinja2", "scikit-learn"} <= set(facts["libraries"])
    assert facts["machine"]["default_memory_limit_bytes"] == default_limit_bytes()
    assert 1 <= facts["machine"]["processors_available"] <= facts["machine"]["processors"]
    assert all(pool["num_threads"] >= 1 for pool in facts["blas"]["pools"])
    assert len(facts["blas"]["pools"]) >= 1
    assert facts["numba"]["modules_cached"] == 0
    assert not any(one["stops"] for one in facts["advice"])


@pytest.mark.ci
def test_data_and_compiled_code_that_are_here(elsewhere: Path, data_dir: Path) -> None:
    code = "import numpy as np; from features.descriptors.sphog import sphog; sphog(np.zeros((1, 28, 28), np.uint8))"
    done = python("-c", f"import pipeline; {code}")
    assert done.returncode == 0, done.stderr
    facts = doctor.examine(elsewhere / "runs", str(data_dir))
    assert facts["data"]["mnist"] == str(data_dir / "mnist")
    assert facts["numba"]["modules_cached"] == 1
    assert not [one for one in facts["advice"] if "mnist" in one["what"] or "compiled" in one["what"]]


def test_an_incomplete_data_set_is_told(elsewhere: Path) -> None:
    (elsewhere / "housing.data").write_text("")
    (elsewhere / "zip.test.gz").write_text("")
    facts = doctor.examine(elsewhere, str(elsewhere))
    assert facts["data"]["usps"] is None
    assert any(one["what"] == f"data set usps is in {elsewhere}, which lacks zip.train.gz" for one in facts["advice"])


def test_a_python_without_any_library(tmp_path: Path) -> None:
    assert python("-m", "venv", "--without-pip", tmp_path / "bare").returncode == 0
    command = [str(tmp_path / "bare" / "bin" / "python"), "-m", "pipeline.doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 69, done.stderr
    for name, oldest in requirements().items():
        assert f"MISSING: {name} is not installed\n    python -m pip install '{name}>={oldest}'\n" in done.stdout
    assert "training cannot work: see MISSING above" in done.stdout
    facts = json.loads(subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, check=False).stdout)
    assert set(facts) == SECTIONS
    assert facts["training_works"] is False
    assert facts["blas"] is None


@pytest.mark.ci
def test_a_library_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise RuntimeError('Numba needs NumPy 2.1\\nor less')")
    done = python("-m", "pipeline.doctor", env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 69, done.stderr
    broken = (
        "MISSING: numba cannot be imported (Numba needs NumPy 2.1 or less)\n    python -m pip install --force-reinst"
    )
    assert broken in done.stdout
    assert "numba       " not in done.stdout
    assert "BLAS        " in done.stdout, "the rest is told all the same"


def test_an_old_library_and_an_old_python(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "pyproject.toml").write_text('[project]\ndependencies = ["numpy>=99.1", "psutil>=7"]\n')
    monkeypatch.setattr(doctor, "ROOT", elsewhere)
    found = doctor.examine(elsewhere, None)
    assert found["training_works"] is False
    assert found["advice"][0]["what"] == f"numpy {np.__version__} is older than 99.1"
    assert found["advice"][0]["command"] == "python -m pip install 'numpy>=99.1'"
    monkeypatch.setattr(doctor, "SMALLEST_PYTHON", (99, 1))
    assert doctor.examine(elsewhere, None)["advice"][0]["command"] == "python99.1 -m venv .venv"


def test_too_little_memory_or_disk(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    with monkeypatch.context() as small:
        small.setattr(doctor, "SPARE_BYTES", 2**60)
        assert main([]) == 69
        assert "MISSING: a run may take " in capsys.readouterr().out
    monkeypatch.setattr(doctor, "COMFORTABLE_DISK_BYTES", 2**60)
    assert main([]) == 0
    assert "note: " in capsys.readouterr().out
    monkeypatch.setattr(doctor, "SMALLEST_DISK_BYTES", 2**60)
    assert main([]) == 69
    assert "free at " in capsys.readouterr().out
    (elsewhere / "runs").write_text("a file where runs should go")
    assert main(["--runs", str(elsewhere / "runs" / "mine")]) == 69
    assert f"MISSING: {elsewhere / 'runs'} is no folder you can write to" in capsys.readouterr().out


def test_a_data_folder_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = str(tmp_path / "absent")
    told = "\n".join(doctor.lines(doctor.examine(tmp_path, absent)))
    assert f"--data-dir names {absent}, which is no folder" in told
    monkeypatch.setenv("SLKL_DATA_DIR", absent)
    assert f"SLKL_DATA_DIR names {absent}" in "\n".join(doctor.lines(doctor.examine(tmp_path, None)))
