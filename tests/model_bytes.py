"""Small trainings of every kind and the digests of what they deliver, to see that a change of the code keeps its bits.

COMMAND: python tests/model_bytes.py [--out FILE] [--compare FILE] [--only NAME ...]

Trains with the code of the checkout that is the working folder, so that another one is measured by this script too:
`cd OTHER && PYTHONPATH=OTHER python THIS --out FILE`. Prints a digest for each run; FILE gets them as JSON, with the
weights. `--compare FILE` names the runs that differ from those of FILE, and how, and exits with 1 if there are any.

A digest covers the numbers of the model folder (not versions), and of the report whether the run converged, its gap,
centers and test error; of an estimator also its predictions. Digests hold for one machine and one set of libraries.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path.cwd()))
sys.path.append(str(Path(__file__).resolve().parents[1]))  # where the working folder is no checkout

import numpy as np
from numpy.typing import NDArray

import pipeline
from model_cases import ESTIMATORS, TRAININGS, tables, write_tables
from pipeline.estimators import SLKLRegressor
from pipeline.train import main as train

Facts = dict[str, Any]
LEARNED = ("mu_", "dual_gap_", "penalty_", "feature_scales_", "center_index_")  # what a saved model does not have


def delivered(folder: Path, name: str) -> Facts:
    """Return what a run delivers, with the digest of it; its data and features are in the folder."""
    started = time.perf_counter()
    try:
        facts = (trained if name in TRAININGS else estimated)(folder, name)
    except Exception as error:  # the other runs go on, and a comparison shows it
        message = f"{type(error).__name__}: {error}".replace(str(folder), "")
        facts = {"arrays": {}, "model": {}, "report": {"error": message}}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    report = ", ".join(f"{key} {value}" for key, value in facts["report"].items() if value is not None)
    print(f"{name:<30}{digest[:12]}{time.perf_counter() - started:6.1f} s  {report}", flush=True)
    return {"digest": digest, **facts}


def trained(place: Path, name: str) -> Facts:
    folder, common = place / name, ["-q", "--workers", "2", "--features-dir", str(place / "features")]
    words = TRAININGS[name].format(data=place / "data").split()
    if (code := train([*common, "--run-dir", str(folder), *words])) not in (0, 3):
        raise RuntimeError(f"exit code {code}")
    report = json.loads((folder / "report.json").read_text())
    gaps = [solve["relative_gap"] for solve in report["solves"] or ()]
    facts = {key: report[key] for key in ("converged", "model_n_centers", "error_rate", "rmse")}
    return model_facts(folder / "model") | {"report": facts | {"gap": max(gaps, default=None)}}


def estimated(place: Path, name: str) -> Facts:
    model, words = ESTIMATORS[name]
    rows = tables()
    fit, test = slice(0, -200), slice(-200, None)
    y = rows["values" if isinstance(model, SLKLRegressor) else "classes"]
    X = rows["X"].astype("float32" if "float32" in words else "float64")
    model.set_params(random_state=0)
    weights, groups = (rows[key][fit] if word in words else None for key, word in (("w", "weights"), ("g", "groups")))
    model.fit(X[fit], y[fit], sample_weight=weights, groups=groups)
    model.save(place / name)
    facts = model_facts(place / name)
    learned = {key: getattr(model, key) for key in LEARNED}
    learned["decided"] = (model.predict if isinstance(model, SLKLRegressor) else model.decision_function)(X[test])
    facts["arrays"] |= digests({key: np.asarray(value) for key, value in learned.items() if value is not None})
    gap = None if np.isnan(model.dual_gap_) else float(model.dual_gap_)
    score = float(model.score(X[test], y[test]))
    return facts | {"report": {"model_n_centers": len(model.centers_), "score": score, "gap": gap}}


def digests(arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    contents = {name: f"{array.dtype.str} {array.shape} ".encode() + array.tobytes() for name, array in arrays.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}


def model_facts(folder: Path) -> Facts:
    """Return the digests of a model's arrays, the rest of it without versions, and the weights themselves."""
    with np.load(folder / "model.npz") as file:
        arrays = {name: file[name] for name in file.files if name != "facts.json"}
        facts = json.loads(
            file["facts.json"],
            object_hook=lambda read: {key: value for key, value in read.items() if "version" not in key},
        )
    return {"arrays": digests(arrays), "model": facts["facts"], "weights": arrays["weights"].tolist()}


def differences(before: Facts, now: Facts) -> list[str]:
    """Return what differs between two runs of a name, with the sizes of what has one."""
    found = []
    for part in ("report", "model", "arrays"):
        changed = [key for key in before[part] | now[part] if before[part].get(key) != now[part].get(key)]
        found += [f"{key} {before[part].get(key)} -> {now[part].get(key)}" for key in changed if part != "arrays"]
        found += [f"other bytes in {key}" for key in changed if part == "arrays"]
    w, v = (np.array(facts.get("weights", [])) for facts in (before, now))
    if w.shape == v.shape and not np.array_equal(w, v):
        found += [f"weights differ by {np.abs(v - w).max() / np.abs(w).max():.1e} of the largest"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE")
    known = [*TRAININGS, *ESTIMATORS]
    parser.add_argument("--only", nargs="+", default=known, choices=known, metavar="NAME", help="these runs")
    asked = parser.parse_args()
    earlier = json.loads(asked.compare.read_text()) if asked.compare else {}  # read now, if it is --out as well
    print(f"the code of {Path(str(pipeline.__file__)).parents[1]}")
    with tempfile.TemporaryDirectory(prefix="model-bytes-") as folder:
        write_tables(Path(folder) / "data")
        facts = {name: delivered(Path(folder), name) for name in asked.only}
    if asked.out:
        lines = (f"{json.dumps(name)}: {json.dumps(each, sort_keys=True)}" for name, each in facts.items())
        asked.out.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if not asked.compare:
        return 0
    different = {}
    for name in asked.only if asked.only != known else sorted(earlier.keys() | facts.keys()):
        if name not in earlier or name not in facts:
            different[name] = [f"not among the runs of {asked.compare if name not in earlier else 'this script'}"]
        elif facts[name]["digest"] != earlier[name]["digest"]:
            different[name] = differences(earlier[name], facts[name])
    print("\n".join(f"differs: {name}: {'; '.join(found)}" for name, found in different.items()))
    print(f"{len(facts.keys() - different)} of {len(facts)} runs deliver the bytes of {asked.compare}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
