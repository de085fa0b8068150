"""The features command: what is used or being built stays, what no run uses goes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from commands import Capture
from pipeline import feature_stores as features
from pipeline import predict, train
from pipeline.datasets import store_users
from pipeline.reporting import verification
from storage import files as disk
from storage.folder_layouts import FeatureLayout
from storage.lock import FolderLock


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the features of two tables: of the run `runs/one`, and of a run elsewhere."""
    folder = tmp_path_factory.mktemp("stores")
    for name, run in (("one", "runs/one"), ("two", "elsewhere/two")):
        X = np.random.default_rng(len(run)).normal(size=(60, 2))
        np.savez(folder / f"{name}.npz", X=X, y=X[:, 0])
        assert trained(folder, name, run) == 0
    return folder


def trained(folder: Path, name: str, run: str) -> int:
    options = ["--features-dir", str(folder / "runs" / "features"), "--centers", "20", "--scheduler", "serial", "-q"]
    return train.main([str(folder / f"{name}.npz"), "--run-dir", str(folder / run), "--resume", "auto", *options])


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "place")
    for path in (tmp_path / "place" / "runs" / "features").glob("*.runs/*"):  # where the runs are now
        path.write_text(path.read_text().replace(str(made), str(tmp_path / "place")))
    return tmp_path / "place"


def called(place: Path, *arguments: str) -> int:
    return features.main([*arguments, "--features-dir", str(place / "runs" / "features")])


def stores(place: Path) -> dict[str, FeatureLayout]:
    """The stores by the name of the run that uses them."""
    found = {}
    for path in sorted((place / "runs" / "features").glob("*.runs")):
        layout = FeatureLayout(path.parent, path.name.removesuffix(".runs"))
        (user,) = store_users.users(layout, [place / "runs"])
        found[user.root.name] = layout
    return found


def test_list_tells_who_uses_what(place: Path, capsys: Capture) -> None:
    assert called(place, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert sorted(lines[1::2]) == [f"  finished {place}/elsewhere/two", f"  finished {place}/runs/one"]
    assert all(line.endswith(".npz") or "MiB" in line for line in lines[::2])
    assert called(place, "list", "--unused") == 0
    assert capsys.readouterr().out == f"{place / 'runs' / 'features'}: a run uses each of its feature stores\n"
    assert features.main(["list", "--features-dir", str(place / "none")]) == 0
    assert "holds no feature stores" in capsys.readouterr().out


def test_only_what_no_run_uses_goes(place: Path, capsys: Capture) -> None:
    found = stores(place)
    assert called(place, "remove", "--unused") == 0
    assert "a run uses each" in capsys.readouterr().out
    assert all(store.manifest.exists() for store in found.values())
    shutil.rmtree(place / "elsewhere" / "two")
    shutil.rmtree(found["one"].users)  # as a run of an older version, which lies beside the features
    assert called(place, "remove", "--unused") == 0
    assert capsys.readouterr().out.startswith(f"{found['two'].digest[:16]}: removed, ")
    left = sorted(path.name for path in (place / "runs" / "features").iterdir())
    assert left == sorted([found["one"].digest, found["one"].lock.name, found["two"].lock.name])
    shutil.rmtree(place / "runs" / "one")
    assert called(place, "remove", "--unused") == 0
    assert not found["one"].folder.exists()


def test_what_a_killed_removal_left_goes_with_the_next(place: Path) -> None:
    """Names of somebody else are no stores."""
    store = stores(place)["one"]
    left, *mine = disk.temporary_path(store.folder), store.root / f".tmp-notes-{'0' * 16}", store.root / "notes"
    for folder in (left, *mine):
        folder.mkdir()
        (folder / "file").write_text("x")
    assert called(place, "remove", "--unused") == 0
    assert [path.exists() for path in (left, *mine, store.manifest)] == [False, True, True, True]
    assert called(place, "remove", "notes") == 66


def test_what_is_being_built_stays(place: Path, capsys: Capture) -> None:
    store = stores(place)["one"]
    shutil.rmtree(place / "runs" / "one")
    store.manifest.unlink()
    with FolderLock(store.lock, "building features"):
        assert called(place, "remove", "--unused") == 0
        assert "being built, it stays" in capsys.readouterr().out
        assert called(place, "remove", store.digest[:8]) == 73
        assert called(place, "list") == 0
        assert "being built by process" in capsys.readouterr().out
    assert store.folder.exists()
    assert called(place, "list", "--unused") == 0
    assert "half built" in capsys.readouterr().out
    assert called(place, "remove", "--unused") == 0
    assert not store.folder.exists()


def test_a_named_store_goes_unless_an_unfinished_run_uses_it(place: Path, capsys: Capture) -> None:
    found, report = stores(place), place / "runs" / "one" / "report.json"
    kept = report.read_bytes()
    report.unlink()
    assert called(place, "remove", found["one"].digest[:8]) == 73
    assert f"an unfinished run uses it, {place}/runs/one; resume it" in capsys.readouterr().err
    assert found["one"].manifest.exists()
    report.write_bytes(kept)
    assert called(place, "remove", found["one"].digest[:8]) == 0
    assert not found["one"].folder.exists()
    assert verification.verify_run(place / "runs" / "one").damaged == []
    data = str(place / "one.npz")
    assert predict.main([str(place / "runs" / "one"), data, "--out", str(place / "out.csv"), "-q"]) == 0


def test_a_run_that_begins_meanwhile_keeps_its_store(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells that it uses the store after the first look, when the store is still there to be found."""
    store, looks = stores(place)["two"], []
    run = place / "elsewhere" / "two"
    shutil.rmtree(store.users)
    look = store_users.users

    def late(layout: FeatureLayout, folders: list[Path]) -> list[store_users.User]:
        found = look(layout, folders)
        if layout == store and not looks:
            looks.append(layout.folder.exists())
            store_users.register(store, run)
        return found

    monkeypatch.setattr(store_users, "users", late)
    assert called(place, "remove", "--unused") == 0
    assert looks == [True]
    assert store.manifest.exists()


def test_a_run_whose_record_is_damaged_keeps_every_store_beside_it(place: Path) -> None:
    found = stores(place)
    (place / "runs" / "one" / "env.json").write_text("{")
    shutil.rmtree(place / "elsewhere" / "two")
    assert called(place, "remove", "--unused") == 0
    assert all(store.manifest.exists() for store in found.values())


def test_a_store_in_a_folder_that_cannot_be_written_is_used_all_the_same(place: Path) -> None:
    store = stores(place)["one"]
    shutil.rmtree(store.users)
    store.users.write_text("in the way")
    store_users.register(store, place / "runs" / "one")
    shutil.rmtree(place / "runs" / "one")
    assert trained(place, "one", "runs/one") == 0


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--unused", "ab"], 2), (["x"], 66)])
def test_what_is_not_asked_well_is_refused(place: Path, arguments: list[str], code: int) -> None:
    assert called(place, "remove", *arguments) == code
    assert len(stores(place)) == 2
