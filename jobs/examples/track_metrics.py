"""Forward the iterations of a run to a tracker, here to event files that TensorBoard shows.

COMMAND: python jobs/examples/track_metrics.py [DIR]

Needs `pip install tensorboardX`. Files go to DIR, else to a temporary folder; `tensorboard --logdir DIR` shows them.
Another tracker takes another line in `forward`: MLflow `mlflow.log_metrics(numbers, step=record["iteration"])`.
"""

# %%
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline import train

folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)  # runs and features go to ./runs

# %% A record is an iteration of a solve: of which output, and how far it is.

board = SummaryWriter("tensorboard/digits")


def forward(record: dict[str, Any]) -> None:
    if "iteration" in record:
        for name in ("objective", "relative_gap", "n_active"):
            if record[name] is not None:  # the gap of an iteration that was not certified
                board.add_scalar(f"{name}/{record['output']}", record[name], record["iteration"])


# %% Every line of metrics.jsonl is such a record, also of a run that a cluster trains, or that ended long ago. With
# `train(..., callback=forward)` they come as the solves end.

run = train("digits", centers=60, run_dir="runs/digits", quiet=True)
lines = (run.folder / "metrics.jsonl").read_text().splitlines()
for line in lines:
    forward(json.loads(line))
board.add_scalar("error_rate", run.report["error_rate"], 0)
board.close()
print(f"{len(lines)} iterations forwarded; files are in {folder}")
