"""The time and address of a credential's last use, on either database."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from gateway.tests.world import ATTRIBUTION, HERE, FakeLastUses, World

from pqkeep_gateway.access.admission import Authenticator
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind
from pqkeep_gateway.access.last_uses import BATCH, LastUse, LastUses
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.last_uses import SqlLastUses
from pqkeep_gateway.storage.operators import SqlOperators
from pqkeep_gateway.tenancy.operators import Operators
from pqkeep_gateway.unavailable import UnavailableError

ON_EITHER = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
ELSEWHERE = "192.0.2.8"
NOW = 1_800_000_000.0


def number(of: int) -> bytes:
    """Return a digest."""
    return of.to_bytes(32, "big")


@ON_EITHER
async def test_the_newest_use_is_kept(world: World) -> None:
    """Listings show the newest use of each API key, even if gateways store in another order."""
    made = [await world.api_keys.create(world.tenant, ATTRIBUTION) for _ in range(2)]
    digests = [world.pepper.digest(item.plaintext) for item in made]
    assert [key.last_used_at for key in await world.api_keys.list(world.tenant.id)] == [None] * 2
    gateways = [LastUses(SqlLastUses(world.engine)) for _ in range(2)]
    began = world.now
    for gateway, digest, at, address in (
        (gateways[0], digests[0], 2, HERE),
        (gateways[1], digests[0], 1, ELSEWHERE),
        (gateways[0], digests[1], 1, HERE),
        (gateways[1], digests[1], 2, ELSEWHERE),
    ):
        world.now = began + at
        gateway.note(digest, address, world.clock())
    for gateway in gateways:
        await gateway.store()
    listed = await world.api_keys.list(world.tenant.id)
    assert [entry.last_used_from for entry in listed] == [HERE, ELSEWHERE]
    assert [entry.last_used_at for entry in listed] == [date_of(began + 2)] * 2


@ON_EITHER
async def test_an_operator_is_used_when_the_credential_is_shown(world: World) -> None:
    """A used operator's credential has its time and address; an unused one has none."""
    operators = Operators(SqlOperators(world.engine), world.pepper)
    shown, _ = [await operators.add(name) for name in ("ada", "grace")]
    last_uses = LastUses(SqlLastUses(world.engine))
    authenticator = Authenticator(
        {CredentialKind.API_KEY: SqlApiKeys(world.engine).find},
        SqlOperators(world.engine).find,
        CredentialLookups(world.clock),
        MemoryRateLimiter(world.clock),
        world.pepper,
        None,
        last_uses,
        world.clock,
    )
    await authenticator.authenticate(shown, HERE)
    await authenticator.authenticate(shown[:-1] + ("A" if shown[-1] != "A" else "B"), ELSEWHERE)
    await last_uses.store()
    assert [
        (operator.name, operator.last_used_at, operator.last_used_from)
        for operator in await operators.list()
    ] == [("ada", date_of(world.now), HERE), ("grace", None, None)]


@ON_EITHER
async def test_what_is_gone_is_not_stored(world: World) -> None:
    """Uses of deleted credentials change nothing, and do not delay others."""
    made = await world.api_keys.create(world.tenant, ATTRIBUTION)
    last_uses = LastUses(SqlLastUses(world.engine))
    for digest in (number(1), world.pepper.digest(made.plaintext), number(2)):
        last_uses.note(digest, HERE, world.clock())
    await last_uses.store()
    (listed,) = await world.api_keys.list(world.tenant.id)
    assert listed.last_used_from == HERE


@ON_EITHER
async def test_an_overlap_is_shown_until_it_ends(world: World) -> None:
    """A rotated API key shows the end of its overlap until then."""
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    began = world.now
    await world.api_keys.rotate(world.tenant.id, None, ATTRIBUTION)
    for at, shown in ((began, date_of(began + 30)), (began + 30, None)):
        world.now = at
        rotated, new = await world.api_keys.list(world.tenant.id)
        assert (rotated.accepted_until, new.accepted_until) == (shown, None)


async def test_many_uses_are_one_entry_each() -> None:
    """Several uses between two writes are stored as one; without a use nothing is written."""
    store = FakeLastUses()
    last_uses = LastUses(store)
    for _ in range(1000):
        last_uses.note(number(1), HERE, NOW)
    last_uses.note(number(1), ELSEWHERE, NOW)
    for _ in range(2):
        await last_uses.store()
    assert store.saved == [{number(1): LastUse(NOW, ELSEWHERE)}]


async def test_many_credentials_are_stored_in_parts_and_in_order() -> None:
    """A transaction has at most BATCH rows, and all gateways use the same order."""
    store = FakeLastUses()
    last_uses = LastUses(store)
    for index in reversed(range(2 * BATCH + 1)):
        last_uses.note(number(index), HERE, NOW)
    await last_uses.store()
    assert [len(item) for item in store.saved] == [BATCH, BATCH, 1]
    stored = [digest for item in store.saved for digest in item]
    assert stored == [number(index) for index in range(2 * BATCH + 1)]


async def test_nothing_is_lost_while_the_database_is_away() -> None:
    """After an outage, pending uses are stored, unless the database has newer uses."""
    store = FakeLastUses(is_unavailable=True)
    last_uses = LastUses(store)
    for version in (1, 2):
        last_uses.note(number(version), HERE, NOW)
    with pytest.raises(UnavailableError):
        await last_uses.store()
    last_uses.note(number(1), ELSEWHERE, NOW + 1)
    store.is_unavailable = False
    await last_uses.store()
    assert store.saved == [{number(1): LastUse(NOW + 1, ELSEWHERE), number(2): LastUse(NOW, HERE)}]


@pytest.mark.parametrize("is_unavailable", [False, True])
async def test_the_end_stores_what_was_noted(*, is_unavailable: bool) -> None:
    """A gateway stores its noted uses at its end; a database outage does not prevent the end."""
    store = FakeLastUses()
    last_uses = LastUses(store)
    running = asyncio.create_task(last_uses.run())
    await asyncio.sleep(0)  # it begins, stores nothing, and pauses
    last_uses.note(number(1), HERE, NOW)
    store.is_unavailable = is_unavailable
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert len(store.saved) == (0 if is_unavailable else 1)
