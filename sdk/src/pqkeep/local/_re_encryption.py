"""Re-encryption: the file key is wrapped to other recipients, and the data stays as it is.

Whoever had the file key keeps it: this moves data to another key of the same people, and takes
nothing from anybody who could read it before.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import BytesIO, FileIO
from itertools import chain

from pqkeep.local._header import (
    Decapsulate,
    Header,
    Opened,
    changed_recipients,
    layout_for,
    open_header,
    read_header,
    slot_for,
)
from pqkeep.local._recipients import Recipient, WrappedFileKey
from pqkeep.local._rewriting import changeable, replace_recipients, settle
from pqkeep.local._streams import FilePath, Reader, Writer, read_up_to, write_all

PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done to the recipients of a file."""

    to: Recipient | None = None
    """Takes the place of the one whose key opened the file."""
    add: Collection[Recipient] = ()
    remove: Collection[bytes] = ()
    """Fingerprints."""

    def applied(self, header: Header, opened: Opened) -> tuple[WrappedFileKey, ...]:
        """Return the recipients. Raises ValueError as ``changed_recipients`` does."""
        add, remove = [*self.add], {*self.remove}
        if self.to is not None:
            add.append(self.to)
        if self.to is not None and self.to.identity != opened.recipient.identity:
            remove.add(opened.recipient.fingerprint)
        return changed_recipients(header.recipients, opened.file_key, add=add, remove=remove)


def re_encrypt(
    ciphertext: bytes,
    *,
    decapsulate: Decapsulate,
    to: Recipient | None = None,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
) -> bytes:
    """Return data with other recipients.

    ``to`` takes the place of the one whose key opened it, ``add`` are new ones, and ``remove`` are
    fingerprints of some that are there. Raises DecryptionError, what ``decapsulate`` does, and
    ValueError for an invalid public key, a fingerprint that is nobody's, and no or too many
    recipients.
    """
    reader, change = BytesIO(ciphertext), Change(to=to, add=add, remove=remove)
    return b"".join(_re_encrypted(reader, decapsulate, change))


def re_encrypt_stream(
    reader: Reader,
    writer: Writer,
    *,
    decapsulate: Decapsulate,
    to: Recipient | None = None,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
) -> None:
    """Copy encrypted data, with other recipients. Neither is closed, nor is the writer flushed.

    The segments are copied as they are, and are not authenticated. Raises what ``re_encrypt`` does.
    """
    change = Change(to=to, add=add, remove=remove)
    write_all(writer, _re_encrypted(reader, decapsulate, change))


def re_encrypt_file(
    path: FilePath,
    *,
    decapsulate: Decapsulate,
    to: Recipient | None = None,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
) -> bool:
    """Give a file other recipients, in place. Returns whether anything had to be changed.

    Only the header is written, unless it has no room: then a copy takes the file's place. Whatever
    interrupts this, the file is what it was or what it is to be. Raises what ``re_encrypt`` does,
    OSError, and BlockingIOError if another process is changing it.
    """
    with changeable(path) as file:
        header = read_header(file)
        opened = open_header(header, decapsulate)
        return change_file(file, header, opened, Change(to=to, add=add, remove=remove))


def change_file(file: FileIO, header: Header, opened: Opened, change: Change) -> bool:
    """Change the recipients of an open file, and finish an earlier change."""
    settle(file, header)
    recipients = change.applied(header, opened)
    if recipients == header.recipients:
        return False
    replace_recipients(file, header, opened.file_key, recipients)
    return True


def changed_pieces(
    reader: Reader, header: Header, opened: Opened, change: Change
) -> Iterator[bytes]:
    """Yield encrypted data, of which the header was read, with other recipients."""
    recipients = change.applied(header, opened)
    layout = header.layout
    if not layout.has_capacity_for(recipients):
        layout = layout_for(recipients, capacity=len(recipients) if layout.slots > 1 else 0)
    slot = slot_for(opened.file_key, recipients, layout=layout, sequence=header.sequence + 1)
    return chain((slot * layout.slots,), iter(lambda: read_up_to(reader, PIECE), b""))


def _re_encrypted(reader: Reader, decapsulate: Decapsulate, change: Change) -> Iterator[bytes]:
    header = read_header(reader)
    return changed_pieces(reader, header, open_header(header, decapsulate), change)
