"""The format is as docs/local-format.md says, and other data is refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

from pqkeep import DecryptionError, UnreadableInputError
from pqkeep.local import decrypt, encrypt, read_header
from pqkeep.local._encryption import encrypted_segments, nonce
from pqkeep.local._header import Layout, layout_for, slot_for
from pqkeep.local._recipients import FileKey, WrappedFileKey, wrapped_with

if TYPE_CHECKING:
    from sdk.tests.local.conftest import Pair

DOCUMENT = Path(__file__).parents[3] / "docs" / "local-format.md"
EXAMPLE = re.compile(
    r"^<!-- example: read-local -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
PIECE = 262_144
TAG = 16
SEGMENT = PIECE + TAG
HEADER = 1299
"""Of Kyber768, without spare capacity."""

Reader = Callable[[bytes, Callable[[str, int, str, bytes], bytes | None]], bytes]
sizes = st.one_of(
    st.integers(0, 2000),
    st.builds(
        lambda segments, off: segments * PIECE + off, st.integers(1, 3), st.integers(-17, 17)
    ),
)


def plaintext(size: int) -> bytes:
    """Return the plaintext of the vectors."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.fixture(scope="session")
def documented() -> Reader:
    """The program in the document."""
    found = EXAMPLE.search(DOCUMENT.read_text())
    assert found is not None
    namespace: dict[str, Any] = {}
    exec(compile(found[1], DOCUMENT.name, "exec"), namespace)  # noqa: S102 - it is to be run
    read: Reader = namespace["read"]
    return read


@pytest.fixture(scope="session")
def files(vectors: Any) -> Mapping[str, bytes]:
    """The files of the vectors, as pqkeep writes them."""
    made = {}
    for file in vectors["files"]:
        file_key = FileKey(bytes.fromhex(file["file_key"]))
        wrapped = []
        for algorithm in file["recipients"]:
            key = vectors["keys"][algorithm]
            unfinished = WrappedFileKey(
                algorithm=algorithm,
                key_version=key["key_version"],
                keyring=key["keyring"],
                fingerprint=bytes.fromhex(key["fingerprint"]),
                kem_ciphertext=bytes.fromhex(key["kem_ciphertext"]),
                wrapped=b"",
            )
            wrapped.append(wrapped_with(file_key, unfinished, bytes.fromhex(key["shared_secret"])))
        slots = file["slots"]
        layout = Layout(slots, file["slot_size"]) if slots > 1 else layout_for(wrapped, capacity=0)
        slot = slot_for(file_key, wrapped, layout=layout, sequence=file["sequence"])
        segments = encrypted_segments(BytesIO(plaintext(file["size"])), file_key.data_key())
        made[file["name"]] = slot * slots + b"".join(segments)
    return made


def assembled(parts: list[Any], files: Mapping[str, bytes]) -> bytes:
    """Return the file from the parts in a vector."""
    return b"".join(
        bytes.fromhex(part) if isinstance(part, str) else files[part[0]][part[1] : part[2]]
        for part in parts
    )


@pytest.fixture(scope="session")
def made(kyber: Pair) -> tuple[bytes, bytes]:
    """Two and a half segments: the plaintext and the encrypted data."""
    data = plaintext(2 * PIECE + PIECE // 2)
    return data, encrypt(data, recipients=[kyber.recipient])


def refuses(data: bytes, pair: Pair) -> str:
    """Return the error for data, which must be refused."""
    with pytest.raises((DecryptionError, UnreadableInputError)) as caught:
        decrypt(data, decapsulate=pair.decapsulate)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value.message


def test_what_the_vectors_refuse(
    vectors: Any, files: Mapping[str, bytes], documented: Reader
) -> None:
    """All data that the vectors list as refused is refused, also by the document's program."""
    secrets = {name: bytes.fromhex(key["shared_secret"]) for name, key in vectors["keys"].items()}
    for case in vectors["refused"]:
        data = assembled(case["parts"], files)
        with pytest.raises((DecryptionError, UnreadableInputError)):
            decrypt(data, decapsulate=lambda *_, algorithm, **__: secrets[algorithm])
        with pytest.raises((ValueError, KeyError, IndexError, InvalidTag)):
            documented(data, lambda algorithm, *_: secrets[algorithm])


def test_interrupted_changes(vectors: Any, files: Mapping[str, bytes], documented: Reader) -> None:
    """After an interrupted change, the recipients are the old or the new ones of the vector."""
    secrets = {name: bytes.fromhex(key["shared_secret"]) for name, key in vectors["keys"].items()}
    for case in vectors["interrupted"]:
        data = assembled(case["parts"], files)
        header = read_header(BytesIO(data))
        assert (header.sequence, header.is_settled) == (case["sequence"], False), case["why"]
        opened = decrypt(data, decapsulate=lambda *_, algorithm, **__: secrets[algorithm])
        assert opened == documented(data, lambda algorithm, *_: secrets[algorithm])
        assert opened == plaintext(12)


def test_what_the_vectors_have(vectors: Any, files: Mapping[str, bytes]) -> None:
    """The same encapsulation gives the bytes of another implementation."""
    for file in vectors["files"]:
        data = files[file["name"]]
        assert hashlib.sha256(data).hexdigest() == file["sha256"], file["name"]
        assert data.hex() == file.get("file", data.hex())
        header = read_header(BytesIO(data))
        assert header.sequence == file["sequence"]
        assert header.layout == Layout(file["slots"], file["slot_size"])
        assert [recipient.algorithm for recipient in header.recipients] == file["recipients"]
        for recipient in header.recipients:
            key = vectors["keys"][recipient.algorithm]
            assert recipient.key_name() == {
                "algorithm": recipient.algorithm,
                "key_version": key["key_version"],
                "keyring": key["keyring"],
            }
            file_key = header.open(recipient, bytes.fromhex(key["shared_secret"]))
            assert file_key.value.hex() == file["file_key"]


def test_the_vectors_open(
    vectors: Any, files: Mapping[str, bytes], pair_of: Callable[..., Pair]
) -> None:
    """Each file of the vectors opens with each recipient's private key, and with no other key."""
    for file in vectors["files"]:
        for algorithm, key in vectors["keys"].items():
            pair = pair_of(algorithm, bytes.fromhex(key["private_key"]), keyring=key["keyring"])
            if algorithm in file["recipients"]:
                opened = decrypt(files[file["name"]], decapsulate=pair.decapsulate)
                assert opened == plaintext(file["size"])
            else:
                refuses(files[file["name"]], pair)


def test_the_documented_program_opens_what_is_written(pair: Pair, documented: Reader) -> None:
    """The document's program, without pqkeep's code, opens files of every algorithm."""

    def decapsulate(algorithm: str, key_version: int, keyring: str, kem_ciphertext: bytes) -> bytes:
        return pair.decapsulate(
            kem_ciphertext, key_version=key_version, algorithm=algorithm, keyring=keyring
        )

    for size in (0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE):
        data = plaintext(size)
        assert documented(encrypt(data, recipients=[pair.recipient]), decapsulate) == data


@given(size=sizes)
def test_round_trip(kyber: Pair, size: int) -> None:
    """Data of any size is restored, and the file has the documented size."""
    data = plaintext(size)
    file = encrypt(data, recipients=[kyber.recipient])
    assert len(file) == HEADER + size + TAG * max(1, -(-size // PIECE))
    assert decrypt(file, decapsulate=kyber.decapsulate) == data


def test_every_file_has_a_key_of_its_own(kyber: Pair) -> None:
    """Two encryptions of the same data have only the key's name in common."""
    one, other = (encrypt(bytes(64), recipients=[kyber.recipient]) for _ in range(2))
    assert one[:67] == other[:67]
    assert one[67:] != other[67:]
    assert one[HEADER:] != other[HEADER:]


def test_every_truncation_of_a_short_file(kyber: Pair) -> None:
    """A file that ends too early is refused, and the error says so where possible."""
    file = encrypt(b"hello, world", recipients=[kyber.recipient])
    for end in range(len(file)):
        said = refuses(file[:end], kyber)
        assert ("cut off within its header" in said) == (1 <= end < HEADER)
        assert ("cut off in segment 0" in said) == (HEADER <= end < HEADER + TAG)
        assert ("cut off there" in said) == (end >= HEADER + TAG)


def test_every_byte_of_a_short_file(pair: Pair) -> None:
    """A file with any changed bit is refused."""
    file = encrypt(b"hello, world", recipients=[pair.recipient])
    for at in range(len(file)):
        damaged = bytearray(file)
        damaged[at] ^= 1 << at % 8
        refuses(bytes(damaged), pair)


@given(data=st.data())
def test_every_truncation(made: tuple[bytes, bytes], kyber: Pair, data: st.DataObject) -> None:
    """A file of several segments that ends too early is refused, also between segments."""
    _, file = made
    borders = st.builds(
        lambda count, off: HEADER + count * SEGMENT + off, st.integers(0, 2), st.integers(-17, 17)
    )
    end = data.draw(st.one_of(borders, st.integers(0, len(file) - 1)))
    refuses(file[:end], kyber)


@given(extra=st.binary(min_size=1, max_size=40))
def test_nothing_may_follow(made: tuple[bytes, bytes], kyber: Pair, extra: bytes) -> None:
    """A file with bytes after its end is refused, also after a full last segment."""
    whole = encrypt(plaintext(PIECE), recipients=[kyber.recipient])
    for file in (made[1], whole):
        refuses(file + extra, kyber)


@given(data=st.data())
def test_every_bit(made: tuple[bytes, bytes], kyber: Pair, data: st.DataObject) -> None:
    """A file of several segments with any changed bit is refused."""
    file = bytearray(made[1])
    file[data.draw(st.integers(0, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refuses(bytes(file), kyber)


@given(order=st.lists(st.integers(0, 3), max_size=6).filter(lambda order: order != [0, 1, 2, 3]))
def test_every_other_order(kyber: Pair, order: list[int]) -> None:
    """Swapped, repeated and missing segments are refused."""
    file = encrypt(plaintext(4 * PIECE), recipients=[kyber.recipient])
    segments = [file[at : at + SEGMENT] for at in range(HEADER, len(file), SEGMENT)]
    refuses(file[:HEADER] + b"".join(segments[number] for number in order), kyber)


@given(data=st.data())
def test_every_splice(made: tuple[bytes, bytes], kyber: Pair, data: st.DataObject) -> None:
    """Segments of files for the same key and plaintext cannot be mixed."""
    plain, one = made
    other = encrypt(plain, recipients=[kyber.recipient])
    at = data.draw(
        st.one_of(
            st.sampled_from([67, HEADER - 48, HEADER, HEADER + SEGMENT, HEADER + 2 * SEGMENT]),
            st.integers(68, len(one) - 1),
        )
    )
    spliced = one[:at] + other[at:]
    if spliced not in (one, other):
        refuses(spliced, kyber)


@given(junk=st.binary(max_size=2000))
def test_junk(kyber: Pair, junk: bytes) -> None:
    """Any other input is refused with the documented exception."""
    refuses(junk, kyber)
    refuses(b"pqkeep\x00\x02\x01" + junk, kyber)
    content = b"pqkeep\x00\x02\x01" + (8192).to_bytes(4, "big") + junk + bytes(8131 - len(junk))
    refuses(content + hashlib.sha384(content).digest(), kyber)


def test_the_wrong_key_is_told_from_damage(made: tuple[bytes, bytes], kyber: Pair) -> None:
    """Another key's secret is refused before the first segment; damage is reported as damage."""
    _, file = made
    with pytest.raises(DecryptionError, match="encrypted to another key"):
        decrypt(file, decapsulate=lambda *_, **__: bytes(32))
    damaged = bytearray(file)
    damaged[HEADER + SEGMENT] ^= 1
    assert refuses(bytes(damaged), kyber).startswith("segment 1 is damaged")


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(64)])
def test_a_secret_of_another_length(made: tuple[bytes, bytes], secret: bytes) -> None:
    """A shared secret of the wrong length opens nothing."""
    with pytest.raises(DecryptionError):
        decrypt(made[1], decapsulate=lambda *_, **__: secret)


def test_no_nonce_comes_twice() -> None:
    """All segments have different nonces, also last segments; the highest number is refused."""
    numbers = [*range(1000), 2**32 - 1]
    nonces = {nonce(number, is_last=is_last) for number in numbers for is_last in (False, True)}
    assert len(nonces) == 2 * len(numbers)
    assert {len(nonce) for nonce in nonces} == {12}
    with pytest.raises(OverflowError):
        nonce(2**32, is_last=True)


def test_a_header_shows_no_secret(made: tuple[bytes, bytes], kyber: Pair) -> None:
    """A header's repr names its keys and nothing else."""
    header = read_header(BytesIO(made[1]))
    (recipient,) = header.recipients
    fingerprint = hashlib.sha256(kyber.public["public_key"]).digest()
    assert repr(recipient) == (
        "WrappedFileKey(algorithm='Kyber768', key_version=7, keyring='default', "
        f"fingerprint={fingerprint!r})"
    )
    assert made[1].startswith(header.slot)
    assert "slot=" not in repr(header)
    assert "FileKey()" in repr(
        header.open(recipient, kyber.private.decapsulate(recipient.kem_ciphertext))
    )
