"""Parts of the benchmarks; the numbers that README and docs/ quote: tables are those of the entries, and made anew."""

import json
import re
import shutil
import sys

import pytest

from runs import ROOT

sys.path.insert(0, str(ROOT / "jobs" / "benchmarks"))

import measurements


def test_every_table_is_what_its_entry_gives():
    """Write them with: python jobs/benchmarks/measurements.py --pages."""
    found, quoted = measurements.entries(), []
    for page in measurements.pages():
        text = page.read_text(encoding="utf-8")
        quoted += measurements.blocks_of(text)
        assert text == measurements.with_tables(text, found), f"{page.name} is out of date"
        assert text.count("<!-- measurements:") == len(measurements.BLOCK.findall(text))
    assert set(quoted) == set(found), "each entry is quoted, and each table measured"


def test_every_entry_has_its_command_machine_date_and_commit():
    kept = json.loads(measurements.KEPT.read_text(encoding="utf-8"))
    assert kept == measurements.entries(), "an entry that no command makes"
    for name, entry in kept.items():
        assert entry["commands"] == list(measurements.MEASUREMENTS[name].commands), f"{name} was another command"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])
        assert entry["commit"] != "", "a commit, or null of what is older than the file"
        assert entry["machine"]
        assert all(len(row) == len(entry["head"]) for row in entry["rows"])
        assert "`python " in measurements.table_of(name, entry)


def test_errors_and_core_seconds_stand_in_tables_alone():
    """In prose, as "12 CPU s", "0.8 % error", "error of 0.8 %" or "(12 CPU", they would stay when the code changes."""
    for page in measurements.pages():
        prose = measurements.BLOCK.sub("", page.read_text(encoding="utf-8"))
        assert not re.findall(r"\d[\d.]* (?:CPU s|% error)|error of \d[\d.]* %|\(\d+ CPU", prose), page.name


@pytest.mark.ci
def test_a_measurement_is_made_anew(tmp_path, monkeypatch):
    """In a copy of the pages: the entry is replaced, the others stay, and README quotes it."""
    (tmp_path / "docs").mkdir()
    shutil.copy(measurements.KEPT, tmp_path / "docs")
    shutil.copy(ROOT / "docs" / "index.md", tmp_path / "docs")
    (tmp_path / "README.md").write_text("# slkl\n\n<!-- measurements: digits -->\n<!-- end -->\n")
    kept, pages = tmp_path / "docs" / "measurements.json", [tmp_path / "README.md", tmp_path / "docs" / "index.md"]
    before = json.loads(kept.read_text(encoding="utf-8"))
    monkeypatch.setattr(measurements, "KEPT", kept)
    monkeypatch.setattr(measurements, "pages", lambda: pages)
    arguments = ["measurements.py", "--out", str(tmp_path / "out"), "--run", "digits", "--machine", "a machine"]
    monkeypatch.setattr(sys, "argv", arguments)
    measurements.main()
    after = json.loads(kept.read_text(encoding="utf-8"))
    assert after["digits"]["machine"] == "a machine"
    assert after["digits"]["rows"][0][1:3] == before["digits"]["rows"][0][1:3]  # centers and error
    assert after | {"digits": None} == before | {"digits": None}
    assert "on a machine," in pages[0].read_text(encoding="utf-8")
    assert after["digits"]["rows"][0][2] in pages[1].read_text(encoding="utf-8")
