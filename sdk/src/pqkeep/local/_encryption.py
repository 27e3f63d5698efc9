"""Encryption with a public key, and decryption. The data never leaves this machine.

Decryption needs only the shared secret from the service. Data has segments (STREAM construction):

    segment = AES-256-GCM(key, nonce = zero (7) || number (4) || is last (1), 256 KiB or less)

Decryption detects changed, missing, moved, repeated and added segments, and a cut end. Each file
has its own key, so no nonce is used twice. (Hoang, Reyhanitabar, Rogaway, Vizár, "Online
Authenticated-Encryption and its Nonce-Reuse Misuse-Resistance", 2015.)
"""

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from uuid import UUID

from pqkeep.errors import DecryptionError, UnreadableInputError
from pqkeep.local._header import DEFAULT_CAPACITY, Decapsulate, new_header, open_header, read_header
from pqkeep.local._primitives import AESGCM, KEMS, NONCE_SIZE, TAG_SIZE, InvalidTag, encapsulate
from pqkeep.local._recipients import DEFAULT_KEYRING, Recipient, new_file_key
from pqkeep.local._streams import FilePath, Reader, Writer, in_pieces, save, write_all
from pqkeep.models import Ciphertext

SEGMENT_SIZE = 256 * 1024
"""Bytes of plaintext in every segment except the last."""
MOST_SEGMENTS = 1 << 32


def encrypted_segments(reader: Reader, key: bytes) -> Iterator[bytes]:
    """Yield the encrypted segments. Raises OverflowError for more than a pebibyte."""
    aead = AESGCM(key)
    for number, (plaintext, is_last) in enumerate(in_pieces(reader, SEGMENT_SIZE)):
        yield aead.encrypt(nonce(number, is_last=is_last), plaintext, None)


def decrypted_segments(reader: Reader, key: bytes) -> Iterator[bytes]:
    """Yield the plaintext of each segment after its authentication.

    Raises DecryptionError. Raises UnreadableInputError if the last segment is shorter than its tag.
    """
    for plaintext, _ in _opened_segments(reader, key):
        yield plaintext


def re_encrypted_segments(reader: Reader, key: bytes, new_key: bytes) -> Iterator[bytes]:
    """Yield the segments, encrypted with another key. Raises the errors of ``decrypted_segments``."""
    aead = AESGCM(new_key)
    for number, (plaintext, is_last) in enumerate(_opened_segments(reader, key)):
        yield aead.encrypt(nonce(number, is_last=is_last), plaintext, None)


def _opened_segments(reader: Reader, key: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the plaintext of each segment, and whether it is the last."""
    aead = AESGCM(key)
    for number, (segment, is_last) in enumerate(in_pieces(reader, SEGMENT_SIZE + TAG_SIZE)):
        if len(segment) < TAG_SIZE:
            raise UnreadableInputError(
                f"data that pqkeep encrypted locally, and was cut off in segment {number}",
                "get the whole file again",
            )
        try:
            plaintext = aead.decrypt(nonce(number, is_last=is_last), segment, None)
        except InvalidTag:
            raise DecryptionError(
                f"segment {number} is damaged or not in its place, or the data was cut off there"
            ) from None
        if number and not plaintext:
            raise DecryptionError("the data ends with an empty segment")
        yield plaintext, is_last


def nonce(number: int, *, is_last: bool) -> bytes:
    """Return the nonce of a segment (12 bytes)."""
    if number >= MOST_SEGMENTS:
        raise OverflowError("this is more data than one file can hold")
    return bytes(7) + number.to_bytes(4, "big") + bytes((is_last,))


LARGEST_PLAINTEXT = 1024 * 1024
"""The most bytes that the service decrypts in one request."""


def encrypt(plaintext: bytes, *, recipients: Sequence[Recipient], capacity: int = 0) -> bytes:
    """Encrypt data in memory. ``capacity`` is for recipients that are added later.

    Raises ValueError for no recipients, more than 32, or an invalid public key.
    """
    return b"".join(encrypted(BytesIO(plaintext), recipients, capacity=capacity))


def encrypt_stream(
    reader: Reader,
    writer: Writer,
    *,
    recipients: Sequence[Recipient],
    capacity: int = DEFAULT_CAPACITY,
) -> None:
    """Encrypt all data of a reader. It does not close reader or writer, or flush the writer.

    Raises the errors of ``encrypt``, and OverflowError for more than a pebibyte.
    """
    write_all(writer, encrypted(reader, recipients, capacity=capacity))


def encrypt_file(
    source: FilePath,
    target: FilePath,
    *,
    recipients: Sequence[Recipient],
    capacity: int = DEFAULT_CAPACITY,
    replace: bool = False,
) -> None:
    """Encrypt a file. The new file (mode 0600) appears when it is complete and on disk.

    Raises the errors of ``encrypt_stream``, OSError, and FileExistsError unless ``replace``.
    """
    with Path(source).open("rb") as reader:
        save(target, encrypted(reader, recipients, capacity=capacity), replace=replace)


def encrypt_for_service(
    plaintext: bytes,
    *,
    tenant_id: UUID | str,
    recipient: Recipient,
    associated_data: bytes = b"",
) -> Ciphertext:
    """Encrypt at most 1,048,576 bytes in the service's format, for ``client.kem.decrypt``.

    Decryption needs the same tenant, keyring, algorithm, key version and associated data: see
    "Encrypted data" in docs/cryptography.md. Raises ValueError.
    """
    if len(plaintext) > LARGEST_PLAINTEXT:
        raise ValueError(f"the service decrypts at most {LARGEST_PLAINTEXT} bytes")
    keyring = recipient.keyring
    to = encapsulate(
        public_key=recipient.public_key,
        algorithm=recipient.algorithm,
        key_version=recipient.key_version,
    )
    data_key = KEMS[to.algorithm].derive(
        to.shared_secret,
        b"pqkeep/v1",
        b"encrypt",
        to.algorithm.encode(),
        UUID(str(tenant_id)).bytes,
        to.key_version.to_bytes(4, "big"),
        *(() if keyring == DEFAULT_KEYRING else (keyring.encode("ascii"),)),
    )
    nonce = os.urandom(NONCE_SIZE)
    sealed = AESGCM(data_key).encrypt(nonce, plaintext, associated_data)
    return Ciphertext(
        ciphertext=to.kem_ciphertext + nonce + sealed,
        key_version=to.key_version,
        algorithm=to.algorithm,
    )


def encrypted(reader: Reader, recipients: Sequence[Recipient], *, capacity: int) -> Iterator[bytes]:
    """Yield encrypted data piece by piece. Recipients are checked before the first piece is read."""
    file_key = new_file_key()
    header = new_header(file_key, recipients, capacity=capacity)
    return chain((header,), encrypted_segments(reader, file_key.data_key()))


def decrypt(ciphertext: bytes, *, decapsulate: Decapsulate) -> bytes:
    """Decrypt data in memory. Raises DecryptionError, and the errors of ``decapsulate``."""
    return b"".join(_decrypted(BytesIO(ciphertext), decapsulate))


def decrypt_stream(reader: Reader, writer: Writer, *, decapsulate: Decapsulate) -> None:
    """Decrypt all data of a reader. It does not close reader or writer, or flush the writer.

    Every written byte is authenticated. The output is complete only after this function returns, so
    do not use the output before. Raises the errors of ``decrypt``.
    """
    write_all(writer, _decrypted(reader, decapsulate))


def decrypt_file(
    source: FilePath, target: FilePath, *, decapsulate: Decapsulate, replace: bool = False
) -> None:
    """Decrypt a file. The new file (mode 0600) appears when it is complete and on disk.

    Raises the errors of ``decrypt``, OSError, and FileExistsError unless ``replace``.
    """
    with Path(source).open("rb") as reader:
        save(target, _decrypted(reader, decapsulate), replace=replace)


def _decrypted(reader: Reader, decapsulate: Decapsulate) -> Iterator[bytes]:
    file_key = open_header(read_header(reader), decapsulate).file_key
    yield from decrypted_segments(reader, file_key.data_key())
