"""Files made to fill the memory or to hang: every command refuses each in one line, in a child of measured memory."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runs import TrainedRuns, python
from sources import npy_bytes

MOST_MIB = 100  # above the peak of an honest command; the bomb takes 350
X, Y = np.arange(160.0).reshape(40, 4), np.arange(40) % 2

# Each line of standard input is a command; the answers are code, standard error, and the peak so far in MiB.
CHILD = """
import contextlib, io, json, resource, sys
from pathlib import Path
from pipeline import evaluate, predict, train

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
commands = {"train": train.main, "predict": predict.main, "evaluate": evaluate.main}
for line in sys.stdin:
    name, *arguments = json.loads(line)
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
        code = commands[name](arguments)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps([code, told.getvalue(), int(peak.split()[1]) >> 10]), flush=True)
"""


def answers(commands: list[list[str]]) -> list[tuple[int, str, int]]:
    """Run the commands one after the other in one child; return code, standard error, and the growth of the peak."""
    typed = "".join(json.dumps(command) + "\n" for command in commands)
    done = python("-c", CHILD, input=typed, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(code, told, peak_mib - found[0][2]) for code, told, peak_mib in found]


@pytest.fixture(scope="module")
def model(finished_run: TrainedRuns, tables: Path) -> Path:
    """A model of four inputs."""
    return finished_run("--centers", "20", dataset=tables / "values.npz") / "model"


def npz(path: Path, inputs: bytes, labels: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", inputs)
        archive.writestr("y.npy", labels)


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


DATA: dict[str, Callable[[Path], object]] = {
    "rows-of-nothing.npz": lambda path: npz(path, npy_bytes("<f8", (10**9, 0)), npy_bytes("<i8", Y.shape, Y.tobytes())),
    "strings-of-nothing.npz": lambda path: npz(path, npy_bytes("|S0", (10**9, 4)), npy_bytes("|S0", (10**9,))),
    "void.npz": lambda path: npz(path, npy_bytes("|V0", (10**9, 4)), npy_bytes("|V0", (10**9,))),
    "pipe.npz": os.mkfifo,
    "pipe.csv": os.mkfifo,
    "device.npz": link("/dev/zero"),
    "device.csv": link("/dev/zero"),
    "wide.csv": lambda path: path.write_bytes(b"a" + b",a" * 10**6 + b"\n1\n"),
    "narrower.csv": lambda path: path.write_bytes(b",".join(b"c%d" % k for k in range(10**5)) + b"\n1\n"),
    "endless.csv": lambda path: path.write_bytes(b"a,y\n" + b"1" * 10**8),
    "unclosed.csv": lambda path: path.write_bytes(b'a,y\n1,"' + b"1,2\n" * 10**7),
}


@pytest.mark.ci
def test_data_that_would_fill_the_memory(tmp_path: Path, model: Path) -> None:
    np.savetxt(tmp_path / "honest.csv", X, delimiter=",", header="a,b,c,d", comments="")
    commands = [["predict", str(model), str(tmp_path / "honest.csv"), "--out", str(tmp_path / "out.csv"), "-q"]]
    for name, make in DATA.items():
        make(tmp_path / name)
        data = str(tmp_path / name)
        commands.append(["train", data, "--run-dir", str(tmp_path / "run"), "-q"])
        commands.append(["predict", str(model), data, "--out", str(tmp_path / "more.csv")])
        commands.append(["evaluate", str(model), data])
    for command, (code, told, growth_mib) in list(zip(commands, answers(commands), strict=True))[1:]:
        assert code == 65, (command, told)
        assert told.startswith("error: "), command
        assert told.count("\n") == 1, command
        assert growth_mib < MOST_MIB, command
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "more.csv").exists()


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


EMPTY_LISTS = b"[" + b"[]," * 5_000_000 + b"1]"  # 15 MB, and 350 MiB once it is parsed
MODELS = {
    f"{kind} as {name}": replaced(name, make)
    for name in ("model.json", "arrays.npz", "MANIFEST.json")
    for kind, make in {
        "a pipe": os.mkfifo,
        "a device": link("/dev/zero"),
        "a bomb": lambda path: path.write_bytes(EMPTY_LISTS),
        "a hole": lambda path: (path.touch(), os.truncate(path, 2**40)),
    }.items()
}


def test_models_that_would_fill_the_memory_or_hang(tmp_path: Path, model: Path) -> None:
    np.savez(tmp_path / "data.npz", X=X, y=Y)
    commands = [["predict", str(model), str(tmp_path / "data.npz"), "--out", str(tmp_path / "honest.csv"), "-q"]]
    for number, change in enumerate(MODELS.values()):
        folder = tmp_path / f"model-{number}"
        shutil.copytree(model, folder)
        change(folder)
        commands.append(["predict", str(folder), str(tmp_path / "data.npz"), "--out", str(tmp_path / "out.csv")])
    for case, (code, told, growth_mib) in zip(MODELS, answers(commands)[1:], strict=True):
        assert code == 65, (case, told)
        assert told.count("\n") == 1, case
        assert growth_mib < MOST_MIB, case
    assert not (tmp_path / "out.csv").exists()
