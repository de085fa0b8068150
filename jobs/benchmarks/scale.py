"""How the statistics stage grows with the number of rows, on rendered digits.

COMMAND: python jobs/benchmarks/scale.py --out DIR [--rows 20000,60000,180000] [--repeats 3] [--centers 500]

Each size is trained in a process of its own, the sizes in turn, several times over; the features are computed once
and kept. Reports medians of the statistics stage's CPU seconds per row and of the peak memory of the process tree,
and writes DIR/scale.json and DIR/scale.png. The full question is --rows 60000,300000,1000000, which takes hours and
12 GB of disk (--features-store none needs no disk and more time).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]


def run(out: Path, n_rows: int, repeat: int, found: argparse.Namespace) -> dict:
    """Train once; return CPU and wall seconds of the statistics stage and the peak memory."""
    folder = out / f"run-{time.time():.0f}-{n_rows}-{repeat}"
    command = [sys.executable, "-m", "pipeline.train", "synthetic", "-q", "--run-dir", str(folder)]
    command += ["--features-dir", str(out / "features"), "--features-store", found.features_store]
    command += ["--centers", str(found.centers), "--sigma2", "4", "--penalty", "1"]
    command += ["--set", f"data.n_train={n_rows}", "--set", "data.n_test=2000"]
    subprocess.run(command, cwd=ROOT, check=True)
    report = json.loads((folder / "report.json").read_text())
    statistics = report["stages"]["statistics"]
    facts = {"rows": n_rows, "cpu_seconds": statistics["cpu_seconds"], "wall_seconds": statistics["wall_seconds"]}
    return facts | {"peak_rss_bytes": report["peak_rss_bytes"], "error_rate": report["error_rate"]}


def plot(path: Path, sizes: list[int], cpu: list[float], memory: list[float]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.loglog(sizes, cpu, "o-")
    left.loglog(sizes, [cpu[0] * size / sizes[0] for size in sizes], "k:", label="linear")
    left.set(xlabel="training rows", ylabel="CPU seconds of the statistics")
    left.legend()
    right.semilogx(sizes, memory, "o-")
    right.set(xlabel="training rows", ylabel="peak memory, MiB", ylim=(0, 1.3 * max(memory)))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="20000,60000,180000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--centers", type=int, default=500)
    parser.add_argument("--features-store", choices=("zarr", "none"), default="zarr")
    found = parser.parse_args()
    sizes = [int(text) for text in found.rows.split(",")]
    out = found.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    for size in sizes:  # features and compiled code
        run(out, size, -1, found)
    rows = [run(out, size, repeat, found) for repeat in range(found.repeats) for size in sizes]
    cpu = [median(row["cpu_seconds"] for row in rows if row["rows"] == size) for size in sizes]
    memory = [median(row["peak_rss_bytes"] for row in rows if row["rows"] == size) / 2**20 for size in sizes]
    print(f"{'rows':>10}{'CPU s':>10}{'µs a row':>10}{'vs first':>10}{'peak MiB':>10}{'vs first':>10}")
    for size, seconds, peak in zip(sizes, cpu, memory, strict=True):
        a_row = 1e6 * seconds / size
        relative = a_row / (1e6 * cpu[0] / sizes[0])
        print(f"{size:>10}{seconds:>10.2f}{a_row:>10.1f}{relative:>10.2f}{peak:>10.0f}{peak / memory[0]:>10.2f}")
    (out / "scale.json").write_text(json.dumps({"runs": rows, "centers": found.centers}, indent=2) + "\n")
    plot(out / "scale.png", sizes, cpu, memory)


if __name__ == "__main__":
    main()
