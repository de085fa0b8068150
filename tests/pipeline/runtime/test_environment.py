"""What a run was computed with, and the warnings where a resumed run is computed with something else."""

import json
from typing import Any

import pytest

from pipeline.runtime.run_folder import environment, environment_warnings


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """An environment as env.json gives it back."""
    return json.loads(json.dumps(environment()))


@pytest.mark.parametrize("name", ["numpy", "scipy", "numba", "BLAS", "the core type of BLAS"])
def test_another_one_is_warned_of_where_it_is_known(stored, name):
    assert stored[name]
    (warning,) = environment_warnings(stored, stored | {name: "0.0.1"})
    assert warning.startswith(f"{name} is 0.0.1 here, the run was started with {stored[name]}")
    assert environment_warnings(stored, stored | {name: None}) == []
    assert environment_warnings(stored | {name: ""}, stored) == []
