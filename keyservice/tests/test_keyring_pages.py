"""Pages of keyrings and of the keys of all keyrings equal a model, and read no other page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyservice.tests.test_keyrings import Caller
from msgspec import structs

from pqkeep_keyservice.keys.keyring import Keyring, default_keyring
from pqkeep_keyservice.ledger.schema import KEY_TOTALS
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.storage.keyrings import (
    find_keyring_names,
    find_keyring_page,
    insert_keyring,
)
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import FindKeyrings
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import DEFAULT_KEYRING, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CreateKeyring,
    KeyPosition,
    KeyringSort,
    KeyService,
    ListKeyrings,
    ListKeys,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyservice.tests.conftest import Sql

    from pqkeep_keyservice.keys.sealing import Sealer

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
NAMES = [
    *("A", "Zoo", "_x", "a", "a-b", "a.b", "a_b", "aB", "ab", "b", "default.x", "defaults", "z"),
    "x" * 128,
]
"""Names that a language's collation would sort otherwise, and the longest."""
LABELS: list[dict[str, str]] = [
    {},
    {"team": "pay"},
    {"team": "Pay"},
    {"team": 'pay"'},
    {"other": '"team":"pay"'},
    {"team": "grün", "stage": "pay"},
]


@pytest.fixture
def caller(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Caller:
    """Return a caller of one tenant."""
    return Caller(keys, tenant, attribution)


def _expected(stored: list[Keyring], request: ListKeyrings) -> list[str]:
    """Return the names of all matches, after ``after``."""
    label = request.label
    return sorted(
        keyring.info.name
        for keyring in stored
        if keyring.info.name.startswith(request.prefix)
        and (label is None or label in keyring.info.labels.items())
        and (request.names is None or keyring.info.name in request.names)
    )


@BOTH
async def test_every_page_equals_the_model(database: Database, sealer: Sealer) -> None:
    """Prefix, label, names, limit and place give the same result as a filter in Python."""
    tenant = TenantId(uuid4())
    stored = [
        Keyring(tenant, KeyringInfo(name, labels=LABELS[number % len(LABELS)]))
        for number, name in enumerate(NAMES)
    ]

    def add(connection: Any) -> None:
        for keyring in stored:
            insert_keyring(connection, sealer, keyring)

    await database.write(add)
    everything = [*stored, default_keyring(tenant)]
    prefixes = ["", "a", "A", "a.", "default", "x", "nothing"]
    labels = [None, ("team", "pay"), ("team", "Pay"), ("team", 'pay"'), ("team", "grün")]
    for prefix in prefixes:
        for label in labels:
            for names in (None, ("a", "default", "ab", "missing")):
                request = ListKeyrings(tenant=tenant, prefix=prefix, label=label, names=names)
                expected = _expected(everything, request)
                found: list[str] = []
                while True:
                    page = await database.read(
                        find_keyring_page, sealer, structs.replace(request, limit=2)
                    )
                    assert page.total == len(expected)
                    found += [keyring.info.name for keyring in page.keyrings]
                    if not page.has_more:
                        break
                    request = structs.replace(request, after=found[-1])
                assert found == expected, request


USED = {"a": 500, "Zoo": 900}
"""The last use of keyrings' keys, in microseconds."""


@BOTH
async def test_every_search_equals_the_model(database: Database, sealer: Sealer) -> None:
    """Words, ages, uses, rotation, algorithms, orders and offsets give the same as Python's."""
    tenant = TenantId(uuid4())
    stored = [
        Keyring(
            tenant,
            KeyringInfo(
                name,
                rotation_days=(0, 30, 90)[number % 3],
                created_at=datetime.fromtimestamp(number // 2 + 1, UTC),
            ),
        )
        for number, name in enumerate(NAMES)
    ]

    def add(connection: Any) -> None:
        for keyring in stored:
            insert_keyring(connection, sealer, keyring)
        totals = [
            {
                "tenant_id": str(tenant),
                "keyring": name,
                "algorithm": "Kyber768",
                "key_version": version,
                "uses": 1,
                "first_used_us": 1,
                "last_used_us": used // version,
            }
            for name, used in USED.items()
            for version in (1, 2)
        ]
        connection.execute(sa.insert(KEY_TOTALS), totals)

    await database.write(add)
    everything = [*stored, default_keyring(tenant)]

    def created_us(keyring: Keyring) -> int | None:
        at = keyring.info.created_at
        return None if at is None else int(at.timestamp()) * 1_000_000

    def used_us(keyring: Keyring) -> int:
        return USED.get(keyring.info.name, 0)

    def days(keyring: Keyring) -> int | None:
        return keyring.info.rotation_days or None

    cases: list[tuple[dict[str, Any], Callable[[Keyring], bool]]] = [
        ({}, lambda _: True),
        ({"words": ("A", "b")}, lambda row: {"a", "b"} <= set(row.info.name.lower())),
        ({"words": ("%",)}, lambda _: False),
        ({"created_before_us": 3_000_000}, lambda row: (created_us(row) or 9_000_000) < 3_000_000),
        ({"created_since_us": 3_000_000}, lambda row: (created_us(row) or 0) >= 3_000_000),
        ({"used_since_us": 500}, lambda row: used_us(row) >= 500),
        ({"unused_since_us": 501}, lambda row: used_us(row) < 501),
        ({"is_rotated": True}, lambda row: days(row) is not None),
        (
            {"is_rotated": False, "words": ("d",)},
            lambda row: not days(row) and "d" in row.info.name,
        ),
        ({"algorithms": (Algorithm.X_WING,)}, lambda _: False),
        ({"deleted": True, "is_rotated": True}, lambda _: False),
    ]
    orders: dict[KeyringSort, Callable[[Keyring], Any]] = {
        KeyringSort.NAME: lambda row: row.info.name,
        KeyringSort.CREATED: created_us,
        KeyringSort.LAST_USED: lambda row: used_us(row) or None,
        KeyringSort.ROTATION: days,
    }
    for fields, matches in cases:
        for sort, key in orders.items():
            for is_descending in (False, True):
                rows = sorted(filter(matches, everything), key=lambda row: row.info.name)
                known = [row for row in rows if key(row) is not None]
                known.sort(key=key, reverse=is_descending)
                rows = [*known, *(row for row in rows if key(row) is None)]
                request = ListKeyrings(
                    tenant=tenant,
                    **fields,
                    sort=sort,
                    is_descending=is_descending,
                    offset=2,
                    limit=5,
                    counts_uses=True,
                )
                page = await database.read(find_keyring_page, sealer, request)
                names = [keyring.info.name for keyring in page.keyrings]
                assert names == [row.info.name for row in rows[2:7]], request
                assert page.last_used_us == tuple(map(used_us, page.keyrings)), request
                assert (page.total, page.has_more) == (len(rows), len(rows) > 7), request


@BOTH
async def test_a_search_shows_no_damaged_keyring(caller: Caller, sql: Sql) -> None:
    """A page of a search with a changed or older keyring is refused; others are shown."""
    for name in ("a", "b"):
        await caller.create(name)
    newest = ListKeyrings(tenant=caller.tenant, sort=KeyringSort.CREATED, is_descending=True)
    assert (await caller.ask(newest)).total == 3
    sql("UPDATE keyrings SET rotation_days = 9 WHERE name = 'b'")
    assert await caller.refusal(newest) is ErrorKind.UNAVAILABLE
    other = structs.replace(newest, words=("a",), limit=1)
    assert [found.name for found in (await caller.ask(other)).keyrings] == ["a"]
    with pytest.raises(ValueError, match="position"):
        structs.replace(newest, after="a")


@BOTH
async def test_names_are_found_by_their_parts(database: Database, sealer: Sealer) -> None:
    """A part in any case finds a name, beginnings first; `_` and `%` stand for themselves."""
    tenant = TenantId(uuid4())
    names = ("a-pay", "Pay.b", "pay", "p_y", "other")

    def add(connection: Any) -> None:
        for name in names:
            insert_keyring(connection, sealer, Keyring(tenant, KeyringInfo(name)))

    await database.write(add)

    async def found(text: str, limit: int = 20) -> tuple[str, ...]:
        request = FindKeyrings(tenant=tenant, text=text, limit=limit)
        return await database.read(find_keyring_names, request)

    assert await found("PAY") == ("Pay.b", "pay", "a-pay")
    assert await found("pay", 2) == ("Pay.b", "pay")
    assert await found("p_y") == ("p_y",)
    assert await found("%") == ()
    assert await found("EFAUL") == ("default",)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prefix=st.from_regex(r"\A[A-Za-z0-9_.-]{0,3}\Z"))
def test_every_name_sorts_before_the_end_of_its_prefix(prefix: str) -> None:
    """The range from a prefix to its end contains exactly the names with that prefix."""
    for name in NAMES:
        assert (prefix <= name < prefix + "\x7f") == name.startswith(prefix)


@BOTH
async def test_a_damaged_keyring_refuses_its_own_page_only(caller: Caller, sql: Sql) -> None:
    """A page with a changed or missing keyring is refused, and the other pages are not."""
    for name in ("a", "b", "c", "d"):
        await caller.create(name)
    listing = ListKeyrings(tenant=caller.tenant, limit=2)
    sql("UPDATE keyrings SET rotation_days = 9 WHERE name = 'b'")
    assert await caller.refusal(listing) is ErrorKind.UNAVAILABLE
    rest = structs.replace(listing, after="b")
    assert [found.name for found in (await caller.ask(rest)).keyrings] == ["c", "d"]
    assert (await caller.ask(structs.replace(listing, prefix="d"))).total == 2
    sql("DELETE FROM keyrings WHERE name = 'b'")
    assert await caller.refusal(listing) is ErrorKind.UNAVAILABLE
    sql("DELETE FROM keyrings WHERE name = 'd'")
    last = structs.replace(listing, after="c")
    assert await caller.refusal(last) is ErrorKind.UNAVAILABLE
    only = structs.replace(listing, names=("c",))
    assert [found.name for found in (await caller.ask(only)).keyrings] == ["c"]


@BOTH
async def test_names_that_differ_in_case_are_different_keyrings(caller: Caller) -> None:
    """``Cards`` and ``cards`` are two keyrings with their own settings and keys."""
    for name in ("Cards", "cards"):
        await caller.create(name, description=name)
        await caller.generate(Algorithm.ML_KEM_768, name)
    listed = (await caller.ask(ListKeyrings(tenant=caller.tenant))).keyrings
    assert [(found.name, found.description) for found in listed] == [
        ("Cards", "Cards"),
        ("cards", "cards"),
        (DEFAULT_KEYRING, ""),
    ]


@BOTH
async def test_keys_of_all_keyrings_come_in_pages(caller: Caller) -> None:
    """Pages follow keyring, algorithm and version, also where a page ends within a keyring."""
    for name in ("Zoo", "a"):
        await caller.create(name)
        for algorithm in (Algorithm.ML_KEM_768, Algorithm.X_WING):
            await caller.generate(algorithm, name)
    await caller.generate(Algorithm.ML_KEM_768, DEFAULT_KEYRING)
    listing = ListKeys(
        tenant=caller.tenant, algorithm=None, status=None, all_keyrings=True, limit=2
    )
    found: list[tuple[str, str]] = []
    while True:
        page = await caller.ask(listing)
        assert page.total == 5
        found += [(key.keyring, key.algorithm.value) for key in page.keys]
        if not page.has_more:
            break
        last = page.keys[-1]
        after = KeyPosition(last.algorithm, last.version, last.keyring)
        listing = structs.replace(listing, after=after)
    assert found == [
        *(("Zoo", "Kyber768"), ("Zoo", "X-Wing"), ("a", "Kyber768"), ("a", "X-Wing")),
        ("default", "Kyber768"),
    ]
    only = structs.replace(listing, algorithm=Algorithm.X_WING, after=None)
    assert (await caller.ask(only)).total == 2


async def test_the_count_follows_creations_and_their_refusals(caller: Caller, sql: Sql) -> None:
    """The stored count is the number of keyrings, also after refused requests."""
    for name in ("a", "b"):
        await caller.create(name)
    taken = CreateKeyring(tenant=caller.tenant, keyring="a")
    assert await caller.refusal(taken) is ErrorKind.KEYRING_EXISTS
    full = CreateKeyring(tenant=caller.tenant, keyring="c", quota=3)
    assert await caller.refusal(full) is ErrorKind.KEYRING_QUOTA_REACHED
    assert sql("SELECT keyrings FROM keyring_counts") == [(2,)]


@pytest.mark.parametrize(
    "page", [{}, {"after": "k00050"}, {"prefix": "k0000"}, {"deleted": True, "prefix": "k0000"}]
)
async def test_a_page_costs_the_same_with_many_keyrings(
    database: Database, sealer: Sealer, page: dict[str, Any]
) -> None:
    """SQLite takes as many steps for a page of 2,000 keyrings as for one of 200."""
    tenant = TenantId(uuid4())
    request = ListKeyrings(tenant=tenant, limit=10, **page)

    def add(connection: Any, first: int, last: int) -> None:
        for number in range(first, last):
            insert_keyring(connection, sealer, Keyring(tenant, KeyringInfo(f"k{number:05}")))

    def steps(connection: Any) -> int:
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        driver = connection.connection.driver_connection
        driver.set_progress_handler(count, 1)
        find_keyring_page(connection, sealer, request)
        driver.set_progress_handler(None, 1)
        return counted

    await database.write(add, 0, 200)
    few = await database.read(steps)
    await database.write(add, 200, 2_000)
    many = await database.read(steps)
    assert 0 < many < few * 1.2
