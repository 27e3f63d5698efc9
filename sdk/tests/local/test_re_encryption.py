"""New recipients for the same data: only the header changes, and interruptions do no harm."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BytesIO, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE

from pqkeep import DecryptionError, NotFoundError, PermissionDeniedError
from pqkeep.errors import PqkeepError, UnreadableInputError
from pqkeep.local import (
    MOST_RECIPIENTS,
    Recipient,
    decrypt,
    encrypt,
    encrypt_file,
    re_encrypt,
    re_encrypt_file,
    re_encrypt_stream,
    read_header,
)
from pqkeep.local._encryption import SEGMENT_SIZE
from pqkeep.local._header import open_header
from pqkeep.local._re_encryption import Change, change_file
from pqkeep.new_files import changeable, replacement

if TYPE_CHECKING:
    from sdk.tests.local.conftest import Pair

DATA = bytes(range(256)) * 1200
SEED = bytes(range(64))
GIBIBYTE = 1 << 30

PROGRAM = """
import os, signal, sys
from pqkeep import local
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey

private = MLKEM768PrivateKey.from_seed_bytes(bytes(range(64)))
_, path, calls = sys.argv
left = int(calls)
synchronize = os.fsync

def die(descriptor):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    synchronize(descriptor)

os.fsync = die
public = MLKEM768PrivateKey.from_seed_bytes(bytes(64)).public_key().public_bytes_raw()
new = local.Recipient(public_key=public, algorithm="Kyber768", key_version=8)
decapsulate = lambda ciphertext, **_: private.decapsulate(ciphertext)
local.re_encrypt_file(path, decapsulate=decapsulate, to=new)
"""


@pytest.fixture(scope="module")
def other(pair_of: Callable[..., Pair]) -> Pair:
    """Another user's key pair, of another algorithm and keyring."""
    return pair_of("X-Wing", keyring="payments.cards")


@pytest.fixture(scope="module")
def third(pair_of: Callable[..., Pair]) -> Pair:
    """One more."""
    return pair_of("ML-KEM-1024")


def file_for(folder: Path, *pairs: Pair, capacity: int = 1) -> Path:
    """Return an encrypted file with these recipients."""
    plain, path = folder / "plain", folder / "file.pqk"
    plain.write_bytes(DATA)
    recipients = [pair.recipient for pair in pairs]
    encrypt_file(plain, path, recipients=recipients, capacity=capacity)
    return path


def readers(data: bytes, *pairs: Pair) -> set[str]:
    """Return which of these keys can decrypt the data, by algorithm."""
    found = set()
    for pair in pairs:
        try:
            assert decrypt(data, decapsulate=pair.decapsulate) == DATA
        except DecryptionError:
            continue
        found.add(pair.algorithm)
    return found


class Recorder(FileIO):
    """A file that records its writes."""

    def __init__(self, path: Path) -> None:
        """Open a file."""
        super().__init__(path, "r+")
        self.writes: list[tuple[int, bytes]] = []

    def write(self, data: Any, /) -> int:
        """Write, and keep it."""
        self.writes.append((self.tell(), bytes(data)))
        return super().write(data)


def recorded(path: Path, pair: Pair, change: Change) -> list[tuple[int, bytes]]:
    """Change a file, and return the writes."""
    with Recorder(path) as file:
        header = read_header(file)
        change_file(file, header, open_header(header, pair.decapsulate), change)
        return file.writes


def written_until(data: bytes, writes: list[tuple[int, bytes]], cut: int) -> bytes:
    """Return the data after only some of the recorded bytes were written."""
    file = bytearray(data)
    for at, piece in writes:
        part = piece[:cut]
        file[at : at + len(part)] = part
        cut -= len(part)
    return bytes(file)


def test_a_file_moves_to_another_key(kyber: Pair, other: Pair, tmp_path: Path) -> None:
    """The new key decrypts a file, the old one does not, and the segments have not moved."""
    path = file_for(tmp_path, kyber)
    before, status = path.read_bytes(), path.stat()
    assert re_encrypt_file(path, decapsulate=kyber.decapsulate, to=other.recipient)
    after = path.read_bytes()
    assert readers(after, kyber, other) == {"X-Wing"}
    size = read_header(BytesIO(after)).layout.size
    assert after[size:] == before[size:]
    assert (path.stat().st_ino, path.stat().st_mode) == (status.st_ino, status.st_mode)
    assert not re_encrypt_file(path, decapsulate=other.decapsulate, to=other.recipient)
    assert path.read_bytes() == after


def test_recipients_come_and_go(kyber: Pair, other: Pair, third: Pair, tmp_path: Path) -> None:
    """A new recipient can decrypt; no byte of a removed one is left."""
    path = file_for(tmp_path, kyber, capacity=4)
    re_encrypt_file(path, decapsulate=kyber.decapsulate, add=[other.recipient, third.recipient])
    assert readers(path.read_bytes(), kyber, other, third) == {"Kyber768", "X-Wing", "ML-KEM-1024"}
    removed = read_header(BytesIO(path.read_bytes())).recipients[0]
    re_encrypt_file(path, decapsulate=third.decapsulate, remove=[kyber.recipient.fingerprint])
    after = path.read_bytes()
    assert readers(after, kyber, other, third) == {"X-Wing", "ML-KEM-1024"}
    for part in (removed.fingerprint, removed.kem_ciphertext[:32], removed.wrapped):
        assert part not in after
    assert read_header(BytesIO(after)).sequence == 3


def test_what_moves_is_the_key_that_opened_it(kyber: Pair, other: Pair, third: Pair) -> None:
    """Moving a file replaces only the recipient with the key that was used."""
    both = encrypt(DATA, recipients=[other.recipient, kyber.recipient])
    moved = re_encrypt(both, decapsulate=kyber.decapsulate, to=third.recipient)
    assert readers(moved, kyber, other, third) == {"X-Wing", "ML-KEM-1024"}
    merged = re_encrypt(moved, decapsulate=third.decapsulate, to=other.recipient)
    assert readers(merged, kyber, other, third) == {"X-Wing"}


def test_a_new_file_key(kyber: Pair, other: Pair, third: Pair, tmp_path: Path) -> None:
    """The old file key opens nothing in the new file.

    Owner, mode and symbolic link stay the same.
    """
    path, link = file_for(tmp_path, kyber, other), tmp_path / "link"
    link.symlink_to(path)
    path.chmod(0o640)
    before, status = path.read_bytes(), path.stat()
    header = read_header(BytesIO(before))
    old = open_header(header, kyber.decapsulate).file_key
    with pytest.raises(ValueError, match=other.recipient.fingerprint.hex()):
        re_encrypt_file(link, decapsulate=kyber.decapsulate, to=third.recipient, new_file_key=True)
    assert path.read_bytes() == before
    assert re_encrypt_file(
        link,
        decapsulate=kyber.decapsulate,
        to=third.recipient,
        add=[other.recipient],
        new_file_key=True,
    )
    after = path.read_bytes()
    assert readers(after, kyber, other, third) == {"X-Wing", "ML-KEM-1024"}
    new = read_header(BytesIO(after))
    assert open_header(new, third.decapsulate).file_key.value != old.value
    assert (new.layout, new.sequence, len(after)) == (header.layout, 1, len(before))
    pieces = range(header.layout.size, len(after) - 16, 4096)
    assert all(after[at : at + 16] not in before for at in pieces)
    assert (path.stat().st_ino == status.st_ino, path.stat().st_mode) == (False, status.st_mode)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, link, tmp_path / "plain"]


@pytest.mark.parametrize("size", [0, 1, SEGMENT_SIZE - 1, SEGMENT_SIZE, 2 * SEGMENT_SIZE, 600_000])
def test_a_new_file_key_of_any_size(kyber: Pair, size: int) -> None:
    """Data of each length is the same with a new file key, and cut data is refused."""
    data = os.urandom(size)
    sealed = encrypt(data, recipients=[kyber.recipient], capacity=2)
    change: dict[str, Any] = {"to": kyber.recipient, "new_file_key": True}
    again = re_encrypt(sealed, decapsulate=kyber.decapsulate, **change)
    assert decrypt(again, decapsulate=kyber.decapsulate) == data
    assert len(again) == len(sealed)
    with pytest.raises((DecryptionError, UnreadableInputError)):
        re_encrypt(sealed[:-1], decapsulate=kyber.decapsulate, **change)


def test_a_damaged_file_keeps_its_file_key(kyber: Pair, tmp_path: Path) -> None:
    """If a segment is damaged, or the file changes during the move, the file stays as it is."""
    path = file_for(tmp_path, kyber)
    whole = path.read_bytes()
    damaged = whole[:-20] + bytes((whole[-20] ^ 1,)) + whole[-19:]
    path.write_bytes(damaged)
    change: dict[str, Any] = {"to": kyber.recipient, "new_file_key": True}
    with pytest.raises(DecryptionError, match="segment 1 is damaged"):
        re_encrypt_file(path, decapsulate=kyber.decapsulate, **change)
    assert path.read_bytes() == damaged
    path.write_bytes(whole)

    with ExitStack() as stack:
        target = stack.enter_context(replacement(stack.enter_context(changeable(path))))
        target.write(b"new")
        with path.open("ab") as other_program:
            other_program.write(b"more")
        with pytest.raises(BlockingIOError):
            stack.close()
    assert path.read_bytes() == whole + b"more"
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "plain"]


def test_data_and_streams(kyber: Pair, other: Pair) -> None:
    """Data in memory stays as short as possible. A stream keeps the size of its header."""
    for capacity in (0, 3):
        before = encrypt(DATA, recipients=[kyber.recipient], capacity=capacity)
        writer = BytesIO()
        re_encrypt_stream(
            BytesIO(before), writer, decapsulate=kyber.decapsulate, add=[other.recipient]
        )
        after = re_encrypt(before, decapsulate=kyber.decapsulate, add=[other.recipient])
        for data in (writer.getvalue(), after):
            assert readers(data, kyber, other) == {"Kyber768", "X-Wing"}
            assert len(data) - len(before) == (0 if capacity else 1213 + len("payments.cards") - 7)


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_header_without_room(
    kyber: Pair, other: Pair, third: Pair, tmp_path: Path, capacity: int
) -> None:
    """If a header lacks capacity, a larger copy replaces the file."""
    path, link = file_for(tmp_path, kyber, capacity=capacity), tmp_path / "link"
    link.symlink_to(path)
    path.chmod(0o640)
    before = path.stat()
    add = [third.recipient, other.recipient]
    assert re_encrypt_file(link, decapsulate=kyber.decapsulate, add=add)
    assert readers(path.read_bytes(), kyber, other, third) == {"Kyber768", "X-Wing", "ML-KEM-1024"}
    after = path.stat()
    assert (after.st_ino == before.st_ino, stat.S_IMODE(after.st_mode)) == (False, 0o640)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, link, tmp_path / "plain"]
    re_encrypt_file(link, decapsulate=other.decapsulate, remove=[third.recipient.fingerprint])
    assert path.stat().st_ino == after.st_ino


def test_every_byte_at_which_a_change_is_cut_off(kyber: Pair, other: Pair, tmp_path: Path) -> None:
    """After a kill at any byte of a change, a file opens with its old or its new recipients."""
    path = file_for(tmp_path, kyber)
    before = path.read_bytes()
    writes = recorded(path, kyber, Change(to=other.recipient))
    total = sum(len(piece) for _, piece in writes)
    assert (written_until(before, writes, total), len(writes)) == (path.read_bytes(), 2)
    said = []
    for cut in range(total + 1):
        file = written_until(before, writes, cut)
        said.append(read_header(BytesIO(file)).recipients[0].algorithm)
        if cut % 512 in {0, 511}:
            assert readers(file, kyber, other) == {said[-1]}
    changed_at = said.index("X-Wing")
    assert set(said[:changed_at]) == {"Kyber768"}
    assert set(said[changed_at:]) == {"X-Wing"}
    assert changed_at <= 4096


@given(data=st.data())
def test_sectors_that_were_written_in_any_order(
    kyber: Pair, other: Pair, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """If a disk writes a slot's sectors in any order, the file is the old or the new one."""
    folder = tmp_path_factory.mktemp("sectors")
    path = file_for(folder, kyber)
    before = path.read_bytes()
    first, second = recorded(path, kyber, Change(to=other.recipient))
    synchronized = data.draw(st.booleans())
    file = bytearray(written_until(before, [first], 4096 if synchronized else 0))
    at, piece = second if synchronized else first
    for sector in data.draw(st.sets(st.integers(0, 7))):
        start = sector * 512
        file[at + start : at + start + 512] = piece[start : start + 512]
    found = readers(bytes(file), kyber, other)
    assert found == {"X-Wing"} if synchronized else len(found) == 1


@given(first_cut=st.integers(0, 8192), second_cut=st.integers(0, 8192))
def test_a_change_after_one_that_was_cut_off(
    kyber: Pair,
    other: Pair,
    third: Pair,
    tmp_path_factory: pytest.TempPathFactory,
    first_cut: int,
    second_cut: int,
) -> None:
    """A second interrupted change leaves the file after the first, or the new one."""
    path = file_for(tmp_path_factory.mktemp("twice"), kyber)
    before = path.read_bytes()
    first = recorded(path, kyber, Change(to=other.recipient))
    between = written_until(before, first, first_cut)
    path.write_bytes(between)
    (now,) = readers(between, kyber, other)
    owner = kyber if now == "Kyber768" else other
    second = recorded(path, owner, Change(to=third.recipient))
    assert readers(path.read_bytes(), kyber, other, third) == {"ML-KEM-1024"}
    after = written_until(between, second, second_cut)
    assert len(readers(after, kyber, other, third)) == 1
    assert readers(after, owner, third) != set()


def test_the_next_change_finishes_one_that_was_cut_off(
    kyber: Pair, other: Pair, tmp_path: Path
) -> None:
    """The next change completes an interrupted removal, even if it changes nothing itself."""
    path = file_for(tmp_path, kyber)
    before = path.read_bytes()
    writes = recorded(path, kyber, Change(to=other.recipient))
    path.write_bytes(written_until(before, writes, 4096 + 2000))
    assert kyber.recipient.fingerprint in before
    assert not read_header(BytesIO(path.read_bytes())).is_settled
    assert not re_encrypt_file(path, decapsulate=other.decapsulate)
    assert kyber.recipient.fingerprint not in path.read_bytes()
    assert read_header(BytesIO(path.read_bytes())).is_settled


@pytest.mark.parametrize("call", [1, 2])
def test_killed_while_it_writes(pair_of: Callable[..., Pair], tmp_path: Path, call: int) -> None:
    """After kill -9 during a change, a file opens with the old key or the new one."""
    old, new = pair_of("Kyber768", SEED), pair_of("Kyber768", bytes(64))
    path = file_for(tmp_path, old)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, str(call)], timeout=PATIENCE, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    header = read_header(BytesIO(path.read_bytes()))
    assert (header.sequence, header.is_settled) == (2, call == 2)

    def decapsulate(kem_ciphertext: bytes, *, key_version: int, **_: Any) -> bytes:
        return {7: old, 8: new}[key_version].private.decapsulate(kem_ciphertext)

    assert decrypt(path.read_bytes(), decapsulate=decapsulate) == DATA


def test_a_large_file(kyber: Pair, other: Pair, tmp_path: Path) -> None:
    """Of a sparse file of 5 GiB, only the header is read and written."""
    path = file_for(tmp_path, kyber, capacity=4)
    os.truncate(path, 5 * GIBIBYTE)
    before = path.stat()
    re_encrypt_file(path, decapsulate=kyber.decapsulate, add=[other.recipient])
    re_encrypt_file(path, decapsulate=other.decapsulate, remove=[kyber.recipient.fingerprint])
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, 5 * GIBIBYTE)
    assert after.st_blocks == before.st_blocks
    with path.open("rb") as file:
        assert [recipient.algorithm for recipient in read_header(file).recipients] == ["X-Wing"]


def test_one_change_at_a_time(kyber: Pair, other: Pair, tmp_path: Path) -> None:
    """While one process changes a file, another is refused, and reading is possible."""
    path = file_for(tmp_path, kyber)
    with changeable(path):
        with pytest.raises(BlockingIOError, match="another process is changing the file"):
            re_encrypt_file(path, decapsulate=kyber.decapsulate, to=other.recipient)
        assert readers(path.read_bytes(), kyber, other) == {"Kyber768"}
    assert re_encrypt_file(path, decapsulate=kyber.decapsulate, to=other.recipient)


def test_room_for_four(pair_of: Callable[..., Pair], tmp_path: Path) -> None:
    """By default a file has capacity for four of the largest recipients."""
    first, *others = (pair_of("ML-KEM-1024", keyring="k" * 128) for _ in range(5))
    plain, path = tmp_path / "plain", tmp_path / "file.pqk"
    plain.write_bytes(DATA)
    encrypt_file(plain, path, recipients=[first.recipient])
    inodes = [path.stat().st_ino]
    for pair in others:
        re_encrypt_file(path, decapsulate=first.decapsulate, add=[pair.recipient])
        inodes.append(path.stat().st_ino)
    assert len(set(inodes[:4])) == 1
    assert inodes[4] != inodes[0]
    assert len(read_header(BytesIO(path.read_bytes())).recipients) == 5


def test_what_cannot_be_changed(kyber: Pair, other: Pair, tmp_path: Path) -> None:
    """An unknown recipient, the last one, too many or an invalid key leave the file unchanged."""
    path = file_for(tmp_path, kyber)
    before = path.read_bytes()
    own, public = kyber.recipient.fingerprint, kyber.public["public_key"]
    many = [
        Recipient(public_key=os.urandom(2), algorithm="Kyber768", key_version=1)
        for _ in range(MOST_RECIPIENTS)
    ]
    no_key = Recipient(public_key=public[:-1], algorithm="Kyber768", key_version=1)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"remove": [bytes(32)]}, "not in the header"),
        ({"remove": [own]}, "1 to 32 recipients"),
        ({"add": many}, "1 to 32 recipients"),
        ({"add": [no_key]}, "the public key is not one of Kyber768"),
    ]
    for change, why in refused:
        with pytest.raises(ValueError, match=why):
            re_encrypt_file(path, decapsulate=kyber.decapsulate, **change)
    with pytest.raises(DecryptionError):
        re_encrypt_file(path, decapsulate=other.decapsulate, to=other.recipient)
    assert path.read_bytes() == before
    assert not re_encrypt_file(path, decapsulate=kyber.decapsulate, add=[kyber.recipient])


def test_recipients_of_a_new_file(kyber: Pair, other: Pair) -> None:
    """A file has 1 to 32 distinct recipients, and no more capacity."""
    file = encrypt(DATA, recipients=[kyber.recipient, other.recipient, kyber.recipient])
    assert len(read_header(BytesIO(file)).recipients) == 2
    with pytest.raises(ValueError, match="1 to 32 recipients"):
        encrypt(DATA, recipients=[])
    for capacity in (-1, 33):
        with pytest.raises(ValueError, match="capacity must be 0 to 32"):
            encrypt(DATA, recipients=[kyber.recipient], capacity=capacity)
    roomy = encrypt(b"", recipients=[kyber.recipient], capacity=32)
    assert read_header(BytesIO(roomy)).layout.slot_size == 57344
    for keyring in ("", "-x", ".cards", "k" * 129, "a/b", "ü"):
        with pytest.raises(ValueError, match="the keyring's name"):
            Recipient(**kyber.public, keyring=keyring)


def test_the_standard_s_name(kyber: Pair) -> None:
    """ML-KEM-768 is Kyber768: both names mean one recipient, and the header has the API's name."""
    named = Recipient(**{**kyber.public, "algorithm": "ML-KEM-768"})
    assert named == kyber.recipient
    file = encrypt(DATA, recipients=[named, kyber.recipient])
    (found,) = read_header(BytesIO(file)).recipients
    assert found.algorithm == "Kyber768"
    assert decrypt(file, decapsulate=kyber.decapsulate) == DATA


def test_most_recipients(pair_of: Callable[..., Pair]) -> None:
    """32 of the largest recipients fit into a header, and each opens the file."""
    pairs = [pair_of("ML-KEM-1024", keyring="k" * 63 + "ab"[number % 2]) for number in range(32)]
    file = encrypt(b"x", recipients=[pair.recipient for pair in pairs], capacity=32)
    for pair in (pairs[0], pairs[31]):

        def decapsulate(kem_ciphertext: bytes, pair: Pair = pair, **_: Any) -> bytes:
            return pair.private.decapsulate(kem_ciphertext)

        assert decrypt(file, decapsulate=decapsulate) == b"x"


def failures() -> Iterator[tuple[list[type[PqkeepError]], type[PqkeepError]]]:
    """Yield the errors of two recipients, and the resulting error."""
    yield [NotFoundError, NotFoundError], NotFoundError
    yield [PermissionDeniedError, PermissionDeniedError], PermissionDeniedError
    yield [NotFoundError, PermissionDeniedError], DecryptionError
    yield [NotFoundError, DecryptionError], DecryptionError


@pytest.mark.parametrize(("happens", "raised"), list(failures()))
def test_keys_that_nobody_here_has(
    kyber: Pair, other: Pair, happens: list[type[PqkeepError]], raised: type[PqkeepError]
) -> None:
    """Other people's keys are skipped; if there are only those, the error says so."""
    file = encrypt(DATA, recipients=[other.recipient, kyber.recipient])
    assert decrypt(file, decapsulate=kyber.decapsulate) == DATA
    asked = iter(happens)

    def decapsulate(*_: Any, **__: Any) -> bytes:
        raise next(asked)("refused")

    with pytest.raises(raised):
        decrypt(file, decapsulate=decapsulate)
    assert list(asked) == []


def test_what_says_nothing_of_a_key_is_raised_at_once(kyber: Pair, other: Pair) -> None:
    """If the service is not available, the next recipient is not tried."""
    file = encrypt(DATA, recipients=[other.recipient, kyber.recipient])

    def decapsulate(*_: Any, **__: Any) -> bytes:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        decrypt(file, decapsulate=decapsulate)


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_file_that_took_its_place_meanwhile(
    kyber: Pair, other: Pair, tmp_path: Path, capacity: int
) -> None:
    """A file that takes the path during a change is not changed, and no change is reported."""
    path, newer = file_for(tmp_path, kyber, capacity=capacity), tmp_path / "newer"
    encrypt_file(tmp_path / "plain", newer, recipients=[kyber.recipient], capacity=capacity)
    put_there = newer.read_bytes()

    def decapsulate(kem_ciphertext: bytes, **key: Any) -> bytes:
        newer.replace(path)
        return kyber.decapsulate(kem_ciphertext, **key)

    with pytest.raises(BlockingIOError, match="another process is changing the file"):
        re_encrypt_file(path, decapsulate=decapsulate, to=other.recipient)
    assert path.read_bytes() == put_there
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "plain"]


def test_a_link_that_names_another_file_meanwhile(kyber: Pair, other: Pair, tmp_path: Path) -> None:
    """A copy does not replace the new target of a changed link."""
    path, link, victim = (
        file_for(tmp_path, kyber, capacity=0),
        tmp_path / "link",
        tmp_path / "victim",
    )
    link.symlink_to(path)
    victim.write_bytes(DATA)

    def decapsulate(kem_ciphertext: bytes, **key: Any) -> bytes:
        link.unlink()
        link.symlink_to(victim)
        return kyber.decapsulate(kem_ciphertext, **key)

    with pytest.raises(BlockingIOError, match="another process is changing the file"):
        re_encrypt_file(link, decapsulate=decapsulate, to=other.recipient)
    assert victim.read_bytes() == DATA
