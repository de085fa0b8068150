"""A run is repeated by the settings that it keeps, whatever its data: the same model bytes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import X
from pipeline import train
from pipeline.config.settings import from_toml
from runs import model_bytes

N_TRAIN = ("--set", "data.n_train=200")
RUNS: dict[str, tuple[str, ...]] = {  # by what their data are; the second is what a name does not tell
    "digits": ("--centers", "40"),
    "digits, refitted not": ("--centers", "40", "--refit", "none"),
    "digits, chosen": ("--centers", "40", "--select", "greedy:10"),
    "digits, copies": ("--centers", "40", "--copies", "2", *N_TRAIN),
    "classes.npz": ("--budget", "0.1s", "--sigma2", "1"),
    "values.npz, penalty": ("--centers", "40", "--penalty", "1"),
    "words.csv": ("--set", "data.categorical=onehot", "--centers", "30"),
    "pictures": ("--centers", "10"),
}


@pytest.fixture(scope="module")
def places(tables, tmp_path_factory) -> dict[str, Path | str]:
    """Data by the first word of their names: a name, arrays, a table of text, a folder of pictures."""
    folder = tmp_path_factory.mktemp("data")
    rows = [f"{'near' if x < 0 else 'far'},{x},{y},{x + y}" for x, y in X]
    (folder / "words.csv").write_text("\n".join(["word,x,y,target", *rows]))
    drawn = np.random.default_rng(0).integers(0, 256, (24, 16, 16), dtype=np.uint8)
    for number, picture in enumerate(drawn):
        path = folder / "pictures" / ("dark" if number % 2 else "bright") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture // 4 if number % 2 else picture).save(path)
    arrays = {name: tables / name for name in ("classes.npz", "values.npz")}
    return {"digits": "digits", **arrays, **{name: folder / name for name in ("words.csv", "pictures")}}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_repeated_by_its_settings(name, places, finished_run, tmp_path):
    run = finished_run(*RUNS[name], dataset=places[name.partition(",")[0]])
    again = ["--config", str(run / "config.toml"), "--run-dir", str(tmp_path / "again"), "-q"]
    assert train.main(again) == 0
    assert model_bytes(tmp_path / "again") == model_bytes(run)
    assert (tmp_path / "again" / "config.toml").read_bytes() == (run / "config.toml").read_bytes()


def test_what_is_typed_beside_goes_before_the_settings_of_the_run(places, finished_run, tmp_path, capsys):
    run = finished_run(*RUNS["classes.npz"], dataset=places["classes.npz"])
    again = ["--config", str(run / "config.toml"), "--run-dir", str(tmp_path / "again"), "-q"]
    assert train.main([*again, "--centers", "30"]) == 0
    assert from_toml(tmp_path / "again" / "config.toml").centers.count == 30
    again[3] = str(tmp_path / "other")
    assert train.main([*again, "--tol", "1e-5"]) == 2
    assert "--tol 1e-05 has no effect" in capsys.readouterr().err
