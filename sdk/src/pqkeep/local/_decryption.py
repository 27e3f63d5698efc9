"""Decryption: whoever has the private key decapsulates, as the service does; the rest is here."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Protocol

from pqkeep.local._files import FilePath, save
from pqkeep.local._header import read_header
from pqkeep.local._segments import decrypted_segments
from pqkeep.local._streams import Reader, Writer, write_all


class Decapsulate(Protocol):
    """Recovers a shared secret, as ``client.kem.decapsulate`` does."""

    def __call__(self, kem_ciphertext: bytes, *, key_version: int, algorithm: str) -> bytes:
        """Return the shared secret (32 bytes)."""
        ...


def decrypt(ciphertext: bytes, *, decapsulate: Decapsulate) -> bytes:
    """Decrypt data that is in memory. Raises DecryptionError, and what ``decapsulate`` does."""
    return b"".join(_decrypted(BytesIO(ciphertext), decapsulate))


def decrypt_stream(reader: Reader, writer: Writer, *, decapsulate: Decapsulate) -> None:
    """Decrypt everything that a reader has. Neither is closed, nor is the writer flushed.

    What is written was authenticated, and is how the data begins. That it is all of it is known
    when this returns, and not before: a writer must not act on what it got. Raises what
    ``decrypt`` does.
    """
    write_all(writer, _decrypted(reader, decapsulate))


def decrypt_file(
    source: FilePath, target: FilePath, *, decapsulate: Decapsulate, replace: bool = False
) -> None:
    """Decrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

    Raises what ``decrypt`` does, OSError, and FileExistsError unless ``replace``.
    """
    with Path(source).open("rb") as reader:
        save(target, _decrypted(reader, decapsulate), replace=replace)


def _decrypted(reader: Reader, decapsulate: Decapsulate) -> Iterator[bytes]:
    header = read_header(reader)
    shared_secret = decapsulate(
        header.kem_ciphertext, key_version=header.key_version, algorithm=header.algorithm
    )
    yield from decrypted_segments(reader, header.data_key(shared_secret))
