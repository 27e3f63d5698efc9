"""Unusual input and unwritable output: each command names the file, and leaves nothing."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sdk.tests.cli.conftest import PROGRAM, TIMEOUT
from tests.fixtures.preloaded import preloaded

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Make an unusual file, and return its path."""
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
    """Every reading command names the unusual file, and writes nothing.

    Its exit status is 1 or 2.
    """
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    (command.directory / "plain").write_bytes(b"content")
    path = odd(command.directory, kind)
    before = command.names()
    for name, words in READING.items():
        ended = command(*(str(path) if word == "{}" else word for word in words))
        said = f"{name}: {ended}"
        assert ended.status in {1, 2}, said
        assert "a bug in pqkeep" not in ended.err, said
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
    """A command with input for each of these cases."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    for name, content in (("plain", bytes(1_000_000)), ("key", bytes(32))):
        (command.directory / name).write_bytes(content)
    assert command("encrypt", "plain", "--to", "encrypted").status == 0
    return command


@pytest.mark.parametrize("name", WRITING)
def test_an_output_that_cannot_be(filled: Command, name: str) -> None:
    """An output in a missing folder, inside a file, instead of a folder or in a loop of links is refused."""
    directory = filled.directory
    (directory / "folder").mkdir()
    (directory / "loop").symlink_to("loop")
    (directory / "there").write_bytes(b"there")
    before = filled.names()
    for target in ("none/x", "plain/x", "folder", "/proc/x", "loop", "there", "a" * 300):
        ended = filled(*WRITING[name], "--to", target)
        assert ended.status == 1, (target, ended)
        assert "a bug in pqkeep" not in ended.err
        assert target in ended.err
        assert filled.names() - {"secret"} == before
    assert (directory / "there").read_bytes() == b"there"


def limited() -> None:
    """Limit files to 300,000 bytes, like a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


@pytest.mark.parametrize("name", ["encrypt", "decrypt"])
def test_a_disk_that_is_full_midway(filled: Command, name: str) -> None:
    """A full disk is an error, and no partial file is left."""
    before = filled.names()
    ended = filled(*WRITING[name], "--to", "out", preexec_fn=limited)
    assert (ended.status, ended.out) == (1, b"")
    assert "out: File too large" in ended.err
    assert filled.names() == before


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_two_at_once(filled: Command, force: tuple[str, ...]) -> None:
    """Two writers of one file leave a complete file; without --force one of them is refused."""
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


OVERWRITING: dict[str, tuple[str, ...]] = {
    "encrypt": ("encrypt", "plain", "--to", "plain"),
    "encrypt by the service": ("encrypt", "plain", "--envelope", "--to", "plain"),
    "encrypt, through a link": ("encrypt", "plain", "--to", "link"),
    "encrypt a link": ("encrypt", "link", "--to", "plain"),
    "encrypt, by a second name": ("encrypt", "plain", "--to", "second"),
    "encrypt, by another path": ("encrypt", "plain", "--to", "../here/plain"),
    "encrypt over the public key": ("encrypt", "plain", "--public-key", "kem", "--to", "kem"),
    "encrypt over a recipient": ("encrypt", "plain", "--recipient", "kem", "--to", "kem"),
    "decrypt": ("decrypt", "encrypted", "--to", "encrypted"),
    "re-encrypt": ("re-encrypt", "encrypted", "--to", "encrypted"),
    "sign": ("sign", "plain", "--to", "plain"),
    "sign with a context": ("sign", "plain", "--context", "x", "--to", "plain"),
    "sign as JWS": ("sign", "plain", "--jws", "--to", "plain"),
    "wrap": ("wrap", "key", "--to", "key"),
    "unwrap": ("unwrap", "wrapped", "--to", "wrapped"),
    "decapsulate": ("decapsulate", "kem-ciphertext", "--to", "kem-ciphertext"),
}


def contents(command: Command) -> dict[str, bytes]:
    """Return the content of each file in the directory."""
    return {name: (command.directory / name).read_bytes() for name in command.names()}


@pytest.fixture
def everything(filled: Command) -> Command:
    """Return the same, with special files, a symbolic link and a hard link."""
    (filled.directory / "plain").write_bytes(b"content")
    for words in (
        ("keys", "public-key", "Kyber768", "--to", "kem"),
        ("wrap", "key", "--to", "wrapped"),
        ("encapsulate", "--secret", "secret", "--to", "kem-ciphertext"),
    ):
        assert filled(*words).status == 0
    (filled.directory / "link").symlink_to("plain")
    (filled.directory / "second").hardlink_to(filled.directory / "plain")
    return filled


def test_an_output_that_is_the_input(everything: Command) -> None:
    """Even with --force no command overwrites its own input, under any name."""
    before = contents(everything)
    for name, words in OVERWRITING.items():
        ended = everything(*words, "--force")
        assert (ended.status, ended.out) == (2, b""), (name, ended)
        assert f"{words[-1]} is the input and the output" in ended.err, (name, ended)
        assert contents(everything) == before, name
    ended = everything("encapsulate", "--secret", "new", "--to", "./new")
    assert ended.status == 2
    assert contents(everything) == before


@pytest.mark.parametrize("shell", ['"$@" < plain >> plain', '"$@" < plain 1<> plain'])
def test_a_redirection_to_the_input(everything: Command, shell: str) -> None:
    """Standard output to the file on standard input is refused before the first byte."""
    before = contents(everything)
    ended = subprocess.run(
        ["/bin/bash", "-c", shell, "bash", PROGRAM, "encrypt", "-"],
        cwd=everything.directory,
        env=dict(everything.environment),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (ended.returncode, b"standard output is the input and the output" in ended.stderr) == (
        2,
        True,
    )
    assert contents(everything) == before


@contextmanager
def started_by(folder: Path, command: Command, *prefix: str) -> Iterator[Command]:
    """Yield the command, imported once in a process that a prefix starts."""
    with preloaded(folder, "pqkeep.cli:app", first="keys list --help", prefix=prefix) as program:
        yield replace(command, program=program)


@pytest.fixture
def bounded(command: Command, tmp_path: Path) -> Iterator[Command]:
    """The command with an address space of a gibibyte, much less than the files."""
    with started_by(tmp_path, command, "prlimit", f"--as={1 << 30}") as limited_command:
        yield limited_command


READS_ALL = {"encrypt", "sign", "sign with a context", "verify"}
"""Commands that read files of any size piece by piece."""


@pytest.mark.parametrize("kind", ["/dev/zero", "sparse"])
def test_what_has_no_end(command: Command, bounded: Command, tenant: Client, kind: str) -> None:
    """Commands with a size limit read little of a huge file, name the file, and write nothing."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    (command.directory / "plain").write_bytes(b"content")
    with (command.directory / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (command.directory / "sparse").chmod(0o600)
    before = command.names()
    for name, words in READING.items():
        if name in READS_ALL:
            continue
        ended = bounded(
            *(kind if word == "{}" else word for word in words),
            *(("--to", "-") if name == "decrypt" else ()),
        )
        assert ended.status in {1, 2}, (name, ended)
        assert "a bug in pqkeep" not in ended.err, (name, ended)
        assert kind in ended.err or name == "the API key", (name, ended)
        assert ended.out == b"", (name, ended)
        assert command.names() == before, name


def test_a_profile_file_without_end(bounded: Command) -> None:
    """An endless profile file is refused by name, with little memory."""
    folder = Path(bounded.environment["XDG_CONFIG_HOME"]) / "pqkeep"
    folder.mkdir(parents=True)
    (folder / "config.toml").symlink_to("/dev/zero")
    for words in (("keys", "list", "--profile", "x"), ("status", "--profile", "x")):
        ended = bounded(*words)
        assert (ended.status, "config.toml" in ended.err) == (2, True), ended
    key = bounded.environment["PQKEEP_API_KEY_FILE"]
    ended = bounded("login", "--api-key-file", key)
    assert (ended.status, "config.toml" in ended.err) == (2, True), ended


def test_a_file_that_may_not_be_read(command: Command, tenant: Client, tmp_path: Path) -> None:
    """A file of mode 000 is named with the reason by every command that reads it."""
    for algorithm in ("Kyber768", "Dilithium3"):
        tenant.keys.generate(algorithm)
    (command.directory / "plain").write_bytes(b"content")
    closed = command.directory / "closed"
    closed.write_bytes(b"content")
    closed.chmod(0)
    before = command.names()
    as_others = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
    with started_by(tmp_path, command, *(as_others if os.geteuid() == 0 else ())) as other:
        for name, words in READING.items():
            if name == "verify":  # its signature is read first
                continue
            ended = other(
                *("closed" if word == "{}" else word for word in words),
                *(("--to", "-") if name == "decrypt" else ()),
            )
            assert (ended.status in {1, 2}, ended.out) == (True, b""), (name, ended)
            assert "closed" in ended.err, (name, ended)
            assert "Permission denied" in ended.err or "not readable" in ended.err, (name, ended)
            assert command.names() == before, name


def test_a_file_that_is_replaced(command: Command, tenant: Client) -> None:
    """A command reads its file to the end, even if another file takes its name."""
    tenant.keys.generate("Kyber768")
    fifo = command.directory / "fifo"
    os.mkfifo(fifo)
    process = command.start("encrypt", "fifo", "--to", "out")
    with fifo.open("wb", buffering=0) as writer:
        writer.write(b"first ")
        fifo.unlink()
        fifo.write_bytes(b"another file")
        writer.write(b"second")
    assert process.communicate(timeout=TIMEOUT)[0] == b""
    assert process.returncode == 0
    assert command("decrypt", "out", "--to", "-").out == b"first second"
