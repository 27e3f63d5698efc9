"""Decryption: whoever has the private key, such as the service, decapsulates; the rest is here."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Protocol

from pqkeep.errors import InvalidRequestError
from pqkeep.local import _segments
from pqkeep.local._files import FilePath, new_file
from pqkeep.local._header import read_header
from pqkeep.local._streams import Reader, Writer, write_all
from pqkeep.local.errors import DecryptionError


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

    What is written has been authenticated, and is a beginning of what was encrypted. That it is all
    of it is known only when this returns: act on nothing before. Raises DecryptionError, and what
    ``decapsulate`` does.
    """
    write_all(writer, _decrypted(reader, decapsulate))


def decrypt_file(
    source: FilePath, target: FilePath, *, decapsulate: Decapsulate, replace: bool = False
) -> None:
    """Decrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

    Raises what ``decrypt_stream`` does, OSError, and FileExistsError unless ``replace``.
    """
    with Path(source).open("rb") as reader, new_file(target, replace=replace) as writer:
        write_all(writer, _decrypted(reader, decapsulate))


@contextmanager
def refusal_is_damage() -> Iterator[None]:
    """Say of a KEM ciphertext that is refused that it is damaged: X-Wing refuses some."""
    try:
        yield
    except InvalidRequestError as error:
        if error.error_code != "ERR_KEM_002":
            raise
    else:
        return
    raise DecryptionError("the header is damaged: its KEM ciphertext is refused")


def _decrypted(reader: Reader, decapsulate: Decapsulate) -> Iterator[bytes]:
    header = read_header(reader)
    with refusal_is_damage():
        shared_secret = decapsulate(
            header.kem_ciphertext, key_version=header.key_version, algorithm=header.algorithm
        )
    yield from _segments.decrypted(reader, header.data_key(shared_secret))
