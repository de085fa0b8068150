"""The paper's table of mean squared errors: sinc (both readings of its noise), boston and abalone.

COMMAND: python jobs/paper/table_regression.py [--out runs/paper] [--runs 20] [--datasets sinc,boston,abalone]

Beside the paper's KRRn, KRRM, Unif and SLKL: SLKL at the certified optimum of the same problem, and that refitted.
All methods see the same split and the same M points of each seed. Writes DIR/table_regression.json.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator

import cells
import numpy as np
import paper
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

from features.open_source import SINC_NOISE, open_source
from features.source import SourceSpec

TABLE = "table_regression"
WEAKER_NOISE = "sinc (noise 10 dB below the signal)"  # The paper's m0 fit noise below unit power.
SIGNAL_POWER = 0.0954  # The mean of (sin|x|/|x|)² over the square is this; a test holds it.
LAMBDA = 1.0
BASELINES = ("KRRn", "KRRM", "Unif")
METHODS = (*BASELINES, *cells.METHODS)


def data_of(asked: argparse.Namespace, label: str, seed: int) -> str:
    """Return the data set of a row group, or a file of sinc with the weaker noise."""
    if label != WEAKER_NOISE:
        return label
    source, path = open_source(SourceSpec("sinc", seed=seed)), asked.out / f"sinc-weaker-noise-{seed}.npz"
    arrays = dict[str, np.ndarray]()
    for part, n in (("train", source.n_train), ("test", source.n_test)):
        X, y = source.parts[part].X[:n], source.parts[part].y[:n]
        signal = np.sinc(np.linalg.norm(X, axis=1) / np.pi)
        arrays |= {f"X_{part}": X, f"y_{part}": signal + (y - signal) * np.sqrt(SIGNAL_POWER / 10 / SINC_NOISE)}
    asked.out.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def baselines(split: cells.Split, rows: list[int], sigma2: float) -> dict[str, float]:
    """Return the test errors of the paper's three baselines, by scikit-learn, at λ = 1 and μ = 1/M."""
    gamma, centers = 1 / (2 * sigma2), split.X[rows]
    full = KernelRidge(alpha=LAMBDA, kernel="rbf", gamma=gamma).fit(split.X, split.y)
    few = KernelRidge(alpha=LAMBDA, kernel="rbf", gamma=gamma).fit(centers, split.y[rows])
    # K̃ = CCᵀ/M: its predictor is C w with w = (CᵀC + λM)⁻¹Cᵀy, a ridge on the columns.
    C, C_test = (rbf_kernel(X, centers, gamma=gamma).astype(np.float64) for X in (split.X, split.X_test))
    uniform = Ridge(alpha=LAMBDA * len(centers), fit_intercept=False, solver="cholesky").fit(C, split.y)
    found = {"KRRn": full.predict(split.X_test), "KRRM": few.predict(split.X_test), "Unif": uniform.predict(C_test)}
    return {name: float(np.mean((prediction - split.y_test) ** 2)) for name, prediction in found.items()}


def cell(asked: argparse.Namespace, label: str, size: int) -> Iterator[cells.Row]:
    """Run every method on every seed, and yield a row for each method."""
    name = label.split(" ")[0]
    sigma2, penalty = paper.SIGMA2[name], paper.PENALTY[name]
    errors, m0 = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    commands = dict.fromkeys(
        BASELINES, f"python jobs/paper/{TABLE}.py --datasets {name} --sizes {size} --runs {asked.runs}"
    )
    for seed in range(asked.runs):
        data = data_of(asked, label, seed)
        common = ["--sigma2", f"{sigma2:g}", "--centers", str(size), "--seed", str(seed)]
        common += ["--set", "data.standardise=false"] if label == WEAKER_NOISE else []
        runs = cells.all_ways(asked, data, *common, penalty=penalty)
        for method, run in runs.items():
            errors[method].append(run.report["mse"])
            m0[method].append(run.report["model_n_centers"])
            commands.setdefault(method, run.command)
        split = cells.split_of(data, *common)
        for method, error in baselines(split, runs["SLKL"].centers, sigma2).items():
            errors[method].append(error)
    for method in METHODS:
        facts = {"m0": m0[method], "penalty": penalty} if method in m0 else {}
        yield cells.row(TABLE, label, method, size, errors[method], command=commands[method], **facts)


def main() -> None:
    parser = cells.parser(__doc__)
    parser.add_argument("--datasets", type=lambda text: text.split(","), default=["sinc", "boston", "abalone"])
    parser.add_argument("--sizes", type=cells.whole_numbers, help="some of the M only")
    asked = parser.parse_args()
    rows = []
    labels = [label for name in asked.datasets for label in ((name, WEAKER_NOISE) if name == "sinc" else (name,))]
    for label in labels:
        for size in asked.sizes or paper.SIZES[label.split(" ")[0]]:
            for one in cell(asked, label, size):
                cells.print_row(one)
                rows.append(one)
    cells.save(asked, TABLE, rows)


if __name__ == "__main__":
    main()
