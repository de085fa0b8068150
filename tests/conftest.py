"""Fixtures shared by all tests."""

import os
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("no deadline", deadline=None)  # how long an example takes is up to the machine
hypothesis.settings.load_profile("no deadline")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder that holds mnist/, usps/, abalone/ and boston/; the test is skipped where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    named = os.environ.get("SLKL_DATA_DIR")
    for folder in [Path(named)] if named else [beside]:
        if (folder / "mnist").is_dir():
            return folder
    pytest.skip("the real data sets are not here: set SLKL_DATA_DIR to the folder that holds mnist/")


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the feature stores of a module's runs."""
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="session")
def cluster_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, str]]:
    """A key of these tests, for clusters that they start: options of dask's commands, and variables of a training.

    A scheduler without one runs what any user of this machine sends it.
    """
    from jobs.slurm.dask_cluster import new_key

    folder = tmp_path_factory.mktemp("key")
    _, variables = new_key(folder)
    files = {"--tls-ca-file": "ca_file", "--tls-cert": "cert", "--tls-key": "key"}
    return [word for option, name in files.items() for word in (option, str(folder / f"{name}.pem"))], variables
