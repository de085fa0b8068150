"""A dask cluster that the tests of this folder share."""

from collections.abc import Iterator

import dask
import pytest

from runs import loopback_cluster


@pytest.fixture(scope="session")
def cluster_address(
    tmp_path_factory: pytest.TempPathFactory, cluster_key: tuple[list[str], dict[str, str]]
) -> Iterator[str]:
    """The address of two workers on loopback, behind TLS."""
    with loopback_cluster(tmp_path_factory.mktemp("cluster"), *cluster_key) as address:
        yield address


@pytest.fixture
def cluster(cluster_address: str, cluster_key: tuple[list[str], dict[str, str]]) -> Iterator[str]:
    """The same, while this process has the key."""
    variables = cluster_key[1]
    settings = {name.removeprefix("DASK_").lower().replace("__", "."): value for name, value in variables.items()}
    with dask.config.set(settings):
        yield cluster_address
