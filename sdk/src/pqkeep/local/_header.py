"""The header before the segments: one or two slots with the recipients.

    header = slot, or slot || slot
    slot   = "pqkeep", 00, format (1) || slots (1) || size of a slot (4) || sequence number (8)
             || recipients (1) || recipient … || zeros || MAC (48) || SHA-384(slot so far)

The MAC under the file key covers everything before it. So only a recipient can change the
recipients. The checksum detects an incomplete slot. Of two complete slots, the one with the larger
sequence number is in use. A file has two slots: one stays complete while the other is written. Data
in memory has one slot without spare capacity.

To open a header, the shared secrets of its recipients are requested one by one. Recipients
with keys of other people are skipped, because the service cannot recover their secrets.
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
"""In a header with two slots, their size is a multiple of this. A disk writes such a block whole.
"""
DEFAULT_CAPACITY = 4
_PREFIX_SIZE = len(MAGIC) + 1 + 1 + 4
_RECIPIENTS_AT = _PREFIX_SIZE + 8 + 1
_END_SIZE = MAC_SIZE + CHECKSUM_SIZE
_SMALLEST_SLOT = _RECIPIENTS_AT + _END_SIZE


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of slots of a header, and the bytes of each."""

    slots: int
    slot_size: int

    @property
    def size(self) -> int:
        """Bytes of the whole header."""
        return self.slots * self.slot_size

    def prefix(self) -> bytes:
        """Return the first bytes of each slot."""
        return MAGIC + bytes((FORMAT, self.slots)) + self.slot_size.to_bytes(4, "big")

    def has_capacity_for(self, recipients: Sequence[WrappedFileKey]) -> bool:
        """Return True if the recipients fit into a slot, and the header has two slots."""
        return self.slots > 1 and _needed(recipients) <= self.slot_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The facts in a header. They are readable without a key, and not authenticated."""

    recipients: tuple[WrappedFileKey, ...]
    layout: Layout
    sequence: int
    """The number of changes to the recipients, plus one."""
    slot: bytes = field(repr=False)
    """The slot in use."""
    place: int
    """The index of the slot in use."""
    is_settled: bool
    """True if all slots are equal."""

    def open(self, recipient: WrappedFileKey, shared_secret: bytes) -> FileKey:
        """Return the file key. Raises DecryptionError if it does not authenticate the header."""
        file_key = recipient.unwrap(shared_secret)
        content, mac = self.slot[:-_END_SIZE], self.slot[-_END_SIZE:-CHECKSUM_SIZE]
        if not file_key.has_authenticated(content, mac):
            raise DecryptionError(
                "the header is damaged: its recipients were changed without the file key"
            )
        return file_key


def new_header(file_key: FileKey, recipients: Sequence[Recipient], *, capacity: int) -> bytes:
    """Return the header of a new file.

    Raises ValueError for no recipients, too many recipients, a repeated recipient, an invalid
    public key, or too large a capacity.
    """
    wrapped = changed_recipients((), file_key, add=recipients)
    layout = layout_for(wrapped, capacity=capacity)
    return slot_for(file_key, wrapped, layout=layout, sequence=1) * layout.slots


def layout_for(recipients: Sequence[WrappedFileKey], *, capacity: int) -> Layout:
    """Return a layout for ``capacity`` recipients, or for all recipients if there are more.

    With capacity 0 there is one slot, as long as necessary. Raises ValueError for too large a
    capacity.
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
    """Return the recipients without those of some fingerprints, and with new ones at the end.

    A recipient that is already there stays unchanged. Raises ValueError for an unknown fingerprint,
    an invalid public key, and if no or too many recipients remain.
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
    """Read the header of encrypted data, which lists the keys that open it.

    Raises UnreadableInputError for other data and for a cut header, and DecryptionError for a
    changed header.
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
                "use an unchanged file from pqkeep encrypt",
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
"""Errors of one recipient's key. The next recipient is tried then."""


class Decapsulate(Protocol):
    """Recovers a shared secret.

    It raises NotFoundError or DecryptionError for an unknown key. The next recipient is tried then.
    """

    def __call__(
        self, kem_ciphertext: bytes, *, key_version: int, algorithm: str, keyring: str
    ) -> bytes:
        """Return the shared secret (32 bytes)."""
        ...


class Opened(NamedTuple):
    """A file key, and the recipient that unwrapped it."""

    file_key: FileKey
    recipient: WrappedFileKey


def open_header(header: Header, decapsulate: Decapsulate) -> Opened:
    """Unwrap the file key. Raises DecryptionError, and the errors of ``decapsulate``."""
    failures: list[PqkeepError] = []
    for recipient in header.recipients:
        try:
            shared_secret = decapsulate(recipient.kem_ciphertext, **recipient.key_name())
            return Opened(header.open(recipient, shared_secret), recipient)
        except SKIPPED as error:
            failures.append(error)
    raise refusal(failures)


def refusal(failures: list[PqkeepError]) -> PqkeepError:
    """Return the error for a header that no key opened."""
    if len(failures) == 1 or len({type(failure) for failure in failures}) == 1:
        return failures[0]
    return DecryptionError(f"none of the {len(failures)} recipients' keys can be used here")
