"""What a stage shows of a solve while it runs, from records that others write and take away."""

from pathlib import Path

import pytest

from pipeline.work.runner import latest_note

LINE = '{"output": 3, "objective": 12.5, "relative_gap": 0.25, "penalty": 2.0, "which": ""}'


@pytest.mark.parametrize("written", ["", LINE[:-5], '{"a": {"b": 1}', "gone", "gone after a look"])
def test_what_is_half_written_or_taken_away_is_not_shown(tmp_path, written, monkeypatch):
    """The driver takes the records of a finished solve between two looks of the progress thread, or amid one."""
    (path := tmp_path / "0.jsonl").write_text(f"{LINE}\n")
    assert "12.5" in latest_note([path])
    path.write_text(written)
    if written == "gone":
        path.unlink()
    elif written == "gone after a look":
        monkeypatch.setattr(Path, "read_text", lambda path, **_: (path.unlink(), path.read_bytes()))
    assert latest_note([path]) == ""
