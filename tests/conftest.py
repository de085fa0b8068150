"""Fixtures shared by all tests."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder that holds mnist/, usps/, abalone/ and boston/; the test is skipped where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    named = os.environ.get("SLKL_DATA_DIR")
    for folder in [Path(named)] if named else [beside]:
        if (folder / "mnist").is_dir():
            return folder
    pytest.skip("the real data sets are not here: set SLKL_DATA_DIR to the folder that holds mnist/")
