"""A user's own list of candidates: what is listed is what is trained on, and a bad list is refused before any work."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.stages.draw_candidates import draw_rows
from runs import train
from storage.atomic_writes import read_arrays
from storage.folder_layouts import RunLayout


def test_a_list_of_the_draw_is_the_draw(features: Path, tmp_path: Path) -> None:
    rows = draw_rows(1348, 60, 0)
    (tmp_path / "rows.txt").write_text(", ".join(map(str, rows[:30])) + "\n" + "\n".join(map(str, rows[30:])))
    train(tmp_path / "listed", features, "--center-list", str(tmp_path / "rows.txt"))
    train(tmp_path / "drawn", features, "--centers", "60")
    for name in ("model.json", "arrays.npz"):
        assert (tmp_path / "listed/model" / name).read_bytes() == (tmp_path / "drawn/model" / name).read_bytes()
    assert np.array_equal(read_arrays(RunLayout(tmp_path / "listed").centers)["index"], rows)


BAD = {
    "row 7 is entry 1 and 3": "7 8 7",
    "entry 2 is '1348'; must be 0 to 1347": "0 1348",
    "entry 1 is '-1'": "-1",
    "entry 3 is '2.5'": "0 1 2.5",
    "is empty": "  \n",
    "leave --centers and --budget out": "0 1",
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_list_is_refused_before_any_work(
    features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], message: str
) -> None:
    (tmp_path / "rows.txt").write_text(BAD[message])
    more = ["--centers", "2"] if "--centers" in message else []
    listed = ("--center-list", str(tmp_path / "rows.txt"), *more)
    train(tmp_path / "run", features, *listed, code=2 if more else 65)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_missing_list_is_named(features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", features, "--center-list", str(tmp_path / "none.txt"), code=66)
    assert "none.txt: no such file" in capsys.readouterr().err
