"""The processes of --scheduler processes: nobody else reaches into them, and they heed no settings but our own."""

import os
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import dask
import psutil
import pytest
from distributed import Client, Security

from pipeline.errors import SchedulerError
from pipeline.runtime import dask_executor
from pipeline.work.runner import open_executor
from runs import ROOT, held_python, train, wait_until


def listening_ports() -> set[int]:
    """Return the ports that this process and its children listen on."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    sockets = [one for process in processes for one in process.net_connections()]
    listening = [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening} <= {"127.0.0.1", "::1"}, "none is open to other machines"
    return {address.port for address in listening}


@pytest.mark.ci
def test_no_port_answers_without_the_key_of_this_start():
    before = listening_ports()  # of clusters that other tests have open
    with open_executor("processes", 1, 1, 2**30) as opened:
        assert [result.value for result in opened.run(abs, [-1])] == [1]
        ports = listening_ports() - before
        assert len(ports) == 3, "the scheduler, the nanny and the worker, and no dashboard of theirs"
        for port in ports:
            with pytest.raises((URLError, ConnectionError, TimeoutError)):
                urlopen(f"http://127.0.0.1:{port}/sitemap.json", timeout=5)
        for key in (Security.temporary(), Security()):
            protocol = "tls" if key.require_encryption else "tcp"
            address = f"{protocol}://127.0.0.1:{opened._client.cluster.scheduler.port}"
            with pytest.raises(OSError, match=r"certificate|connect|reset|Timed out"):
                Client(address, security=key, timeout=3, set_as_default=False)
        assert [result.value for result in opened.run(abs, [-2])] == [2]


def settings_there(keys: list[str]) -> list[object]:
    """Return settings of dask where an item runs."""
    return [dask.config.get(key) for key in keys]


@pytest.mark.ci
def test_settings_of_dask_that_a_user_has_for_clusters_do_not_matter(monkeypatch, tmp_path):
    """In the environment, which workers read themselves, and in this process."""
    theirs = {
        "distributed.comm.timeouts.tcp": "10s",
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": str(tmp_path / "gone.pem"),
        "distributed.worker.lifetime.duration": "1s",
        "distributed.worker.memory.terminate": 0.001,
        "temporary-directory": str(tmp_path / "gone"),
    }
    keys = list(theirs)
    for key, value in theirs.items():
        monkeypatch.setenv(f"DASK_{key.upper().replace('.', '__').replace('-', '_')}", str(value))
    with dask.config.set(theirs):
        with open_executor("processes", 1, 1, 2**30) as executor:
            found = [result.value for result in executor.run(settings_there, [keys, keys])]
        assert settings_there(keys) == list(theirs.values())
    assert found[0] == found[1]
    assert not set(map(str, found[0])) & set(map(str, theirs.values()))


# Loaded by every Python that starts: worker processes end before they have begun, as for want of memory.
DYING = """\
import os, sys
if any("spawn_main" in word for word in sys.orig_argv) and os.path.exists(os.environ["SLKL_TEST_DYING"]):
    os._exit(1)
"""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file: while it exists, worker processes die as they start."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DYING)
    monkeypatch.setenv("SLKL_TEST_DYING", str(tmp_path / "dying"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{ROOT}")
    return tmp_path / "dying"


def test_a_worker_process_that_does_not_start_is_one_line(dying, tables, features, tmp_path, capfd):
    dying.touch()
    asked = ("--centers", "20", "--scheduler", "processes", "--workers", "1")
    train(tmp_path / "run", features, *asked, dataset=tables / "values.npz", code=69)
    (told,) = capfd.readouterr().err.splitlines()
    assert "did not start" in told
    assert "--workers" in told


@pytest.mark.ci
def test_workers_that_do_not_come_back_end_the_run(dying, monkeypatch):
    monkeypatch.setattr(dask_executor, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(dask_executor, "TOLD_SECONDS", 0.5)
    told: list[str] = []
    with open_executor("processes", 1, 1, 2**30, patience=1) as opened:
        opened.warn = told.append
        assert [result.value for result in opened.run(abs, [-1])] == [1]
        dying.touch()
        for child in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
        with pytest.raises(SchedulerError, match=r"no worker for . s, .*`resume=auto`"):
            list(opened.run(abs, [-2]))
    (line,) = (line for line in told if line.startswith("no worker"))
    assert "the run waits for one, 1 s at most" in line


HELD = """
import signal
from pipeline.work.runner import open_executor
if __name__ == "__main__":
    with open_executor("processes", 2, 2, 2**30) as executor:
        print(*sorted({result.process[1] for result in executor.run(abs, range(40))}), flush=True)
        signal.pause()
"""


@pytest.mark.ci
def test_workers_end_with_a_driver_that_is_killed(tmp_path):
    (script := tmp_path / "held.py").write_text(HELD)
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    with held_python(code) as process:
        workers = [int(word) for word in process.stdout.readline().split()]
        assert workers
        assert all(map(psutil.pid_exists, workers))
    wait_until(lambda: not any(map(psutil.pid_exists, workers)), 30)
