"""The SLURM batch script on a real one-node SLURM: is stopped and requeued, runs into its walltime, has worker jobs.

And without one: what the script does with exit codes and states, signals that come while the training is being started,
and keys of a cluster of worker jobs, which are private, and gone with their cluster or with the next start. Continuous
integration stops and requeues one job; the others run at night (`.ci/nightly jobs`).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Security

from jobs.slurm.dask_cluster import KEY_LOCK, key_of_start
from runs import ROOT, TrainedRuns, held_python, model_bytes, wait_until
from storage.files import read_record

SCRIPT = ROOT / "jobs" / "slurm" / "train.sbatch"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
# The paper's random schedule to a small gap takes its time on a small Gram: a few seconds to interrupt, or more than
# the 12 s in which SLURM warns at the latest.
INTERRUPTIBLE = ("--schedule", "uniform", "--max-sweeps", "100000", "--tol", "1e-7")
SHORT = (*INTERRUPTIBLE, "--penalty", "3e-4", "--centers", "675")
LONG = (*INTERRUPTIBLE, "--penalty", "1e-3", "--centers", "700")

nightly = pytest.mark.nightly  # as those of continuous integration, on a real one-node SLURM


class Queue:
    """Submits the script and follows its jobs; run folders and logs are in one folder."""

    def __init__(self, slurm: Any, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder

    def submit(self, *arguments: str, options: tuple[str, ...] = (), **variables: str) -> str:
        """Return the number of a new job."""
        asked = ["--parsable", "--cpus-per-task=1", "--mem=1500M", f"--output={self.folder}/%x-%j.log", *options]
        script = [str(SCRIPT), *arguments, "--features-dir", str(self.folder / "features")]
        variables = {"SLKL_PYTHON": sys.executable, "SLKL_RUNS": str(self.folder), **variables}
        return self.slurm.run("sbatch", *asked, *script, cwd=ROOT, **variables).strip()

    def run_dir(self, job: str) -> Path:
        return self.folder / f"slkl-{job}"

    def log(self, job: str) -> str:
        path = self.folder / f"slkl-{job}.log"
        return path.read_text(encoding="utf-8") if path.exists() else "no log"

    def wait_until_solving(self, job: str) -> None:
        self.slurm.wait_for(job, ("RUNNING",), 40)
        state = self.run_dir(job) / "STATE.json"
        wait_until(lambda: state.exists() and read_record(state)["stage"] == "solve", 60, lambda: self.log(job))

    def wait_until_done(self, job: str, seconds: float = 120) -> dict[str, str]:
        found = self.slurm.wait_for(job, ENDED, seconds)
        assert found["JobState"] == "COMPLETED", f"{found}\n{self.log(job)}"
        return found


@pytest.fixture
def queue(slurm: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Queue]:
    yield Queue(slurm, tmp_path_factory.mktemp("queue"))
    slurm.run("scancel", "--user=root")


def command(folder: Path, arguments: Sequence[str]) -> list[str]:
    there = ["--run-dir", str(folder), "--features-dir", str(folder.parent / "features"), "--workers", "1"]
    return [sys.executable, "-m", "pipeline.train", *arguments, *there, "--quiet"]


@pytest.fixture(scope="session")
def short(tables: Path) -> tuple[str, ...]:
    return str(tables / "values.npz"), *SHORT


@pytest.fixture(scope="session")
def uninterrupted(finished_run: TrainedRuns, tables: Path) -> dict[str, bytes]:
    return model_bytes(finished_run(*SHORT, "--workers", "1", dataset=tables / "values.npz"))


STOP = ("scancel", "--batch", "--signal=USR1")  # as SLURM warns of the end of the walltime


@pytest.mark.ci
@pytest.mark.parametrize("stop", [STOP, pytest.param(("scontrol", "requeue"), marks=nightly)])
def test_a_stopped_run_puts_its_job_back(queue, short, uninterrupted, stop):
    job = queue.submit(*short)
    queue.wait_until_solving(job)
    queue.slurm.run(*stop, job)
    found = queue.wait_until_done(job)
    assert (found["Restarts"], found["ExitCode"]) == ("1", "0:0")
    assert " start 2: " in queue.log(job)
    assert "--workers 1 --memory-limit 1350MiB" in queue.log(job)
    assert model_bytes(queue.run_dir(job)) == uninterrupted


@nightly
def test_the_tasks_of_an_array_are_put_back_one_by_one(queue, short, uninterrupted):
    array = queue.submit(*short, "--seed", "%a", options=("--array=0-1", f"--output={queue.folder}/slkl-%A_%a.log"))
    for task in (f"{array}_0", f"{array}_1"):  # processors are there for both
        queue.wait_until_solving(task)
        queue.slurm.run(*STOP, task)
    for task in (f"{array}_0", f"{array}_1"):
        assert queue.wait_until_done(task)["Restarts"] == "1"
        assert f"job {task} on" in queue.log(task)
    assert model_bytes(queue.run_dir(f"{array}_0")) == uninterrupted
    assert model_bytes(queue.run_dir(f"{array}_1")) != uninterrupted


@nightly
def test_the_walltime_stops_and_requeues(queue, tmp_path):
    line = ("digits", "--copies", "3", "--features", "soft-hog", "--sigma2", "0.25", *LONG)
    with subprocess.Popen(command(tmp_path / "run", line), cwd=ROOT) as uninterrupted:
        job = queue.submit(*line, options=("--time=1", "--signal=B:USR1@48"))
        found = queue.wait_until_done(job, 3600)  # a slow machine starts it many times
        assert uninterrupted.wait(3600) == 0
    assert int(found["Restarts"]) >= 1
    assert "SIGUSR1" in queue.log(job)
    assert model_bytes(queue.run_dir(job)) == model_bytes(tmp_path / "run")


@nightly
def test_dask_workers_as_jobs_of_their_own(queue, short, uninterrupted):
    pytest.importorskip("dask_jobqueue", reason="no dask-jobqueue here: pip install 'slkl[slurm]'")
    state = queue.folder / "dask"
    workers = f"--jobs 1 --job-cores 1 --job-memory 1GiB --job-time 00:10:00 --interface lo --state {state}"
    job = queue.submit(*short, SLKL_DASK=workers)
    queue.wait_until_solving(job)
    keys = list(state.glob(".tls-*/*.pem"))
    assert len(keys) == 3
    assert not [path for path in keys if (path.stat().st_mode | path.parent.stat().st_mode) & 0o077]
    (port,) = re.findall(r"scheduler tls://127\.0\.0\.1:(\d+)", queue.log(job))
    with pytest.raises(OSError, match=r"certificate|connect|reset|Timed out"):
        Client(f"tls://127.0.0.1:{port}", security=Security.temporary(), timeout=3, set_as_default=False)
    queue.slurm.run(*STOP, job)
    found = queue.wait_until_done(job)
    assert found["Restarts"] == "1"
    assert not list(state.glob(".tls-*"))
    assert model_bytes(queue.run_dir(job)) == uninterrupted
    wait_until(lambda: not queue.slurm.run("squeue", "--noheader", "--name=slkl-worker").strip(), 20)


# Signals itself before it starts the training, while it starts it, or this many seconds later.
STARTER = """\
import os, signal, sys, threading, time
from jobs.slurm.dask_cluster import Requests
requests, moment = Requests(), sys.argv[1]
send = lambda *_: os.kill(os.getpid(), signal.SIGUSR1)
if moment == "before":
    send()
elif moment == "during":
    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()  # dask has threads, which take signals too
    sys.addaudithook(lambda event, _: (send(), time.sleep(0.3)) if event == "subprocess.Popen" else None)
else:
    threading.Timer(float(moment), send).start()
sys.exit(requests.run([sys.executable, "-m", "pipeline.train", *sys.argv[2:]], os.environ))
"""


@pytest.mark.parametrize("moment", ["before", "during", "0.02", pytest.param("0.1", marks=pytest.mark.ci)])
def test_a_signal_while_the_training_starts_stops_it(tmp_path, moment):
    run = tmp_path / "run"
    line = [sys.executable, "-c", STARTER, moment, *command(run, ["digits", "--centers", "40"])[3:]]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 75, done.stderr
    assert done.stderr.count("\n") == (moment != "before")
    assert not (run / "model").exists()


# Stands for a Python that has no handlers yet, and dies of the signal that SLURM sends the script.
STARTING = """\
#!/bin/sh
kill -{signal} $PPID
exec sleep 10
"""


def batch_shell(
    folder: Path,
    interpreter: str,
    *arguments: str,
    config: str = "",
    squeue: str = "echo RUNNING",
    restarts: int = 0,
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Run the script with a `scontrol` that notes what it is told, a `squeue` and an interpreter of our own."""
    programs = {
        "scontrol": f'case $1 in show) echo "{config}";; *) echo "$*" >> {folder}/told;; esac',
        "squeue": squeue,
        "python": interpreter,
    }
    for name, text in programs.items():
        (folder / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    variables = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "slkl"}
    variables |= {"SLKL_PYTHON": str(folder / "python"), "SLKL_RUNS": str(folder), "SLURM_RESTART_COUNT": str(restarts)}
    variables |= {"SLKL_RETRY_SECONDS": "0"} | settings
    line = ["sh", "-c", 'bash "$@"; exit $?', "sh", str(SCRIPT), "digits", *arguments]  # stands for slurmstepd
    return subprocess.run(line, env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize("config", ["", "RequeueExit             = 75"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_the_script_requeues_what_a_signal_ends_before_it_listens(tmp_path, number, config):
    done = batch_shell(tmp_path, STARTING.format(signal=number.name.removeprefix("SIG")), config=config)
    assert done.returncode == 75, done.stderr
    told = (tmp_path / "told").read_text() if (tmp_path / "told").exists() else ""
    assert told == ("" if config else "requeue 7\n")


SOMETIMES = "[ -e $0-asked ] && echo {state} || {{ touch $0-asked; exit 1; }}"  # fails at first, the controller is busy
ENDINGS = [  # the exit code of the training, what squeue does, and whether the job is put back
    *((code, "echo RUNNING", False) for code in (0, 2, 139)),
    *((75, squeue, False) for squeue in ("echo CANCELLED", SOMETIMES.format(state="CANCELLED"))),
    *((75, squeue, True) for squeue in ("exit 1", SOMETIMES.format(state="RUNNING"))),
]


@pytest.mark.parametrize(("code", "squeue", "is_requeued"), ENDINGS)
def test_only_stopped_runs_are_requeued_and_not_where_the_job_is_cancelled(tmp_path, code, squeue, is_requeued):
    assert batch_shell(tmp_path, f"exit {code}", squeue=squeue).returncode == code
    assert (tmp_path / "told").exists() == is_requeued


ARRAY = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


def test_a_task_of_an_array_is_requeued_by_itself_and_has_its_number(tmp_path):
    squeue = 'case "$*" in *7_3*) echo RUNNING;; *) printf "RUNNING\\nRUNNING\\n";; esac'
    done = batch_shell(tmp_path, "exit 75", "--seed", "%a", squeue=squeue, **ARRAY)
    assert (tmp_path / "told").read_text() == "requeue 7_3\n"
    assert "slkl-7_3 --resume auto" in done.stdout
    assert "digits --seed 3" in done.stdout


def test_memory_by_processor_and_words_with_spaces_are_passed_on(tmp_path):
    (tmp_path / "words").mkdir()
    notes = f'printf "%s|" "$@" > {tmp_path}/words/all'
    settings = {"SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_ON_NODE": "3"}
    dask = """--jobs 8 --directive='--comment=two words' --state "a  b/*" """
    assert batch_shell(tmp_path, notes, SLKL_DASK=dask, **settings).returncode == 0
    told = (tmp_path / "words" / "all").read_text()
    assert "|--jobs|8|--directive=--comment=two words|--state|a  b/*|--run-dir|" in told
    assert "|--memory-limit|2700MiB|digits|" in told


def test_requeues_have_an_end(tmp_path):
    codes = [batch_shell(tmp_path, "exit 75", restarts=restarts).returncode for restarts in (100, 101)]
    assert (codes, (tmp_path / "told").read_text()) == ([75, 2], "requeue 7\n")
    done = batch_shell(tmp_path, "exit 75", restarts=1, SLKL_MAX_REQUEUES="0")
    assert done.returncode == 2
    assert "SLKL_MAX_REQUEUES is 0" in done.stdout + done.stderr


KEEP = """
import sys, time
from pathlib import Path
from jobs.slurm.dask_cluster import key_of_start
with key_of_start(Path(sys.argv[1])):
    print("made", flush=True)
    time.sleep(600)
"""


def test_a_key_that_was_left_goes_once_its_owner_is_surely_gone(tmp_path):
    with held_python(KEEP, tmp_path) as killed:
        assert killed.stdout.readline() == "made\n"
        (left,) = tmp_path.glob(".tls-*")
    elsewhere, long_ago, unknown = (tmp_path / f".tls-{name}" for name in ("elsewhere", "long-ago", "unknown"))
    for folder in (elsewhere, long_ago, unknown):
        folder.mkdir()
        (folder / "key.pem").touch()
    for folder, age in ((elsewhere, 3600), (long_ago, 31 * 86400)):
        (folder / KEY_LOCK).write_text(json.dumps({"host": "elsewhere", "pid": 1}))
        os.utime(folder / KEY_LOCK, (time.time() - age,) * 2)
    with key_of_start(tmp_path):
        assert not left.exists()
        assert not long_ago.exists()
        kept = set(tmp_path.glob(".tls-*"))
        assert kept > {elsewhere, unknown}
        with key_of_start(tmp_path):
            assert set(tmp_path.glob(".tls-*")) > kept
        assert set(tmp_path.glob(".tls-*")) == kept
