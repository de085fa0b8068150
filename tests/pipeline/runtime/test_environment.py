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


def test_a_core_type_that_the_user_chooses_is_warned_of(stored: dict[str, Any]) -> None:
    code = "import json; from pipeline.runtime.run_folder import environment; print(json.dumps(environment()))"
    found = python("-c", code, env=os.environ | {"OPENBLAS_CORETYPE": "Nehalem"}, check=True)
    now = json.loads(found.stdout)
    if now["the core type of BLAS"] != "Nehalem":
        pytest.skip("this BLAS does not let its core type be chosen")
    warning = next(line for line in environment_warnings(stored, now) if "BLAS" in line)
    was = stored["the core type of BLAS"]
    assert f"the core type of BLAS is Nehalem here, the run was started with {was}" in warning
    assert "\n" not in warning


@pytest.mark.parametrize("name", ["numpy", "scipy", "numba", "BLAS", "the core type of BLAS"])
def test_another_one_is_warned_of_where_it_is_known(stored: dict[str, Any], name: str) -> None:
    assert stored[name]
    (warning,) = environment_warnings(stored, stored | {name: "0.0.1"})
    assert warning.startswith(f"{name} is 0.0.1 here, the run was started with {stored[name]}")
    assert environment_warnings(stored, stored | {name: None}) == []
    assert environment_warnings(stored | {name: ""}, stored) == []
