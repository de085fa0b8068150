"""One method of `peers.py` in a process of its own: it fits, then predicts the test part.

COMMAND: python jobs/benchmarks/peer_fits.py ASKED (a JSON object, written by `peers.py`)

Prints JSON lines: {"ready": true} once imports are over and a peer has its features in memory; what the fit took and
gave; what the prediction took, and the peak memory of all processes. Ours is the command itself, in one more process.
"""

import json
import pickle
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from mnist_runs import NOT_CONVERGED, SETTINGS, read_part, report_of
from numpy.typing import NDArray

from pipeline.prediction.trained_model import load_model
from storage.folder_layouts import RunLayout

Facts = dict[str, Any]
Predict = Callable[[NDArray[np.float32]], NDArray[np.int64]]
ROOT = Path(__file__).resolve().parents[2]
OWN = ("ridge", "greedy")  # These kinds of methods are ours.
FIT_STAGES = ("candidates", "statistics", "solve")


@dataclass(frozen=True)
class Fitted:
    """A model: its number of centers or support vectors, its bytes on disk, the seconds of its fit."""

    size: int
    seconds: float
    predict: Predict
    count_bytes: Callable[[], int]
    more: Facts


def say(facts: Facts) -> None:
    print(json.dumps(facts), flush=True)


def prepared(asked: Facts) -> RunLayout:
    """Return the run that built the features."""
    return RunLayout(Path(asked["runs"]) / "features")


def train(asked: Facts, folder: Path, *arguments: str) -> RunLayout:
    """Run the command as a user would, into a folder, and return its layout."""
    command = [sys.executable, "-m", "pipeline.train", *SETTINGS[asked["dataset"]][0], *arguments]
    command += ["--workers", str(asked["threads"]), "--features-dir", asked["features_dir"], "--run-dir", str(folder)]
    command += ["--set", f"data.n_train={asked['n_train']}"] if asked["n_train"] else []
    code = subprocess.run([*command, "-q"], cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
    if code not in (0, NOT_CONVERGED):
        raise SystemExit(code)
    return RunLayout(folder)


def fit_ours(asked: Facts) -> Fitted:
    """Train; the seconds are those of all stages between the features on disk and the model."""
    say({"ready": True})
    folder = Path(asked["runs"]) / asked["name"]
    shutil.rmtree(folder, ignore_errors=True)
    started = time.perf_counter()
    layout = train(asked, folder, *asked["arguments"])
    command_seconds = time.perf_counter() - started
    model, stages = load_model(layout.model), report_of(layout)["stages"]
    n_bytes = sum(path.stat().st_size for path in layout.model.iterdir())
    seconds = sum(stages[name]["wall_seconds"] for name in FIT_STAGES)

    def predict(X: NDArray[np.float32]) -> NDArray[np.int64]:
        return model.labels_of(model.decision_function(X))

    return Fitted(model.n_centers, seconds, predict, lambda: n_bytes, {"command_seconds": command_seconds})


def fit_peer(asked: Facts) -> Fitted:
    """Fit a peer on features in memory."""
    from peer_models import PEERS  # only here: ours need none of their memory

    fit, sigma2 = PEERS[asked["kind"]], SETTINGS[asked["dataset"]][1]
    X, y = read_part(prepared(asked), "train")
    say({"ready": True})
    started = time.perf_counter()
    size, predict, kept = fit(X, y, asked["size"], sigma2, asked["threads"], asked["seed"])
    seconds = time.perf_counter() - started
    return Fitted(size, seconds, predict, lambda: len(pickle.dumps(kept)), {})


def main(asked: Facts) -> None:
    if asked["kind"] == "features":  # builds them, and compiles what is compiled
        arguments = ["--resume", "auto", "--centers", "20", "--penalty", "0.01", "--refit", "ridge"]
        train(asked, prepared(asked).root, *arguments)
        return
    fitted = (fit_ours if asked["kind"] in OWN else fit_peer)(asked)
    say({"size": fitted.size, "fit_seconds": fitted.seconds, **fitted.more})
    X_test, y_test = read_part(prepared(asked), "test")
    fitted.predict(X_test[:100])  # what is loaded or compiled at the first call
    started = time.perf_counter()
    labels = fitted.predict(X_test)
    seconds = time.perf_counter() - started
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    facts = {"error_percent": 100 * float(np.mean(labels != y_test)), "predict_seconds": seconds}
    say(facts | {"peak_bytes": 1024 * max(usage), "model_bytes": fitted.count_bytes()})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
