"""Files of predictions: whole under their name, or not there."""

import numpy as np
import pytest

from runs import held_python
from storage.output_files import SUFFIXES, OutputSpec, writing

WRITER = """
import signal, sys
from pathlib import Path
import numpy as np
from storage.output_files import OutputSpec, writing
with writing(Path(sys.argv[1]), OutputSpec(10, np.dtype("int64"), ("decision",)), replace=True) as write:
    write(np.zeros(5, int), np.zeros((5, 1)))
    print("half", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_as_before_where_its_writer_was_killed_or_gave_too_few_rows(tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    out.write_text("earlier")
    with held_python(WRITER, out) as process:
        assert process.stdout.readline() == "half\n"
    assert out.read_text() == "earlier"
    spec = OutputSpec(10, np.dtype("int64"), ("decision",))
    with pytest.raises(ValueError, match="wanted 10 rows, 5"), writing(out, spec, replace=True) as write:
        write(np.zeros(5, int), np.zeros((5, 1)))
    assert out.read_text() == "earlier"
