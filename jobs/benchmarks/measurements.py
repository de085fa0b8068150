"""The measured numbers of README and docs/: measure them anew, and write the tables that quote them.

COMMAND: python jobs/benchmarks/measurements.py --out DIR --run NAME[,NAME...]|all [--machine TEXT]
         python jobs/benchmarks/measurements.py --pages

docs/measurements.json has an entry for each name: commands, table, machine, date and commit. `--run` runs the commands
of an entry in DIR/NAME, which is emptied first, replaces the entry in one step, and writes the tables of all pages. A
commit of null marks what was measured before there was this file: its cells are not those of its reader.
`--pages` writes the tables alone: what stands between `<!-- measurements: NAME -->` and `<!-- end -->`. Without either
the names are listed. Data sets are found as `pipeline.train` finds them (SLKL_DATA_DIR).
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measurement_tables import MEASUREMENTS, Measurement

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "measurements.json"
BLOCK = re.compile(r"(<!-- measurements: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CODE = ("pipeline", "features", "storage", "jobs")
NOT_CONVERGED = 3  # A training may end with this exit code: its certificate stands in the table.
Entry = dict[str, Any]


def pages() -> list[Path]:
    """Return the documents that quote measurements."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def entries() -> dict[str, Entry]:
    """Return what was measured, in the order of the registry."""
    kept: dict[str, Entry] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    return {name: kept[name] for name in MEASUREMENTS if name in kept}


def measured(name: str, asked: Measurement, folder: Path, machine: str) -> Entry:
    """Run the commands of a measurement in a folder that is emptied first; return its entry."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begun = now()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for command in asked.commands:
        print(command, flush=True)
        words = [word.replace("DIR", str(folder)) for word in shlex.split(command)]
        done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, env=environment, check=False)
        if done.returncode not in (0, NOT_CONVERGED):
            raise SystemExit(f"{name}: exit code {done.returncode} of {command}")
    head, rows = asked.table(folder)
    return {"commands": list(asked.commands), "machine": machine, **begun, "head": head, "rows": rows}


def now() -> dict[str, str]:
    """Return the date and the commit, told apart where the code differs from it."""
    asked = {"commit": ("rev-parse", "--short=7", "HEAD"), "changes": ("status", "--porcelain", *CODE)}
    told = {
        name: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        for name, words in asked.items()
    }
    commit = (told["commit"] or "unknown") + (", changed" if told["changes"] else "")
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit}


def machine_here() -> str:
    """Return the processors at hand: their number, and the name that Linux gives them."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} cores of {found[1].strip() if found else 'an unknown processor'}"


def save(found: dict[str, Entry]) -> None:
    """Write the entries of the registry in one step."""
    text = json.dumps({name: found[name] for name in MEASUREMENTS if name in found}, indent=1, ensure_ascii=False)
    beside = KEPT.with_suffix(".json.new")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(KEPT)


def table_of(name: str, entry: Entry) -> str:
    """Return the Markdown of an entry: its table, and how it was measured."""
    lines = [entry["head"], ["---"] * len(entry["head"]), *entry["rows"]]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    command = MEASUREMENTS[name].told or ", ".join(f"`{one}`" for one in entry["commands"])
    before, commit = ("", f", commit {entry['commit']}") if entry["commit"] else ("before this table was made, ", "")
    return f"{table}\n\n*Measured {before}with {command} on {entry['machine']}, {entry['date']}{commit}.*\n"


def everything(found: dict[str, Entry]) -> str:
    """Return the Markdown of the page of all measurements."""
    where = {name: page for page in reversed(pages()) for name in blocks_of(page.read_text(encoding="utf-8"))}
    head = "| measurement | quoted in | machine | date | commit |\n|---|---|---|---|---|\n"
    lines = [
        f"| [{name}](#{name}) | {_link(where[name]) if name in where else ''} | {one['machine']} | {one['date']} | "
        f"{one['commit'] or 'before these tables'} |\n"
        for name, one in found.items()
    ]
    return head + "".join(lines) + "".join(f"\n## {name}\n\n{table_of(name, one)}" for name, one in found.items())


def _link(page: Path) -> str:
    return f"[{page.stem}]({page.name})" if page.parent == KEPT.parent else page.name


def blocks_of(text: str) -> list[str]:
    """Return the names of the tables that a page quotes."""
    return [name for _, name, _ in BLOCK.findall(text) if name != "list"]


def with_tables(text: str, found: dict[str, Entry]) -> str:
    """Return a page with its tables as the entries have them; one that was never measured stays as it is."""

    def block(match: re.Match[str]) -> str:
        if match[2] != "list" and match[2] not in found:
            return match[0]
        table = everything(found) if match[2] == "list" else table_of(match[2], found[match[2]])
        return f"{match[1]}\n{table}\n{match[3]}"

    return BLOCK.sub(block, text)


def write_pages() -> None:
    """Write the tables of all pages."""
    found = entries()
    for page in pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(with_tables(text, found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=lambda text: Path(text).absolute(), help="folder for what the commands write")
    parser.add_argument("--run", type=lambda text: text.split(","), default=[], help="names of measurements, or all")
    parser.add_argument("--machine", default=machine_here(), help="what the pages call this machine")
    parser.add_argument("--pages", action="store_true", help="write the tables of all pages")
    asked = parser.parse_args()
    names = list(MEASUREMENTS) if asked.run == ["all"] else asked.run
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    if names and asked.out is None:
        parser.error("--run needs --out DIR")
    for name in names:
        entry = measured(name, MEASUREMENTS[name], asked.out / name, asked.machine)
        save(entries() | {name: entry})
    if names or asked.pages:
        write_pages()
    else:
        print("\n".join(MEASUREMENTS))


if __name__ == "__main__":
    main()
