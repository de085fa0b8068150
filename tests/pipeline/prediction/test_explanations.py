"""Which centers speak most for a prediction: against dense products, by estimator, model, command and page."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from commands import TARGETS, X, predicted
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.predictor import load_predictor

Z = np.random.default_rng(0).normal(size=(300, 3))


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_what_centers_add_is_kernel_times_weight_and_the_largest_come_first(n_classes):
    value = Z[:, 0] + np.sin(3 * Z[:, 1])
    kind, y = (SLKLClassifier, np.digitize(value, [0, 1][: n_classes - 1])) if n_classes else (SLKLRegressor, value)
    machine = kind(40, sigma2=2.0, standardise=False, feature_scale=None, kernel="gaussian", random_state=0).fit(Z, y)
    rows, added = machine.explain(Z[:50], n=5)
    K, weights = rbf_kernel(Z[:50], machine.centers_, gamma=0.25), np.atleast_2d(machine.dual_coef_)
    predicted = machine.predict(Z[:50])
    for k, parts in enumerate(K):
        output = int(predicted[k]) if n_classes == 3 else 0
        sign = -1.0 if n_classes == 2 and not predicted[k] else 1.0
        of_centers = sign * parts * weights[output]
        order = np.argsort(-(of_centers if n_classes else np.abs(of_centers)))[:5]
        np.testing.assert_array_equal(rows[k], machine.center_index_[order])
        np.testing.assert_allclose(added[k], of_centers[order], rtol=1e-5, atol=1e-7)
    everything = machine.explain(Z[:50], n=1000)[1]
    total = machine._model.explained(machine._model.columns(Z[:50]), np.asarray(predicted, int), 1).total
    np.testing.assert_allclose(total, everything.sum(axis=1) / np.abs(everything).sum(axis=1), rtol=1e-4, atol=1e-7)
    assert everything.shape == (50, len(machine.centers_))
    if not n_classes:
        np.testing.assert_allclose(everything.sum(axis=1) + machine.intercept_, predicted, atol=1e-5)
    with pytest.raises(ValueError, match="n must be a whole number above 0"):
        machine.explain(Z, n=0)


def test_images_without_rows_have_explanations_without_rows_and_a_constant_has_none():
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8)).astype(np.uint8)
    machine = SLKLClassifier(10, random_state=0).fit(images, np.arange(40) % 2)
    n = min(3, len(machine.center_index_))
    assert [found.shape for found in machine.explain(images[:0], n=3)] == [(0, n)] * 2
    with pytest.warns(UserWarning, match="different rows"):
        constant = SLKLRegressor(10, random_state=0).fit(Z[:3], np.zeros(3))
    with pytest.raises(ValueError, match="the model is a constant, it has no centers"):
        constant.explain(Z)


@pytest.mark.parametrize("task", TARGETS)
def test_the_command_names_rows_of_the_data_their_labels_and_shares(rings, task, tmp_path, capsys):
    """Of a model folder alone the rows are those of the training part, and labels are not known."""
    n, predictor = 2, load_predictor(rings[task])
    of_run, of_model = (
        predicted(place, X[:20], tmp_path, "--explain", str(n)) for place in (rings[task], rings[task] / "model")
    )
    told = capsys.readouterr().err
    model = predictor.model
    centers, added, _, total = model.decide(model.features_of(X[:20]), n)[2]
    rows, everything = model.center_index[centers], model.decide(model.features_of(X[:20]), 1000)[2].added
    for k in range(n):
        names = [f"center_{k + 1}{kind}" for kind in ("", "_label", "_share")]
        given, labels, shares = (of_run[name].to_numpy() for name in names)
        np.testing.assert_array_equal(labels, TARGETS[task][given])
        np.testing.assert_allclose(shares, added[:, k] / np.abs(everything).sum(axis=1), rtol=1e-9)
        np.testing.assert_array_equal(of_model[names[0]], rows[:, k])
        assert names[1] not in of_model
        # The row of the data is that of the center.
        np.testing.assert_allclose(model.features_of(X[given]), model.centers[centers[:, k]], rtol=1e-6)
    np.testing.assert_allclose(of_run["center_total"], total, rtol=1e-9)
    np.testing.assert_allclose(total, everything.sum(axis=1) / np.abs(everything).sum(axis=1), rtol=1e-6)
    few = np.count_nonzero(np.abs(total) < 0.05)
    assert (f"in {few} of 20 rows less than 0.05 of what centers add is left" in told) == (few > 10)
