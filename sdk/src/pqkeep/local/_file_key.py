"""The key of one file: random, wrapped to each recipient, and the same for as long as the file is.

    data key   = HKDF-SHA-384(file key, info = "pqkeep/local/v2", "data key")
    header MAC = HKDF-SHA-384(file key, info = "pqkeep/local/v2", "header", SHA-384(header), 48)

The MAC is a PRF's output over a hash, both of which two different keys or headers cannot share. So
it commits to the file key, which AES-GCM alone does not: no file opens to two plaintexts.
"""

import os
from dataclasses import dataclass, field
from hashlib import sha384
from hmac import compare_digest

from pqkeep.local._primitives import FILE_HASH, KEY_SIZE, derive

PROTOCOL = b"pqkeep/local/v2"
MAC_SIZE = 48


@dataclass(frozen=True, slots=True)
class FileKey:
    """32 bytes that nobody has but the file's recipients."""

    value: bytes = field(repr=False)

    def data_key(self) -> bytes:
        """Return the key of the segments (32 bytes)."""
        return derive(FILE_HASH, self.value, PROTOCOL, b"data key")

    def mac(self, header: bytes) -> bytes:
        """Authenticate everything in a header slot before the MAC (48 bytes)."""
        digest = sha384(header).digest()
        return derive(FILE_HASH, self.value, PROTOCOL, b"header", digest, length=MAC_SIZE)

    def has_authenticated(self, header: bytes, mac: bytes) -> bool:
        """Compare in constant time."""
        return compare_digest(self.mac(header), mac)


def new_file_key() -> FileKey:
    """Make the key of one file only: its segments' nonces begin at 0."""
    return FileKey(os.urandom(KEY_SIZE))
