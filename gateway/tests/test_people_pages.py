"""Paged lists of members, sessions and invitations, on either database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from gateway.tests.world import ATTRIBUTION, World

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.storage.database import microseconds
from pqkeep_gateway.storage.invitations import InvitationFilter
from pqkeep_gateway.storage.pages import Page, Part, PositionNotFoundError, Sorted
from pqkeep_gateway.storage.team import MemberFilter, SqlTeam

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ENTRIES = 5
Read = Callable[[World, Part], Awaitable[Page[Any]]]


async def _members(world: World, part: Part) -> Page[Any]:
    page = await SqlTeam(world.engine).list_members(world.tenant.id, part)
    return Page(tuple(entry.user for entry in page.entries), page.total, page.has_more)


async def _sessions(world: World, part: Part) -> Page[Any]:
    return await world.sessions.list((await world.account("0@example.com")).user.id, part)


async def _invitations(world: World, part: Part) -> Page[Any]:
    return await world.invitations.list(world.tenant.id, part)


async def _fill(world: World) -> None:
    """Create members, sessions and invitations, some with equal times."""
    for number in range(ENTRIES):
        await world.join(Role.VIEWER, f"{number}@example.com")
        await world.invite(f"invited-{number}@example.com", Role.VIEWER)
        if number:
            await world.sessions.begin(await world.account("0@example.com"), ATTRIBUTION)
        world.now += number % 2


@pytest.mark.parametrize("read", [_members, _sessions, _invitations])
async def test_parts_make_up_the_list(world: World, read: Read) -> None:
    """In pages of two, each entry occurs once, in order, with the total on every page."""
    await _fill(world)
    whole = await read(world, Part())
    assert len(whole.entries) == whole.total == ENTRIES
    assert not whole.has_more
    found: list[Any] = []
    has_more = True
    while has_more:
        page = await read(world, Part(2, found[-1].id if found else None))
        assert page.total == ENTRIES
        assert 0 < len(page.entries) <= 2
        found += page.entries
        has_more = page.has_more
    assert tuple(found) == whole.entries


@pytest.mark.parametrize("read", [_members, _sessions, _invitations])
async def test_what_is_not_in_the_list_is_no_place_in_it(world: World, read: Read) -> None:
    """An unknown or foreign entry is not accepted as a position."""
    await _fill(world)
    others = [pages for pages in (_members, _sessions, _invitations) if pages is not read]
    foreign = [(await other(world, Part())).entries[0].id for other in others]
    for position in (uuid4(), *foreign):
        with pytest.raises(PositionNotFoundError):
            await read(world, Part(2, position))


async def test_members_are_found_by_a_part_of_their_address(world: World) -> None:
    """The search is case-insensitive, and wildcards of SQL are literals."""
    await _fill(world)
    listed = await SqlTeam(world.engine).list_members(
        world.tenant.id, Part(), MemberFilter(email="3@EXAMPLE")
    )
    assert [entry.user.email for entry in listed.entries] == ["3@example.com"]
    assert listed.total == 1
    for pattern in ("_@example", "%", "\\"):
        assert (
            await SqlTeam(world.engine).list_members(
                world.tenant.id, Part(), MemberFilter(email=pattern)
            )
        ).total == 0


async def test_invitations_are_filtered_and_sorted(world: World) -> None:
    """Filters are combined, wildcards of SQL are literals, and owners come first by role."""
    roles = {"b": Role.VIEWER, "a": Role.OWNER, "c": Role.ADMIN}
    for name, role in roles.items():
        await world.invite(f"{name}@example.com", role)
        world.now += 3600
    tenant, invitations = world.tenant.id, world.invitations

    async def found(sort: str, **only: Any) -> str:
        page = await invitations.list(tenant, Sorted(sort, 0, 10), InvitationFilter(**only))
        assert page.total == len(page.entries)
        return "".join(entry.email[0] for entry in page.entries)

    assert [await found(sort) for sort in ("expires", "-expires", "email")] == ["bac", "cab", "abc"]
    assert [await found(sort) for sort in ("role", "-role")] == ["acb", "bca"]
    assert await found("email", email="B@EXAMPLE") == "b"
    assert await found("email", email="_@example") == ""
    assert await found("email", roles=(Role.OWNER, Role.ADMIN)) == "ac"
    first = (await invitations.list(tenant, Sorted("expires", 0, 1))).entries[0]
    before = microseconds(first.expires_at)
    assert await found("email", expires_before_us=before) == ""
    assert await found("email", expires_before_us=before + 1) == "b"
    assert await found("email", expires_before_us=before + 1, roles=(Role.OWNER,)) == ""
    second = await invitations.list(tenant, Sorted("email", 1, 1))
    assert ([entry.email for entry in second.entries], second.has_more) == (["b@example.com"], True)
