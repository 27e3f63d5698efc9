"""What stands before the segments, and the key that comes from it.

    header     = "pqkeep", 00, format version (1) || algorithm (1) || key version (4)
               || KEM ciphertext || commitment (32)
    data key   = HKDF(shared secret, info = "pqkeep/local/v1", "data key", header so far)
    commitment = HKDF(shared secret, info = "pqkeep/local/v1", "commitment", header so far)

Both depend on every byte before the commitment, so a header that was changed gives another key. The
commitment is compared before anything is decrypted. It tells another key from damaged data, and no
file opens under two keys, which AES-GCM alone does not rule out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from pqkeep.local._primitives import KEMS
from pqkeep.local._streams import Reader, read_up_to
from pqkeep.local.errors import DecryptionError

MAGIC = b"pqkeep\x00"
FORMAT_VERSION = 1
COMMITMENT_SIZE = 32
LARGEST_KEY_VERSION = (1 << 32) - 1
NUMBERS: Mapping[str, int] = {"Kyber768": 1, "X-Wing": 2, "ML-KEM-1024": 3}
"""How a header names the algorithms."""
_ALGORITHMS = {number: algorithm for algorithm, number in NUMBERS.items()}
_START = len(MAGIC) + 1
_FIXED = _START + 1 + 4
_PROTOCOL = b"pqkeep/local/v1"


@dataclass(frozen=True, slots=True)
class Header:
    """What can be known of encrypted data without its key. Nothing of it is authenticated yet."""

    algorithm: str
    key_version: int
    kem_ciphertext: bytes = field(repr=False)
    commitment: bytes = field(repr=False)

    def encoded(self) -> bytes:
        """Return the header's bytes."""
        return _context(self.algorithm, self.key_version, self.kem_ciphertext) + self.commitment

    def data_key(self, shared_secret: bytes) -> bytes:
        """Return the key of the segments. Raises DecryptionError unless the header commits to it."""
        data_key, commitment = _derive(
            self.algorithm, self.key_version, self.kem_ciphertext, shared_secret
        )
        if not compare_digest(commitment, self.commitment):
            raise DecryptionError(
                "the key is not the one that this was encrypted to, or the header is damaged"
            )
        return data_key


def read_header(reader: Reader) -> Header:
    """Read the header of encrypted data: which key will open it. Raises DecryptionError."""
    start = read_up_to(reader, _FIXED)
    if start[: len(MAGIC)] != MAGIC:
        raise DecryptionError("this is not data that pqkeep encrypted locally")
    if start[len(MAGIC) : _START] not in (b"", bytes((FORMAT_VERSION,))):
        raise DecryptionError("this was written in a format that this version cannot read")
    if len(start) < _FIXED:
        raise _cut_off()
    algorithm = _ALGORITHMS.get(start[_START])
    key_version = int.from_bytes(start[_START + 1 :], "big")
    if algorithm is None or key_version == 0:
        raise DecryptionError("the header is damaged, or names an algorithm that is not known here")
    size = KEMS[algorithm].ciphertext_size
    rest = read_up_to(reader, size + COMMITMENT_SIZE)
    if len(rest) < size + COMMITMENT_SIZE:
        raise _cut_off()
    return Header(algorithm, key_version, rest[:size], rest[size:])


def new_header(public_key: bytes, algorithm: str, key_version: int) -> tuple[Header, bytes]:
    """Encapsulate to a public key; return the header and the data key. Raises ValueError."""
    shared_secret, kem_ciphertext = encapsulate(public_key, algorithm, key_version)
    return header_for(algorithm, key_version, kem_ciphertext, shared_secret)


def header_for(
    algorithm: str, key_version: int, kem_ciphertext: bytes, shared_secret: bytes
) -> tuple[Header, bytes]:
    """Return the header and the data key that an encapsulation gives. Use none for two files."""
    data_key, commitment = _derive(algorithm, key_version, kem_ciphertext, shared_secret)
    return Header(algorithm, key_version, kem_ciphertext, commitment), data_key


def encapsulate(public_key: bytes, algorithm: str, key_version: int) -> tuple[bytes, bytes]:
    """Return a new shared secret and its KEM ciphertext.

    Raises ValueError where the three cannot be those of one key.
    """
    if algorithm not in KEMS:
        raise ValueError(f"the algorithm must be one of {', '.join(KEMS)}")
    if not 1 <= key_version <= LARGEST_KEY_VERSION:
        raise ValueError(f"the key version must be from 1 to {LARGEST_KEY_VERSION}")
    try:
        return KEMS[algorithm].encapsulate(public_key)
    except ValueError:
        raise ValueError(f"the public key is none of {algorithm}") from None


def _context(algorithm: str, key_version: int, kem_ciphertext: bytes) -> bytes:
    fixed = bytes((FORMAT_VERSION, NUMBERS[algorithm])) + key_version.to_bytes(4, "big")
    return MAGIC + fixed + kem_ciphertext


def _derive(
    algorithm: str, key_version: int, kem_ciphertext: bytes, shared_secret: bytes
) -> tuple[bytes, bytes]:
    kem, context = KEMS[algorithm], _context(algorithm, key_version, kem_ciphertext)
    data_key, commitment = (
        kem.derive(shared_secret, length_prefixed(_PROTOCOL, purpose, context))
        for purpose in (b"data key", b"commitment")
    )
    return data_key, commitment


def length_prefixed(*parts: bytes) -> bytes:
    """Join parts, each behind its length as 2 bytes, big-endian."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def _cut_off() -> DecryptionError:
    return DecryptionError("the data was cut off within its header")
