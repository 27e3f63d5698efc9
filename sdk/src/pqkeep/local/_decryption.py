"""Decryption: whoever has the private key decapsulates, as the service does; the rest is here."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from pqkeep.local._files import FilePath, save
from pqkeep.local._header import read_header
from pqkeep.local._opening import Decapsulate, open_header
from pqkeep.local._segments import decrypted_segments
from pqkeep.local._streams import Reader, Writer, write_all


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
    file_key = open_header(read_header(reader), decapsulate).file_key
    yield from decrypted_segments(reader, file_key.data_key())
