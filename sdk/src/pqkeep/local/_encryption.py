"""Encryption with nothing but a public key: no service is asked."""

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from uuid import UUID

from pqkeep.local import _segments
from pqkeep.local._files import FilePath, new_file
from pqkeep.local._header import encapsulate, length_prefixed, new_header
from pqkeep.local._primitives import AESGCM, KEMS, NONCE_SIZE
from pqkeep.local._streams import Reader, Writer, write_all
from pqkeep.models import Ciphertext

LARGEST_PLAINTEXT = 1024 * 1024
"""How much the service opens at once."""


def encrypt(plaintext: bytes, *, public_key: bytes, algorithm: str, key_version: int) -> bytes:
    """Encrypt data that is in memory.

    Raises ValueError where public key, algorithm and key version cannot be those of one key.
    """
    return b"".join(_encrypted(BytesIO(plaintext), public_key, algorithm, key_version))


def encrypt_stream(
    reader: Reader, writer: Writer, *, public_key: bytes, algorithm: str, key_version: int
) -> None:
    """Encrypt everything that a reader has. Neither is closed, nor is the writer flushed.

    Raises what ``encrypt`` does, and OverflowError for more than a pebibyte.
    """
    write_all(writer, _encrypted(reader, public_key, algorithm, key_version))


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
    with Path(source).open("rb") as reader, new_file(target, replace=replace) as writer:
        write_all(writer, _encrypted(reader, public_key, algorithm, key_version))


def encrypt_for_service(
    plaintext: bytes,
    *,
    tenant_id: UUID | str,
    public_key: bytes,
    algorithm: str,
    key_version: int,
) -> Ciphertext:
    """Encrypt at most 1,048,576 bytes as the service does: ``client.kem.decrypt`` opens it.

    It opens for this tenant and this key version only, and neither is in the ciphertext. Raises
    ValueError.
    """
    if len(plaintext) > LARGEST_PLAINTEXT:
        raise ValueError(f"the service decrypts at most {LARGEST_PLAINTEXT} bytes")
    tenant = UUID(str(tenant_id)).bytes
    shared_secret, kem_ciphertext = encapsulate(public_key, algorithm, key_version)
    version = key_version.to_bytes(4, "big")
    info = length_prefixed(b"pqkeep/v1", b"encrypt", algorithm.encode(), tenant, version)
    nonce = os.urandom(NONCE_SIZE)
    sealed = AESGCM(KEMS[algorithm].derive(shared_secret, info)).encrypt(nonce, plaintext, None)
    return Ciphertext(
        ciphertext=kem_ciphertext + nonce + sealed, key_version=key_version, algorithm=algorithm
    )


def _encrypted(
    reader: Reader, public_key: bytes, algorithm: str, key_version: int
) -> Iterator[bytes]:
    header, data_key = new_header(public_key, algorithm, key_version)
    yield header.encoded()
    yield from _segments.encrypted(reader, data_key)
