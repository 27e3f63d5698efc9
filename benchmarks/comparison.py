"""Runs the baselines: starts their processes and reads their output."""

import select
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from benchmarks.baselines.library import Loop
from benchmarks.errors import BenchmarkError
from benchmarks.load import Target
from benchmarks.processes import output_of, python, running

READY_SECONDS = 15.0


def library_call(operation: str, seconds: float) -> Loop:
    """Measure the bare library call in a fresh process."""
    command = python("benchmarks.baselines.library", operation, str(seconds))
    return msgspec.json.decode(output_of(command, seconds=seconds), type=Loop)


def audit_log(directory: Path, seconds: float) -> Loop:
    """Measure the audit log alone, on a new database, in a fresh process."""
    command = python("benchmarks.baselines.audit", str(directory / "audit.sqlite3"), str(seconds))
    return msgspec.json.decode(output_of(command, seconds=seconds), type=Loop)


@contextmanager
def minimal_service(directory: Path) -> Iterator[Target]:
    """Run the minimal service for the length of a ``with`` block."""
    socket, body = directory / "minimal.sock", directory / "minimal.json"
    body.write_text('{"key_version": 1}')
    with ExitStack() as stack:
        started = []
        for side in ("back", "front"):
            command = python("benchmarks.baselines.minimal_service", side, str(socket))
            process = stack.enter_context(running(command, output=subprocess.PIPE))
            started.append((process.pid, _first_line(process)))
        (back, _), (front, port) = started
        yield Target(f"http://127.0.0.1:{port}/", body, "none", front, back)


def _first_line(process: subprocess.Popen[bytes]) -> str:
    if process.stdout is None:
        raise BenchmarkError("a baseline has no output to read")
    readable, _, _ = select.select([process.stdout], [], [], READY_SECONDS)
    line = process.stdout.readline().decode().strip() if readable else ""
    if not line:
        raise BenchmarkError("a baseline did not start")
    return line
