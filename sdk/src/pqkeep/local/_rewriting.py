"""Replaces the header of a file in place. The segments stay in place, whatever their size.

One slot is written and synchronized, then the other. So one slot is always whole, with the old or
the new header. The slot in use is written last. Like a database, this relies on the disk: an
interrupted write changes no other bytes.
"""

import os
from collections.abc import Sequence
from io import FileIO
from itertools import chain

from pqkeep.local._header import DEFAULT_CAPACITY, Header, layout_for, slot_for
from pqkeep.local._recipients import FileKey, WrappedFileKey
from pqkeep.local._streams import read_up_to, write_all
from pqkeep.new_files import replacement, require_in_place

PIECE = 1024 * 1024


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
