"""The small data sets of the paper beside MNIST: USPS, boston, abalone, and sinc, which is generated."""

import gzip
from dataclasses import replace

import numpy as np

from features import published
from features.row_draws import row_keys
from features.row_source import LabelledRows, digest_rows, source_of
from features.source import Source, SourceSpec

USPS_SIDE = 16
BOSTON_TEST, BOSTON_ROWS = 156, 506
ABALONE_TEST = 1177
SEXES = ("M", "F", "I")
SINC_ROWS = 1000
SINC_NOISE = 0.1
SINC_HALF_WIDTH = 5.0


def open_usps(spec: SourceSpec) -> Source:
    """Open USPS: 7291 and 2007 digits, images of 16 x 16 float32 in [-1, 1] (-1 is the background), ten classes.

    Its parts are its own, and inputs not standardised unless asked for. Errors as `features.published.find`.
    """
    contents = published.read_files("usps", published.find("usps", spec.data_dir))
    given = []
    for file in ("zip.train.gz", "zip.test.gz"):
        table = np.array(gzip.decompress(contents[file]).split(), dtype=np.float32).reshape(-1, 1 + USPS_SIDE**2)
        images = np.ascontiguousarray(table[:, 1:]).reshape(-1, USPS_SIDE, USPS_SIDE)
        given.append(LabelledRows(images, table[:, 0].astype(np.int64)))
    identity = {"source": "usps", "sha256": dict(published.PUBLISHED["usps"].files)}
    return source_of(spec, "usps", given, False, identity)


def open_boston(spec: SourceSpec) -> Source:
    """Open Boston housing: 506 rows of 13 numbers, 156 of them the test part; the target is a value in 1000 dollars."""
    content = published.read_files("boston", published.find("boston", spec.data_dir))["housing.data"]
    table = np.array(content.split(), dtype=np.float64).reshape(BOSTON_ROWS, 14)
    return _regression(spec, "boston", table[:, :-1], table[:, -1], BOSTON_TEST)


def open_abalone(spec: SourceSpec) -> Source:
    """Open abalone: 4177 rows, 1177 of them the test part: the sex in three inputs, 7 numbers; the target are rings."""
    content = published.read_files("abalone", published.find("abalone", spec.data_dir))["abalone.data"]
    cells = np.array([line.split(",") for line in content.decode("ascii").split()])
    numbers = cells[:, 1:].astype(np.float64)
    sexes = (cells[:, :1] == np.array(SEXES)).astype(np.float64)
    return _regression(spec, "abalone", np.hstack([sexes, numbers[:, :-1]]), numbers[:, -1], ABALONE_TEST)


def open_sinc(spec: SourceSpec) -> Source:
    """Generate sinc: x uniform in [-5, 5]², y = sin|x| / |x|; training targets with Gaussian noise, test ones clean.

    1000 rows each. The noise has the variance 0.1, 10 dB below unit power, as fits the paper. Inputs are not z-scored
    unless asked for.
    """
    given: list[LabelledRows] = []
    streams = np.random.SeedSequence(spec.seed).spawn(2)
    for stream, n_rows in zip(streams, (spec.n_train or SINC_ROWS, SINC_ROWS), strict=True):
        rng = np.random.default_rng(stream)
        X = rng.uniform(-SINC_HALF_WIDTH, SINC_HALF_WIDTH, (n_rows, 2))
        radius = np.hypot(X[:, 0], X[:, 1])
        noise = rng.standard_normal(n_rows) * np.sqrt(SINC_NOISE)
        given.append(LabelledRows(X, np.sinc(radius / np.pi) + (0.0 if given else noise)))
    generated = replace(spec, n_train=None, task="regression")
    digests = [digest_rows(one.inputs) for one in given] + [digest_rows(one.labels) for one in given]
    identity = {"source": "sinc", "sha256": digests}
    return source_of(generated, "sinc", given, False, identity)


def _regression(spec: SourceSpec, name: str, inputs: np.ndarray, targets: np.ndarray, n_test: int) -> Source:
    asked = replace(spec, test_fraction=n_test / len(targets), task=spec.task or "regression")
    identity = {"source": name, "sha256": dict(published.PUBLISHED[name].files)}
    return source_of(asked, name, [LabelledRows(inputs, targets, keys=row_keys(inputs))], True, identity)
