"""What checkpoints cost a run on MNIST, and how soon a finished run answers when it is resumed.

COMMAND: python jobs/benchmarks/checkpoints.py --out DIR [--repeats 3] [--data-dir DIR] [--centers 1000]

Runs in turn, each a process of its own: with a checkpoint every second, every minute (the default), and never. Reports
the medians of the CPU time of the process tree and their ratios to never, and the wall time of `--resume auto` on a
finished run, start of Python included. Writes DIR/checkpoints.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
EVERY = {"never": "1000d", "60s": "60s", "1s": "1s"}


def cpu_seconds() -> float:
    """CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--centers", default="1000")
    parser.add_argument("--data-dir")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    # A tight gap on the paper's plain schedule: solves of seconds, where checkpoints have something to cost.
    line = [sys.executable, "-m", "pipeline.train", "mnist", "-q", "--centers", asked.centers, "--schedule", "uniform"]
    line += ["--config", str(ROOT / "jobs/paper/mnist.toml")]
    line += ["--tol", "1e-3", "--features-dir", str(asked.out / "features"), "--resume", "auto"]
    line += ["--data-dir", asked.data_dir] if asked.data_dir else []
    stamp = f"{time.time():.0f}"
    subprocess.run([*line, "--run-dir", str(asked.out / f"warm-up-{stamp}")], cwd=ROOT, check=True)
    used: dict[str, list[float]] = {name: [] for name in EVERY}
    for repeat in range(asked.repeats):
        for name, every in EVERY.items():
            before = cpu_seconds()
            folder = asked.out / f"{name}-{stamp}-{repeat}"
            subprocess.run([*line, "--checkpoint-every", every, "--run-dir", str(folder)], cwd=ROOT, check=True)
            used[name].append(cpu_seconds() - before)
            print(f"{name:<8}{used[name][-1]:>9.1f} CPU seconds", flush=True)
    answers = []
    for _ in range(asked.repeats):
        started = time.perf_counter()
        subprocess.run([*line, "--run-dir", str(asked.out / f"warm-up-{stamp}")], cwd=ROOT, check=True)
        answers.append(time.perf_counter() - started)
    facts = {
        "cpu_seconds": used,
        "ratio_to_never": {name: median(used[name]) / median(used["never"]) for name in EVERY},
        "resume_finished_seconds": answers,
    }
    (asked.out / "checkpoints.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"ratios to never: {facts['ratio_to_never']}; a finished run answers in {median(answers):.2f} s")


if __name__ == "__main__":
    main()
