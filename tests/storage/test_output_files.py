"""Files of predictions: whole under their name, or not there."""

import pytest

from runs import held_python
from storage.output_files import SUFFIXES

WRITER = """
import signal, sys
from pathlib import Path
import numpy as np
from storage.output_files import writing
with writing(Path(sys.argv[1]), ["decision"], 10, np.dtype("int64"), replace=True) as write:
    write(np.zeros(5, int), np.zeros((5, 1)))
    print("half", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_as_before_where_its_writer_was_killed(tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    out.write_text("earlier")
    with held_python(WRITER, out) as process:
        assert process.stdout.readline() == "half\n"
    assert out.read_text() == "earlier"
