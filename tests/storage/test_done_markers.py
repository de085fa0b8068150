"""Done-markers: what was marked is read back; what is damaged is done again."""

from pathlib import Path

import numpy as np
import pytest

from storage.done_markers import read_markers, write_marker


def test_round_trip_with_numbers_of_numpy(tmp_path: Path) -> None:
    folder = tmp_path / "markers" / "statistics"
    write_marker(folder, "block-00001", {"digest": "ab", "rows": np.int64(7), "loss": np.float64(0.1), "span": (1, 2)})
    write_marker(folder, "block-00000", {})
    write_marker(folder, "block-00001", {"rows": 8, "text": "é"})
    markers = read_markers(folder)
    assert markers == {"block-00000": {}, "block-00001": {"rows": 8, "text": "é"}}
    assert markers.warnings == ()
    assert sorted(path.name for path in folder.iterdir()) == ["block-00000.json", "block-00001.json"]


def test_what_is_no_marker_of_its_name_does_not_count(tmp_path: Path) -> None:
    assert read_markers(tmp_path / "none") == {}
    (tmp_path / ".tmp-a.json-00").write_text("{")  # of a kill
    (tmp_path / "notes.txt").write_text("x")
    markers = read_markers(tmp_path)
    assert (markers, markers.warnings) == ({}, ())
    write_marker(tmp_path, "a", {"rows": 3})
    (tmp_path / "a.json").rename(tmp_path / "b.json")
    assert read_markers(tmp_path) == {}


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".hidden", "a\0b"])
def test_item_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        write_marker(tmp_path, name, {})
