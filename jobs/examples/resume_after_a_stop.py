"""Stop a run in the middle of a solve, continue it, and compare: the same model, byte for byte.

COMMAND: python jobs/examples/resume_after_a_stop.py [DIR]

Files go to DIR, else to a temporary folder.
"""

# %%
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline.reporting.run_facts import status
from pipeline.status import main as show_status
from pipeline.train import main as train

folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)  # runs and features go to ./runs

# %% A run with solves of some seconds, by the paper's schedule and to a tight gap.

settings = ["digits", "--features", "sphog", "--sigma2", "8", "--penalty", "0.001", "--schedule", "uniform"]
settings += ["--centers", "500", "--tol", "1e-5", "--checkpoint-every", "0.2s", "-q"]

# %% In a process of its own, so that it can be stopped as Ctrl-C or a batch system would.

command = [sys.executable, "-m", "pipeline.train", *settings, "--run-dir", "runs/stopped"]
run = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": sys.path[0]})
while run.poll() is None:
    if Path("runs/stopped/config.toml").exists() and status(Path("runs/stopped"))["stage"] == "solve":
        run.send_signal(signal.SIGINT)
        break
    time.sleep(0.02)
print(f"exit code {run.wait()}: stopped on request, resumable")

# %% Where it is. Any process may look, at any time, also while it runs.

assert show_status(["runs/stopped"]) == 0

# %% Continue. The settings come from the folder; the solve goes on from its checkpoint.

assert train([*settings, "--run-dir", "runs/stopped", "--resume", "auto"]) == 0

# %% The same without a stop.

assert train([*settings, "--run-dir", "runs/whole"]) == 0


def digest(folder: Path) -> str:
    contents = (path.read_bytes() for path in sorted(folder.iterdir()))
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


print(f"stopped and resumed: {digest(Path('runs/stopped/model'))}")
print(f"never stopped:       {digest(Path('runs/whole/model'))}")
print(f"files are in {folder}")
