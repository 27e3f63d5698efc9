"""What stands before the segments: who can open the file, once or twice.

    header = slot, or slot || slot
    slot   = "pqkeep", 00, format (1) || slots (1) || size of a slot (4) || sequence number (8)
             || recipients (1) || recipient … || zeros || MAC (48) || SHA-384(slot so far)

The MAC under the file key covers everything before it, so only somebody who can open the file
changes its recipients. The checksum tells a slot that was written whole from one that was not: of
two, the whole one with the larger number counts. A file keeps two so that one can be written while
the other holds; data in memory has one, which has no more room than it needs.

To open one, the shared secret of one recipient after the other is asked for. Recipients may be keys
of other people, whose secrets cannot be had here: those are skipped.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import sha384
from typing import NamedTuple, Protocol

from pqkeep.errors import (
    ComplianceError,
    DecryptionError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
    UnreadableInputError,
)
from pqkeep.local._recipients import (
    LARGEST_RECIPIENT,
    MAC_SIZE,
    FileKey,
    Recipient,
    WrappedFileKey,
    take_recipient,
    wrap,
)
from pqkeep.local._streams import Reader, read_up_to

MAGIC = b"pqkeep\x00"
FORMAT = 2
MOST_RECIPIENTS = 32
CHECKSUM_SIZE = 48
LARGEST_SLOT = 65536
BLOCK = 4096
"""Where there are two slots, each is a multiple of this, which no disk writes in parts."""
DEFAULT_CAPACITY = 4
_PREFIX_SIZE = len(MAGIC) + 1 + 1 + 4
_RECIPIENTS_AT = _PREFIX_SIZE + 8 + 1
_END_SIZE = MAC_SIZE + CHECKSUM_SIZE
_SMALLEST_SLOT = _RECIPIENTS_AT + _END_SIZE


@dataclass(frozen=True, slots=True)
class Layout:
    """How many slots a header has, and how many bytes each."""

    slots: int
    slot_size: int

    @property
    def size(self) -> int:
        """Bytes of the whole header."""
        return self.slots * self.slot_size

    def prefix(self) -> bytes:
        """Return what each slot begins with."""
        return MAGIC + bytes((FORMAT, self.slots)) + self.slot_size.to_bytes(4, "big")

    def has_capacity_for(self, recipients: Sequence[WrappedFileKey]) -> bool:
        """Whether they fit into a slot, and it can be replaced without a copy of the file."""
        return self.slots > 1 and _needed(recipients) <= self.slot_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What can be known of encrypted data without its key. Nothing of it is authenticated."""

    recipients: tuple[WrappedFileKey, ...]
    layout: Layout
    sequence: int
    """How often the recipients were changed, and one."""
    slot: bytes = field(repr=False)
    """The slot that counts."""
    place: int
    """Which one that is."""
    is_settled: bool
    """Whether all slots say the same."""

    def open(self, recipient: WrappedFileKey, shared_secret: bytes) -> FileKey:
        """Return the file key. Raises DecryptionError, if the header is not its own too."""
        file_key = recipient.unwrap(shared_secret)
        content, mac = self.slot[:-_END_SIZE], self.slot[-_END_SIZE:-CHECKSUM_SIZE]
        if not file_key.has_authenticated(content, mac):
            raise DecryptionError(
                "the header is damaged: its recipients were changed without the file key"
            )
        return file_key


def new_header(file_key: FileKey, recipients: Sequence[Recipient], *, capacity: int) -> bytes:
    """Return the header of a new file.

    Raises ValueError for no recipients, too many, one twice, an invalid public key or too much
    room.
    """
    wrapped = changed_recipients((), file_key, add=recipients)
    layout = layout_for(wrapped, capacity=capacity)
    return slot_for(file_key, wrapped, layout=layout, sequence=1) * layout.slots


def layout_for(recipients: Sequence[WrappedFileKey], *, capacity: int) -> Layout:
    """Return a layout with room for so many recipients, or as many as there are.

    Without any room there is one slot, as long as it must be. Raises ValueError for too much.
    """
    if not 0 <= capacity <= MOST_RECIPIENTS:
        raise ValueError(f"the capacity must be 0 to {MOST_RECIPIENTS} recipients")
    needed = _needed(recipients)
    if not capacity:
        return Layout(1, needed)
    wanted = max(needed, _SMALLEST_SLOT + capacity * LARGEST_RECIPIENT)
    return Layout(2, -(-wanted // BLOCK) * BLOCK)


def slot_for(
    file_key: FileKey, recipients: Sequence[WrappedFileKey], *, layout: Layout, sequence: int
) -> bytes:
    """Return a slot."""
    content = b"".join(
        (
            layout.prefix(),
            sequence.to_bytes(8, "big"),
            bytes((len(recipients),)),
            *(recipient.encoded() for recipient in recipients),
        )
    ).ljust(layout.slot_size - _END_SIZE, b"\0")
    authenticated = content + file_key.mac(content)
    return authenticated + sha384(authenticated).digest()


def changed_recipients(
    before: Sequence[WrappedFileKey],
    file_key: FileKey,
    *,
    add: Collection[Recipient] = (),
    remove: Collection[bytes] = (),
) -> tuple[WrappedFileKey, ...]:
    """Return recipients without those of some fingerprints, and with new ones at the end.

    Who is there already stays as it is. Raises ValueError if a fingerprint is nobody's, for an
    invalid public key, or if none or too many are left.
    """
    if not set(remove) <= {recipient.fingerprint for recipient in before}:
        raise ValueError("the recipient to remove is not in the header")
    kept = {
        recipient.identity: recipient for recipient in before if recipient.fingerprint not in remove
    }
    new = {recipient.identity: recipient for recipient in add if recipient.identity not in kept}
    if not 1 <= len(kept) + len(new) <= MOST_RECIPIENTS:
        raise ValueError(f"there must be 1 to {MOST_RECIPIENTS} recipients")
    return (*kept.values(), *(wrap(file_key, recipient) for recipient in new.values()))


def read_header(reader: Reader) -> Header:
    """Read the header of encrypted data, which says what keys open it.

    Raises UnreadableInputError for what is other data, or is cut within the header, and
    DecryptionError for a header that was changed.
    """
    prefix = read_up_to(reader, _PREFIX_SIZE)
    layout = _read_layout(prefix)
    data = prefix + read_up_to(reader, layout.size - _PREFIX_SIZE)
    if len(data) < layout.size:
        raise _cut()
    slots = [data[at : at + layout.slot_size] for at in range(0, layout.size, layout.slot_size)]
    whole = [place for place, slot in enumerate(slots) if _is_whole(slot, prefix)]
    if not whole:
        raise DecryptionError("the header is damaged")
    place = max(whole, key=lambda place: _sequence(slots[place]))  # the first, of two alike
    return Header(
        recipients=_read_recipients(slots[place]),
        layout=layout,
        sequence=_sequence(slots[place]),
        slot=slots[place],
        place=place,
        is_settled=len(set(slots)) == 1,
    )


def _needed(recipients: Sequence[WrappedFileKey]) -> int:
    return _SMALLEST_SLOT + sum(len(recipient.encoded()) for recipient in recipients)


def _read_layout(prefix: bytes) -> Layout:
    if prefix[: len(MAGIC)] != MAGIC:
        raise (
            _cut()
            if prefix and MAGIC.startswith(prefix)
            else UnreadableInputError(
                "not data that pqkeep encrypted locally",
                "name what pqkeep encrypt wrote, as it was written",
            )
        )
    if prefix[len(MAGIC) : len(MAGIC) + 1] not in {b"", bytes((FORMAT,))}:
        raise UnreadableInputError(
            "data that pqkeep encrypted locally in a format that this version does not know",
            "use a newer pqkeep",
        )
    if len(prefix) < _PREFIX_SIZE:
        raise _cut()
    slots, slot_size = prefix[len(MAGIC) + 1], int.from_bytes(prefix[len(MAGIC) + 2 :], "big")
    if slots not in {1, 2} or not _SMALLEST_SLOT <= slot_size <= LARGEST_SLOT:
        raise DecryptionError("the header is damaged: its size is invalid")
    return Layout(slots, slot_size)


def _cut() -> UnreadableInputError:
    return UnreadableInputError(
        "data that pqkeep encrypted locally, and was cut off within its header",
        "get the whole file again",
    )


def _is_whole(slot: bytes, prefix: bytes) -> bool:
    rest, checksum = slot[:-CHECKSUM_SIZE], slot[-CHECKSUM_SIZE:]
    return slot.startswith(prefix) and sha384(rest).digest() == checksum


def _sequence(slot: bytes) -> int:
    return int.from_bytes(slot[_PREFIX_SIZE : _PREFIX_SIZE + 8], "big")


def _read_recipients(slot: bytes) -> tuple[WrappedFileKey, ...]:
    count, rest = slot[_RECIPIENTS_AT - 1], slot[_RECIPIENTS_AT:-_END_SIZE]
    if not 1 <= count <= MOST_RECIPIENTS:
        raise DecryptionError("the header is damaged: its number of recipients is invalid")
    recipients: list[WrappedFileKey] = []
    for _ in range(count):
        recipient, rest = take_recipient(rest)
        recipients.append(recipient)
    if len({recipient.identity for recipient in recipients}) < count:
        raise DecryptionError("the header is damaged: a recipient is there twice")
    if any(rest):
        raise DecryptionError("the header is damaged: data follows its recipients")
    return tuple(recipients)


SKIPPED = (ComplianceError, DecryptionError, NotFoundError, PermissionDeniedError)
"""What says of one recipient that its key cannot be used here, and nothing of the others."""


class Decapsulate(Protocol):
    """Recovers a shared secret.

    It raises NotFoundError or DecryptionError for a key that it has not: the next is tried then.
    """

    def __call__(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        """Return the shared secret (32 bytes)."""
        ...


class Opened(NamedTuple):
    """A file key, and whose key it was unwrapped with."""

    file_key: FileKey
    recipient: WrappedFileKey


def open_header(header: Header, decapsulate: Decapsulate) -> Opened:
    """Unwrap the file key. Raises DecryptionError, and what ``decapsulate`` does."""
    failures: list[PqkeepError] = []
    for recipient in header.recipients:
        try:
            shared_secret = decapsulate(recipient.kem_ciphertext, **recipient.key_name())
            return Opened(header.open(recipient, shared_secret), recipient)
        except SKIPPED as error:
            failures.append(error)
    raise refusal(failures)


def refusal(failures: list[PqkeepError]) -> PqkeepError:
    """Return what to raise where no recipient opened a header."""
    if len(failures) == 1 or len({type(failure) for failure in failures}) == 1:
        return failures[0]
    return DecryptionError(f"none of the {len(failures)} recipients' keys can be used here")
