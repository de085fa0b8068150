"""Predict from a model folder with numpy alone: what its file holds, in a dozen lines.

COMMAND: python jobs/examples/predict_with_numpy.py [DIR [--kernel product-laplace ...]]

A table of three classes, made here; files go to DIR, else to a temporary folder; options are those of training. Image
features are computed before these lines: `SparseKernelModel.features_of`. Other languages need the same lines.
"""

# %%
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline.prediction.trained_model import load_model
from pipeline.train import main as train

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)

X = np.random.default_rng(0).uniform(-3, 3, (1500, 2)) * [1.0, 100.0]
y = np.array(["inside", "between", "outside"])[np.digitize(np.hypot(X[:, 0], X[:, 1] / 100), [1.5, 2.5])]
np.savez(folder / "rings.npz", X=X, y=y)
folders = ["--run-dir", str(folder / "run"), "--features-dir", str(folder / "features")]
code = train([str(folder / "rings.npz"), *folders, "-q", *sys.argv[2:]])
assert code == 0

# %% The lines. Without learned scales there is no array of that name; those of a metric are a matrix. A regression
# predicts its decision. Two classes have one decision value, that of the second; the first has 0.

arrays = np.load(folder / "run/model/model.npz")
about = json.loads(arrays["facts.json"])["facts"]
new = np.array([[0.0, 0.0], [2.0, 10.0], [0.5, -280.0]])
features = (new - arrays["standardisation_mean"]) / arrays["standardisation_scale"]
features = features @ scales if (scales := arrays.get("feature_scales", np.ones(1))).ndim == 2 else features * scales
differences, kernel = features[:, None] - arrays["centers"], about["kernel"]
distances = np.linalg.norm(differences, ord=1 if kernel["name"] == "product-laplace" else 2, axis=2)
distances = distances / np.sqrt(kernel["sigma2"])
columns = np.exp(-(distances**2) / 2 if kernel["name"] == "gaussian" else -distances)
decision = columns @ arrays["weights"] + arrays["intercept"]
decision = np.clip(decision, *about.get("limits", (-np.inf, np.inf)))  # A regression may have limits.
log_odds = decision / about["temperature"] + about.get("offsets", 0.0)
odds = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
labels, probabilities = np.array(about["labels"])[decision.argmax(axis=1)], odds / odds.sum(axis=1, keepdims=True)

for point, label, p in zip(new, labels, probabilities, strict=True):
    print(f"{point}: {label} ({p.max():.3f})")

# %% The same as the software says, but for the rounding of its features, and some kernel values, to float32.

model = load_model(folder / "run/model")
ours = model.decision_function(model.features_of(new))
print(f"largest difference {np.abs(ours - decision).max():.1e}, of values that deviate by {decision.std():.1g}")
