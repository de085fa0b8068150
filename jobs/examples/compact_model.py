"""Few centers, few errors: a greedy choice, its curve of error against size, and random centers as the control.

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

from pipeline.train import main as train

folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="slkl-"))
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)  # runs and features go to ./runs

# %% 899 digits, of which 800 are candidates. The greedy choice has no penalty: it takes and drops centers by how much
# each lowers the squared error, until 100 are left.

data = ["digits", "--features", "sphog", "--set", "data.test_fraction=0.5"]
settings = ["--centers", "800", "--sigma2", "2", "--select", "greedy:100"]
assert train([*data, *settings, "--run-dir", "runs/greedy", "-q"]) == 0

# %% Its report holds the error of many sizes: the first centers of the order chosen are a model too.

report = json.loads(Path("runs/greedy/report.json").read_text())
errors = {one["size"]: 100 * one["test_error"] for one in report["selection"]["curve"] if one["test_error"] is not None}
for wanted in (5, 10, 15, 20, 30, 40, 50, 70, 100):
    size = min(errors, key=lambda one: abs(one - wanted))
    print(f"{size:5d} centers {errors[size]:6.2f} %  {'▪' * round(errors[size])}")

# %% Training to 50 centers, and as many random centers, refitted likewise, as the control.

small = [*settings[:-1], "greedy:50"]
control = ["--centers", "50", "--sigma2", "2", "--penalty", "1e-6", "--refit", "ridge"]
for name, asked in (("chosen", small), ("random", control)):
    assert train([*data, *asked, "--run-dir", f"runs/{name}", "-q"]) == 0
    print(f"50 {name} centers: {100 * json.loads(Path(f'runs/{name}/report.json').read_text())['error_rate']:.2f} %")

print(f"files are in {folder}")
