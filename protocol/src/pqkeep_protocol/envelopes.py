"""The header of an envelope: it names the key of a ciphertext (docs/cryptography.md).

    envelope = "pqk1." || base64url(header || blob), without padding
    header   = algorithm (1) || key version (4) || length of the name (1) || keyring

The key service binds the blob to the header. Reading a header needs no cryptography.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    KEYRING_NAME,
    MAX_KEY_VERSION,
    MAX_KEYRING_NAME,
    KeyringName,
    KeyVersion,
)

PREFIX = "pqk1."
NUMBERS: Mapping[Algorithm, int] = {
    Algorithm.ML_KEM_768: 1,
    Algorithm.X_WING: 2,
    Algorithm.ML_KEM_1024: 3,
    Algorithm.XAES_256_GCM: 4,
}
"""The algorithms' numbers in a header. Those of KEMs are also in the headers of local files."""
MAX_HEADER = 6 + MAX_KEYRING_NAME
"""Bytes of the longest header."""

_ALGORITHMS = {number: algorithm for algorithm, number in NUMBERS.items()}
_FIXED_SIZE = 6
_NAME = re.compile(KEYRING_NAME.encode())


class InvalidHeaderError(Exception):
    """The data does not begin with a header."""


@dataclass(frozen=True, slots=True)
class Header:
    """The key that a ciphertext is for."""

    algorithm: Algorithm
    version: KeyVersion
    keyring: KeyringName = DEFAULT_KEYRING

    def encoded(self) -> bytes:
        """Return the header's bytes: at most MAX_HEADER."""
        name = self.keyring.encode("ascii")
        fixed = bytes((NUMBERS[self.algorithm],)) + self.version.to_bytes(4, "big")
        return fixed + bytes((len(name),)) + name

    def bound(self) -> bytes:
        """Return the bytes that precede the caller's associated data."""
        return PREFIX.encode("ascii") + self.encoded()


def read_header(data: bytes) -> Header:
    """Return the header at the start of the data. A header has one encoding only.

    Raises InvalidHeaderError.
    """
    if len(data) < _FIXED_SIZE:
        raise InvalidHeaderError
    algorithm = _ALGORITHMS.get(data[0])
    version = int.from_bytes(data[1:5], "big")
    name = data[_FIXED_SIZE : _FIXED_SIZE + data[5]]
    is_complete = len(name) == data[5] and _NAME.fullmatch(name) is not None
    if algorithm is None or not 1 <= version <= MAX_KEY_VERSION or not is_complete:
        raise InvalidHeaderError
    return Header(algorithm, KeyVersion(version), name.decode("ascii"))
