"""Encryption with nothing but a public key: no service is asked."""

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from uuid import UUID

from pqkeep.local._encapsulation import encapsulate
from pqkeep.local._file_key import new_file_key
from pqkeep.local._files import FilePath, save
from pqkeep.local._header import DEFAULT_ROOM, new_header
from pqkeep.local._primitives import AESGCM, KEMS, NONCE_SIZE
from pqkeep.local._recipients import DEFAULT_KEYRING, Recipient
from pqkeep.local._segments import encrypted_segments
from pqkeep.local._streams import Reader, Writer, write_all
from pqkeep.models import Ciphertext

LARGEST_PLAINTEXT = 1024 * 1024
"""How much the service decrypts at once."""


def encrypt(plaintext: bytes, *, recipients: Sequence[Recipient], room: int = 0) -> bytes:
    """Encrypt data that is in memory. There is no room for more recipients, unless ``room``.

    Raises ValueError for no recipients, more than 32, or an invalid public key.
    """
    return b"".join(encrypted(BytesIO(plaintext), recipients, room=room))


def encrypt_stream(
    reader: Reader,
    writer: Writer,
    *,
    recipients: Sequence[Recipient],
    room: int = DEFAULT_ROOM,
) -> None:
    """Encrypt everything that a reader has. Neither is closed, nor is the writer flushed.

    Raises what ``encrypt`` does, and OverflowError for more than a pebibyte.
    """
    write_all(writer, encrypted(reader, recipients, room=room))


def encrypt_file(
    source: FilePath,
    target: FilePath,
    *,
    recipients: Sequence[Recipient],
    room: int = DEFAULT_ROOM,
    replace: bool = False,
) -> None:
    """Encrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

    Raises what ``encrypt_stream`` does, OSError, and FileExistsError unless ``replace``.
    """
    with Path(source).open("rb") as reader:
        save(target, encrypted(reader, recipients, room=room), replace=replace)


def encrypt_for_service(
    plaintext: bytes,
    *,
    tenant_id: UUID | str,
    recipient: Recipient,
    associated_data: bytes = b"",
) -> Ciphertext:
    """Encrypt at most 1,048,576 bytes as the service does, for ``client.kem.decrypt``.

    It opens for this tenant, keyring, algorithm and key version only, and with the same associated
    data: see "Encrypted data" in docs/cryptography.md. Raises ValueError.
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


def encrypted(reader: Reader, recipients: Sequence[Recipient], *, room: int) -> Iterator[bytes]:
    """Yield encrypted data piece by piece. Recipients are checked before the first is asked for."""
    file_key = new_file_key()
    header = new_header(file_key, recipients, room=room)
    return chain((header,), encrypted_segments(reader, file_key.data_key()))
