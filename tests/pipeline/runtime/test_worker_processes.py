"""The processes of --scheduler processes: nobody else reaches into them, and one that does not start is told."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import psutil
import pytest

from pipeline.errors import SchedulerError
from pipeline.runtime import dask_executor
from pipeline.runtime.open_executor import open_executor
from pipeline.train import main
from runs import ROOT, held_python

NOBODY = 65534
# What another user of this machine can try: to have a function of theirs run by whoever listens. Each try creates a
# folder of its own where only the owner may.
ATTACK = """
import asyncio, json, os, sys
from itertools import product
from pathlib import Path
from distributed import Client, Security
from distributed.core import rpc
from distributed.protocol.pickle import dumps

asked = json.load(sys.stdin)
keys = {"none": Security(), "own": Security.temporary()}
if asked["key"]:
    keys = {"stolen": Security(require_encryption=True, **asked["key"])}

async def call(port, name, security, folder):
    address = f"{'tcp' if name == 'none' else 'tls'}://127.0.0.1:{port}"
    async with rpc(address, timeout=3, connection_args=security.get_connection_args("client")) as door:
        await door.run(function=dumps(os.mkdir), args=dumps((str(folder),)))

async def submit(port, name, security, folder):
    address = f"{'tcp' if name == 'none' else 'tls'}://127.0.0.1:{port}"
    async with Client(address, timeout=3, security=security, asynchronous=True, set_as_default=False) as client:
        await client.submit(os.mkdir, str(folder))

async def attempt(way, port, name):
    folder = Path(asked["folder"]) / f"{way.__name__}-{port}-{name}"
    try:
        await asyncio.wait_for(way(port, name, keys[name], folder), 5)
    except BaseException as error:
        print(folder.name, repr(error), file=sys.stderr)

async def main():
    await asyncio.gather(*(attempt(*one) for one in product((call, submit), asked["ports"], keys)))

os.setgroups([])
os.setgid(asked["uid"])
os.setuid(asked["uid"])
try:
    os.mkdir(asked["folder"] + "/by-hand")
except PermissionError:
    asyncio.run(main())
"""


def listening_ports(others: Collection[int] = ()) -> dict[int, set[int]]:
    """Return the ports that this process and its children listen on, by process number, without those of others."""
    found = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        ports = {one.laddr.port for one in process.net_connections() if one.status == "LISTEN"}
        found[process.pid] = ports.difference(others)
    return {number: ports for number, ports in found.items() if ports}


def attack(folder: Path, ports: set[int], key: dict[str, str] | None) -> set[str]:
    """Let another user try every port; return the tries whose function ran."""
    folder.mkdir(mode=0o700)
    asked = {"folder": str(folder), "ports": sorted(ports), "key": key, "uid": NOBODY}
    subprocess.run(
        [sys.executable, "-c", ATTACK], input=json.dumps(asked), text=True, check=True, stderr=subprocess.PIPE
    )
    return {path.name for path in folder.iterdir()}


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_have_a_function_run(tmp_path: Path) -> None:
    others = set[int]().union(*listening_ports().values())  # of clusters that other tests have open
    with open_executor("processes", 1, 1, 2**30) as opened:
        assert [result.value for result in opened.run(abs, [-1])] == [1]
        by_process = listening_ports(others)
        assert len(by_process) == 2  # scheduler and nanny here, the worker in a process of its own
        ports = set.union(*by_process.values())
        assert attack(tmp_path / "outside", ports, None) == set()
        assert [result.value for result in opened.run(abs, [-2])] == [2]
        # With the key of this start the same tries succeed, at all three of them: they do reach what they aim at.
        role = opened._client.security.get_tls_config_for_role("client")
        key = {"tls_ca_file": role["ca_file"], "tls_client_cert": role["cert"], "tls_client_key": role["key"]}
        ran = attack(tmp_path / "inside", ports, key)
        assert sum(name.startswith("submit") for name in ran) == 1
        assert len({name for name in ran if name.startswith("call")}) == 2
        assert {int(name.split("-")[1]) for name in ran} & by_process[os.getpid()]
        assert {int(name.split("-")[1]) for name in ran} - by_process[os.getpid()]


# Loaded by every Python that starts: worker processes end before they have begun, as for want of memory.
DYING = """\
import os, sys
if any("spawn_main" in word for word in sys.orig_argv) and os.path.exists(os.environ["SLKL_TEST_DYING"]):
    {how}
"""


def let_workers_die(monkeypatch: pytest.MonkeyPatch, folder: Path, how: str) -> None:
    """Have worker processes die as they start, while folder/dying exists."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(DYING.format(how=how))
    monkeypatch.setenv("SLKL_TEST_DYING", str(folder / "dying"))
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'site'}{os.pathsep}{ROOT}")


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [("os._exit(1)", 69, "exited with status 1"), ("os.kill(os.getpid(), 9)", 71, "killed by signal 9")],
)
def test_a_worker_process_that_does_not_start_is_one_line(
    tmp_path: Path,
    tables: Path,
    features: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    how: str,
    code: int,
    words: str,
) -> None:
    let_workers_die(monkeypatch, tmp_path, how)
    (tmp_path / "dying").touch()
    line = [str(tables / "values.npz"), "--centers", "20", "-q", "--scheduler", "processes", "--workers", "1"]
    assert main([*line, "--run-dir", str(tmp_path / "run"), "--features-dir", str(features)]) == code
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith("error: a worker process did not start")
    assert words in told
    assert "--workers" in told


@pytest.mark.ci
def test_workers_in_a_private_folder_that_do_not_come_back_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_workers_die(monkeypatch, tmp_path, "os._exit(1)")
    monkeypatch.setattr(dask_executor, "_LOOK_SECONDS", 0)
    monkeypatch.setattr(dask_executor, "TOLD_SECONDS", 0.5)
    told: list[str] = []
    with open_executor("processes", 1, 1, 2**30, patience=1) as opened:
        opened.report_to(told.append)
        (nanny,) = opened._client.cluster.workers.values()
        private = next(path for path in Path(nanny.worker_dir).parents if path.name.startswith("slkl-workers-"))
        assert private.stat().st_mode & 0o077 == 0, "the folder of the workers is their owner's alone"
        assert [result.value for result in opened.run(abs, [-1])] == [1]
        (tmp_path / "dying").touch()
        for child in psutil.Process().children(recursive=True):
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()
        with pytest.raises(SchedulerError, match=r"no worker for . s, .*--resume auto"):
            list(opened.run(abs, [-2]))
        assert len(told) == 1
        assert "the run waits for one, 1 s at most" in told[0]
    assert not private.exists()


HELD = """
import signal
from pipeline.runtime.dask_executor import _workers_folder
with _workers_folder() as folder:
    print(folder, flush=True)
    signal.pause()
"""


@pytest.mark.ci
def test_the_folder_of_a_killed_run_goes_with_the_next_one_and_all_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with held_python(HELD) as process:
        killed = Path(process.stdout.readline().strip())
    others = {name: tmp_path / f"slkl-workers-{name}" for name in ("elsewhere", "theirs", "new", "link")}
    for name in ("elsewhere", "theirs"):
        shutil.copytree(killed, others[name])
    lock = others["elsewhere"] / "run.lock"
    lock.write_text(lock.read_text().replace(socket.gethostname(), "another-machine"))
    others["new"].mkdir()
    others["link"].symlink_to(others["theirs"])
    if os.geteuid() == 0:
        os.chown(others["theirs"], NOBODY, NOBODY)
    else:
        shutil.rmtree(others["theirs"])
    stay = set(tmp_path.iterdir()) - {killed}
    with held_python(HELD) as process:
        live = Path(process.stdout.readline().strip())
        with open_executor("processes", 1, 1, 2**30):
            assert len(set(tmp_path.iterdir()) - stay) == 2
        assert set(tmp_path.iterdir()) == stay | {live}
