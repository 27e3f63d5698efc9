"""Runs the yardsticks: starts their processes and reads what they say."""

import select
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from benchmarks.errors import BenchmarkError
from benchmarks.load import Target
from benchmarks.processes import output_of, python, running
from benchmarks.yardsticks.library import Loop

READY_SECONDS = 15.0


def library_call(operation: str, seconds: float) -> Loop:
    """Measure the bare library call in a fresh process."""
    command = python("benchmarks.yardsticks.library", operation, str(seconds))
    return msgspec.json.decode(output_of(command, seconds=seconds), type=Loop)


def audit_log(directory: Path, seconds: float) -> Loop:
    """Measure the audit log alone, on a new database, in a fresh process."""
    command = python("benchmarks.yardsticks.audit", str(directory / "audit.sqlite3"), str(seconds))
    return msgspec.json.decode(output_of(command, seconds=seconds), type=Loop)


@contextmanager
def harness(directory: Path) -> Iterator[Target]:
    """Run the minimal harness for the length of a ``with`` block."""
    socket, body = directory / "harness.sock", directory / "harness.json"
    body.write_text('{"key_version": 1}')
    with ExitStack() as stack:
        started = []
        for side in ("back", "front"):
            command = python("benchmarks.yardsticks.harness", side, str(socket))
            process = stack.enter_context(running(command, output=subprocess.PIPE))
            started.append((process.pid, _first_line(process)))
        (back, _), (front, port) = started
        yield Target(f"http://127.0.0.1:{port}/", body, "none", front, back)


def _first_line(process: subprocess.Popen[bytes]) -> str:
    if process.stdout is None:
        raise BenchmarkError("a yardstick has no output to read")
    readable, _, _ = select.select([process.stdout], [], [], READY_SECONDS)
    line = process.stdout.readline().decode().strip() if readable else ""
    if not line:
        raise BenchmarkError("a yardstick did not start")
    return line
