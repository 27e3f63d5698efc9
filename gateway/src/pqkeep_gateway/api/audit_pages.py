"""Pages of records from several shards' logs, merged into one list by time.

A position in the list is a position in each log, in the order in which the shards got the tenant:
``120.33``. It remains valid when the tenant moves again: the records of a later log are all after
it. With one log, a position is a record's id.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pqkeep_gateway.api.audit_data import RecordData, record
from pqkeep_gateway.http.field import Field, InvalidValueError
from pqkeep_protocol.audit import Records

Place = tuple[int, ...]
PLACE = r"^[0-9]{1,15}(\.[0-9]{1,15}){0,99}$"
_is_place = re.compile(PLACE.replace("$", r"\Z")).match


LAST = 10**15 - 1
"""A place after all records of a log."""


class MergedPage(NamedTuple):
    """A page of the merged list."""

    records: tuple[RecordData, ...]
    logs: tuple[int, ...]
    """The index of each record's log."""
    next: str | None
    """The place of the next page; None at the end."""


def place_field(name: str, description: str, example: int) -> Field[Place]:
    """Return a field for a place in a list of records."""

    def parse(value: object) -> Place:
        text = str(value) if type(value) is int else value
        if not isinstance(text, str) or _is_place(text) is None:
            raise InvalidValueError("must be a record's id, or the next of an earlier response")
        return tuple(map(int, text.split(".")))

    return Field(
        name=name,
        description=description,
        schema={"type": "string", "pattern": PLACE},
        example=str(example),
        parse=parse,
    )


def after_in(place: Place | None, log: int) -> int | None:
    """Return the record of a log after which a place is; None: before all records."""
    return place[log] if place is not None and log < len(place) else None


def before_in(place: Place | None, log: int) -> int | None:
    """Return the record of a log before which a place is; None: after all records."""
    if place is None:
        return None
    return place[log] if log < len(place) else 0


def merged(
    pages: Sequence[Records], begin: Sequence[int | None], *, newest_first: bool, limit: int
) -> MergedPage:
    """Return the first records of several logs' pages, and the next place.

    ``begin`` has the position at which each page began. The list ends at the last record of a page
    that is not the last of its log: the following records of that log are unknown, and come before
    later ones of other logs.
    """
    at = [LAST if newest_first and start is None else start or 0 for start in begin]
    waiting = [list(map(record, page.lines)) for page in pages]
    taken = [0] * len(pages)
    records: list[RecordData] = []
    logs: list[int] = []
    while len(records) < limit:
        heads = [
            (page_records[taken[log]].recorded_at, log)
            for log, page_records in enumerate(waiting)
            if taken[log] < len(page_records)
        ]
        is_cut = any(
            taken[log] == len(waiting[log]) and page.next is not None
            for log, page in enumerate(pages)
        )
        if is_cut or not heads:
            break
        _, log = max(heads) if newest_first else min(heads)
        records.append(waiting[log][taken[log]])
        logs.append(log)
        taken[log] += 1
    is_end = all(
        taken[log] == len(waiting[log]) and page.next is None for log, page in enumerate(pages)
    )
    going_on = ".".join(
        str(
            _next_place(
                page, waiting[log][: taken[log]], at[log], is_all=taken[log] == len(waiting[log])
            )
        )
        for log, page in enumerate(pages)
    )
    return MergedPage(tuple(records), tuple(logs), None if is_end else going_on)


def _next_place(page: Records, taken: Sequence[RecordData], begin: int, *, is_all: bool) -> int:
    if is_all and page.next is not None:
        return page.next
    return taken[-1].id if taken else begin
