"""A measurement in a process of its own, which prints JSON lines and is ended once it is silent for too long."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

Facts = dict[str, Any]


def facts_of(
    command: Sequence[str],
    *,
    start_seconds: float,
    patience_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> tuple[list[Facts], str]:
    """Return the JSON objects that a command prints, and how it ended: done, capped, or the error it died of.

    The first line may take `start_seconds`, each other one, and the end, `patience_seconds`. Nothing that it started
    outlives it, unless it ended well.
    """
    facts: list[Facts] = []
    lines: queue.Queue[str | None] = queue.Queue()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        ) as process,
    ):
        assert process.stdout is not None
        threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
        try:
            line = lines.get(timeout=start_seconds)
            while line is not None:
                facts.append(json.loads(line))
                line = lines.get(timeout=patience_seconds)
            process.wait(patience_seconds)
        except (queue.Empty, subprocess.TimeoutExpired):
            return facts, "capped"
        finally:
            if process.returncode != 0:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode == 0:
            return facts, "done"
        errors.seek(0)
        return facts, (errors.read().strip().splitlines() or [f"no message, exit code {process.returncode}"])[-1]


def _forward(stream: IO[str], lines: "queue.Queue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
