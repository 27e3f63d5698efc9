"""Encryption with nothing but a public key: no service is asked."""

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from uuid import UUID

from pqkeep.local._encapsulation import encapsulate
from pqkeep.local._files import FilePath, save
from pqkeep.local._header import header_for
from pqkeep.local._primitives import AESGCM, KEMS, NONCE_SIZE
from pqkeep.local._segments import encrypted_segments
from pqkeep.local._streams import Reader, Writer, write_all
from pqkeep.models import Ciphertext, Encapsulation

LARGEST_PLAINTEXT = 1024 * 1024
"""How much the service decrypts at once."""


def encrypt(plaintext: bytes, *, public_key: bytes, algorithm: str, key_version: int) -> bytes:
    """Encrypt data that is in memory.

    Raises ValueError where public key, algorithm and key version cannot be those of one key.
    """
    to = encapsulate(public_key=public_key, algorithm=algorithm, key_version=key_version)
    return b"".join(encrypted(BytesIO(plaintext), to))


def encrypt_stream(
    reader: Reader, writer: Writer, *, public_key: bytes, algorithm: str, key_version: int
) -> None:
    """Encrypt everything that a reader has. Neither is closed, nor is the writer flushed.

    Raises what ``encrypt`` does, and OverflowError for more than a pebibyte.
    """
    to = encapsulate(public_key=public_key, algorithm=algorithm, key_version=key_version)
    write_all(writer, encrypted(reader, to))


def encrypt_file(
    source: FilePath,
    target: FilePath,
    *,
    public_key: bytes,
    algorithm: str,
    key_version: int,
    replace: bool = False,
) -> None:
    """Encrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

    Raises what ``encrypt_stream`` does, OSError, and FileExistsError unless ``replace``.
    """
    to = encapsulate(public_key=public_key, algorithm=algorithm, key_version=key_version)
    with Path(source).open("rb") as reader:
        save(target, encrypted(reader, to), replace=replace)


def encrypt_for_service(
    plaintext: bytes,
    *,
    tenant_id: UUID | str,
    public_key: bytes,
    algorithm: str,
    key_version: int,
) -> Ciphertext:
    """Encrypt at most 1,048,576 bytes as the service does, for ``client.kem.decrypt``.

    It opens for this tenant, algorithm and key version only. Raises ValueError.
    """
    to = encapsulate(public_key=public_key, algorithm=algorithm, key_version=key_version)
    return encrypted_for_service(plaintext, tenant_id, to)


def encrypted(reader: Reader, to: Encapsulation) -> Iterator[bytes]:
    """Yield encrypted data piece by piece. Use an encapsulation once."""
    header, data_key = header_for(to)
    yield header.encoded()
    yield from encrypted_segments(reader, data_key)


def encrypted_for_service(plaintext: bytes, tenant_id: UUID | str, to: Encapsulation) -> Ciphertext:
    """Return what the service makes of an encapsulation: see "Encrypted data" in cryptography.md."""
    if len(plaintext) > LARGEST_PLAINTEXT:
        raise ValueError(f"the service decrypts at most {LARGEST_PLAINTEXT} bytes")
    data_key = KEMS[to.algorithm].derive(
        to.shared_secret,
        b"pqkeep/v1",
        b"encrypt",
        to.algorithm.encode(),
        UUID(str(tenant_id)).bytes,
        to.key_version.to_bytes(4, "big"),
    )
    nonce = os.urandom(NONCE_SIZE)
    return Ciphertext(
        ciphertext=to.kem_ciphertext + nonce + AESGCM(data_key).encrypt(nonce, plaintext, None),
        key_version=to.key_version,
        algorithm=to.algorithm,
    )
