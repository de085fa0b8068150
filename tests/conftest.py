"""Fixtures shared by all tests."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from runs import TrainedRuns, write_tables

# How many examples a property is tried on; a quick test run takes the first. `--hypothesis-profile` names another.
EXAMPLES = {"quick": 15, "ci": 100, "nightly": 1000}
for name, examples in EXAMPLES.items():
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,  # how long an example takes is up to the machine
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("quick")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder that holds mnist/, usps/, abalone/ and boston/; the test is skipped where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SLKL_DATA_DIR") or beside)
    if not (folder / "mnist").is_dir():
        pytest.skip("the real data sets are not here: set SLKL_DATA_DIR to the folder that holds mnist/")
    os.environ["SLKL_DATA_DIR"] = str(folder)  # where commands look for them
    return folder


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def tables(shared_folder: Path) -> Path:
    """A folder with classes.npz (three) and values.npz: 900 rows, 4 features in [0, 1), weights w."""
    write_tables(shared_folder / "tables")
    return shared_folder / "tables"


@pytest.fixture(scope="session")
def features(shared_folder: Path) -> Path:
    """The folder of the feature stores of all runs."""
    return shared_folder / "features"


@pytest.fixture(scope="session")
def finished_run(shared_folder: Path, features: Path) -> TrainedRuns:
    """Return finished runs by their arguments, each trained once a test run. To be read only: see `trained`."""
    return TrainedRuns(shared_folder / "runs", features)


@pytest.fixture
def trained(finished_run: TrainedRuns, tmp_path: Path) -> Callable[..., Path]:
    """Return copies of finished runs by their arguments, at `tmp_path / name`, for tests that change them."""

    def copy(*arguments: str, dataset: str | Path = "digits", name: str = "run", code: int = 0) -> Path:
        return Path(shutil.copytree(finished_run(*arguments, dataset=dataset, code=code), tmp_path / name))

    return copy


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as in a terminal. A shell lets what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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
