"""The format: what docs/local-format.md says is what is written, and nothing else is read."""

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

from pqkeep import DecryptionError
from pqkeep.local import Header, decrypt, encrypt, read_header
from pqkeep.local._encryption import encrypted
from pqkeep.local._segments import nonce
from pqkeep.models import Encapsulation

if TYPE_CHECKING:
    from sdk.tests.local.conftest import Pair

DOCUMENT = Path(__file__).parents[3] / "docs" / "local-format.md"
EXAMPLE = re.compile(
    r"^<!-- example: read-local -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
PIECE = 262_144
TAG = 16
SEGMENT = PIECE + TAG
HEADER = 1133
"""Of Kyber768."""

Reader = Callable[[bytes, Callable[[str, int, bytes], bytes]], bytes]
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
        key = vectors["keys"][file["algorithm"]]
        to = Encapsulation(
            kem_ciphertext=bytes.fromhex(key["kem_ciphertext"]),
            shared_secret=bytes.fromhex(key["shared_secret"]),
            key_version=key["key_version"],
            algorithm=file["algorithm"],
        )
        made[file["name"]] = b"".join(encrypted(BytesIO(plaintext(file["size"])), to))
    return made


@pytest.fixture(scope="session")
def made(kyber: Pair) -> tuple[bytes, bytes]:
    """Two and a half segments: what was encrypted, and what came of it."""
    data = plaintext(2 * PIECE + PIECE // 2)
    return data, encrypt(data, **kyber.public)


def refuses(data: bytes, pair: Pair) -> str:
    """Return why data is refused."""
    with pytest.raises(DecryptionError) as caught:
        decrypt(data, decapsulate=pair.decapsulate)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value.message


def test_what_the_vectors_refuse(
    vectors: Any, files: Mapping[str, bytes], documented: Reader
) -> None:
    """Everything that the vectors list as refused is refused, by the document's program too."""
    secret = bytes.fromhex(vectors["keys"]["Kyber768"]["shared_secret"])
    for case in vectors["refused"]:
        data = b"".join(
            bytes.fromhex(part) if isinstance(part, str) else files[part[0]][part[1] : part[2]]
            for part in case["parts"]
        )
        with pytest.raises(DecryptionError):
            decrypt(data, decapsulate=lambda *_, **__: secret)
        with pytest.raises((ValueError, KeyError, IndexError, InvalidTag)):
            documented(data, lambda *_: secret)


def test_what_the_vectors_have(vectors: Any, files: Mapping[str, bytes]) -> None:
    """From the same encapsulation comes every byte that another implementation wrote."""
    for file in vectors["files"]:
        data = files[file["name"]]
        assert hashlib.sha256(data).hexdigest() == file["sha256"], file["name"]
        assert data.hex() == file.get("file", data.hex())
        key = vectors["keys"][file["algorithm"]]
        header = read_header(BytesIO(data))
        assert header == Header(
            algorithm=file["algorithm"],
            key_version=key["key_version"],
            kem_ciphertext=bytes.fromhex(key["kem_ciphertext"]),
            commitment=bytes.fromhex(file["commitment"]),
        )
        assert header.data_key(bytes.fromhex(key["shared_secret"])).hex() == file["data_key"]


def test_the_vectors_open(
    vectors: Any, files: Mapping[str, bytes], pair_of: Callable[..., Pair]
) -> None:
    """Every file of the vectors opens with its private key, in the key service's own code."""
    for file in vectors["files"]:
        seed = bytes.fromhex(vectors["keys"][file["algorithm"]]["private_key"])
        pair = pair_of(file["algorithm"], seed)
        opened = decrypt(files[file["name"]], decapsulate=pair.decapsulate)
        assert opened == plaintext(file["size"])


def test_the_documented_program_opens_what_is_written(pair: Pair, documented: Reader) -> None:
    """The document's program, which shares no code with pqkeep, opens files of every algorithm."""

    def decapsulate(algorithm: str, key_version: int, kem_ciphertext: bytes) -> bytes:
        return pair.decapsulate(kem_ciphertext, key_version=key_version, algorithm=algorithm)

    for size in (0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE):
        data = plaintext(size)
        assert documented(encrypt(data, **pair.public), decapsulate) == data


@given(size=sizes)
def test_round_trip(kyber: Pair, size: int) -> None:
    """What was encrypted comes back, whatever its size, and is as long as documented."""
    data = plaintext(size)
    file = encrypt(data, **kyber.public)
    assert len(file) == HEADER + size + TAG * max(1, -(-size // PIECE))
    assert decrypt(file, decapsulate=kyber.decapsulate) == data


def test_every_file_has_a_key_of_its_own(kyber: Pair) -> None:
    """The same data encrypted twice has nothing in common but what names the key."""
    one, other = (encrypt(bytes(64), **kyber.public) for _ in range(2))
    assert one[:13] == other[:13]
    assert one[13:] != other[13:]
    assert one[HEADER:] != other[HEADER:]


def test_every_truncation_of_a_short_file(kyber: Pair) -> None:
    """A file that ends anywhere before its end is refused, and where that can be seen it is said."""
    file = encrypt(b"hello, world", **kyber.public)
    for end in range(len(file)):
        said = refuses(file[:end], kyber)
        assert ("cut off within its header" in said) == (7 <= end < HEADER)
        assert ("cut off there" in said) == (end >= HEADER)


def test_every_byte_of_a_short_file(pair: Pair) -> None:
    """A file in which any one bit was changed is refused."""
    file = encrypt(b"hello, world", **pair.public)
    for at in range(len(file)):
        damaged = bytearray(file)
        damaged[at] ^= 1 << at % 8
        refuses(bytes(damaged), pair)


@given(data=st.data())
def test_every_truncation(made: tuple[bytes, bytes], kyber: Pair, data: st.DataObject) -> None:
    """A file of several segments is refused wherever it ends, at a segment's border too."""
    _, file = made
    borders = st.builds(
        lambda count, off: HEADER + count * SEGMENT + off, st.integers(0, 2), st.integers(-17, 17)
    )
    end = data.draw(st.one_of(borders, st.integers(0, len(file) - 1)))
    refuses(file[:end], kyber)


@given(extra=st.binary(min_size=1, max_size=40))
def test_nothing_may_follow(made: tuple[bytes, bytes], kyber: Pair, extra: bytes) -> None:
    """A file with anything after its end is refused, after a whole last segment too."""
    whole = encrypt(plaintext(PIECE), **kyber.public)
    for file in (made[1], whole):
        refuses(file + extra, kyber)


@given(data=st.data())
def test_every_bit(made: tuple[bytes, bytes], kyber: Pair, data: st.DataObject) -> None:
    """A file of several segments in which one bit was changed is refused."""
    file = bytearray(made[1])
    file[data.draw(st.integers(0, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refuses(bytes(file), kyber)


@given(order=st.lists(st.integers(0, 3), max_size=6).filter(lambda order: order != [0, 1, 2, 3]))
def test_every_other_order(kyber: Pair, order: list[int]) -> None:
    """Whole segments that were swapped, repeated or left out are refused."""
    file = encrypt(plaintext(4 * PIECE), **kyber.public)
    segments = [file[at : at + SEGMENT] for at in range(HEADER, len(file), SEGMENT)]
    refuses(file[:HEADER] + b"".join(segments[number] for number in order), kyber)


@given(data=st.data())
def test_every_splice(made: tuple[bytes, bytes], kyber: Pair, data: st.DataObject) -> None:
    """Files for the same key, of the same plaintext, cannot be put together."""
    plain, one = made
    other = encrypt(plain, **kyber.public)
    at = data.draw(
        st.one_of(
            st.sampled_from([13, HEADER - 32, HEADER, HEADER + SEGMENT, HEADER + 2 * SEGMENT]),
            st.integers(14, len(one) - 1),
        )
    )
    spliced = one[:at] + other[at:]
    if spliced not in (one, other):
        refuses(spliced, kyber)


@given(junk=st.binary(max_size=2000))
def test_junk(kyber: Pair, junk: bytes) -> None:
    """Whatever else is handed in is refused with the documented exception, and no other."""
    refuses(junk, kyber)
    refuses(b"pqkeep\x00\x01\x01" + junk, kyber)


def test_the_wrong_key_is_told_from_damage(made: tuple[bytes, bytes], kyber: Pair) -> None:
    """Another key's secret is recognized before a segment is tried, and damage is called damage."""
    _, file = made
    with pytest.raises(DecryptionError, match="encrypted to another key"):
        decrypt(file, decapsulate=lambda *_, **__: bytes(32))
    damaged = bytearray(file)
    damaged[HEADER + SEGMENT] ^= 1
    assert refuses(bytes(damaged), kyber).startswith("segment 1 is damaged")


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(64)])
def test_a_secret_of_another_length(made: tuple[bytes, bytes], secret: bytes) -> None:
    """What is no shared secret opens nothing."""
    with pytest.raises(DecryptionError):
        decrypt(made[1], decapsulate=lambda *_, **__: secret)


def test_no_nonce_comes_twice() -> None:
    """Segments have different nonces, as last ones and as others, and there is a last number."""
    numbers = [*range(1000), 2**32 - 1]
    nonces = {nonce(number, is_last=is_last) for number in numbers for is_last in (False, True)}
    assert len(nonces) == 2 * len(numbers)
    assert {len(each) for each in nonces} == {12}
    with pytest.raises(OverflowError):
        nonce(2**32, is_last=True)


def test_a_header_shows_no_secret(made: tuple[bytes, bytes]) -> None:
    """A header says which key it is for, and its repr holds nothing else."""
    header = read_header(BytesIO(made[1]))
    assert repr(header) == "Header(algorithm='Kyber768', key_version=7)"
    assert made[1].startswith(header.encoded())
