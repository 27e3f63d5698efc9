"""Files that are none, or cannot be written: each command says which, and leaves nothing."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sdk.tests.cli.conftest import PROGRAM, TIMEOUT

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

    from pqkeep import Client

READING: dict[str, tuple[str, ...]] = {
    "encrypt": ("encrypt", "{}"),
    "encrypt by the service": ("encrypt", "--envelope", "{}"),
    "encrypt to a key": ("encrypt", "plain", "--public-key", "{}"),
    "decrypt": ("decrypt", "{}"),
    "re-encrypt": ("re-encrypt", "{}"),
    "sign": ("sign", "{}"),
    "sign with a context": ("sign", "{}", "--context", "x"),
    "verify": ("verify", "{}"),
    "verify a signature": ("verify", "plain", "--signature", "{}"),
    "wrap": ("wrap", "{}"),
    "unwrap": ("unwrap", "{}"),
    "decapsulate": ("decapsulate", "{}"),
    "import": ("keys", "import", "Dilithium3", "{}"),
    "audit verify": ("audit", "verify", "{}"),
    "the API key": ("keys", "list", "--api-key-file", "{}"),
}
ODD = ("a directory", "a socket", "a loop", "absent", "in a file")


def odd(directory: Path, kind: str) -> Path:
    """Make an odd file, and return where it is."""
    path = directory / "odd"
    match kind:
        case "a directory":
            path.mkdir()
        case "a socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
        case "a loop":
            path.symlink_to("odd")
        case "in a file":
            return directory / "plain" / "odd"
        case _:
            pass
    return path


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_to_read(command: Command, tenant: Client, kind: str) -> None:
    """Every command that reads names an odd file, with 1 or 2, never with 7, and writes nothing."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    (command.directory / "plain").write_bytes(b"content")
    path = odd(command.directory, kind)
    before = command.names()
    for name, words in READING.items():
        ended = command(*(str(path) if word == "{}" else word for word in words))
        said = f"{name}: {ended}"
        assert ended.status in {1, 2}, said
        assert "fault of the command" not in ended.err, said
        assert path.name in ended.err or kind == "a loop", said
        assert ended.out == b"", said
        assert command.names() == before, said


WRITING: dict[str, tuple[str, ...]] = {
    "encrypt": ("encrypt", "plain"),
    "decrypt": ("decrypt", "encrypted"),
    "sign": ("sign", "plain"),
    "wrap": ("wrap", "key"),
    "public-key": ("keys", "public-key", "Kyber768"),
    "encapsulate": ("encapsulate", "--secret", "secret"),
    "re-encrypt": ("re-encrypt", "encrypted"),
}


@pytest.fixture
def filled(command: Command, tenant: Client) -> Command:
    """A command with something to read for each of those."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    for name, content in (("plain", bytes(1_000_000)), ("key", bytes(32))):
        (command.directory / name).write_bytes(content)
    assert command("encrypt", "plain", "--to", "encrypted").status == 0
    return command


@pytest.mark.parametrize("name", WRITING)
def test_an_output_that_cannot_be(filled: Command, name: str) -> None:
    """An output in no folder, in a file, in place of a folder or through a loop is refused and named."""
    directory = filled.directory
    (directory / "folder").mkdir()
    (directory / "loop").symlink_to("loop")
    (directory / "there").write_bytes(b"there")
    before = filled.names()
    for target in ("none/x", "plain/x", "folder", "/proc/x", "loop", "there", "a" * 300):
        ended = filled(*WRITING[name], "--to", target)
        assert ended.status == 1, (target, ended)
        assert "fault of the command" not in ended.err
        assert target in ended.err
        assert filled.names() - {"secret"} == before
    assert (directory / "there").read_bytes() == b"there"


def limited() -> None:
    """Allow files of 300,000 bytes, as a full disk does."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


@pytest.mark.parametrize("name", ["encrypt", "decrypt"])
def test_a_disk_that_is_full_midway(filled: Command, name: str) -> None:
    """What does not fit is an error, and nothing of it is left."""
    before = filled.names()
    ended = filled(*WRITING[name], "--to", "out", preexec_fn=limited)
    assert (ended.status, ended.out) == (1, b"")
    assert "out: File too large" in ended.err
    assert filled.names() == before


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_two_at_once(filled: Command, force: tuple[str, ...]) -> None:
    """Of two that write one file the file is whole, and without --force one of them is refused."""
    words: list[str | Path] = [PROGRAM, "encrypt", "plain", "--to", "out", *force]
    environment = dict(filled.environment)
    runs = [
        subprocess.Popen(words, cwd=filled.directory, env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    errors = [run.communicate(timeout=TIMEOUT)[1] for run in runs]
    assert b"Traceback" not in b"".join(errors)
    assert sorted(run.returncode for run in runs) == ([0, 0] if force else [0, 1])
    assert filled("decrypt", "out", "--to", "-").out == bytes(1_000_000)
