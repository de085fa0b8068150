"""Few centers, few errors: a greedy choice, its curve of error against size, and cutting a run to a smaller model.

COMMAND: python jobs/examples/compact_model.py [DIR]

A prediction costs one kernel value for each center. Files go to DIR, else to a temporary folder.
"""

# %%
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs from a checkout

from pipeline.evaluate import main as evaluate
from pipeline.prediction.model_folder import load_model
from pipeline.resize import main as resize
from pipeline.train import main as train

folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)  # runs and features go to ./runs

# %% 899 digits, of which 800 are candidates. The greedy choice has no penalty: it takes and drops centers by how much
# each lowers the squared error, until 100 are left.

data = ["digits", "--set", "data.test_fraction=0.5"]
settings = ["--centers", "800", "--sigma2", "2", "--select", "greedy:100"]
assert train([*data, *settings, "--run-dir", "runs/greedy", "-q"]) == 0

# %% Its report holds the error of many sizes. Random centers of the same number, refitted likewise, are the control.

report = json.loads(Path("runs/greedy/report.json").read_text())
errors = {one["size"]: 100 * one["test_error"] for one in report["selection"]["curve"] if one["test_error"] is not None}
for wanted in (5, 10, 15, 20, 30, 40, 50, 70, 100):
    size = min(errors, key=lambda one: abs(one - wanted))
    print(f"{size:5d} centers {errors[size]:6.2f} %  {'▪' * round(errors[size])}")

control = ["--centers", "50", "--sigma2", "2", "--penalty", "1e-6", "--refit", "ridge"]
assert train([*data, *control, "--run-dir", "runs/random", "-q"]) == 0
print(f"50 random centers: {100 * json.loads(Path('runs/random/report.json').read_text())['error_rate']:.2f} %")

# %% Any prefix is a model. `resize` needs the statistics of the run only, and gives the bytes that training to that
# size would give.

assert resize(["runs/greedy", "--size", "50", "--out", "small"]) == 0
assert evaluate(["small", *data]) == 0
large, small = load_model(Path("runs/greedy/model")), load_model(Path("small"))
print(f"{large.n_centers} centers were cut to {small.n_centers}")
print(f"files are in {folder}")
