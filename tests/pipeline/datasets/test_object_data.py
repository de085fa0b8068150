"""Data in an object store go through every command, as their copies on the disk do."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from pipeline import evaluate, predict
from pipeline.config.settings import from_toml, load, to_toml
from pipeline.errors import ConfigError
from pipeline.prediction.example_files import Asked
from pipeline.prediction.streamed_prediction import Located, open_examples
from pipeline.train import main
from runs import files_of, model_bytes, train
from storage.errors import UnavailableStoreError, UnusableNameError

ROWS = [f"{k % 7},{k % 11},{(k % 7 > 3) * 1}\n" for k in range(120)]


@pytest.fixture
def bucket(s3, monkeypatch):
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", f"hidden-{name}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    return s3.new_bucket()


def train_here(tmp_path, data, name, *more):
    more = () if "--init-from" in more else ("--centers", "20", "--penalty", "1", *more)
    return train(tmp_path / name, tmp_path / "features", *more, dataset=data)


@pytest.mark.ci
def test_every_command_reads_from_an_object_store(s3, bucket, tmp_path, capsys):
    first, second = ("".join(["a,b,y\n", *ROWS[:n_rows]]) for n_rows in (60, 120))
    s3.put(bucket, {"in/part-0.csv": first.encode(), "in/part-1.csv": second.encode(), "test.csv": first.encode()})
    local = tmp_path / "copies"
    (local / "in").mkdir(parents=True)
    for name, text in (("in/part-0.csv", first), ("in/part-1.csv", second), ("test.csv", first)):
        (local / name).write_text(text)
    run, url = tmp_path / "s3", f"s3://{bucket}"
    assert main([f"{url}/in", "--test", f"{url}/test.csv", "--features-dir", str(tmp_path / "none"), "--dry-run"]) == 0
    assert not (tmp_path / "none").exists()
    report = train_here(tmp_path, f"{url}/in", "s3", "--test", f"{url}/test.csv")
    train_here(tmp_path, str(local / "in"), "local", "--test", str(local / "test.csv"))
    assert model_bytes(run) == model_bytes(tmp_path / "local")
    assert report["stages"]["read"]["wall_seconds"] > 0
    copies = files_of(tmp_path / "features" / "objects" / bucket)
    assert set(copies) == {"in/part-0.csv", "in/part-1.csv", "test.csv"}
    for data in (f"{url}/in/*.csv", str(local / "in" / "*.csv")):
        assert predict.main([str(run), data, "--out", str(tmp_path / "labels.csv"), "--force"]) == 0
        copies[data] = (tmp_path / "labels.csv").read_bytes()
    assert copies[f"{url}/in/*.csv"] == copies[str(local / "in" / "*.csv")]
    scores = []
    for data in ([], [f"{url}/test.csv"], [str(local / "test.csv")]):
        capsys.readouterr()
        assert evaluate.main([str(run), *data, "--json"]) == 0
        scores.append(json.loads(capsys.readouterr().out)["probabilities"])
    assert scores[0] == scores[1] == scores[2]
    train_here(tmp_path, f"{url}/in", "grown", "--init-from", str(run), "--add-rows", f"{url}/test.csv")
    everywhere = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hidden-" not in everywhere


def test_a_zarr_store_trains_and_a_lost_connection_is_told(s3, bucket, tmp_path, monkeypatch):
    rows = np.array([line.split(",") for line in ROWS], float)
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name, values in (("X", rows[:, :2]), ("y", rows[:, 2].astype(int))):
        group.create_array(name, data=values, chunks=(50, *values.shape[1:]))
    s3.put(bucket, {f"x.zarr/{name}": content for name, content in files_of(tmp_path / "x.zarr").items()})
    train_here(tmp_path, f"s3://{bucket}/x.zarr", "s3")
    train_here(tmp_path, str(tmp_path / "x.zarr"), "local")
    assert model_bytes(tmp_path / "s3") == model_bytes(tmp_path / "local")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert main([f"s3://{bucket}/x.zarr", "--run-dir", str(tmp_path / "lost")]) == UnavailableStoreError.exit_code
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    assert main([f"s3://{bucket}/none.csv", "--run-dir", str(tmp_path / "lost")]) == 66
    assert not (tmp_path / "lost").exists()


def test_urls_stay_as_they_are_in_settings_and_only_data_have_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, test, more = "s3://bucket/in/train.csv", "s3://bucket/in/test.csv", "s3://bucket/*/new.parquet"
    file = tmp_path / "run.toml"
    file.write_text(f'dataset = "{url}"\n[data]\nadd_rows = ["{more}", "own.csv"]\n')
    config = load(url, file, {"data.test": (test, "--test")}).config
    assert (config.dataset, config.data.test) == (url, test)
    assert config.data.add_rows == (more, str(tmp_path / "own.csv"))
    file.write_text(to_toml(config))
    assert from_toml(file) == config
    with pytest.raises(ConfigError, match=r"resources\.features_dir = s3://bucket/f: must be on a file system"):
        load("digits", None, {"resources.features_dir": ("s3://bucket/f", "--features-dir")})
    assert main(["digits", "--run-dir", "s3://bucket/run"]) == 2
    assert not Path("s3:").exists()


@pytest.mark.parametrize(
    "url", ["s3://KEY:HIDDEN@bucket/t.csv", "s3://bucket/t.csv?sign=HIDDEN", "s3://HIDDEN\n@b/x.csv"]
)
def test_urls_with_secrets_are_refused_and_not_told(url, tmp_path, capsys):
    file, file_of_dataset = tmp_path / "run.toml", tmp_path / "other.toml"
    file.write_text(f"[data]\ntest = {json.dumps(url)}\n")
    file_of_dataset.write_text(f"dataset = {json.dumps(url)}\n")
    asked = (
        (url, None, {}),
        ("digits", file, {}),
        ("digits", file_of_dataset, {}),
        ("digits", None, {"data.test": (url, "--test")}),
        ("digits", None, {"data.add_rows": (["x.csv", url], "--add-rows")}),
    )
    for dataset, config_file, assignments in asked:
        with pytest.raises(ConfigError, match="user info or a query") as refused:
            load(dataset, config_file, assignments)
        assert "HIDDEN" not in str(refused.value)
    with pytest.raises(UnusableNameError, match="user info or a query"):
        open_examples(Asked(url, labelled=False), Located(model=None))
    assert main([url, "--test", url, "--run-dir", str(tmp_path / "run")]) == 2
    told = capsys.readouterr()
    assert "HIDDEN" not in told.out + told.err
    assert not (tmp_path / "run").exists()
