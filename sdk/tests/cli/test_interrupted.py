"""What is left when a command does not come to its end: nothing."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

HALF = bytes(5_000_000)
"""Much more than a pipe holds: once it is written, most of it was read."""


@contextmanager
def _sighup(action: signal.Handlers) -> Iterator[None]:
    """Start processes with SIGHUP as it is on a terminal or under nohup, whichever the tests have."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
)
@pytest.mark.parametrize("before", [b"", b"mine"])
def test_a_signal(
    command: Command, tenant: Client, number: signal.Signals, status: int, before: bytes
) -> None:
    """A signal in the middle leaves nothing of a new file, and an old one as it was."""
    tenant.keys.generate("Kyber768")
    target = command.directory / "target"
    if before:
        target.write_bytes(before)
    with _sighup(signal.SIG_DFL):
        process = command.start("encrypt", "-", "--to", "target", "--force")
    assert process.stdin is not None
    process.stdin.write(HALF)
    process.stdin.flush()
    process.send_signal(number)
    _ended(process)
    _, said = process.communicate()
    assert (process.returncode, said) == (status, b"")
    assert command.names() == ({"target"} if before else set())
    assert not before or target.read_bytes() == before


def test_nohup(command: Command, tenant: Client) -> None:
    """Where whoever starts the command has SIGHUP ignored, it goes on."""
    tenant.keys.generate("Kyber768")
    with _sighup(signal.SIG_IGN):
        process = command.start("encrypt", "-", "--to", "target")
    assert process.stdin is not None
    process.stdin.write(HALF)
    process.stdin.flush()
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=90)
    assert (process.returncode, command.names()) == (0, {"target"})


def test_a_kill(command: Command, tenant: Client) -> None:
    """Even SIGKILL leaves nothing, where the file system knows files without a name."""
    tenant.keys.generate("Kyber768")
    process = command.start("encrypt", "-", "--to", "target")
    assert process.stdin is not None
    process.stdin.write(HALF)
    process.stdin.flush()
    process.kill()
    process.communicate(timeout=90)
    assert command.names() == set()


def test_no_room(command: Command, tenant: Client) -> None:
    """A file that may not grow any more ends with 1, and nothing of it is left."""
    tenant.keys.generate("Kyber768")
    size = 1_000_000

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    ended = command("encrypt", "-", "--to", "target", stdin=HALF, preexec_fn=limited)
    assert (ended.status, command.names()) == (1, set())
    assert ended.err.startswith("pqkeep: target: ")


def test_nowhere_to_write(command: Command, tenant: Client) -> None:
    """A directory that is not there, and one in which nothing can be made, are named."""
    tenant.keys.generate("Kyber768")
    for target in ("nowhere/target", "/proc/target"):
        ended = command("encrypt", "-", "--to", target, stdin=b"data")
        assert ended.status == 1
        assert ended.err.startswith(f"pqkeep: {target}: ")
    ended = command("encrypt", "nothing")
    assert (ended.status, ended.err.startswith("pqkeep: nothing: ")) == (1, True)


def test_a_closed_pipe(command: Command, tenant: Client) -> None:
    """Where nobody reads any more the command ends quietly, with 141."""
    tenant.keys.generate("Kyber768")
    process = command.start("encrypt", "-")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(HALF, timeout=90)
    assert (process.returncode, said) == (141, b"")


def test_full_standard_output(command: Command, tenant: Client) -> None:
    """What cannot be written to standard output is no success."""
    tenant.keys.generate("Kyber768")
    with Path("/dev/full").open("wb") as full:
        for arguments in (("keys", "list"), ("keys", "public-key", "Kyber768")):
            process = command.start(*arguments, stdout=full)
            _, said = process.communicate(timeout=90)
            assert (process.returncode, b"No space left on device" in said) == (1, True)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of what could go on reading."""
    try:
        process.wait(30)
    finally:
        process.kill()
