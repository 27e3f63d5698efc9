"""Concurrent changes of a team, on either database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, HERE, PASSWORD, ROUNDS, World

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.notices import Details, NoticeKind
from pqkeep_gateway.people.challenges import Factor, SecondFactorRequiredError
from pqkeep_gateway.people.sessions import Tokens
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.people.step_up import SteppedUp
from pqkeep_gateway.storage.notices import open_notice
from pqkeep_gateway.storage.schema import (
    IDENTITIES,
    METADATA,
    NOTICE_MAIL_REFUSALS,
    NOTICE_VIEWS,
    NOTICES,
    PASSKEYS,
    SPENT_REFRESH_TOKENS,
    TABLES_OF_USER,
)
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError
from pqkeep_gateway.storage.team import (
    LastOwnerError,
    Member,
    MemberNotFoundError,
    NotPermittedError,
    OwnersOnlyError,
    SqlTeam,
)
from pqkeep_gateway.storage.users import AccountChangedError, UserNotFoundError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

REFUSALS = NotPermittedError | MemberNotFoundError | OwnersOnlyError | LastOwnerError
POSSIBLE_OUTCOMES = (
    Tokens,
    SteppedUp,
    SecondFactorRequiredError,
    AccountChangedError,
    WrongPasswordError,
    UserNotFoundError,
)
"""Possible results while a request's user is removed."""


async def test_a_team_keeps_an_owner(world: World) -> None:
    """Of owners who concurrently remove or demote one another, at least one remains."""
    for number in range(ROUNDS):
        owners = [await world.person(f"{number}-{place}@example.com") for place in range(4)]
        acts: list[Awaitable[object]] = []
        for by, whom in zip(owners, owners[1:] + owners[:1], strict=True):
            acts.append(world.members.remove(by.tenant, whom.user, by, ATTRIBUTION))
            acts.append(
                world.members.change_role(by.tenant, whom.user, Role.VIEWER, by, ATTRIBUTION)
            )
        for outcome in await asyncio.gather(*acts, return_exceptions=True):
            assert outcome is None or isinstance(outcome, Member | REFUSALS), outcome
        left = [
            member.user
            for member in (await SqlTeam(world.engine).list_members(world.tenant.id)).entries
        ]
        assert Role.OWNER in [item.role for item in left]
        for item in left:
            if item.role is not Role.OWNER:
                await world.members.remove(
                    world.tenant.id, item.id, OperatorPrincipal(), ATTRIBUTION
                )


async def test_a_removed_user_leaves_no_rows(world: World) -> None:
    """Removing a user deletes their rows in every table that refers to users."""
    await world.join(email="grace@example.com")
    person = await world.person()
    _, (recovery_code, *_) = await world.enroll(person)
    await world.step_up.issue(person, recovery_code, ATTRIBUTION)
    tokens = await world.sessions.begin(await world.account(), ATTRIBUTION)
    await world.sessions.refresh(tokens.refresh, b"", ATTRIBUTION)
    await world.challenge()
    async with world.engine.begin() as connection:
        row = {"issuer": "https://id.example.org", "subject": "1", "linked_at_us": 1}
        await connection.execute(sa.insert(IDENTITIES).values(user_id=person.user, **row))
        passkey = {
            "id": uuid4(),
            "credential_id": b"1",
            "algorithm": "ES256",
            "public_key": b"",
            "counter": 0,
            "is_syncable": False,
            "is_synced": False,
            "transports": "",
            "name": "Phone",
            "created_at_us": 1,
        }
        await connection.execute(sa.insert(PASSKEYS).values(user_id=person.user, **passkey))
        await connection.execute(sa.insert(NOTICE_MAIL_REFUSALS).values(user_id=person.user))
        now = date_of(time.time())
        await open_notice(
            connection, world.tenant.id, NoticeKind.FACTOR_REMOVED, "", Details(at=now), now
        )
        notice = (await connection.execute(sa.select(NOTICES.c.id))).scalars().first()
        view = {"notice_id": notice, "seen_at_us": 1}
        await connection.execute(sa.insert(NOTICE_VIEWS).values(user_id=person.user, **view))

    async def rows() -> dict[str, int]:
        counts = {}
        async with world.engine.connect() as connection:
            for table in (*TABLES_OF_USER, SPENT_REFRESH_TOKENS):
                which = table.c.user_id == person.user if table in TABLES_OF_USER else sa.true()
                count = sa.select(sa.func.count()).select_from(table).where(which)
                counts[table.name] = (await connection.execute(count)).scalar_one()
        return counts

    before = await rows()
    assert before.keys() >= _referring_to("users", "sessions")
    assert all(before.values()), before
    await world.members.remove(world.tenant.id, person.user, OperatorPrincipal(), ATTRIBUTION)
    assert not any((await rows()).values())
    (left,) = (await SqlTeam(world.engine).list_members(world.tenant.id)).entries
    assert left.user.email == "grace@example.com"


def _referring_to(*names: str) -> set[str]:
    """Return the tables with a foreign key to one of the given tables."""
    return {
        table.name
        for table in METADATA.tables.values()
        for key in table.foreign_keys
        if key.column.table.name in names
    }


async def test_a_removal_ends_concurrent_sign_ins(world: World) -> None:
    """A user's requests during their removal are executed before it or refused."""
    await world.join(email="grace@example.com")
    for number in range(ROUNDS):
        email = f"{number}@example.com"
        person = await world.person(email)
        account = await world.users.get(person.user)
        outcomes = await asyncio.gather(
            world.sessions.begin(account, ATTRIBUTION),
            world.step_up.issue(person, PASSWORD, ATTRIBUTION),
            world.challenges.issue(account, Factor.APP, HERE),
            world.members.remove(world.tenant.id, person.user, OperatorPrincipal(), ATTRIBUTION),
            world.sign_in.with_password(email, PASSWORD, ATTRIBUTION),
            return_exceptions=True,
        )
        assert outcomes[3] is None
        for outcome in outcomes:
            assert isinstance(outcome, POSSIBLE_OUTCOMES) or outcome is None, outcome
            if isinstance(outcome, Tokens):
                assert await world.sessions.find(outcome.access, HERE) is None
                with pytest.raises(InvalidRefreshTokenError):
                    await world.sessions.refresh(outcome.refresh, b"", ATTRIBUTION)
