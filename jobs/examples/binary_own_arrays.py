"""Two classes from a table of one's own: a .csv with names, one label against all others, and rows without a label.

COMMAND: python jobs/examples/binary_own_arrays.py [DIR]

Each `train([...])` below is `python -m pipeline.train ...` in a shell. Files go to DIR, else to a temporary folder.
"""

# %%
import csv
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline.evaluate import main as evaluate
from pipeline.predict import main as predict
from pipeline.train import main as train

folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)  # runs and features go to ./runs

# %% A table: a header, numbers, and a target that holds words. Two words make a binary task.

data = load_breast_cancer()
names = [*(name.replace(" ", "_") for name in data.feature_names), "diagnosis"]
rows = [[*row, data.target_names[label]] for row, label in zip(data.data.tolist(), data.target, strict=True)]
with Path("tumours.csv").open("w", newline="") as file:
    csv.writer(file).writerows([names, *rows[100:]])
with Path("new.csv").open("w", newline="") as file:  # a hundred rows without their target
    csv.writer(file).writerows([names[:-1], *(row[:-1] for row in rows[:100])])

# %% Without a test part a quarter of the rows is set aside; numbers are z-scored. The width of the kernel comes from
# the distances in the data, the penalty from held-out rows.

settings = ["--sigma2", "median", "--penalty", "auto", "--target", "diagnosis", "-q"]
assert train(["tumours.csv", *settings, "--run-dir", "runs/tumours"]) == 0
assert evaluate(["runs/tumours"]) == 0

# %% Predict. For two classes the decision value is above 0 for the second label (in the order of the alphabet).

assert predict(["runs/tumours", "new.csv", "--out", "labels.csv"]) == 0
with Path("labels.csv").open(newline="") as file:
    found = list(csv.DictReader(file))
right = sum(row["label"] == truth[-1] for row, truth in zip(found, rows, strict=False))
print(f"first row: {found[0]}; {right} of {len(found)} right")

# %% Arrays: an .npz with X and y, here wines of three kinds, of which one is set against the others.

wine = load_wine()
np.savez("wine.npz", X=wine.data, y=np.where(wine.target == 2, 1, -1))
assert train(["wine.npz", "--sigma2", "median", "--run-dir", "runs/wine", "-q"]) == 0
assert evaluate(["runs/wine"]) == 0
print(f"files are in {folder}")
