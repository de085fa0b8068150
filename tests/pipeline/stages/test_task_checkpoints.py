"""What a stage shows of a solve while it runs, from records that others write and take away."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.stages.run_workspace import latest_note

LINE = '{"output": 3, "objective": 12.5, "relative_gap": 0.25, "penalty": 2.0, "which": ""}'


@pytest.mark.parametrize("written", ["", LINE[:-5], '{"a": {"b": 1}'])
def test_what_is_half_written_is_not_shown(tmp_path, written):
    (path := tmp_path / "0.jsonl").write_text(f"{LINE}\n")
    assert "12.5" in latest_note([path])
    path.write_text(written)
    assert latest_note([path]) == ""


@pytest.mark.parametrize("step", ["stat", "read_text"])
def test_a_file_may_vanish_at_any_step(tmp_path, monkeypatch, step):
    """As when the driver takes the records of a finished solve between two looks of the progress thread."""
    (path := tmp_path / "0.jsonl").write_text(LINE)
    plain = getattr(Path, step)

    def vanishing(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            path.unlink(missing_ok=True)
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Path, step, vanishing)
    assert latest_note([path]) == ""
    assert not path.exists()
