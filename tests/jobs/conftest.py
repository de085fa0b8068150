"""The scripts of the jobs, in this process; a real one-node SLURM on loopback, from Debian's packages."""

import importlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from runs import ROOT, wait_until


@pytest.fixture
def script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str]]:
    """Run the script of a name with --out, after replacing some of its constants; return its JSON and its words."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # scripts set it where it is not
    for folder in ("benchmarks", "paper"):
        monkeypatch.syspath_prepend(ROOT / "jobs" / folder)

    def run(name: str, *arguments: object, **constants: Any) -> tuple[Any, str]:
        module = importlib.import_module(name)
        for constant, value in constants.items():
            monkeypatch.setattr(module, constant, value)
        monkeypatch.setattr(sys, "argv", [name, "--out", str(tmp_path), *map(str, arguments)])
        capsys.readouterr()
        assert not module.main()
        written = tmp_path / f"{name}.json"
        return json.loads(written.read_text()) if written.exists() else None, capsys.readouterr().out

    return run


PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
CONFIGURATION = """\
ClusterName=slkl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=1,sched_interval=2,defer_batch
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
# Nothing here uses control groups, but older daemons want to know which kind there is.
CGROUPS = "CgroupPlugin=autodetect\nIgnoreSystemd=yes\n"


class Slurm:
    """A running cluster of one node with 2 processors and 2000 MB."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        host = socket.gethostname().split(".")[0]
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = one.getsockname()[1], other.getsockname()[1]
        text = CONFIGURATION.format(host=host, ports=ports, folder=folder)
        (folder / "slurm.conf").write_text(text, encoding="utf-8")
        (folder / "cgroup.conf").write_text(CGROUPS, encoding="utf-8")

    def run(self, *command: str, cwd: Path | None = None, **variables: str) -> str:
        environment = {**self.environment, **variables}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def fields(self, job: str) -> dict[str, str]:
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job: str, states: Sequence[str], seconds: float) -> dict[str, str]:
        """Return a job's fields once it is in one of the states."""
        deadline = time.monotonic() + seconds
        while (found := self.fields(job))["JobState"] not in states:
            assert time.monotonic() < deadline, f"job {job} is {found}; {self.daemon_logs()}"
            if found["JobState"] == "PENDING" and found.get("Reason") == "BeginTime":  # two minutes after a requeue
                now = ["scontrol", "update", f"JobId={job}", "StartTime=now"]
                subprocess.run(now, env=self.environment, capture_output=True, check=False)  # it may just have begun
            time.sleep(0.3)
        return found

    def daemon_logs(self) -> str:
        logs = [self.folder / f"{name}.log" for name in ("slurmctld", "slurmd")]
        return "\n".join("\n".join(log.read_text().splitlines()[-20:]) for log in logs if log.exists())


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A one-node cluster; the test is skipped where it cannot be started."""
    missing = [name for name in PROGRAMS if not _program(name)]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("SLURM's daemons are started as root")
    folder = tmp_path_factory.mktemp("slurm", numbered=True)
    cluster = Slurm(folder)
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(mode=0o700)
    munge = folder / "munge"
    (munge / "key").write_bytes(secrets.token_bytes(128))
    (munge / "key").chmod(0o400)
    names = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    options = [f"--{option}={munge / name}" for option, name in names.items()]
    with ExitStack() as stack:
        stack.enter_context(_daemon([_program("munged"), "--foreground", "--force", *options], cluster))
        wait_until((munge / "socket").exists, 20, (munge / "log").read_text)
        commands = ([_program(name), "-D", "-f", str(folder / "slurm.conf")] for name in ("slurmctld", "slurmd"))
        daemons = [stack.enter_context(_daemon(command, cluster)) for command in commands]
        _wait_until_idle(cluster, daemons)
        stack.callback(_end_all_jobs, cluster)
        yield cluster


def _program(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or ""


@contextmanager
def _daemon(command: list[str], cluster: Slurm) -> Iterator[subprocess.Popen[bytes]]:
    with (cluster.folder / f"{Path(command[0]).name}.out").open("ab") as out:
        process = subprocess.Popen(command, env=cluster.environment, stdout=out, stderr=out, cwd=cluster.folder)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_idle(cluster: Slurm, daemons: list[subprocess.Popen[bytes]]) -> None:
    def idle() -> bool:
        assert all(daemon.poll() is None for daemon in daemons), cluster.daemon_logs()
        asked = ["sinfo", "--noheader", "--format=%t"]
        done = subprocess.run(asked, env=cluster.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip() == "idle"

    wait_until(idle, 40, cluster.daemon_logs)


def _end_all_jobs(cluster: Slurm) -> None:
    cluster.run("scancel", "--full", "--signal=KILL", "--state=RUNNING", "--user=root")
    cluster.run("scancel", "--user=root")
    with suppress(AssertionError):
        wait_until(lambda: not cluster.run("squeue", "--noheader").strip(), 30)
