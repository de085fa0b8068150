"""Train on handwritten digits, look at what came out, and predict: the command line, called from Python.

COMMAND: python jobs/examples/multiclass_digits.py [DIR]

Each `train([...])` below is `python -m pipeline.train ...` in a shell. Files go to DIR, else to a temporary folder.
"""

# %%
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from features.open_source import open_source
from features.source import SourceSpec
from pipeline.predict import main as predict
from pipeline.prediction.trained_model import load_model
from pipeline.report import main as report
from pipeline.train import main as train

folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)  # runs and features go to ./runs

# %% Train. The table has a line for each class: its objective, and the gap that proves how good it is. Exit code 0
# says that all of them are within the tolerance, 3 that one is not.

assert train(["digits", "--run-dir", "runs/digits"]) == 0

# %% All that the table says, and more, is in report.json for programs...

facts = json.loads(Path("runs/digits/report.json").read_text())
worst = max(solve["relative_gap"] for solve in facts["solves"])
print(f"{facts['n_errors']} of {facts['n_test']} wrong, {facts['model_n_centers']} centers, largest gap {worst:.1e}")

# %% ... and on one page for a browser: the misclassified digits, the centers and their weights, the solves.

assert report(["runs/digits"]) == 0

# %% Predict a file of one's own: images (n, 28, 28) of bytes, as the model was trained on. Here they are the test part.

source = open_source(SourceSpec("digits", seed=0))
images, truth = source.test.X[:], source.test.y[:]
np.savez("images.npz", X=images)
assert predict(["runs/digits", "images.npz", "--out", "labels.csv"]) == 0
print("".join(Path("labels.csv").read_text().splitlines(keepends=True)[:4]))

# %% The model folder needs nothing else of the run: copy it anywhere. In Python it is a small object.

model = load_model(Path("runs/digits/model"))
labels = model.labels_of(model.decision_function(model.features_of(images[:10])))
print("predicted", labels.tolist(), "truth", truth[:10].tolist())
print(f"files are in {folder}")
