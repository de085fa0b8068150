"""What a run was computed with, and the warnings where a resumed run is computed with something else."""

import json
import os
from typing import Any

import pytest

from pipeline.runtime.run_folder import environment, environment_warnings
from runs import python


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """An environment as env.json gives it back."""
    return json.loads(json.dumps(environment()))


def test_the_same_environment_gives_no_warning(stored: dict[str, Any]) -> None:
    assert environment_warnings(stored, environment()) == []
    assert environment_warnings(stored, stored | {"arguments": ["other"], "processors": 1, "python": "3.99"}) == []
    other = stored["libraries"] | {"dask": "1"}
    assert environment_warnings(stored, stored | {"libraries": other}) == []
    threads = {"internal_api": "openmp", "version": None, "architecture": None}
    assert environment_warnings(stored, stored | {"blas": [threads, *stored["blas"][::-1]]}) == []


def test_a_core_type_that_the_user_chooses_is_warned_of(stored: dict[str, Any]) -> None:
    code = "import json; from pipeline.runtime.run_folder import environment; print(json.dumps(environment()))"
    found = python("-c", code, env=os.environ | {"OPENBLAS_CORETYPE": "Nehalem"}, check=True)
    now = json.loads(found.stdout)
    if not any(pool["architecture"] == "Nehalem" for pool in now["blas"]):
        pytest.skip("this BLAS does not let its core type be chosen")
    warning = next(line for line in environment_warnings(stored, now) if "BLAS" in line)
    was = next(pool["architecture"] for pool in stored["blas"] if pool["architecture"])
    assert f"the core type of BLAS is Nehalem here, the run was started with {was}" in warning
    assert "\n" not in warning


def test_other_versions_and_another_core_type_are_warned_of(stored: dict[str, Any]) -> None:
    for name in ("numpy", "scipy", "numba"):
        (warning,) = environment_warnings(stored, stored | {"libraries": {**stored["libraries"], name: "0.0.1"}})
        assert warning.startswith(f"{name} is 0.0.1 here, the run was started with {stored['libraries'][name]}")
    assert any(pool["architecture"] for pool in stored["blas"])
    pools = [pool | {"architecture": "Prescott"} for pool in stored["blas"]]
    (warning,) = environment_warnings(stored, stored | {"blas": pools})
    assert "the core type of BLAS is Prescott here" in warning


@pytest.mark.parametrize("damaged", [{}, {"blas": None, "libraries": None}, {"blas": [{}], "libraries": {}}])
def test_what_is_not_known_is_not_compared(stored: dict[str, Any], damaged: dict[str, Any]) -> None:
    assert environment_warnings(damaged, stored) == []
    assert environment_warnings(stored, damaged) == []
