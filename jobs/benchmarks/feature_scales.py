"""Learned scales and tried widths on tables: root mean squared test errors in deviations of the target.

COMMAND: python jobs/benchmarks/feature_scales.py --out DIR [--tables noise,friedman,arm,directions,abalone,boston]
         [--draws 3] [--centers 500] [--size 200]

Generated tables of 4500 rows to train on and 3000 to test on: `noise` has 32 inputs of which five matter, `friedman`
30 of which five matter, `arm` the angles of eight joints that all matter, `directions` 20 inputs of which three sums
matter; the noise on their targets is 0.2, 0.2, 0.05 and 0.1 deviations. Each draw is another table, or another split.
Every fit is a greedy choice of --size of --centers candidates on standardised inputs. Writes DIR/feature_scales.json.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from features.open_source import open_source
from features.source import SourceSpec
from pipeline.estimators import SLKLRegressor

N_TRAIN, N_TEST = 4500, 3000
Table = tuple[np.ndarray, np.ndarray]
WAYS: dict[str, dict[str, str]] = {
    "median": {},
    "auto": {"sigma2": "auto"},
    "learned, median": {"feature_scale": "learned"},
    "learned, auto": {"feature_scale": "learned", "sigma2": "auto"},
}


def noise(rng: np.random.Generator, n: int) -> Table:
    X = rng.uniform(-1, 1, (n, 32))
    a, b, c, d, e = X[:, [3, 7, 12, 20, 29]].T
    return X, a * np.sin(2.5 * b) + 0.7 * c * d * np.cos(1.5 * b) + 0.5 * a * np.sin(3 * e)


def friedman(rng: np.random.Generator, n: int) -> Table:
    X = rng.uniform(0, 1, (n, 30))
    return X, 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]


def arm(rng: np.random.Generator, n: int) -> Table:
    """The distance of a hand from a point, by the angles of eight joints, each at a right angle to the last or not."""
    angles = rng.uniform(-np.pi / 2, np.pi / 2, (n, 8))
    place = np.tile(np.eye(4), (n, 1, 1))
    twists, lengths = (np.pi / 2, 0.0, np.pi / 2, -np.pi / 2) * 2, (0.3, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.2)
    for joint, (twist, length) in enumerate(zip(twists, lengths, strict=True)):
        cos, sin, zero = np.cos(angles[:, joint]), np.sin(angles[:, joint]), np.zeros(n)
        ct, st = np.cos(twist), np.sin(twist)
        first, second = [cos, -sin * ct, sin * st, length * cos], [sin, cos * ct, -cos * st, length * sin]
        third, last = [zero, zero + st, zero + ct, zero + 0.1], [zero, zero, zero, zero + 1]
        place = place @ np.stack([*first, *second, *third, *last], 1).reshape(n, 4, 4)
    return angles, np.linalg.norm(place[:, :3, 3] - 0.1, axis=1)


def directions(rng: np.random.Generator, n: int) -> Table:
    X = rng.normal(size=(n, 20))
    u, v, w = np.random.default_rng(5).normal(size=(3, 20)) @ X.T / np.sqrt(20)
    return X, np.sin(2 * u) + v * w


GENERATED: dict[str, tuple[Callable[[np.random.Generator, int], Table], float]] = {
    "noise": (noise, 0.2),
    "friedman": (friedman, 0.2),
    "arm": (arm, 0.05),
    "directions": (directions, 0.1),
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    everything = [*GENERATED, "abalone", "boston"]
    parser.add_argument("--tables", type=lambda text: text.split(","), default=everything)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--centers", type=int, default=500)
    parser.add_argument("--size", type=int, default=200)
    return parser.parse_args()


def table(name: str, draw: int) -> tuple[Table, Table]:
    """Return the rows to train on and those to test on."""
    if name not in GENERATED:
        source = open_source(SourceSpec(name, seed=draw))
        return (source.train.X[:], source.train.y[:]), (source.test.X[:], source.test.y[:])
    make, deviation = GENERATED[name]
    rng = np.random.default_rng([draw, 0])
    X, f = make(rng, N_TRAIN + N_TEST)
    y = (f - f.mean()) / f.std() + deviation * rng.normal(size=len(f))
    return (X[:N_TRAIN], y[:N_TRAIN]), (X[N_TRAIN:], y[N_TRAIN:])


def main() -> int:
    """Run the benchmark; print the table."""
    asked = options()
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = []
    print(f"{'table':<12}" + "".join(f"{way:>18}" for way in [*WAYS, "boosting"]))
    for name in asked.tables:
        errors: dict[str, list[float]] = {way: [] for way in [*WAYS, "boosting"]}
        for draw in range(asked.draws):
            (X, y), (X_test, y_test) = table(name, draw)
            machines = {
                way: make_pipeline(
                    StandardScaler(),
                    SLKLRegressor(min(asked.centers, len(X)), select=f"greedy:{asked.size}", random_state=draw, **ways),
                )
                for way, ways in WAYS.items()
            }
            for way, machine in {**machines, "boosting": HistGradientBoostingRegressor(random_state=draw)}.items():
                started = time.process_time()
                off = machine.fit(X, y).predict(X_test) - y_test
                errors[way].append(float(np.sqrt(np.mean(off**2)) / y_test.std()))
                seconds = time.process_time() - started
                rows.append({"table": name, "draw": draw, "way": way, "rmse": errors[way][-1], "cpu_seconds": seconds})
            (asked.out / "feature_scales.json").write_text(json.dumps(rows, indent=1))
        print(f"{name:<12}" + "".join(f"{np.mean(each):>18.3f}" for each in errors.values()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
