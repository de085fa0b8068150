"""The scikit-learn estimators among scikit-learn's own tools.

COMMAND: python jobs/examples/estimator_in_a_pipeline.py
"""

# %%
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline.estimators.slkl import SLKLClassifier

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split((X / 16).astype(np.float32), y, random_state=0, stratify=y)

# %% Nothing need be said: inputs are standardised; kernel, width, scales of the inputs, number of centers and ridge are
# found on held-out rows.

model = SLKLClassifier(random_state=0).fit(X, y)
print(f"{len(model.centers_)} centers, σ² {model.sigma2_:.3g}, test accuracy {model.score(X_test, y_test):.3f}")

# %% As any other classifier: in a pipeline, under a search over its parameters. `refit` asks for a penalty first, which
# keeps some of the 300 candidates.

pipeline = make_pipeline(PCA(40), SLKLClassifier(300, refit="ridge", random_state=0))
search = GridSearchCV(pipeline, {"slklclassifier__sigma2": [8.0, 32.0, 128.0]}, cv=3).fit(X, y)
print(f"best {search.best_params_}, test accuracy {search.score(X_test, y_test):.3f}")

# %% A callback sees every iteration. Raising KeyboardInterrupt in it, like Ctrl-C, keeps the model so far.

records: list[dict[str, Any]] = []
model = SLKLClassifier(300, penalty=0.01, random_state=0, callback=records.append).fit(X, y)
for record in (record for record in records if record["output"] == 0):  # The first class is enough.
    print(f"iteration {record['iteration']:3d}  gap {record['relative_gap']:.1e}  active {record['n_active']}")
