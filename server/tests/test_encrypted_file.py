"""The format of a backup: only unchanged files can be read."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pqkeep_server.backup import recovery_key
from pqkeep_server.backup.encrypted_file import (
    MAGIC,
    SEGMENT,
    BackupFileError,
    Origin,
    Reader,
    Writer,
)
from pqkeep_server.backup.recovery_key import PrivateHalf, PublicHalf

SEALED = SEGMENT + 16
ORIGIN = Origin(
    created_at_us=1, version="1", log_id="log", generation=0, records=0, root_keys={1: b""}
)
SIZES = (0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT, 3 * SEGMENT + 5)


@pytest.fixture(scope="module", params=["ML-KEM-1024", "X-Wing"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PublicHalf, PrivateHalf]:
    """A recovery key."""
    folder = tmp_path_factory.mktemp("recovery")
    recovery_key.create(request.param, folder / "private", folder / "public")
    return (
        recovery_key.read_public(folder / "public"),
        recovery_key.read_private(folder / "private"),
    )


def sealed(public: PublicHalf, *parts: bytes) -> bytes:
    """Return a sealed file."""
    file = io.BytesIO()
    writer = Writer(file, public, ORIGIN)
    for part in parts:
        writer.write(part)
    writer.finish()
    return file.getvalue()


def opened(private: PrivateHalf, data: bytes, size: int) -> bytes:
    """Return the content of a sealed file, if it has this length."""
    reader = Reader(io.BytesIO(data), private)
    found = reader.read(size)
    reader.finish()
    return found


def text(size: int) -> bytes:
    """Return a text with different segments."""
    return b"".join(number.to_bytes(8, "big") for number in range(size // 8 + 1))[:size]


@pytest.mark.parametrize("size", [size for size in SIZES if size])
def test_what_was_written_comes_back(size: int, pair: tuple[PublicHalf, PrivateHalf]) -> None:
    """Text of any length, written in any pieces, is restored."""
    public, private = pair
    plain = text(size)
    data = sealed(public, plain[: size // 3], plain[size // 3 :])
    assert opened(private, data, size) == plain


Change = Callable[[bytes, Sequence[bytes]], bytes]

CHANGES: dict[str, Change] = {
    "cut off after its header": lambda head, _: head,
    "cut off between segments": lambda head, s: head + b"".join(s[:-1]),
    "cut off within a segment": lambda head, s: head + b"".join(s)[:-1],
    "longer by a byte": lambda head, s: head + b"".join(s) + b"\0",
    "longer by its last segment": lambda head, s: head + b"".join(s) + s[-1],
    "with two segments exchanged": lambda head, s: head + b"".join((s[1], s[0], *s[2:])),
    "with a segment left out": lambda head, s: head + b"".join((s[0], *s[2:])),
    "with a segment twice": lambda head, s: head + b"".join((s[0], s[0], *s[2:])),
    "with another header's length": lambda head, s: (
        head[: len(MAGIC)] + b"\0\0\0\1" + head[len(MAGIC) + 4 :] + b"".join(s)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_refused(change: str, pair: tuple[PublicHalf, PrivateHalf]) -> None:
    """Truncation, extension, reordering and repetition are detected."""
    public, private = pair
    size = 3 * SEGMENT + 100
    data = sealed(public, text(size))
    body = data[-(3 * SEALED + 116) :]
    head = data[: len(data) - len(body)]
    segments = [body[at : at + SEALED] for at in range(0, len(body), SEALED)]
    assert opened(private, head + b"".join(segments), size) == text(size)
    with pytest.raises(BackupFileError):
        opened(private, CHANGES[change](head, segments), size)


def test_a_segment_of_another_backup_is_refused(pair: tuple[PublicHalf, PrivateHalf]) -> None:
    """Two backups of the same text to the same recovery key have no segment in common."""
    public, private = pair
    size = 2 * SEGMENT
    one, other = (sealed(public, text(size)) for _ in range(2))
    with pytest.raises(BackupFileError):
        opened(private, one[:-SEALED] + other[-SEALED:], size)


def test_every_byte_counts(pair: tuple[PublicHalf, PrivateHalf]) -> None:
    """A file with any flipped bit is refused."""
    public, private = pair
    data = sealed(public, b"text")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(BackupFileError):
            opened(private, bytes(damaged), 4)


@pytest.mark.threat("stolen-backup")
def test_another_recovery_key_is_named(
    pair: tuple[PublicHalf, PrivateHalf], tmp_path: Path
) -> None:
    """With the wrong recovery key, the error names the right one."""
    public, private = pair
    recovery_key.create(public.kem, tmp_path / "private", tmp_path / "public")
    other = recovery_key.read_private(tmp_path / "private")
    with pytest.raises(BackupFileError, match=private.fingerprint.hex()):
        opened(other, sealed(public, b"text"), 4)
