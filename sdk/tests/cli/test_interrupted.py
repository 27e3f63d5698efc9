"""An interrupted command leaves no files."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
import termios
import time
import tomllib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command, Terminal

HALF = bytes(5_000_000)
"""Much more than a pipe holds. When it is written, most of it has been read."""
NOTE = b"pqkeep: reading standard input, which is this terminal: end it with Ctrl-D\n"
ENDING = {signal.SIGINT, signal.SIGTERM}
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@contextmanager
def _sighup(action: signal.Handlers) -> Iterator[None]:
    """Start processes with the default SIGHUP or with an ignored one, as under nohup."""
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
    """A signal during the work leaves no new file, and does not change an old one."""
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


READING: dict[str, tuple[str, ...]] = {
    "a stream": ("encrypt", "{}", "--to", "out"),
    "a small file": ("wrap", "{}", "--to", "out"),
    "a beginning": ("recipients", "{}"),
    "a message": ("sign", "{}", "--to", "out"),
}


@pytest.mark.parametrize("name", READING)
def test_a_signal_before_a_read(command: Command, tenant: Client, name: str) -> None:
    """A signal that does not interrupt the read of a pipe or FIFO still ends the command.

    The main thread blocks the signal, so the signal arrives as if just before the read.
    """
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    fifo = command.directory / "fifo"
    os.mkfifo(fifo, 0o600)
    before = command.names()
    for file, number, status in (("-", signal.SIGINT, 130), ("fifo", signal.SIGTERM, 143)):
        process = command.start(
            *(file if word == "{}" else word for word in READING[name]),
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ENDING),
        )
        assert process.stdin is not None
        writer = process.stdin if file == "-" else fifo.open("wb", buffering=0)
        with process, writer:
            writer.write(b"{")
            writer.flush()
            while _unread(writer):
                time.sleep(0.001)
            process.send_signal(number)
            _ended(process)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.returncode == status, file
        assert command.names() == before, file


@pytest.mark.parametrize(
    "rounds", [6, pytest.param(300, marks=pytest.mark.campaign)], ids=["some", "many"]
)
def test_signals_at_many_moments(command: Command, rounds: int) -> None:
    """Ctrl-C at any moment ends the command, in a terminal and in a pipe."""
    for number in range(rounds):
        outside, inside = pty.openpty()
        stdin = inside if number % 2 else subprocess.PIPE
        process = command.start("recipients", "-", stdin=stdin, start_new_session=True)
        with process:
            assert process.stderr is not None
            if number % 2:
                assert process.stderr.readline() == NOTE  # it is about to read
            else:
                _wait_for_handler(process)
            time.sleep((0.001 if number % 2 else 0.5) * number / rounds)
            process.send_signal(signal.SIGINT)
            _ended(process)
            assert (process.returncode, process.stderr.read().replace(NOTE, b"")) == (130, b""), (
                number
            )
        os.close(outside)
        os.close(inside)


def test_a_signal_during_imports(tmp_path: Path) -> None:
    """Ctrl-C during imports ends the command with 130, silently."""
    (tmp_path / "typer.py").write_text("print('importing', flush=True)\nopen(0).read()\n")
    scripts = tomllib.loads(PROJECT.read_text())["project"]["scripts"]
    module, _, function = scripts["pqkeep"].partition(":")
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {module}; {module}.{function}()"],
        env={"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"importing\n"
    process.send_signal(signal.SIGINT)
    _ended(process)
    assert (process.returncode, process.communicate()[1]) == (130, b"")


def test_a_service_that_says_nothing(command: Command, terminal: type[Terminal]) -> None:
    """A person is told after seconds what a command waits for. Programs and --quiet see nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        waiting = command.as_(PQKEEP_URL=url)
        piped = waiting.start("keys", "list")
        quiet = terminal(waiting, "keys", "list", "--quiet")
        shown = terminal(waiting, "keys", "list")
        shown.respond(f"{url} has not responded yet", "\x03")
        quiet.respond("", "\x03")
        piped.send_signal(signal.SIGINT)
        _ended(piped)
        assert (piped.returncode, *piped.communicate()) == (130, b"", b"")
        status, said = shown.end()
        assert (status, said.count("not responded")) == (130, 1)
        status, said = quiet.end()
        assert (status, said.strip()) == (130, "^C")


def test_nohup(command: Command, tenant: Client) -> None:
    """With an ignored SIGHUP the command continues."""
    tenant.keys.generate("Kyber768")
    with _sighup(signal.SIG_IGN):
        process = command.start("encrypt", "-", "--to", "target")
    assert process.stdin is not None
    process.stdin.write(HALF)
    process.stdin.flush()
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=PATIENCE)
    assert (process.returncode, command.names()) == (0, {"target"})


def test_a_kill(command: Command, tenant: Client) -> None:
    """Even SIGKILL leaves no file on file systems with nameless files."""
    tenant.keys.generate("Kyber768")
    process = command.start("encrypt", "-", "--to", "target")
    assert process.stdin is not None
    process.stdin.write(HALF)
    process.stdin.flush()
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert command.names() == set()


def test_no_room(command: Command, tenant: Client) -> None:
    """For a file over the size limit the exit status is 1, and no part of it is left."""
    tenant.keys.generate("Kyber768")
    size = 1_000_000

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    ended = command("encrypt", "-", "--to", "target", stdin=HALF, preexec_fn=limited)
    assert (ended.status, command.names()) == (1, set())
    assert ended.err.startswith("pqkeep: target: ")


def test_nowhere_to_write(command: Command, tenant: Client) -> None:
    """A missing directory and a directory without write permission are named."""
    tenant.keys.generate("Kyber768")
    for target in ("nowhere/target", "/proc/target"):
        ended = command("encrypt", "-", "--to", target, stdin=b"data")
        assert ended.status == 1
        assert ended.err.startswith(f"pqkeep: {target}: ")
    ended = command("encrypt", "nothing")
    assert (ended.status, ended.err.startswith("pqkeep: nothing: ")) == (1, True)


def test_a_closed_pipe(command: Command, tenant: Client) -> None:
    """A closed pipe ends the command with 141, silently."""
    tenant.keys.generate("Kyber768")
    process = command.start("encrypt", "-")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, said = process.communicate(HALF, timeout=PATIENCE)
    assert (process.returncode, said) == (141, b"")


def test_full_standard_output(command: Command, tenant: Client) -> None:
    """An output that cannot be written is not a success."""
    tenant.keys.generate("Kyber768")
    with Path("/dev/full").open("wb") as full:
        for arguments in (("keys", "list"), ("keys", "public-key", "Kyber768")):
            process = command.start(*arguments, stdout=full)
            _, said = process.communicate(timeout=PATIENCE)
            assert (process.returncode, b"No space left on device" in said) == (1, True)


def _wait_for_handler(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process handles SIGINT by its own Python code."""
    status = Path(f"/proc/{process.pid}/status")
    while not int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> 22 & 1:  # SIGURG
        assert process.poll() is None
        time.sleep(0.001)


def _unread(pipe: IO[bytes]) -> int:
    """Return the number of bytes in a pipe."""
    number = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, number)
    return number[0]


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait until all readers have ended."""
    try:
        process.wait(PATIENCE)
    finally:
        process.kill()
