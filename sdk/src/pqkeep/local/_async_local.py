"""Local encryption with a client for asyncio: the data is read, worked on and written in threads.

No thread waits for the event loop, which needs threads of its own: what the service is asked lies
between two of them.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import TypeVar
from uuid import UUID

from pqkeep._async_transport import AsyncTransport
from pqkeep.compliance import Rules
from pqkeep.local._active import encapsulated_to, named
from pqkeep.local._encryption import encrypted, encrypted_for_service
from pqkeep.local._files import FilePath, save
from pqkeep.local._header import read_header
from pqkeep.local._segments import decrypted_segments
from pqkeep.local._streams import Reader, Writer, write_all
from pqkeep.models import Ciphertext, Encapsulation
from pqkeep.resources.kem import Kem
from pqkeep.resources.keys import Keys

T = TypeVar("T")
STOP_SECONDS = 5.0
"""How long a cancelled call waits for its thread, which stops at its next piece. A reader or writer
that blocks for longer is left to itself."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AsyncLocal:
    """Local for asyncio: the same methods, to be awaited.

    Readers and writers are ordinary ones, and are used in threads. A file is not there if the call
    that makes it was cancelled before it was whole.
    """

    _kem: Kem[AsyncTransport]
    _keys: Keys[AsyncTransport]
    _rules: Rules

    async def encrypt(self, plaintext: bytes, *, algorithm: str | None = None) -> bytes:
        """Encrypt data that is in memory, to the active key of an algorithm (``Kyber768``)."""
        to = await self._encapsulate(algorithm)
        return await _in_thread(
            lambda stop: b"".join(stop.before(encrypted(BytesIO(plaintext), to)))
        )

    async def encrypt_stream(
        self, reader: Reader, writer: Writer, *, algorithm: str | None = None
    ) -> None:
        """Encrypt everything that a reader has. Neither is closed, nor is the writer flushed."""
        to = await self._encapsulate(algorithm)
        await _in_thread(lambda stop: write_all(writer, stop.before(encrypted(reader, to))))

    async def encrypt_file(
        self,
        source: FilePath,
        target: FilePath,
        *,
        algorithm: str | None = None,
        replace: bool = False,
    ) -> None:
        """Encrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        to = await self._encapsulate(algorithm)
        with await _in_thread(lambda _: Path(source).open("rb")) as reader:
            await _in_thread(
                lambda stop: save(target, stop.before(encrypted(reader, to)), replace=replace)
            )

    async def encrypt_for_service(
        self, plaintext: bytes, *, tenant_id: UUID | str, algorithm: str | None = None
    ) -> Ciphertext:
        """Encrypt at most 1,048,576 bytes as the service does, for ``client.kem.decrypt``.

        The tenant is the client's own. Raises ValueError too.
        """
        return encrypted_for_service(plaintext, tenant_id, await self._encapsulate(algorithm))

    async def decrypt(self, ciphertext: bytes) -> bytes:
        """Decrypt data that is in memory. Raises DecryptionError if it is not what was encrypted."""
        reader = BytesIO(ciphertext)
        data_key = await self._data_key(reader)
        return await _in_thread(
            lambda stop: b"".join(stop.before(decrypted_segments(reader, data_key)))
        )

    async def decrypt_stream(self, reader: Reader, writer: Writer) -> None:
        """Decrypt everything that a reader has. Neither is closed, nor is the writer flushed.

        What is written was authenticated, and is how the data begins. That it is all of it is known
        when this returns, and not before: a writer must not act on what it got.
        """
        data_key = await self._data_key(reader)
        await _in_thread(
            lambda stop: write_all(writer, stop.before(decrypted_segments(reader, data_key)))
        )

    async def decrypt_file(
        self, source: FilePath, target: FilePath, *, replace: bool = False
    ) -> None:
        """Decrypt a file into a new one, which is there when it is whole and on disk (mode 0600).

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        with await _in_thread(lambda _: Path(source).open("rb")) as reader:
            data_key = await self._data_key(reader)
            await _in_thread(
                lambda stop: save(
                    target, stop.before(decrypted_segments(reader, data_key)), replace=replace
                )
            )

    async def _encapsulate(self, algorithm: str | None) -> Encapsulation:
        chosen = named(self._rules, algorithm)
        return encapsulated_to(await self._keys.active(chosen), chosen)

    async def _data_key(self, reader: Reader) -> bytes:
        header = await _in_thread(lambda _: read_header(reader))
        shared_secret = await self._kem.decapsulate(
            header.kem_ciphertext, key_version=header.key_version, algorithm=header.algorithm
        )
        return header.data_key(shared_secret)


class _StoppedError(Exception):
    """Nobody waits any more."""


class _Stop:
    """Ends a thread's work at its next piece, once nobody waits for it."""

    def __init__(self) -> None:
        self._is_due = Event()

    def set(self) -> None:
        self._is_due.set()

    def before(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces for as long as somebody waits. What has its last one is finished."""
        for piece in pieces:
            if self._is_due.is_set():
                raise _StoppedError
            yield piece


async def _in_thread(work: Callable[[_Stop], T]) -> T:
    stop = _Stop()
    running = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        running.add_done_callback(_take_note)
        await asyncio.wait({running}, timeout=STOP_SECONDS)
        raise


def _take_note(running: asyncio.Task[T]) -> None:
    """Look at how it ended, which asyncio would otherwise complain about."""
    if not running.cancelled():
        running.exception()
