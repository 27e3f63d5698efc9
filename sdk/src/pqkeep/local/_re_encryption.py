"""Re-encryption: the file key is wrapped for other recipients, and the data stays unchanged.

Earlier recipients may have kept the file key. So this moves data to new keys of the same people. It
does not take access away. It does not help against a broken KEM either: an attacker with an older
copy of the header knows the file key. With a new file key, the data is encrypted again.

The header is replaced in place. The segments stay in place, whatever their size. One slot is written
and synchronized, then the other. So one slot is always whole, with the old or the new header. The
slot in use is written last. Like a database, this relies on the disk: an interrupted write changes
no other bytes.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO, FileIO
from itertools import chain

from pqkeep.local._encryption import re_encrypted_segments
from pqkeep.local._header import (
    DEFAULT_CAPACITY,
    Decapsulate,
    Header,
    Opened,
    changed_recipients,
    layout_for,
    open_header,
    read_header,
    slot_for,
)
from pqkeep.local._recipients import FileKey, Recipient, WrappedFileKey
from pqkeep.local._recipients import new_file_key as make_file_key
from pqkeep.local._streams import FilePath, Reader, Writer, read_up_to, write_all
from pqkeep.new_files import changeable, replacement, require_in_place

PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to the recipients of a file."""

    to: Recipient | None = None
    """Replaces the recipient that opened the file."""
    add: Collection[Recipient] = ()
    remove: Collection[bytes] = ()
    """The fingerprints of the recipients to remove."""
    new_file_key: bool = False
    """True encrypts the data again, with a new file key."""

    def applied(self, header: Header, opened: Opened) -> tuple[WrappedFileKey, ...]:
        """Return the new recipients. Raises the ValueError of ``changed_recipients``."""
        add, remove = [*self.add], {*self.remove}
        if self.to is not None:
            add.append(self.to)
        if self.to is not None and self.to.identity != opened.recipient.identity:
            remove.add(opened.recipient.fingerprint)
        return changed_recipients(header.recipients, opened.file_key, add=add, remove=remove)

    def applied_to(
        self, header: Header, opened: Opened, file_key: FileKey
    ) -> tuple[WrappedFileKey, ...]:
        """Return the recipients of a new file key.

        Raises ValueError for a recipient that stays and has no known public key.
        """
        known = [*self.add] if self.to is None else [self.to, *self.add]
        identities = {recipient.identity for recipient in known}
        remove = {*self.remove} if self.to is None else {*self.remove, opened.recipient.fingerprint}
        for recipient in header.recipients:
            if recipient.fingerprint not in remove and recipient.identity not in identities:
                raise ValueError(
                    "a new file key needs the public key of each recipient: add the one with the "
                    f"fingerprint {recipient.fingerprint.hex()}, or remove it"
                )
        if not set(self.remove) <= {recipient.fingerprint for recipient in header.recipients}:
            raise ValueError("the recipient to remove is not in the header")
        return changed_recipients((), file_key, add=known)


def re_encrypt(
    ciphertext: bytes,
    *,
    decapsulate: Decapsulate,
    to: Recipient | None = None,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
    new_file_key: bool = False,
) -> bytes:
    """Return the data with other recipients.

    ``to`` replaces the recipient that opened it, ``add`` are new recipients, and ``remove`` are
    fingerprints of recipients. ``new_file_key`` encrypts the data again, for which ``to`` and
    ``add`` must have the public keys of all recipients. Raises DecryptionError and the errors of
    ``decapsulate``. Raises ValueError for an invalid public key, an unknown fingerprint, no
    recipients or too many.
    """
    reader, change = (
        BytesIO(ciphertext),
        Change(to=to, add=add, remove=remove, new_file_key=new_file_key),
    )
    return b"".join(_re_encrypted(reader, decapsulate, change))


def re_encrypt_stream(
    reader: Reader,
    writer: Writer,
    *,
    decapsulate: Decapsulate,
    to: Recipient | None = None,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
    new_file_key: bool = False,
) -> None:
    """Copy encrypted data, with other recipients.

    It does not close reader or writer, or flush the writer.

    Without a new file key, the segments are copied unchanged, and are not authenticated. Raises the
    errors of ``re_encrypt``.
    """
    change = Change(to=to, add=add, remove=remove, new_file_key=new_file_key)
    write_all(writer, _re_encrypted(reader, decapsulate, change))


def re_encrypt_file(
    path: FilePath | FileIO,
    *,
    decapsulate: Decapsulate,
    to: Recipient | None = None,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
    new_file_key: bool = False,
) -> bool:
    """Change the recipients of a file, in place. Return False if nothing had to change.

    Only the header is written. If it has no capacity left, or for a new file key, a copy replaces
    the file. After an interruption, the file is either the old or the new one. Raises the errors of
    ``re_encrypt``, OSError, and BlockingIOError if another process changes the file. An open file
    must be one of ``new_files.changeable``, which locked it.
    """
    with nullcontext(path) if isinstance(path, FileIO) else changeable(path) as file:
        header = read_header(file)
        opened = open_header(header, decapsulate)
        return change_file(
            file, header, opened, Change(to=to, add=add, remove=remove, new_file_key=new_file_key)
        )


def change_file(file: FileIO, header: Header, opened: Opened, change: Change) -> bool:
    """Change the recipients of an open file, after finishing an interrupted change."""
    if change.new_file_key:
        file.seek(header.layout.size)
        with replacement(file) as target:
            write_all(target, changed_pieces(file, header, opened, change))
        return True
    settle(file, header)
    recipients = change.applied(header, opened)
    if recipients == header.recipients:
        return False
    replace_recipients(file, header, opened.file_key, recipients)
    return True


def changed_pieces(
    reader: Reader, header: Header, opened: Opened, change: Change
) -> Iterator[bytes]:
    """Yield encrypted data with other recipients. Its header was already read."""
    file_key, sequence = opened.file_key, header.sequence + 1
    segments = iter(lambda: read_up_to(reader, PIECE), b"")
    if change.new_file_key:
        file_key, sequence = make_file_key(), 1
        recipients = change.applied_to(header, opened, file_key)
        segments = re_encrypted_segments(reader, opened.file_key.data_key(), file_key.data_key())
    else:
        recipients = change.applied(header, opened)
    layout = header.layout
    if not layout.has_capacity_for(recipients):
        layout = layout_for(recipients, capacity=len(recipients) if layout.slots > 1 else 0)
    slot = slot_for(file_key, recipients, layout=layout, sequence=sequence)
    return chain((slot * layout.slots,), segments)


def _re_encrypted(reader: Reader, decapsulate: Decapsulate, change: Change) -> Iterator[bytes]:
    header = read_header(reader)
    return changed_pieces(reader, header, open_header(header, decapsulate), change)


def settle(file: FileIO, header: Header) -> None:
    """Finish an interrupted change. Afterwards, no slot has removed recipients."""
    if not header.is_settled:
        _write(file, header, header.slot)


def replace_recipients(
    file: FileIO, header: Header, file_key: FileKey, recipients: Sequence[WrappedFileKey]
) -> None:
    """Write a new header. Without enough capacity, a copy replaces the file.

    Raises BlockingIOError if another file has taken the path meanwhile. That file stays unchanged.
    """
    if header.layout.has_capacity_for(recipients):
        slot = slot_for(file_key, recipients, layout=header.layout, sequence=header.sequence + 1)
        _write(file, header, slot)
        require_in_place(file)
    else:
        _copy(file, header, file_key, recipients)


def _write(file: FileIO, header: Header, slot: bytes) -> None:
    places = [*range(header.layout.slots)]
    places.remove(header.place)
    for place in (*places, header.place):
        file.seek(place * header.layout.slot_size)
        rest = memoryview(slot)
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _copy(
    file: FileIO, header: Header, file_key: FileKey, recipients: Sequence[WrappedFileKey]
) -> None:
    layout = layout_for(recipients, capacity=max(len(recipients), DEFAULT_CAPACITY))
    slot = slot_for(file_key, recipients, layout=layout, sequence=header.sequence + 1)
    file.seek(header.layout.size)
    segments = iter(lambda: read_up_to(file, PIECE), b"")
    with replacement(file) as target:
        write_all(target, chain((slot * layout.slots,), segments))
