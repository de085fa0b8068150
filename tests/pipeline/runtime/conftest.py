"""A dask cluster that the tests of this folder share."""

from collections.abc import Iterator

import dask
import pytest
from distributed import Client

from runs import loopback_cluster

Key = tuple[list[str], dict[str, str]]


def key_settings(variables: dict[str, str]) -> dict[str, str]:
    """Return the variables that name a key as settings of dask."""
    return {name.removeprefix("DASK_").lower().replace("__", "."): value for name, value in variables.items()}


@pytest.fixture(scope="session")
def cluster_address(tmp_path_factory: pytest.TempPathFactory, cluster_key: Key) -> Iterator[str]:
    """The address of two workers on loopback, behind TLS."""
    with loopback_cluster(tmp_path_factory.mktemp("cluster"), *cluster_key) as address:
        with dask.config.set(key_settings(cluster_key[1])), Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        yield address


@pytest.fixture
def cluster(cluster_address: str, cluster_key: Key) -> Iterator[str]:
    """The same, while this process has the key."""
    with dask.config.set(key_settings(cluster_key[1])):
        yield cluster_address
