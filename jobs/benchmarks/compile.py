"""What compiling costs the first run of a checkout, loop by loop.

COMMAND: python jobs/benchmarks/compile.py --out DIR [arguments of pipeline.train, digits where there are none]

Trains in a process of its own, with a fresh folder for compiled code, and listens to numba: CPU seconds of each loop
that is called from Python, all that it calls included, and of each function in it by itself. Writes DIR/compile.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def listen(out: Path, words: list[str]) -> int:
    """Train in this process; write the seconds of every compilation, and return the exit code."""
    sys.path.insert(0, str(ROOT))
    from pipeline.train import main as train  # sets numba's folder  # isort: skip
    from numba.core import event

    under_way: list[list[float]] = []
    found: list[dict[str, Any]] = []

    class Compilations(event.Listener):
        def on_start(self, _: object) -> None:
            under_way.append([time.thread_time(), 0.0])

        def on_end(self, ended: Any) -> None:
            started, inside = under_way.pop()
            seconds, function = time.thread_time() - started, ended.data["dispatcher"].py_func
            name = f"{function.__module__}.{function.__name__}"
            found.append({"name": name, "outermost": not under_way, "seconds": seconds, "own": seconds - inside})
            if under_way:
                under_way[-1][1] += seconds

    event.register("numba:compile", Compilations())
    code = train(words)
    out.write_text(json.dumps(found, indent=2) + "\n")
    return code


def show(found: list[dict[str, Any]]) -> None:
    """Print the loops, then what is compiled inside them, the dearest first."""
    for title, rows, key in (
        ("loops, all that they call included", [one for one in found if one["outermost"]], "seconds"),
        ("every function by itself", found, "own"),
    ):
        sums: dict[str, float] = defaultdict(float)
        for one in rows:
            sums[one["name"]] += one[key]
        print(f"\n{title}: {sum(sums.values()):.2f} CPU s, {len(rows)} compiled")
        for name, seconds in sorted(sums.items(), key=lambda pair: -pair[1])[:25]:
            print(f"{seconds:>8.2f}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--listen", action="store_true", help=argparse.SUPPRESS)
    asked, words = parser.parse_known_args()
    facts = asked.out / "compile.json"
    if asked.listen:
        return listen(facts, words)
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as fresh:
        folders = [f"--run-dir={fresh}/run", f"--features-dir={fresh}/features"]
        listening = [sys.executable, __file__, "--out", str(asked.out), "--listen"]
        command = [*listening, *(words or ["digits"]), *folders, "-q"]
        (Path(fresh) / "numba").mkdir()
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"NUMBA_CACHE_DIR": f"{fresh}/numba"}, check=False)
    if done.returncode not in (0, 3):  # 3: a tolerance was not reached
        return done.returncode
    show(json.loads(facts.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
