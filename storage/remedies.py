"""What to do about a damaged or missing file of a run: one text for the stage that meets it and for `pipeline.verify`.

Imports nothing of weight, so that a command's --help may.
"""

from pathlib import Path

AGAIN = "delete it and report.json, then resume the run: it is made again"
ANEW = (
    "delete the folders statistics, solutions, scores and markers, and report.json, then resume the run: it does its \
stages again, to the same bytes"
)
LINES = "no number comes from it: remove the line; where the file is gone, delete report.json and resume the run"
FEATURES = "delete the folder: the features are computed again when a run needs them"
_BY_NAME = {  # by how the name begins; the first that fits
    "config.toml": "restore it, or start a new run",
    "env.json": "restore it, or start a new run",
    "init-model.npz": "restore it, or start a new run",
    "turn": "delete it: the next start makes it again",
    "STATE.json": "delete it and report.json, then resume the run: only the times that the stages took are lost",
    "report.json": "delete it and resume the run: it is made again",
    "CONTENTS.json": "delete it and report.json, then resume the run: both are made again",
    "log.jsonl": LINES,
    "metrics.jsonl": LINES,
    "model": "delete the folder model and report.json, then resume the run: they are made again",
    "centers": "delete the folder centers and report.json, then resume the run: they are drawn again, the same",
    "scales": (
        "delete the folders scales, centers, statistics, solutions, scores, markers and model, and report.json, then "
        "resume the run: it does its stages again, to the same bytes"
    ),
    "passes": "delete the folder passes and resume the run: what was under way is made again",
    "markers/evaluate": AGAIN,
    "markers/solve": AGAIN,
    "checkpoints": "an older one is used where there is one; else delete the folder to start that solve anew",
}


def remedy_of(name: str) -> str:
    """Return what to do about a file or folder of a run, `name` relative to the run's folder."""
    return next((remedy for start, remedy in _BY_NAME.items() if name.startswith(start)), ANEW)


def remedy_at(path: Path, elsewhere: str = "restore it or build it again") -> str:
    """Return what to do about a file or folder: in a run, what `remedy_of` says."""
    for root in path.parents:
        if (root / "config.toml").is_file() and (root / "env.json").is_file():
            return remedy_of(path.relative_to(root).as_posix())
    return elsewhere
