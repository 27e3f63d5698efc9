"""Local encryption with a client for asyncio. Data is read, processed and written in threads.

Threads never wait for the event loop: requests to the service are made between two threads.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from threading import Event
from typing import TypeVar
from uuid import UUID

from pqkeep._async_transport import AsyncTransport
from pqkeep.compliance import Rules
from pqkeep.errors import PqkeepError
from pqkeep.local._active import (
    allowed,
    as_recipient,
    asked,
    named,
    target_of,
)
from pqkeep.local._encryption import decrypted_segments, encrypt_for_service, encrypted
from pqkeep.local._header import DEFAULT_CAPACITY, SKIPPED, Header, Opened, read_header, refusal
from pqkeep.local._re_encryption import Change, change_file, changed_pieces
from pqkeep.local._recipients import Recipient
from pqkeep.local._streams import FilePath, Reader, Writer, save, write_all
from pqkeep.models import Ciphertext
from pqkeep.new_files import changeable
from pqkeep.resources.kem import Kem
from pqkeep.resources.keys import Keys

T = TypeVar("T")
STOP_SECONDS = 5.0
"""Seconds that a cancelled call waits for its thread, which stops at its next piece. If a reader or
writer blocks for longer, the call no longer waits.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AsyncLocal:
    """Local for asyncio: the same methods, as coroutines.

    Readers and writers are ordinary blocking ones, and are used in threads. If a call is cancelled
    before its file is complete, the file does not appear.
    """

    _kem: Kem[AsyncTransport]
    _keys: Keys[AsyncTransport]
    _rules: Rules

    async def encrypt(
        self,
        plaintext: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        recipients: Collection[Recipient] = (),
        capacity: int = 0,
    ) -> bytes:
        """Encrypt data in memory, to the active key of an algorithm (``Kyber768``).

        ``recipients`` can also decrypt it. ``capacity`` is the largest number of recipients. Raises
        ValueError too.
        """
        to = await self._recipients(algorithm, keyring, recipients)
        return await _in_thread(
            lambda stop: b"".join(stop.before(encrypted(BytesIO(plaintext), to, capacity=capacity)))
        )

    async def encrypt_stream(
        self,
        reader: Reader,
        writer: Writer,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        recipients: Collection[Recipient] = (),
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Encrypt all data of a reader. It does not close reader or writer, or flush the writer."""
        to = await self._recipients(algorithm, keyring, recipients)
        await _in_thread(
            lambda stop: write_all(writer, stop.before(encrypted(reader, to, capacity=capacity)))
        )

    async def encrypt_file(
        self,
        source: FilePath,
        target: FilePath,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        recipients: Collection[Recipient] = (),
        capacity: int = DEFAULT_CAPACITY,
        replace: bool = False,
    ) -> None:
        """Encrypt a file. The new file (mode 0600) appears when it is complete and on disk.

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        to = await self._recipients(algorithm, keyring, recipients)
        with await _in_thread(lambda _: Path(source).open("rb")) as reader:
            await _in_thread(
                lambda stop: save(
                    target, stop.before(encrypted(reader, to, capacity=capacity)), replace=replace
                )
            )

    async def encrypt_for_service(
        self,
        plaintext: bytes,
        *,
        tenant_id: UUID | str,
        algorithm: str | None = None,
        keyring: str | None = None,
        associated_data: bytes = b"",
    ) -> Ciphertext:
        """Encrypt at most 1,048,576 bytes in the service's format, for ``client.kem.decrypt``.

        The tenant is the client's own. Raises ValueError too.
        """
        (to,) = await self._recipients(algorithm, keyring, ())
        return encrypt_for_service(
            plaintext, tenant_id=tenant_id, recipient=to, associated_data=associated_data
        )

    async def decrypt(self, ciphertext: bytes) -> bytes:
        """Decrypt data in memory. Raises DecryptionError if it was changed."""
        reader = BytesIO(ciphertext)
        data_key = await self._data_key(reader)
        return await _in_thread(
            lambda stop: b"".join(stop.before(decrypted_segments(reader, data_key)))
        )

    async def decrypt_stream(self, reader: Reader, writer: Writer) -> None:
        """Decrypt all data of a reader.

        The method does not close reader or writer, or flush the writer.

        Every written byte is authenticated. The output is complete only after this method returns,
        so do not use the output before.
        """
        data_key = await self._data_key(reader)
        await _in_thread(
            lambda stop: write_all(writer, stop.before(decrypted_segments(reader, data_key)))
        )

    async def decrypt_file(
        self, source: FilePath, target: FilePath, *, replace: bool = False
    ) -> None:
        """Decrypt a file. The new file (mode 0600) appears when it is complete and on disk.

        Raises OSError too, and FileExistsError unless ``replace``.
        """
        with await _in_thread(lambda _: Path(source).open("rb")) as reader:
            data_key = await self._data_key(reader)
            await _in_thread(
                lambda stop: save(
                    target, stop.before(decrypted_segments(reader, data_key)), replace=replace
                )
            )

    async def re_encrypt(
        self,
        ciphertext: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        to: Recipient | None = None,
        add: Collection[Recipient] = (),
        remove: Collection[bytes] = (),
        new_file_key: bool = False,
    ) -> bytes:
        """Return the data with other recipients. The arguments are those of ``re_encrypt_file``."""
        writer = BytesIO()
        await self.re_encrypt_stream(
            BytesIO(ciphertext),
            writer,
            algorithm=algorithm,
            keyring=keyring,
            to=to,
            add=add,
            remove=remove,
            new_file_key=new_file_key,
        )
        return writer.getvalue()

    async def re_encrypt_stream(
        self,
        reader: Reader,
        writer: Writer,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        to: Recipient | None = None,
        add: Collection[Recipient] = (),
        remove: Collection[bytes] = (),
        new_file_key: bool = False,
    ) -> None:
        """Copy encrypted data, with other recipients. It does not close or flush anything.

        Without a new file key, the segments are copied unchanged, and are not authenticated.
        """
        header = await _in_thread(lambda _: read_header(reader))
        opened = await self._open(header)
        wanted = await self._change(
            opened,
            algorithm,
            keyring,
            Change(to=to, add=add, remove=remove, new_file_key=new_file_key),
        )
        await _in_thread(
            lambda stop: write_all(
                writer, stop.before(changed_pieces(reader, header, opened, wanted))
            )
        )

    async def re_encrypt_file(
        self,
        path: FilePath,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        to: Recipient | None = None,
        add: Collection[Recipient] = (),
        remove: Collection[bytes] = (),
        new_file_key: bool = False,
    ) -> bool:
        """Change the recipients of a file, in place. Return False if nothing had to change.

        See Local. A cancelled call does not stop it once it writes.
        """
        with ExitStack() as stack:
            file = await _in_thread(lambda _: stack.enter_context(changeable(path)))
            header = await _in_thread(lambda _: read_header(file))
            opened = await self._open(header)
            wanted = await self._change(
                opened,
                algorithm,
                keyring,
                Change(to=to, add=add, remove=remove, new_file_key=new_file_key),
            )
            return await _in_thread(lambda _: change_file(file, header, opened, wanted))

    async def add_recipient(self, path: FilePath, recipient: Recipient) -> bool:
        """Let the owner of another public key decrypt a file. See ``re_encrypt_file``."""
        return await self.re_encrypt_file(path, add=(recipient,))

    async def remove_recipient(self, path: FilePath, fingerprint: bytes) -> bool:
        """Remove a recipient from a file's header. See ``re_encrypt_file``.

        The file key stays the same. A removed recipient may have kept it.
        """
        return await self.re_encrypt_file(path, remove=(fingerprint,))

    async def decapsulate(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        """Recover a shared secret."""
        return await self._kem.decapsulate(
            kem_ciphertext, key_version=key_version, algorithm=algorithm, keyring=asked(keyring)
        )

    async def _recipients(
        self, algorithm: str | None, keyring: str | None, others: Collection[Recipient]
    ) -> tuple[Recipient, ...]:
        chosen = named(self._rules, algorithm)
        key = await self._keys.active(chosen, keyring=keyring)
        return (as_recipient(key, chosen, keyring), *allowed(self._rules, others))

    async def _change(
        self, opened: Opened, algorithm: str | None, keyring: str | None, wanted: Change
    ) -> Change:
        target = target_of(self._rules, opened, algorithm, keyring, wanted)
        if target is None:
            return wanted
        key = await self._keys.active(target.algorithm, keyring=asked(target.keyring))
        return replace(wanted, to=as_recipient(key, *target))

    async def _data_key(self, reader: Reader) -> bytes:
        header = await _in_thread(lambda _: read_header(reader))
        return (await self._open(header)).file_key.data_key()

    async def _open(self, header: Header) -> Opened:
        failures: list[PqkeepError] = []
        for recipient in header.recipients:
            try:
                shared_secret = await self.decapsulate(
                    recipient.kem_ciphertext, **recipient.key_name()
                )
                return Opened(header.open(recipient, shared_secret), recipient)
            except SKIPPED as error:
                failures.append(error)
        raise refusal(failures)


class _StoppedError(Exception):
    """The call was cancelled."""


class _Stop:
    """Stops a thread's work at its next piece, after the call was cancelled."""

    def __init__(self) -> None:
        self._is_due = Event()

    def set(self) -> None:
        self._is_due.set()

    def before(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pieces until the call is cancelled. After the last piece, the work is finished."""
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
    """Read the task's exception: asyncio logs exceptions that are never read."""
    if not running.cancelled():
        running.exception()
