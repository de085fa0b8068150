"""The small trainings that `model_bytes.py` compares: their names, their words or estimators, and their tables."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from cases import CASES
from pipeline.estimators import SLKLClassifier, SLKLRegressor

WEIGHTED = "--set data.weights=w --class-weight balanced"
DIGITS = "digits --set data.n_train=500"
WORDS = "--set data.categorical=onehot --set data.missing=median --set data.groups=family"
# A name and the command's words, in which {data} is the folder of the tables: those of the tests, and others.
OF_TESTS = {name: f"{{data}}/{case.table}.npz {case.words}" for name, case in CASES.items()}
TRAININGS = OF_TESTS | {
    "images": f"{DIGITS} --centers 150",
    "images-roots-of-sphog": f"{DIGITS} --centers 80 --features sphog --set features.power=0.5 --set features.deskew=1",
    "images-soft": f"{DIGITS} --centers 100 --features soft-hog --sigma2 0.25 --set features.deskew=1",
    "images-the-papers-algorithm": f"{DIGITS} --centers 60 --schedule paper",
    "images-greedy": f"{DIGITS} --centers 150 --features sphog --sigma2 auto --select greedy:30",
    "images-raw": f"{DIGITS} --centers 80 --features raw --sigma2 64 --penalty 1",
    "images-rounds": f"{DIGITS} --centers 500 --set centers.working_set=200 --penalty 1 --refit ridge",
    "table": "{data}/values.npz",
    "table-classes": f"{{data}}/classes.npz {WEIGHTED} --budget 2s",
    "words-and-gaps": f"{{data}}/words.csv --target price {WORDS}",
    "words-two-classes": f"{{data}}/answers.csv {WORDS} --centers 60 --penalty 1 --refit ridge",
    "one-penalty": "{data}/classes.npz --centers 60 --penalty 1 --set solver.intercept=false",
    "part-of-the-largest-penalty": "{data}/values.npz --centers 60 --penalty max:1e-4",
    "refit": "{data}/classes.npz --centers 60 --penalty 1 --refit ridge --set statistics.hold_out=0.2",
    "search-groups": "{data}/values.npz --centers 60 --penalty auto --set data.groups=g --seed 3",
    "shrinking": "{data}/classes.npz --centers 60 --penalty 1 --schedule shrinking --tol 1e-6",
    "width-searched": "{data}/values.npz --centers 60 --penalty 0.1 --sigma2 auto",
    "diagonal": "{data}/classes.npz --centers 60 --penalty 1 --scale diagonal",
    "greedy-of-many": "{data}/many.npz --centers 2400 --sigma2 median --select greedy:30",
    "refit-moved": "{data}/classes.npz --centers 40 --penalty 30 --refit ridge --move-centers 4",
}
# A name, the estimator, and words: float32 rows instead of float64, with weights, with groups.
ESTIMATORS: dict[str, tuple[Any, str]] = {
    "regressor": (SLKLRegressor(budget="2s"), ""),
    "regressor-widths": (SLKLRegressor(60, sigma2="auto", penalty="auto"), "float32 weights"),
    "regressor-metric": (SLKLRegressor(60, feature_scale="metric", select="greedy:15"), ""),
    "regressor-product-laplace": (SLKLRegressor(60, kernel="product-laplace", penalty=0.5), "groups"),
    "classifier": (SLKLClassifier(60), ""),
    "classifier-refit": (SLKLClassifier(80, penalty=1.0, refit="ridge", class_weight="balanced"), "weights groups"),
    "classifier-search": (SLKLClassifier(60, penalty="auto", fit_intercept=False), ""),
    "classifier-uniform": (SLKLClassifier(40, sigma2=2.0, penalty=1.0, schedule="uniform", tol=1e-3), ""),
    "classifier-greedy": (SLKLClassifier(150, select="greedy:40", standardise=False), "weights"),
    "classifier-learned": (SLKLClassifier(60, feature_scale="learned", penalty=1.0), "float32"),
}


def tables(n: int = 800) -> dict[str, NDArray[Any]]:
    """Return n rows X (n, 4) in [0, 1), their values and three classes, weights w, and groups g of three rows each."""
    draw = np.random.default_rng(0)
    X = draw.random((n, 4))
    values = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * draw.normal(size=n)
    classes = np.digitize(values, np.quantile(values, [1 / 3, 2 / 3]))
    return {"X": X, "values": values, "classes": classes, "w": draw.exponential(size=n), "g": np.arange(n) // 3}


def write_tables(folder: Path) -> None:
    """Write tables of numbers (.npz), and of words and gaps (.csv)."""
    folder.mkdir()
    rows = tables()
    for name, source, target, n_train in (
        ("values", rows, "values", 500),
        ("classes", rows, "classes", 500),
        ("many", tables(4200), "values", 4000),
    ):
        named = {"X": source["X"], "y": source[target], "w": source["w"], "g": source["g"]}
        train_part = {f"{key}_train": array[:n_train] for key, array in named.items()}
        test_part = {f"{key}_test": array[n_train : n_train + 150] for key, array in named.items()}
        np.savez(folder / name, allow_pickle=False, **train_part, **test_part)
    images, digits = load_digits(return_X_y=True)
    np.savez(folder / "images.npz", X=images[:300].reshape(-1, 8, 8).astype(np.uint8) * 15, y=digits[:300])
    colours = np.random.default_rng(1).choice(["red", "green", "blue", "NA"], 400)
    words, answers = ["colour,size,age,family,price"], ["colour,size,age,family,answer"]
    for row, (x, colour) in enumerate(zip(rows["X"][:400], colours, strict=True)):
        cells = f"{colour},{'' if row % 17 == 5 else x[0]},{x[1]},f{row // 4}"
        price = rows["values"][row] + (colour == "red")
        words.append(f"{cells},{price}")
        answers.append(f"{cells},{'dear' if price > 1 else 'cheap'}")
    (folder / "words.csv").write_text("\n".join(words))
    (folder / "answers.csv").write_text("\n".join(answers))
