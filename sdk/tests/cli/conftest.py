"""The command ``pqkeep`` as a process: for its own tenant, the operator, or a stranger."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sysconfig
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pqkeep import Client

PROGRAM = Path(sysconfig.get_path("scripts")) / "pqkeep"
TIMEOUT = 60.0


@dataclass(frozen=True)
class Ended:
    """The status and output of a run."""

    status: int
    out: bytes
    err: str


@dataclass(frozen=True)
class Command:
    """The command in a directory, with an environment."""

    program: Sequence[str | Path]
    """The command in this process, imported once. ``start`` and a terminal run the script."""
    directory: Path
    environment: Mapping[str, str]
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Texts that may not be in its arguments or output."""

    def __call__(self, *arguments: str | bytes | Path, stdin: bytes = b"", **more: Any) -> Ended:
        """Run it, and wait for its end."""
        program = [PROGRAM] if more else self.program  # limits are the script's own
        ended = subprocess.run(
            [*program, *arguments],
            cwd=self.directory,
            env=dict(self.environment),
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            **more,
        )
        result = Ended(ended.returncode, ended.stdout, ended.stderr.decode())
        said = ended.stdout.decode(errors="replace") + result.err + " ".join(map(str, arguments))
        assert "Traceback" not in said
        for secret in self.secrets:
            assert secret not in said
        return result

    def start(
        self, *arguments: str | Path, stdout: int | BinaryIO = subprocess.PIPE, **more: Any
    ) -> subprocess.Popen[bytes]:
        """Start it."""
        more.setdefault("stdin", subprocess.PIPE)
        return subprocess.Popen(
            [PROGRAM, *arguments],
            cwd=self.directory,
            env=dict(self.environment),
            stdout=stdout,
            stderr=subprocess.PIPE,
            **more,
        )

    def as_(self, **environment: str) -> Command:
        """Return the command with other variables; an empty one is removed."""
        values = {**self.environment, **environment}
        return replace(self, environment={name: value for name, value in values.items() if value})

    def names(self) -> set[str]:
        """Return the names in the directory."""
        return set(os.listdir(self.directory))  # noqa: PTH208 - names, not paths


@pytest.fixture
def nobody(pqkeep_command: Sequence[str | Path], tmp_path: Path, base_url: str) -> Command:
    """The command of a user with the address and without an API key."""
    directory = tmp_path / "here"
    directory.mkdir()
    environment = {
        "PATH": os.defpath,
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PQKEEP_URL": base_url,
    }
    return Command(pqkeep_command, directory, environment)


@pytest.fixture
def with_key(nobody: Command, tmp_path: Path) -> Callable[[str], Command]:
    """Return the command of the owner of an API key."""

    def make(api_key: str) -> Command:
        file = tmp_path / f"api-key-{api_key[-4:]}"
        file.write_text(api_key)
        file.chmod(0o600)
        return replace(nobody.as_(PQKEEP_API_KEY_FILE=str(file)), secrets=frozenset({api_key}))

    return make


@pytest.fixture
def tenant(base_url: str, api_key: str) -> Iterator[Client]:
    """The command's tenant, through the client."""
    with Client(base_url, api_key) as client:
        yield client


@pytest.fixture
def command(with_key: Callable[[str], Command], api_key: str) -> Command:
    """The command of a tenant without keys."""
    return with_key(api_key)


@pytest.fixture
def operator_command(with_key: Callable[[str], Command], service: dict[str, str]) -> Command:
    """The command of the operator."""
    return with_key(service["operator_key"])


@pytest.fixture
def file(command: Command) -> Path:
    """A file of no particular size, in the command's directory."""
    path = command.directory / "report.pdf"
    path.write_bytes(os.urandom(300_001))
    return path


class Terminal:
    """A run of the command in a terminal of 80 columns."""

    def __init__(self, command: Command, *arguments: str, stdin: BinaryIO | None = None) -> None:
        """Start it as the leader of a session in this terminal. It may read a file."""
        self._descriptor, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            [PROGRAM, *arguments],
            cwd=command.directory,
            env=dict(command.environment) | {"TERM": "xterm"},
            stdin=other if stdin is None else stdin,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one call, as in a signal handler
        )
        os.close(other)
        self._shown = b""

    def respond(self, question: str, response: str) -> None:
        """Wait for a question, and type an answer."""
        before = len(self._shown)
        while question.encode() not in self._shown[before:]:
            assert self._read(), self._shown
        time.sleep(0.5)  # until it reads, which cannot be seen from here
        os.write(self._descriptor, response.encode())

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the status and the shown text."""
        while self._read():
            pass
        os.close(self._descriptor)
        return self._process.wait(TIMEOUT), self._shown.decode(errors="replace")

    def _read(self) -> bool:
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        assert waiting.poll(TIMEOUT * 1000), self._shown
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # the other side is closed
            return False
        self._shown += data
        return bool(data)


def _take_terminal() -> None:
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> type[Terminal]:
    """Run the command in a terminal."""
    return Terminal
