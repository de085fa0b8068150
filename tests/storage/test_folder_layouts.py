"""Paths of a run: distinct, inside the folder, and no name climbs out of it."""

from pathlib import Path

import pytest

from storage.folder_layouts import FeatureLayout, RunLayout, _Path


def test_run_paths_are_distinct_and_inside() -> None:
    root = Path("runs/a")
    layout = RunLayout(root)
    names = [name for name, value in vars(RunLayout).items() if type(value) is _Path]
    paths = [getattr(layout, name) for name in names]
    paths += [
        layout.markers("solve"),
        layout.solution("class-3"),
        layout.checkpoints("class-3"),
        layout.row_pass("statistics"),
    ]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(root) and path != root for path in paths)


@pytest.mark.parametrize("name", ["..", "../x", "/etc/passwd", "", "a/../b", "a\\b", "a\nb", "a//b"])
def test_names_cannot_climb_out(name: str) -> None:
    for layout in (RunLayout(Path("r")).markers, lambda name: FeatureLayout(Path("r"), name)):
        with pytest.raises(ValueError, match="plain relative name"):
            layout(name)
    with pytest.raises(ValueError, match="one plain name"):
        FeatureLayout(Path("r"), "a/b")
