"""The key of a cluster of worker jobs: private, gone with its cluster, or with the next start."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from jobs.slurm.dask_cluster import KEY_LOCK, key_of_start
from runs import ROOT

KEEP = """
import sys, time
from pathlib import Path
from jobs.slurm.dask_cluster import key_of_start
with key_of_start(Path(sys.argv[1])):
    print("made", flush=True)
    time.sleep(600)
"""


def test_a_key_that_was_left_goes_once_its_owner_is_surely_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KEEP, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "made\n"
        (left,) = tmp_path.glob(".tls-*")
        killed.kill()
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
