"""What stands before the segments, and the key that comes from it.

    header     = "pqkeep", 00, format (1) || algorithm (1) || key version (4)
               || KEM ciphertext || commitment (32)
    data key   = HKDF(shared secret, info = "pqkeep/local/v1", "data key", header so far)
    commitment = HKDF(shared secret, info = "pqkeep/local/v1", "commitment", header so far)

Both depend on every byte before the commitment, so a header that was changed gives another key. The
commitment is compared before anything is decrypted: it tells another key from damaged data, and
lets no file open under two keys, which AES-GCM alone does not rule out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from pqkeep.errors import DecryptionError
from pqkeep.local._primitives import KEMS
from pqkeep.local._streams import Reader, read_up_to
from pqkeep.models import Encapsulation

MAGIC = b"pqkeep\x00"
FORMAT = 1
COMMITMENT_SIZE = 32
NUMBERS: Mapping[str, int] = {"Kyber768": 1, "X-Wing": 2, "ML-KEM-1024": 3}
"""How a header names the algorithms."""
_ALGORITHMS = {number: algorithm for algorithm, number in NUMBERS.items()}
_ALGORITHM_AT = len(MAGIC) + 1
_FIXED_SIZE = _ALGORITHM_AT + 1 + 4
_PROTOCOL = b"pqkeep/local/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What can be known of encrypted data without its key. Nothing of it is authenticated."""

    algorithm: str
    key_version: int
    kem_ciphertext: bytes = field(repr=False)
    commitment: bytes = field(repr=False)

    def encoded(self) -> bytes:
        """Return its bytes."""
        return _bound(self.algorithm, self.key_version, self.kem_ciphertext) + self.commitment

    def data_key(self, shared_secret: bytes) -> bytes:
        """Return the key of the segments. Raises DecryptionError unless the header commits to it."""
        expected, data_key = header_for(
            Encapsulation(
                kem_ciphertext=self.kem_ciphertext,
                shared_secret=shared_secret,
                key_version=self.key_version,
                algorithm=self.algorithm,
            )
        )
        if not compare_digest(expected.commitment, self.commitment):
            raise DecryptionError(
                "this was encrypted to another key than the one that was used, "
                "or its header is damaged"
            )
        return data_key


def read_header(reader: Reader) -> Header:
    """Read the header of encrypted data, which says what key opens it. Raises DecryptionError."""
    start = read_up_to(reader, _FIXED_SIZE)
    if start[: len(MAGIC)] != MAGIC:
        raise DecryptionError("this is not data that pqkeep encrypted locally")
    if len(start) < _FIXED_SIZE:
        raise DecryptionError("the data was cut off within its header")
    if start[len(MAGIC)] != FORMAT:
        raise DecryptionError("this version of pqkeep does not know the format")
    algorithm = _ALGORITHMS.get(start[_ALGORITHM_AT])
    if algorithm is None:
        raise DecryptionError("the header is damaged: there is no such algorithm")
    size = KEMS[algorithm].ciphertext_size
    rest = read_up_to(reader, size + COMMITMENT_SIZE)
    if len(rest) < size + COMMITMENT_SIZE:
        raise DecryptionError("the data was cut off within its header")
    return Header(
        algorithm=algorithm,
        key_version=int.from_bytes(start[_ALGORITHM_AT + 1 :], "big"),
        kem_ciphertext=rest[:size],
        commitment=rest[size:],
    )


def header_for(encapsulation: Encapsulation) -> tuple[Header, bytes]:
    """Return header and data key, of one file only: its segments' nonces begin at 0."""
    kem = KEMS[encapsulation.algorithm]
    bound = _bound(encapsulation.algorithm, encapsulation.key_version, encapsulation.kem_ciphertext)
    header = Header(
        algorithm=encapsulation.algorithm,
        key_version=encapsulation.key_version,
        kem_ciphertext=encapsulation.kem_ciphertext,
        commitment=kem.derive(encapsulation.shared_secret, _PROTOCOL, b"commitment", bound),
    )
    return header, kem.derive(encapsulation.shared_secret, _PROTOCOL, b"data key", bound)


def _bound(algorithm: str, key_version: int, kem_ciphertext: bytes) -> bytes:
    """Return everything before the commitment."""
    numbers = bytes((FORMAT, NUMBERS[algorithm])) + key_version.to_bytes(4, "big")
    return MAGIC + numbers + kem_ciphertext
