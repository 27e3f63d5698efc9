"""Searching the log finds what a look through all of it would find, page by page."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling import step

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.search import MAX_SCANNED, list_records
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import ListRecords
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Location

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
TENANTS = [TenantId(UUID(int=number)) for number in (7, 8, 9)]
ALGORITHMS = [Algorithm.ML_KEM_768, Algorithm.ML_DSA_65, None]
OPERATIONS = [Operation.ENCRYPT, Operation.SIGN, Operation.LIST_KEYS]
OUTCOMES = ["success", "key-not-found"]
SIZE = 90
FIRST_US = 1_000_000
PER_INSTANT = 4
"""Records that have the same time."""


def new_records() -> Iterator[NewRecord]:
    """Make records of every combination, mixed."""
    for n in range(SIZE):
        yield NewRecord(
            TENANTS[n * n % 3],
            "p",
            OPERATIONS[n % 7 % 3],
            ALGORITHMS[n % 5 % 3],
            None if n % 4 == 0 else n % 4,
            OUTCOMES[n % 11 % 2],
            f"r{n}",
            "a",
            "y",
        )


class Shelf(NamedTuple):
    """A log, and all of it in a list."""

    connection: sa.Connection
    records: list[dict[str, Any]]

    def page(self, **asked: Any) -> tuple[list[int], int | None]:
        """Return the ids of one page, and where the next one begins."""
        found = list_records(self.connection, ListRecords(**asked))
        return [json.loads(line)["id"] for line in found.lines], found.next

    def pages(self, **asked: Any) -> list[int]:
        """Return the ids of all pages."""
        ids, cursor = self.page(**asked)
        bound = "before" if asked.get("newest_first") else "after"
        for _ in range(SIZE):
            if cursor is None:
                return ids
            more, cursor = self.page(**{**asked, bound: cursor})
            ids += more
        raise AssertionError("the pages do not end")


@pytest.fixture
async def shelf(location: Location, service: InProcessService) -> AsyncIterator[Shelf]:
    """Write the log, with several records at each time."""
    await service.parts.store.commit([(each, None) for each in new_records()])
    location.sql("UPDATE audit_records SET recorded_at_us = ? + id / ?", FIRST_US, PER_INSTANT)
    names = ("id", "tenant_id", "operation", "algorithm", "key_version", "outcome")
    rows = location.sql(f"SELECT {', '.join(names)}, recorded_at_us FROM audit_records ORDER BY 1")  # noqa: S608
    engine = sa.create_engine(location.url)
    with engine.connect() as connection:
        yield Shelf(connection, [dict(zip((*names, "at"), row, strict=True)) for row in rows])
    engine.dispose()


def expected(shelf: Shelf, asked: dict[str, Any]) -> list[int]:
    """Return the ids that match, by looking at every record."""
    after, before = asked.get("after"), asked.get("before")
    since, until = asked.get("since_us"), asked.get("until_us")
    named = {n: asked.get(n) for n in ("operation", "algorithm", "key_version", "outcome")}
    ids = [
        record["id"]
        for record in shelf.records
        if (asked["tenant"] == INSTALLATION or record["tenant_id"] == str(asked["tenant"]))
        and (after is None or record["id"] > after)
        and (before is None or record["id"] < before)
        and (since is None or record["at"] >= since)
        and (until is None or record["at"] < until)
        and all(value is None or record[name] == value for name, value in named.items())
    ]
    return ids[::-1] if asked["newest_first"] else ids


_ids = st.none() | st.integers(0, SIZE + 2)
_times = st.none() | st.integers(FIRST_US - 2, FIRST_US + SIZE // PER_INSTANT + 3)
QUERIES = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from([*TENANTS, INSTALLATION]),
        "newest_first": st.booleans(),
        "limit": st.integers(1, 40),
        "after": _ids,
        "before": _ids,
        "since_us": _times,
        "until_us": _times,
        "operation": st.none() | st.sampled_from([*OPERATIONS, "nothing"]),
        "algorithm": st.none() | st.sampled_from(Algorithm),
        "key_version": st.none() | st.integers(1, 4),
        "outcome": st.none() | st.sampled_from([*OUTCOMES, "nothing"]),
    }
)


@settings(
    max_examples=150 // step(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(asked=QUERIES)
def test_pages_together_are_what_matches(asked: dict[str, Any], shelf: Shelf) -> None:
    """Whatever is asked for, in either order, its pages have every match once and nothing else."""
    assert shelf.pages(**asked) == expected(shelf, asked)


@pytest.mark.parametrize("name", ["operation", "algorithm", "key_version", "outcome"])
def test_each_filter_lets_some_through(name: str, shelf: Shelf) -> None:
    """Each filter alone finds records, and not all of them."""
    value = {
        "operation": "sign",
        "algorithm": Algorithm.ML_KEM_768,
        "key_version": KeyVersion(2),
        "outcome": "key-not-found",
    }[name]
    asked = {"tenant": INSTALLATION, "newest_first": False, name: value}
    found = shelf.pages(**asked)
    assert found == expected(shelf, asked)
    assert 0 < len(found) < SIZE


@pytest.mark.parametrize("newest_first", [False, True])
def test_times_are_exact_at_their_borders(newest_first: bool, shelf: Shelf) -> None:  # noqa: FBT001
    """From takes the first record of its microsecond, to takes none of its own; for each time."""
    times = [record["at"] for record in shelf.records]
    assert len(times) / len(set(times)) > 3
    for at in range(times[0] - 1, times[-1] + 2):
        for bounds in ({"since_us": at}, {"until_us": at}, {"since_us": at, "until_us": at + 1}):
            asked = {
                "tenant": INSTALLATION,
                "newest_first": newest_first,
                "limit": 500,
                **bounds,
            }
            assert shelf.page(**asked) == (expected(shelf, asked), None)


def test_times_are_found_past_missing_records(location: Location, shelf: Shelf) -> None:
    """In a log with records missing, however many, from and to still find what is there."""
    location.sql(f"DELETE FROM audit_records WHERE id IN (1, 6, {SIZE // 2}, 60, 61, 62, 63, 64)")  # noqa: S608
    there = shelf._replace(
        records=[
            each for each in shelf.records if each["id"] not in {1, 6, SIZE // 2, *range(60, 65)}
        ]
    )
    for at in range(FIRST_US, FIRST_US + SIZE // PER_INSTANT + 2):
        for bound in ("since_us", "until_us"):
            asked = {"tenant": INSTALLATION, "newest_first": False, "limit": 500, bound: at}
            assert there.page(**asked) == (expected(there, asked), None)


def test_an_exact_page_has_no_next(shelf: Shelf) -> None:
    """Where a page holds the last match there is nothing to go on to."""
    everything = {"tenant": INSTALLATION}
    assert shelf.page(**everything, limit=SIZE)[1] is None
    assert shelf.page(**everything, limit=SIZE - 1)[1] == SIZE - 1
    assert shelf.page(**everything, limit=1, newest_first=True) == ([SIZE], SIZE)


async def test_a_long_stretch_without_a_match_is_an_empty_page(
    service: InProcessService, attribution: Attribution, tenant: TenantId
) -> None:
    """After 10,000 records that do not match the page is empty and says from where to go on."""
    row = NewRecord(tenant, "p", Operation.ENCRYPT, None, None, "success", "r", "a", "y")
    rare = row._replace(operation=Operation.SIGN)
    for batch in ([rare], [row] * 5_000, [row] * 5_000, [rare]):
        await service.parts.store.commit([(each, None) for each in batch])
    size = MAX_SCANNED + 2
    for newest_first, cursors in ((False, (MAX_SCANNED, None)), (True, (3, None))):
        found: list[list[int]] = []
        bounds: dict[str, Any] = {}
        for cursor in cursors:
            request = ListRecords(
                tenant=tenant, operation="sign", newest_first=newest_first, **bounds
            )
            page = await service.execute(request, attribution)
            found.append([json.loads(line)["id"] for line in page.lines])
            assert page.next == cursor
            bounds = {"before" if newest_first else "after": page.next}
        assert found == ([[size], [1]] if newest_first else [[1], [size]])
    nothing = ListRecords(tenant=tenant, operation="wrap")
    page = await service.execute(nothing, attribution)
    assert (page.lines, page.next) == ((), MAX_SCANNED)
