"""What a command answers with: one line for an error, and a traceback where nothing else tells of a bug."""

import pytest

from features.errors import DataError
from pipeline.errors import ConfigError, StoppedError
from pipeline.runtime.answers import answered


def test_an_error_is_one_line_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code in ((ConfigError("--size 0:\n too small"), 2), (DataError("--size 0: too small"), 65)):

        def work(error: Exception = error) -> None:
            raise error

        assert answered(work) == code
        assert capsys.readouterr().err == "error: --size 0: too small\n"


@pytest.mark.parametrize(
    ("error", "line"), [(StoppedError("stopped"), "stopped"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_stop_is_no_error_of_what_can_go_on(
    error: BaseException, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        raise error

    assert answered(work, resumable=True) == 75
    assert capsys.readouterr().err == f"{line}\n"
    assert answered(work) == 75
    assert capsys.readouterr().err == f"error: {line}\n"


def test_a_bug_comes_with_its_traceback_unless_a_log_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise bug

    bug = RuntimeError("never")
    assert answered(work) == 70
    assert capsys.readouterr().err.startswith("Traceback")
    bug.add_note("(traceback in log.jsonl)")
    assert answered(work) == 70
    assert capsys.readouterr().err == "error: RuntimeError: never (traceback in log.jsonl)\n"


def test_what_was_done_is_the_exit_code() -> None:
    assert answered(lambda: None) == 0
    assert answered(lambda: 3) == 3
