"""A paged search finds exactly what a scan of the whole log finds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.sampling import step

from pqkeep_keyservice.ledger.checkpoints import (
    find_largest_checkpoint,
    find_newest_checkpoint,
    list_checkpoints,
    signed_size,
)
from pqkeep_keyservice.ledger.key_usage import (
    NOT_REFUSED,
    find_key_usage,
    find_operation_counts,
    list_key_usage,
    preview_rules,
)
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.schema import AUDIT_RECORDS, COMMON_OPERATIONS, RARE
from pqkeep_keyservice.ledger.search import (
    MAX_SCANNED,
    count_records,
    list_records,
    newest_rules_revisions,
)
from pqkeep_protocol.algorithms import USES, Algorithm, Operation
from pqkeep_protocol.audit import (
    REFUSED,
    CountBy,
    CountOperations,
    CountRecords,
    GetUsage,
    ListCheckpoints,
    ListRecords,
    ListUsage,
    PreviewRules,
)
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
)
from pqkeep_protocol.rules import Rule

if TYPE_CHECKING:
    import sqlite3

    from keyservice.tests.conftest import InProcessService, Location

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
TENANTS = [TenantId(UUID(int=number)) for number in (7, 8, 9)]
ALGORITHMS = [Algorithm.ML_KEM_768, Algorithm.ML_DSA_65, None]
OPERATIONS = [Operation.ENCRYPT, Operation.SIGN, Operation.LIST_KEYS]
OUTCOMES = ["success", "key-not-found", "begun", "ERR_POLICY_001", "verification-failed"]
ADDRESSES = ["192.0.2.1", "2001:db8::1"]
NETWORKS = {
    "192.0.2.0/24": ADDRESSES[:1],
    "2001:db8::/48": ADDRESSES[1:],
    "0.0.0.0/0": ADDRESSES[:1],
    "198.51.100.0/24": [],
}
"""Networks, and the addresses in them."""
SIZE = 90
FILTERS = (
    *("operations", "algorithm", "key_version", "outcome", "request_id", "source_address"),
    *("rule", "campaign"),
)
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
            OUTCOMES[n % 11 % 5],
            f"r{n % 13 % 4}",
            ADDRESSES[n % 3 % 2],
            "y",
            rule=(None, "cnsa-2.0", None, "eu-hybrid")[n % 17 % 4],
            campaign=(None, None, "to-x-wing")[n % 7 % 3],
        )


class Shelf(NamedTuple):
    """A log, and a list of all its records."""

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
    await service.parts.store.commit([(record, None) for record in new_records()])
    location.sql("UPDATE audit_records SET recorded_at_us = ? + id / ?", FIRST_US, PER_INSTANT)
    names = ("id", "tenant_id", "operation", *FILTERS[1:])
    rows = location.sql(f"SELECT {', '.join(names)}, recorded_at_us FROM audit_records ORDER BY 1")  # noqa: S608
    engine = sa.create_engine(location.url)
    with engine.connect() as connection:
        yield Shelf(connection, [dict(zip((*names, "at"), row, strict=True)) for row in rows])
    engine.dispose()


def expected(shelf: Shelf, asked: dict[str, Any]) -> list[int]:
    """Return the matching ids, by a scan of all records."""
    after, before = asked.get("after"), asked.get("before")
    since, until = asked.get("since_us"), asked.get("until_us")
    named = {name: asked.get(name) for name in FILTERS}
    ids = [
        record["id"]
        for record in shelf.records
        if (asked["tenant"] == INSTALLATION or record["tenant_id"] == str(asked["tenant"]))
        and (after is None or record["id"] > after)
        and (before is None or record["id"] < before)
        and (since is None or record["at"] >= since)
        and (until is None or record["at"] < until)
        and all(value is None or _matches(record, name, value) for name, value in named.items())
    ]
    return ids[::-1] if asked["newest_first"] else ids


def _matches(record: dict[str, Any], name: str, value: Any) -> bool:
    if name == "operations":
        return not value or record["operation"] in value
    if value == REFUSED:
        return _is_refusal(record)
    return record[name] == value or (
        name == "source_address" and record[name] in NETWORKS.get(value, ())
    )


def _is_refusal(record: dict[str, Any]) -> bool:
    return record["outcome"] in {"key-not-found", "ERR_POLICY_001"}


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
        "operations": st.lists(
            st.sampled_from([*OPERATIONS, Operation.ARCHIVE_KEY, "nothing"]), max_size=3
        ).map(tuple),
        "algorithm": st.none() | st.sampled_from(Algorithm),
        "key_version": st.none() | st.integers(1, 4),
        "outcome": st.none() | st.sampled_from([*OUTCOMES, REFUSED, "nothing"]),
        "source_address": st.none() | st.sampled_from([*ADDRESSES, *NETWORKS, "nothing"]),
        "request_id": st.none() | st.sampled_from(["r0", "r1", "r2", "r3"]),
        "rule": st.none() | st.sampled_from(["cnsa-2.0", "eu-hybrid", "nothing"]),
        "campaign": st.none() | st.sampled_from(["to-x-wing", "nothing"]),
    }
)


@settings(
    max_examples=150 // step(6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(asked=QUERIES)
def test_pages_together_are_what_matches(asked: dict[str, Any], shelf: Shelf) -> None:
    """For any filter and order, the pages have every match once, and nothing else."""
    assert shelf.pages(**asked) == expected(shelf, asked)


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_lets_some_through(name: str, shelf: Shelf) -> None:
    """Each filter alone finds some records, but not all."""
    value = {
        "operations": ("sign", "encrypt"),
        "algorithm": Algorithm.ML_KEM_768,
        "key_version": KeyVersion(2),
        "outcome": "key-not-found",
        "request_id": "r3",
        "source_address": "2001:db8::1",
        "rule": "eu-hybrid",
        "campaign": "to-x-wing",
    }[name]
    asked = {"tenant": INSTALLATION, "newest_first": False, name: value}
    found = shelf.pages(**asked)
    assert found == expected(shelf, asked)
    assert 0 < len(found) < SIZE


@pytest.mark.parametrize("newest_first", [False, True])
def test_times_are_exact_at_their_borders(newest_first: bool, shelf: Shelf) -> None:  # noqa: FBT001
    """The lower time bound is inclusive, and the upper one exclusive, to the microsecond."""
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
    """In a log with missing records, time bounds still find the others."""
    location.sql(f"DELETE FROM audit_records WHERE id IN (1, 6, {SIZE // 2}, 60, 61, 62, 63, 64)")  # noqa: S608
    there = shelf._replace(
        records=[
            record
            for record in shelf.records
            if record["id"] not in {1, 6, SIZE // 2, *range(60, 65)}
        ]
    )
    for at in range(FIRST_US, FIRST_US + SIZE // PER_INSTANT + 2):
        for bound in ("since_us", "until_us"):
            asked = {"tenant": INSTALLATION, "newest_first": False, "limit": 500, bound: at}
            assert there.page(**asked) == (expected(there, asked), None)


def test_an_exact_page_has_no_next(shelf: Shelf) -> None:
    """A page that ends with the last match has no next page."""
    everything = {"tenant": INSTALLATION}
    assert shelf.page(**everything, limit=SIZE)[1] is None
    assert shelf.page(**everything, limit=SIZE - 1)[1] == SIZE - 1
    assert shelf.page(**everything, limit=1, newest_first=True) == ([SIZE], SIZE)


async def test_a_long_stretch_without_a_match_is_an_empty_page(
    service: InProcessService, attribution: Attribution, tenant: TenantId
) -> None:
    """After 10,000 records without a match, an empty page tells where to continue."""
    row = NewRecord(tenant, "p", Operation.ENCRYPT, None, None, "success", "r", "a", "y")
    rare = row._replace(operation=Operation.SIGN)
    for batch in ([rare], [row] * 5_000, [row] * 5_000, [rare]):
        await service.parts.store.commit([(record, None) for record in batch])
    size = MAX_SCANNED + 2
    for newest_first, cursors in ((False, (MAX_SCANNED, None)), (True, (3, None))):
        found: list[list[int]] = []
        bounds: dict[str, Any] = {}
        for cursor in cursors:
            request = ListRecords(
                tenant=tenant, operations=("sign",), newest_first=newest_first, **bounds
            )
            page = await service.execute(request, attribution)
            found.append([json.loads(line)["id"] for line in page.lines])
            assert page.next == cursor
            bounds = {"before" if newest_first else "after": page.next}
        assert found == ([[size], [1]] if newest_first else [[1], [size]])
    nothing = ListRecords(tenant=tenant, operations=("wrap",))
    page = await service.execute(nothing, attribution)
    assert (page.lines, page.next) == ((), MAX_SCANNED)


RARE_FILTERS: list[dict[str, Any]] = [
    {"operations": ("rotate-key",)},
    {"outcome": "key-not-found"},
    {"operations": ("encrypt",), "outcome": "key-not-found"},
    {"operations": ("rotate-key",), "outcome": "key-not-found"},
    {"operations": ("archive-key",)},
    {"outcome": REFUSED},
    {"operations": ("encrypt",), "outcome": REFUSED},
    {"rule": "cnsa-2.0"},
    {"rule": "cnsa-2.0", "outcome": REFUSED},
    {"campaign": "to-x-wing"},
    {"campaign": "none"},
]
LONG = MAX_SCANNED + 1_000


@pytest.fixture
async def long_log(location: Location, service: InProcessService) -> AsyncIterator[sa.Connection]:
    """Write a log of two tenants, each longer than one search reads and with few rare records."""
    usual = NewRecord(TENANTS[0], "p", Operation.ENCRYPT, None, None, "success", "r", "a", "y")
    records = [
        usual._replace(
            tenant=TENANTS[n % 2],
            operation=Operation.ROTATE_KEY if n % 3_000 < 3 else Operation.ENCRYPT,
            outcome="key-not-found" if n % 4_000 < 2 else "success",
            rule="cnsa-2.0" if n % 4_000 < 4 else None,
            campaign="to-x-wing" if n % 5_000 < 2 else None,
        )
        for n in range(2 * LONG)
    ]
    await service.parts.store.commit([(record, None) for record in records])
    engine = sa.create_engine(location.url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


async def test_what_is_rare_is_found_at_once(long_log: sa.Connection) -> None:
    """Rare records of a log of any length fit on one page, in either order."""
    query = sa.text("SELECT * FROM audit_records ORDER BY id")
    rows = long_log.execute(query).all()
    for tenant in (INSTALLATION, TENANTS[1]):
        for asked in RARE_FILTERS:
            wanted = [
                row.id
                for row in rows
                if tenant == INSTALLATION or row.tenant_id == str(tenant)
                if all(
                    (
                        row.operation in value
                        if name == "operations"
                        else getattr(row, name) == value
                    )
                    or (value == REFUSED and row.outcome == "key-not-found")
                    for name, value in asked.items()
                )
            ]
            for newest_first in (False, True):
                page = list_records(
                    long_log, ListRecords(tenant=tenant, newest_first=newest_first, **asked)
                )
                found = [json.loads(line)["id"] for line in page.lines]
                assert (found, page.next) == (wanted[::-1] if newest_first else wanted, None)


async def test_many_rare_records_are_read_in_parts(
    service: InProcessService, location: Location, tenant: TenantId
) -> None:
    """A page reads at most 10,000 rare records, and tells where to continue."""
    row = NewRecord(tenant, "p", Operation.LIST_KEYS, None, None, "success", "r", "a", "y")
    records = [*([row] * (MAX_SCANNED + 5)), row._replace(principal="q")]
    await service.parts.store.commit([(record, None) for record in records])
    engine = sa.create_engine(location.url)
    with engine.connect() as connection:
        asked = ListRecords(tenant=INSTALLATION, operations=("list-keys",), principal="q")
        page = list_records(connection, asked)
        assert (page.lines, page.next) == ((), MAX_SCANNED)
        rest = list_records(connection, structs.replace(asked, after=page.next))
        assert ([json.loads(line)["number"] for line in rest.lines], rest.next) == (
            [MAX_SCANNED + 6],
            None,
        )
    engine.dispose()


PRINCIPALS = [
    *("api-key:1", "api-key:1/billing", "api-key:12/billing", "api-key:2/billing-2"),
    *("api-key:3/Billing", "operator", "operator:ada", "operator:billing", "user:ada", "schedule"),
]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("billing", [1, 2, 7]),
        ("Billing", [4]),
        ("billing-2", [3]),
        ("illing", []),
        ("1/billing", []),
        ("%", []),
        ("ada", [6]),
        ("operator", [5]),
        ("schedule", [9]),
        ("api-key:1", [0, 1]),
        ("api-key:1/billing", [1]),
        ("api-key:", []),
        ("user:ada", [8]),
    ],
)
async def test_a_principal_is_found_by_its_name_too(
    service: InProcessService, attribution: Attribution, asked: str, found: list[int]
) -> None:
    """The whole name of an API key or operator finds it. A part or another case does not."""
    row = NewRecord(TENANTS[0], "p", Operation.ENCRYPT, None, None, "success", "r", "a", "y")
    await service.parts.store.commit(
        [(row._replace(principal=principal), None) for principal in PRINCIPALS]
    )
    page = await service.execute(ListRecords(tenant=TENANTS[0], principal=asked), attribution)
    assert [json.loads(line)["number"] - 1 for line in page.lines] == found


def test_refusals_are_what_is_counted_as_refused(backend: str) -> None:
    """The filter, the index and the count of refusals agree on the outcomes."""
    assert backend
    named = re.findall("'([a-z-]+)'", str(RARE["refused"]))
    assert sorted(named) == sorted(NOT_REFUSED)


def test_what_is_common_is_what_uses_keys(backend: str) -> None:
    """Every operation that uses a key is common, and costs the rare index nothing."""
    assert set(COMMON_OPERATIONS) == USES


async def test_no_search_reads_more_than_it_must(long_log: sa.Connection, backend: str) -> None:
    """On SQLite every search follows an index in its order, without scan or sort."""
    if backend != "sqlite":
        pytest.skip("PostgreSQL chooses by its statistics")
    plans: list[str] = []
    usual: list[dict[str, Any]] = [
        {},
        {"operations": ("sign",)},
        {"algorithm": Algorithm.ML_KEM_768},
        {"key_version": 7},
        {"keyring": "none"},
        {"outcome": "success"},
        {"principal": "p"},
        {"source_address": "192.0.2.1"},
        {"request_id": "none"},
        {"page_views": False},
    ]

    def explain(_: object, cursor: Any, statement: str, parameters: Any, *__: object) -> None:
        found = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        plans.extend(row[-1] for row in found)

    sa.event.listen(long_log, "before_cursor_execute", explain)
    for tenant in (INSTALLATION, TENANTS[1]):
        for asked in (*usual, *RARE_FILTERS):
            for newest_first in (False, True):
                request = ListRecords(
                    tenant=tenant, newest_first=newest_first, after=3, since_us=1, **asked
                )
                list_records(long_log, request)
    assert plans
    assert [plan for plan in plans if not plan.startswith("SEARCH audit_records")] == []


async def test_counts_equal_those_of_the_rows(long_log: sa.Connection, backend: str) -> None:
    """Each count is the number of rows with the value. It says from where rows are not counted."""

    def value(row: Any, by: CountBy) -> str | None:
        if by is CountBy.KEY:
            algorithm = "" if row.algorithm is None else f"/{row.algorithm}"
            version = "" if row.key_version is None else f" v{row.key_version}"
            return None if row.keyring is None else f"{row.keyring}{algorithm}{version}"
        if by in {CountBy.HOUR, CountBy.DAY}:
            hours = row.recorded_at_us // 3_600_000_000
            return str(hours if by is CountBy.HOUR else hours // 24)
        return str(getattr(row, "source_address" if by is CountBy.ADDRESS else by.value))

    for tenant, outcome in ((TENANTS[0], None), (INSTALLATION, REFUSED), (INSTALLATION, None)):
        query = ListRecords(tenant=tenant, outcome=outcome, newest_first=True)
        for by in CountBy:
            counts = count_records(long_log, CountRecords(tenant=tenant, query=query, by=by))
            of = AUDIT_RECORDS.c
            rows = sa.select(AUDIT_RECORDS).where(of.id >= (counts.next or 0))
            if tenant != INSTALLATION:
                rows = rows.where(of.tenant_id == str(tenant))
            if outcome:
                rows = rows.where(RARE["refused"])
            expected = Counter(value(row, by) for row in long_log.execute(rows))
            del expected[None]
            assert {row.value: row.count for row in counts.counts} == expected
            assert (counts.total, counts.values) == (sum(expected.values()), len(expected))
            few = CountRecords(tenant=tenant, query=query, by=by, limit=1)
            assert count_records(long_log, few).counts == counts.counts[:1]
    with pytest.raises(ValueError, match="tenant's"):
        CountRecords(tenant=TENANTS[1], query=query, by=CountBy.DAY)


async def test_revisions_of_rules_are_found_among_rare_records(
    long_log: sa.Connection, backend: str
) -> None:
    """On SQLite the changes of a tenant's rules are found without reading its other records."""
    if backend != "sqlite":
        pytest.skip("PostgreSQL chooses by its statistics")
    plans: list[str] = []

    def explain(_: object, cursor: Any, statement: str, parameters: Any, *__: object) -> None:
        found = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        plans.extend(row[-1] for row in found if "audit_records" in row[-1])

    sa.event.listen(long_log, "before_cursor_execute", explain)
    for tenant in (TENANTS[1], None):
        newest_rules_revisions(long_log, tenant)
    assert set(plans) == {"SEARCH audit_records USING INDEX rare_operations (operation=?)"}


async def test_a_preview_reads_the_days_that_it_compares(
    long_log: sa.Connection, backend: str
) -> None:
    """On SQLite, a preview reads a tenant's uses by day, and only the days that it needs."""
    if backend != "sqlite":
        pytest.skip("PostgreSQL chooses by its statistics")
    plans: list[str] = []

    def explain(_: object, cursor: Any, statement: str, parameters: Any, *__: object) -> None:
        found = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        plans.extend(row[-1] for row in found if " uses " in row[-1])

    sa.event.listen(long_log, "before_cursor_execute", explain)
    for keyrings in (("*",), ("cards.*",), ("cards",)):
        rule = Rule("end", (Algorithm.ML_KEM_768,), keyrings)
        request = PreviewRules(tenant=TENANTS[1], rules=(rule,))
        preview_rules(long_log, request, datetime.now(UTC))
    assert plans
    by_day = "SEARCH uses USING INDEX uses_of_tenant_by_day (tenant_id=? AND day>?)"
    assert set(plans) == {by_day}


async def test_checkpoints_are_found_by_index(long_log: sa.Connection, backend: str) -> None:
    """On SQLite an index finds an algorithm's newest checkpoints."""
    if backend != "sqlite":
        pytest.skip("PostgreSQL chooses by its statistics")
    driver = cast("sqlite3.Connection", long_log.connection.driver_connection)
    statements: list[str] = []
    driver.set_trace_callback(statements.append)
    find_newest_checkpoint(long_log, Algorithm.SLH_DSA_SHA2_128S)
    algorithm = Algorithm.ML_DSA_65
    list_checkpoints(long_log, ListCheckpoints(tenant=INSTALLATION, after=7, algorithm=algorithm))
    find_largest_checkpoint(long_log)
    signed_size(long_log)
    driver.set_trace_callback(None)
    asked = [statement for statement in statements if statement.startswith("SELECT")]
    newest, listed, *sizes = (
        [str(row[-1]) for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}")]
        for statement in asked
    )
    of_both, _, largest = newest
    assert "(size=? AND algorithm=?)" in of_both
    by_algorithm = "INDEX checkpoints_by_algorithm (algorithm=?"
    assert all(by_algorithm in plan for plan in (largest, *listed))
    by_size = "INDEX sqlite_autoindex_audit_checkpoints_1"
    assert all(by_size in step for plan in sizes for step in plan)
    assert len(sizes) == len(("largest", "signed"))


async def test_uses_are_counted_from_uncounted_records_only(
    long_log: sa.Connection, backend: str
) -> None:
    """On SQLite a tenant's uncounted records are read by id, not all of its records."""
    if backend != "sqlite":
        pytest.skip("PostgreSQL chooses by its statistics")
    plans: list[str] = []

    def explain(_: object, cursor: Any, statement: str, parameters: Any, *__: object) -> None:
        found = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        plans.extend(row[-1] for row in found if "audit_records" in row[-1])

    sa.event.listen(long_log, "before_cursor_execute", explain)
    tenant, algorithm = TENANTS[1], Algorithm.ML_KEM_768
    find_key_usage(long_log, GetUsage(tenant=tenant, algorithm=algorithm, version=KeyVersion(1)))
    list_key_usage(long_log, ListUsage(tenant=tenant, algorithm=algorithm))
    find_operation_counts(long_log, CountOperations(tenant=tenant, since_hour=0, hours=1))
    assert set(plans) == {"SEARCH audit_records USING INTEGER PRIMARY KEY (rowid>?)"}
