"""Pages of records from the logs of all shards where a tenant has been, as one list by time.

A place in the list is a place in each log, in the order in which the tenant came to their shards:
``120.33``. It stays one when the tenant moves on: a log that is not in it comes after it, wholly.
In a tenant's only log a place is a record's id.
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
    """A page of the list."""

    records: tuple[RecordData, ...]
    logs: tuple[int, ...]
    """Which log each of them is in."""
    next: str | None
    """Where the next page begins; None at the end."""


def place_field(name: str, description: str, example: int) -> Field[Place]:
    """Return a field of a place in a list of records."""

    def parse(value: object) -> Place:
        text = str(value) if type(value) is int else value
        if not isinstance(text, str) or _is_place(text) is None:
            raise InvalidValueError("must be a record's id, or what next was in an answer")
        return tuple(map(int, text.split(".")))

    return Field(
        name=name,
        description=description,
        schema={"type": "string", "pattern": PLACE},
        example=str(example),
        parse=parse,
    )


def after_in(place: Place | None, log: int) -> int | None:
    """Return after which of a log's records a place in the list is; None: before all of them."""
    return place[log] if place is not None and log < len(place) else None


def before_in(place: Place | None, log: int) -> int | None:
    """Return before which of a log's records a place in the list is; None: after all of them."""
    if place is None:
        return None
    return place[log] if log < len(place) else 0


def merged(
    pages: Sequence[Records], begin: Sequence[int | None], *, newest_first: bool, limit: int
) -> MergedPage:
    """Return the first records of several logs' pages, and where to go on.

    ``begin`` is where each of them began. Of a page that is not the log's last one, nothing is known of
    what follows it: what comes after that in the list is not in this page either.
    """
    at = [LAST if newest_first and start is None else start or 0 for start in begin]
    waiting = [list(map(record, page.lines)) for page in pages]
    taken = [0] * len(pages)
    records: list[RecordData] = []
    logs: list[int] = []
    while len(records) < limit:
        heads = [
            (found[taken[log]].recorded_at, log)
            for log, found in enumerate(waiting)
            if taken[log] < len(found)
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
