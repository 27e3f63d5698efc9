"""Segments of data under AES-256-GCM, in the STREAM construction.

    segment = AES-256-GCM(key, nonce = zero (7) || number (4) || is last (1), 256 KiB or less)

So none can be changed, left out, moved or repeated, and nothing can be cut off or added. The key is
one file's only: no nonce comes twice. (Hoang, Reyhanitabar, Rogaway, Vizár, "Online
Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", 2015.)
"""

from collections.abc import Iterator

from pqkeep.errors import DecryptionError
from pqkeep.local._primitives import AESGCM, TAG_SIZE, InvalidTag
from pqkeep.local._streams import Reader, in_pieces

SEGMENT_SIZE = 256 * 1024
"""Bytes of plaintext in every segment but the last."""
MOST_SEGMENTS = 1 << 32


def encrypted_segments(reader: Reader, key: bytes) -> Iterator[bytes]:
    """Yield the segments. Raises OverflowError beyond a pebibyte."""
    aead = AESGCM(key)
    for number, (plaintext, is_last) in enumerate(in_pieces(reader, SEGMENT_SIZE)):
        yield aead.encrypt(nonce(number, is_last=is_last), plaintext, None)


def decrypted_segments(reader: Reader, key: bytes) -> Iterator[bytes]:
    """Yield what is in the segments, each after it was authenticated. Raises DecryptionError."""
    aead = AESGCM(key)
    for number, (segment, is_last) in enumerate(in_pieces(reader, SEGMENT_SIZE + TAG_SIZE)):
        try:
            plaintext = aead.decrypt(nonce(number, is_last=is_last), segment, None)
        except InvalidTag:
            raise DecryptionError(
                f"segment {number} is damaged or not in its place, or the data was cut off there"
            ) from None
        if number and not plaintext:
            raise DecryptionError("the data ends with a segment that has nothing in it")
        yield plaintext


def nonce(number: int, *, is_last: bool) -> bytes:
    """Return the nonce of a segment (12 bytes)."""
    if number >= MOST_SEGMENTS:
        raise OverflowError("this is more data than one file can hold")
    return bytes(7) + number.to_bytes(4, "big") + bytes((is_last,))
