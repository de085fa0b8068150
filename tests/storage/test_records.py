"""Done-markers: what was marked is read back; what is damaged is done again."""

from pathlib import Path

import pytest

from storage.records import read_markers, write_marker


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
