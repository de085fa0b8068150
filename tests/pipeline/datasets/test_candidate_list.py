"""A user's own list of candidates: what is listed is what is trained on, and a bad list is refused before any work."""

import numpy as np
import pytest

from pipeline.stages.fit import draw_rows
from runs import model_bytes, train
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout


def test_a_list_of_the_draw_is_the_draw(tables, features, finished_run, tmp_path):
    rows, asked = draw_rows(np.arange(675), 60, 0), ("--penalty", "1", "--scheduler", "serial")
    (tmp_path / "rows.txt").write_text(", ".join(map(str, rows[:30])) + "\n" + "\n".join(map(str, rows[30:])))
    listed = ("--center-list", str(tmp_path / "rows.txt"), *asked)
    train(tmp_path / "listed", features, *listed, dataset=tables / "classes.npz")
    drawn = finished_run("--centers", "60", *asked, dataset=tables / "classes.npz")
    assert model_bytes(tmp_path / "listed") == model_bytes(drawn)
    assert np.array_equal(read_arrays(RunLayout(tmp_path / "listed").centers)["index"], rows)


@pytest.mark.parametrize(
    ("content", "more", "code", "message"),
    [
        ("7 8 7", (), 65, "row 7 is entry 1 and 3"),
        ("0 675", (), 65, "entry 2 is '675'; must be 0 to 674"),
        ("-1", (), 65, "entry 1 is '-1'"),
        ("0 1 2.5", (), 65, "entry 3 is '2.5'"),
        ("  \n", (), 65, "is empty"),
        ("0 1", ("--centers", "2"), 2, "leave --centers and --budget out"),
        (None, (), 66, "rows.txt: no such file"),
    ],
)
def test_a_bad_list_is_refused_before_any_work(tables, features, tmp_path, capsys, content, more, code, message):
    if content is not None:
        (tmp_path / "rows.txt").write_text(content)
    listed = ("--center-list", str(tmp_path / "rows.txt"), *more)
    train(tmp_path / "run", features, *listed, dataset=tables / "classes.npz", code=code)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
