"""Starts programs, and ends them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchmarks.errors import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 25.0
SPARE_SECONDS = 30.0
"""Seconds beyond the expected time before a program is killed."""


@contextmanager
def running(
    command: Sequence[str],
    *,
    output: IO[bytes] | int | None = None,
    errors: IO[bytes] | int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for a ``with`` block. End it by SIGTERM, and if needed by SIGKILL."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        start_new_session=True,  # Ctrl-C reaches this process only, which then ends the others
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def output_of(
    command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None
) -> str:
    """Return the output of a program that runs for about ``seconds``. Raises BenchmarkError."""
    with running(
        command, output=subprocess.PIPE, errors=subprocess.STDOUT, environment=environment
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds + SPARE_SECONDS)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(f"{' '.join(command)} did not end in time") from None
    text = output.decode(errors="replace")
    if process.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{text}")
    return text


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package in a fresh interpreter."""
    return [sys.executable, "-m", module, *arguments]
