"""The models of `peers.py` that are not ours, each as its users would call it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mnist_runs import least_squares
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from pipeline.kernels.kernel_functions import GaussianKernel

Predict = Callable[[NDArray[np.float32]], NDArray[np.int64]]
Found = tuple[int, Predict, Any]  # centers or support vectors, predicted classes of rows, what is kept of the model
# Features (n, d), classes (n,), number of centers, σ², threads, seed of the draw.
Fit = Callable[[NDArray[np.float32], NDArray[np.int64], int, float, int, int], Found]


def svc(X: NDArray[np.float32], y: NDArray[np.int64], _: int, sigma2: float, threads: int, seed: int) -> Found:
    machine = SVC(C=10, gamma=1 / (2 * sigma2), cache_size=2000).fit(X, y)
    return len(machine.support_), machine.predict, machine


def nystroem(X: NDArray[np.float32], y: NDArray[np.int64], size: int, sigma2: float, threads: int, seed: int) -> Found:
    columns = Nystroem(kernel="rbf", gamma=1 / (2 * sigma2), n_components=size, random_state=seed)
    machine = make_pipeline(columns, RidgeClassifier(alpha=1e-3)).fit(X, y)
    return size, machine.predict, machine


def kernel_ridge(
    X: NDArray[np.float32], y: NDArray[np.int64], size: int, sigma2: float, threads: int, seed: int
) -> Found:
    """As many random rows, one output for each class."""
    rows = np.random.default_rng(seed).permutation(len(X))[:size]
    targets = np.eye(y.max() + 1)[y[rows]]
    machine = KernelRidge(kernel="rbf", gamma=1 / (2 * sigma2), alpha=1e-3).fit(X[rows], targets)
    return len(rows), lambda X: machine.predict(X).argmax(axis=1), machine


def random_centers(
    X: NDArray[np.float32], y: NDArray[np.int64], size: int, sigma2: float, threads: int, seed: int
) -> Found:
    """The control: our columns and our least squares, nothing chosen."""
    centers = X[np.random.default_rng(seed).permutation(len(X))[:size]]
    kernel = GaussianKernel(centers, sigma2)
    weights = least_squares(X, y, kernel, threads)
    return len(centers), lambda X: (kernel.block(X, out_dtype=np.float64) @ weights).argmax(1), (centers, weights)


PEERS: dict[str, Fit] = {
    "svc": svc,
    "nystroem": nystroem,
    "kernel-ridge": kernel_ridge,
    "random": random_centers,
}
