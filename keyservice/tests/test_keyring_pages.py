"""Pages of keyrings and of the keys of all keyrings equal a model, and read no other page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keyservice.tests.test_keyrings import Caller
from msgspec import structs

from pqkeep_keyservice.keys.keyring import Keyring, default_keyring
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
    KeyService,
    ListKeyrings,
    ListKeys,
)

if TYPE_CHECKING:
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
    """The range from a prefix to its end contains exactly the names that begin with it."""
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
    """Each has its own settings and its own keys."""
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
