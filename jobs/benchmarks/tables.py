"""Reading tables: CPU seconds of csv, parquet and 64 parts, beside pyarrow and the same rows in npy.

COMMAND: python jobs/benchmarks/tables.py --out DIR [--rows 3000000] [--rounds 2] [--train]

Writes ROWS × 28 numbers (HIGGS's shape) to DIR once, in every form, then times each in a process of its own with one
thread: pyarrow's csv reader; the first reading of csv, parquet and parts, and all up to the feature store; the same
features written from an array; and the feature store from .npy files. `--train` trains on each form with one worker and
`--memory-limit 1GiB`, beside the forecast of `--dry-run`. The figures are in DIR/tables.json too. Ratios hold within
one round: run it on an idle machine.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
N_COLUMNS, N_PARTS = 28, 64
FORMS = ("csv", "parquet", "parts", "npy")

MEASURED = """
import sys, time
sys.path[:0] = [{root!r}, {here!r}]
import tables
started = time.process_time()
getattr(tables, {what!r})({path!r})
print(time.process_time() - started)
"""


def write(folder: Path, n_rows: int) -> None:
    """Write the rows in every form, unless they are there."""
    import numpy as np
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "rows.npy" / "y.npy").exists():
        return
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, N_COLUMNS)).astype(np.float32)
    y = (X[:, 0] + 0.5 * X[:, 1] * X[:, 2] + rng.standard_normal(n_rows) > 0).astype(np.int64)
    table = pyarrow.table({**{f"x{k}": X[:, k] for k in range(N_COLUMNS)}, "y": y})
    pyarrow.csv.write_csv(table, folder / "rows.csv")
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    (folder / "rows.parts").mkdir(exist_ok=True)
    for k, rows in enumerate(np.array_split(np.arange(n_rows), N_PARTS)):
        pyarrow.parquet.write_table(table.slice(rows[0], len(rows)), folder / f"rows.parts/part-{k:02d}.parquet")
    (folder / "rows.npy").mkdir(exist_ok=True)
    for name, values in (("X", X), ("y", y)):
        np.save(folder / f"rows.npy/{name}.npy", values)


def pyarrow_csv(path: str) -> None:
    """Read a csv with pyarrow alone."""
    import pyarrow.csv

    with pyarrow.csv.open_csv(path, pyarrow.csv.ReadOptions(use_threads=False)) as reader:
        assert sum(batch.num_rows for batch in reader) > 0


def learned(path: str) -> None:
    """Read a table once, to learn its columns."""
    _to(path, features=False)


def stored(path: str) -> None:
    """Read data into a feature store."""
    _to(path, features=True)


def _to(path: str, *, features: bool) -> None:
    from features.descriptors import FeatureSpec
    from features.source import SourceSpec
    from pipeline.datasets import feature_rows as building
    from pipeline.datasets.feature_rows import FeatureRequest, describe
    from pipeline.datasets.open_data import open_data
    from storage.folder_layouts import FeatureLayout

    with TemporaryDirectory(dir=Path(path).parent) as folder:
        request = FeatureRequest(SourceSpec(path, target="y", kept=f"{folder}/tables"), FeatureSpec("raw"), True)
        source = open_data(request.source)
        shape = describe(request, source)
        if not features:
            return
        layout = FeatureLayout(Path(folder), shape.store)
        task, items = building.prepare(layout, shape, request)
        if not source.is_in_order:
            for item in items:
                building.build_item(task, item)
        else:
            assert sum(building.build_in_order(task, items, source, shape.item_rows)) == shape.n_train + shape.n_test
        building.finish(layout)


def array(path: str) -> None:
    """Write the features of the table from an array, as a feature store has them."""
    import numpy as np

    from storage.zarr_arrays import ArraySpec, chunk_rows_for, create_arrays, open_arrays

    n_rows = len(np.load(f"{path}/y.npy"))
    chunk_rows = chunk_rows_for(4 * N_COLUMNS, n_rows)
    piece = np.random.default_rng(0).standard_normal((chunk_rows, N_COLUMNS)).astype(np.float32)
    with TemporaryDirectory(dir=Path(path).parent) as folder:
        create_arrays(Path(folder) / "a", [ArraySpec("X", (n_rows, N_COLUMNS), "float32", chunk_rows)], {})
        stored = open_arrays(Path(folder) / "a")["X"]
        for start in range(0, n_rows, chunk_rows):
            stored.write(start, piece[: n_rows - start])


def measured(what: str, path: Path) -> float:
    """Return CPU seconds of a function of this file, imports included, in a process of its own."""
    code = MEASURED.format(root=str(ROOT), here=str(Path(__file__).parent), what=what, path=str(path))
    one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **one}, check=True, capture_output=True)
    return float(done.stdout.splitlines()[-1])


def trained(path: Path, folder: Path, centers: int) -> dict[str, float]:
    """Train on a form; return CPU seconds of the command, its peak and its forecast in MiB, exit code 0 or 3."""
    words = [sys.executable, "-m", "pipeline.train", str(path), "--centers", str(centers), "--penalty", "100"]
    words += ["--sigma2", "30", "--workers", "1", "--memory-limit", "1GiB"]
    words += ["--features-dir", str(folder / path.suffix[1:] / "features")]
    run = folder / path.suffix[1:] / "run"
    planned = subprocess.run([*words, "--dry-run"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    sizes = [
        float(size) * (1024 if unit == "GiB" else 1) for size, unit in re.findall(r"  ([\d.]+) ([GM]iB)  ", planned)
    ]
    before = os.times()
    code = subprocess.run([*words, "--run-dir", str(run), "-q"], cwd=ROOT, check=False).returncode
    after = os.times()
    assert code in (0, 3), code
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    peak = json.loads((run / "report.json").read_text())["peak_rss_bytes"] / 2**20
    return {"seconds": seconds, "peak": peak, "forecast": max(sizes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--centers", type=int, default=1000)
    parser.add_argument("--forms", default=",".join(FORMS), help="to train on")
    asked = parser.parse_args()
    folder = asked.out.absolute() / f"rows-{asked.rows}"
    write(folder, asked.rows)
    rows: list[dict[str, Any]] = []
    for k in range(asked.rounds):
        if asked.train:
            for form in asked.forms.split(","):
                with TemporaryDirectory(dir=folder) as place:
                    facts = trained(folder / f"rows.{form}", Path(place), asked.centers)
                rows.append({"round": k, "what": "train", "form": form, **facts})
                print(words_of(rows[-1]), flush=True)
            continue
        steps = [("pyarrow_csv", "csv"), ("array", "npy"), *(("learned", form) for form in FORMS[:3])]
        for what, form in [*steps, *(("stored", form) for form in FORMS)]:
            rows.append({"round": k, "what": what, "form": form, "seconds": measured(what, folder / f"rows.{form}")})
            print(words_of(rows[-1]), flush=True)
    (asked.out / "tables.json").write_text(json.dumps(rows, indent=1))


def words_of(row: dict[str, Any]) -> str:
    """Return a measurement as a line."""
    memory = f", peak {row['peak']:.0f} MiB, forecast {row['forecast']:.0f} MiB" if "peak" in row else ""
    return f"round {row['round']}: {row['what']} {row['form']}: {row['seconds']:.2f} CPU s{memory}"


if __name__ == "__main__":
    main()
