"""Files appear only when they are complete, and errors leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.patience import PATIENCE

from pqkeep import DecryptionError
from pqkeep.local import decrypt_file, encrypt, encrypt_file

if TYPE_CHECKING:
    from sdk.tests.local.conftest import Pair

PIECE = 262_144
DATA = os.urandom(3 * PIECE + 5)
SEED = bytes(range(64))

PROGRAM = """
import os, resource, sys
{before}
from pqkeep import local
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

private = MLKEM768PrivateKey.from_seed_bytes(bytes(range(64)))
public_key = private.public_key().public_bytes_raw()
_, work, source, target = sys.argv
try:
    if work == "encrypt":
        named = {{"public_key": public_key, "algorithm": "Kyber768", "key_version": 7}}
        local.encrypt_file(source, target, recipients=[local.Recipient(**named)])
    else:
        local.decrypt_file(source, target, decapsulate=lambda ct, **_: private.decapsulate(ct))
except OSError as error:
    sys.exit(error.strerror)
"""
NAMELESS = ""
NAMED = "del os.O_TMPFILE"
"""A system without nameless files, as a program sees it."""
LATE = f"{NAMED}; os.path.lexists = lambda path: False"
"""Another file appears after this program's last check."""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program that encrypts or decrypts a file, with a key pair of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def run(
        work: str, source: Path, target: Path, *, before: str = NAMELESS
    ) -> subprocess.Popen[bytes]:
        program = PROGRAM.format(before=before)
        command: list[str | Path] = [sys.executable, "-c", program, work, source, target]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def sealed(pair_of: Callable[..., Pair]) -> bytes:
    """Data encrypted to the programs' key."""
    return encrypt(DATA, recipients=[pair_of("Kyber768", SEED).recipient])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for targets."""
    made = tmp_path / "targets"
    made.mkdir()
    return made


def test_round_trip(pair: Pair, tmp_path: Path) -> None:
    """A file is restored, and both new files have mode 0600."""
    plain, cipher, back = (tmp_path / name for name in ("plain", "cipher", "back"))
    plain.write_bytes(DATA)
    encrypt_file(plain, str(cipher), recipients=[pair.recipient])
    decrypt_file(str(cipher), back, decapsulate=pair.decapsulate)
    assert back.read_bytes() == DATA
    assert {path.stat().st_mode & 0o777 for path in (cipher, back)} == {0o600}
    assert sorted(tmp_path.iterdir()) == [back, cipher, plain]


def test_an_empty_file(pair: Pair, tmp_path: Path) -> None:
    """An empty file is restored."""
    plain, cipher, back = (tmp_path / name for name in ("plain", "cipher", "back"))
    plain.touch()
    encrypt_file(plain, cipher, recipients=[pair.recipient])
    decrypt_file(cipher, back, decapsulate=pair.decapsulate)
    assert back.read_bytes() == b""


@pytest.mark.parametrize("existing", ["file", "link", "broken link", "folder"])
def test_what_is_there_stays(kyber: Pair, tmp_path: Path, existing: str) -> None:
    """Existing files, links and links' targets are not replaced unless asked."""
    source, target, other = (tmp_path / name for name in ("source", "target", "other"))
    source.write_bytes(DATA)
    other.write_bytes(b"precious")
    if existing == "file":
        target.write_bytes(b"precious")
    elif existing == "folder":
        target.mkdir()
    else:
        target.symlink_to(other if existing == "link" else tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir()), target.lstat()
    with pytest.raises(FileExistsError):
        encrypt_file(source, target, recipients=[kyber.recipient])
    assert (sorted(tmp_path.iterdir()), target.lstat()) == before
    assert other.read_bytes() == b"precious"


def test_replacing(kyber: Pair, tmp_path: Path) -> None:
    """An existing file can be replaced in one step: also a link, and the source itself."""
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.write_bytes(DATA)
    link.symlink_to(plain)
    encrypt_file(plain, link, recipients=[kyber.recipient], replace=True)
    assert not link.is_symlink()
    assert plain.read_bytes() == DATA
    decrypt_file(link, link, decapsulate=kyber.decapsulate, replace=True)
    assert link.read_bytes() == DATA
    assert sorted(tmp_path.iterdir()) == [link, plain]


@pytest.mark.parametrize("replace", [False, True])
def test_a_damaged_file_leaves_nothing(kyber: Pair, tmp_path: Path, *, replace: bool) -> None:
    """A file with a wrong last byte leaves no output, and an existing file stays."""
    source, target = tmp_path / "source", tmp_path / "target"
    data = bytearray(encrypt(DATA, recipients=[kyber.recipient]))
    data[-1] ^= 1
    source.write_bytes(data)
    if replace:
        target.write_bytes(b"precious")
    with pytest.raises(DecryptionError):
        decrypt_file(source, target, decapsulate=kyber.decapsulate, replace=replace)
    assert sorted(tmp_path.iterdir()) == ([source, target] if replace else [source])
    assert not replace or target.read_bytes() == b"precious"


@pytest.mark.parametrize("before", [NAMELESS, NAMED])
@pytest.mark.parametrize("work", ["encrypt", "decrypt"])
def test_killed_in_the_middle(
    start: Start, folder: Path, sealed: bytes, work: str, before: str
) -> None:
    """After kill -9 no file has the name, and on systems with nameless files nothing is left."""
    pipe = folder.parent / "pipe"
    os.mkfifo(pipe)
    process = start(work, pipe, folder / "target", before=before)
    with pipe.open("wb", buffering=0) as feed:
        feed.write(sealed[:-1])  # a pipe holds 64 KiB: the rest has been read
        left = list(folder.iterdir())
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert sorted(folder.iterdir()) == left
    assert [path.name[:8] for path in left] == ([] if before == NAMELESS else [".pqkeep-"])


@pytest.mark.parametrize("before", [NAMELESS, NAMED, LATE])
def test_somebody_else_is_first(start: Start, folder: Path, sealed: bytes, before: str) -> None:
    """A file that appears meanwhile is not replaced."""
    pipe, target = folder.parent / "pipe", folder / "target"
    os.mkfifo(pipe)
    process = start("decrypt", pipe, target, before=before)
    with pipe.open("wb", buffering=0) as feed:
        feed.write(sealed)
        target.write_bytes(b"precious")
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors.strip()) == (1, b"File exists")
    assert list(folder.iterdir()) == [target]
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("before", [NAMELESS, NAMED])
@pytest.mark.parametrize("work", ["encrypt", "decrypt"])
def test_no_room(start: Start, folder: Path, sealed: bytes, work: str, before: str) -> None:
    """If a file cannot grow, as on a full disk, there is an error and no file."""
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({2 * PIECE}, {2 * PIECE}))"
    source = folder.parent / "source"
    source.write_bytes(sealed)
    process = start(work, source, folder / "target", before=f"{before}\n{limit}")
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors.strip()) == (1, b"File too large")
    assert list(folder.iterdir()) == []


def test_without_nameless_files(start: Start, folder: Path, sealed: bytes) -> None:
    """Without nameless files the result is the same."""
    source, target = folder.parent / "source", folder / "target"
    source.write_bytes(sealed)
    process = start("decrypt", source, target, before=NAMED)
    assert process.wait(PATIENCE) == 0
    assert target.read_bytes() == DATA
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(folder.iterdir()) == [target]


def test_a_folder_that_is_not_there(kyber: Pair, tmp_path: Path) -> None:
    """A missing target folder and a missing source are the system's own errors."""
    source = tmp_path / "source"
    with pytest.raises(FileNotFoundError):
        encrypt_file(source, tmp_path / "target", recipients=[kyber.recipient])
    source.write_bytes(DATA)
    with pytest.raises(FileNotFoundError):
        encrypt_file(source, tmp_path / "nowhere" / "target", recipients=[kyber.recipient])
    assert list(tmp_path.iterdir()) == [source]
