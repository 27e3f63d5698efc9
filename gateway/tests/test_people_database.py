"""What the accounts database does for people, on either kind: single-use stays single-use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher
from pyotp import TOTP
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.principals import OperatorPrincipal, SessionPrincipal, UserId
from pqkeep_gateway.access.rate_limit import Limit, MemoryRateLimiter
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.mail.outgoing_mail import MailKind, mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import (
    RECOVERY_CODES,
    Factor,
    SecondFactorRequiredError,
    SecondFactors,
    WrongCodeError,
)
from pqkeep_gateway.people.sessions import NoSessionError, Sessions, Tokens
from pqkeep_gateway.people.sign_in import InvalidInvitationTokenError, SignIn, WrongPasswordError
from pqkeep_gateway.people.step_up import StepUp, StepUpRequiredError
from pqkeep_gateway.people.team import (
    InvitationNotFoundError,
    LastOwnerError,
    Member,
    MemberNotFoundError,
    NotPermittedError,
    OwnersOnlyError,
    TeamMembers,
)
from pqkeep_gateway.people.users import Account, UserNotFoundError
from pqkeep_gateway.storage.outbox import SqlOutbox
from pqkeep_gateway.storage.people import SqlSessions
from pqkeep_gateway.storage.schema import METADATA, OF_A_USER, SPENT_TOKENS
from pqkeep_gateway.storage.second_factors import SqlSecondFactors, SqlStepUps
from pqkeep_gateway.storage.team import SqlTeam
from pqkeep_gateway.storage.tenancy import SqlTenants
from pqkeep_gateway.tenancy.tenants import Tenant
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution, Request

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ATTRIBUTION = Attribution("1", "anonymous", "127.0.0.1")
PASSWORD = "the horse prefers oats"  # noqa: S105 - nobody's
EMAIL = "ada@example.com"
RIVALS = 32
MOMENT = 1 / 1024
"""Of a second: exact in a clock's reading."""


def is_wrong_code(error: Exception) -> bool:
    """Return whether an action has certainly done nothing."""
    return isinstance(error, WrongCodeError)


REFUSALS = NotPermittedError | MemberNotFoundError | OwnersOnlyError | LastOwnerError
PROMISES = (
    Tokens,
    str,
    SecondFactorRequiredError,
    NoSessionError,
    WrongPasswordError,
    UserNotFoundError,
)
"""What somebody may hear who is removed at the same time."""
ROUNDS = int(os.environ.get("PQKEEP_ROUNDS", "20"))
"""How often each race for something single-use is run; ``make races`` runs it 200 times."""


class Log:
    """A key service that keeps the events it is brought."""

    def __init__(self) -> None:
        self._kept: dict[UUID, str] = {}

    @property
    def operations(self) -> list[str]:
        return list(self._kept.values())

    async def execute(self, request: Request[Any], attribution: Attribution, /) -> Any:
        for each in request.events:  # type: ignore[attr-defined]
            self._kept[each.id] = each.operation


class Unlimited(MemoryRateLimiter):
    """Windows that are never full."""

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        return None


class World:
    """People on a database, with cheap passwords and a clock to set."""

    def __init__(self, engine: AsyncEngine, pepper: Pepper, tenant: Tenant) -> None:
        self.now = 1_800_000_000.0
        self.tenant = tenant
        self.log = Log()
        self.people = SqlSecondFactors(engine)
        audit_delivery = AuditDelivery(SqlOutbox(engine), self.log)
        self.sessions = Sessions(SqlSessions(engine), pepper, audit_delivery, lambda: self.now)
        self.passwords = Passwords(pepper, PasswordHasher(1, 8, 1))
        attempts = AttemptLimits(Unlimited(lambda: self.now), pepper)
        self.factors = SecondFactors(
            self.people, attempts, pepper, audit_delivery, lambda: self.now, by_email=True
        )
        self.teams = TeamMembers(SqlTeam(engine), audit_delivery, lambda: self.now)

        def sign_in(passwords: Passwords) -> SignIn:
            return SignIn(
                self.people,
                self.sessions,
                passwords,
                attempts,
                self.factors,
                pepper,
                audit_delivery,
                lambda: self.now,
            )

        self.sign_in = sign_in(self.passwords)
        self.dearer_passwords = Passwords(pepper, PasswordHasher(2, 16, 1))
        self.dearer_entry = sign_in(self.dearer_passwords)
        self.step_up = StepUp(
            SqlStepUps(engine),
            self.people,
            self.factors,
            self.passwords,
            attempts,
            pepper,
            audit_delivery,
            lambda: self.now,
        )

    async def join(self, role: Role = Role.OWNER, email: str = EMAIL) -> Tokens:
        """Let somebody in."""
        invited = await self.sign_in.invite(self.tenant.id, email, role, ATTRIBUTION)
        _, tokens = await self.sign_in.accept(invited.token, PASSWORD, ATTRIBUTION)
        return tokens

    async def person(self, email: str = EMAIL) -> SessionPrincipal:
        """Let somebody in and return their session."""
        found = await self.sessions.find((await self.join(email=email)).access)
        assert found is not None
        return found

    async def enroll(self, person: SessionPrincipal) -> tuple[TOTP, tuple[str, ...]]:
        """Give somebody a second factor; return what makes codes, and recovery codes."""
        made = await self.factors.enroll(person)
        totp = TOTP(made.secret)
        return totp, await self.factors.confirm(person, totp.at(int(self.now)), ATTRIBUTION)

    async def challenge(self) -> str:
        """Return a challenge to somebody's right password."""
        with pytest.raises(SecondFactorRequiredError) as challenged:
            await self.sign_in.sign_in(EMAIL, PASSWORD, ATTRIBUTION)
        return challenged.value.token

    async def account(self) -> Account:
        """Return who joined."""
        found = await self.people.find(EMAIL)
        assert found is not None
        return found


@pytest.fixture
async def world(engine: AsyncEngine, pepper: Pepper, new_tenant: Callable[..., Tenant]) -> World:
    """One tenant, and nobody in it yet."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT))
    return World(engine, pepper, tenant)


async def winners(attempts: Sequence[Awaitable[Any]], refusal: type[Exception]) -> int:
    """Return how many of so many attempts at once succeed; the others are refused so."""
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    for each in outcomes:
        assert not isinstance(each, BaseException) or isinstance(each, refusal), each
    return sum(not isinstance(each, BaseException) for each in outcomes)


async def test_a_refresh_token_is_exchanged_once(world: World) -> None:
    """Of 32 exchanges of one token at once exactly one succeeds, and then all is over."""
    await world.join()
    account = await world.account()
    for _ in range(ROUNDS):
        tokens = await world.sessions.begin(account, ATTRIBUTION)
        tries = [world.sessions.refresh(tokens.refresh, ATTRIBUTION) for _ in range(RIVALS)]
        assert await winners(tries, NoSessionError) == 1
        with pytest.raises(NoSessionError):
            await world.sessions.refresh(tokens.refresh, ATTRIBUTION)
    assert world.log.operations.count("refresh-token-reused") == ROUNDS


async def test_an_invitation_is_accepted_once(world: World) -> None:
    """Of 32 acceptances of one invitation at once exactly one makes somebody."""
    invited = await world.sign_in.invite(world.tenant.id, EMAIL, Role.VIEWER, ATTRIBUTION)
    tries = [world.sign_in.accept(invited.token, PASSWORD, ATTRIBUTION) for _ in range(RIVALS)]
    assert await winners(tries, InvalidInvitationTokenError) == 1


async def test_tokens_end_when_they_should(world: World) -> None:
    """An access token is accepted for 15 minutes, a refresh token for 7 days: not a moment more."""
    began = world.now
    tokens = await world.join()
    world.now = began + 15 * 60 - MOMENT
    assert await world.sessions.find(tokens.access)
    world.now = began + 15 * 60
    assert await world.sessions.find(tokens.access) is None
    world.now = began = began + 7 * 86_400 - MOMENT
    tokens = await world.sessions.refresh(tokens.refresh, ATTRIBUTION)
    world.now = began + 7 * 86_400
    with pytest.raises(NoSessionError):
        await world.sessions.refresh(tokens.refresh, ATTRIBUTION)


async def test_a_refreshed_access_token_has_its_own_time(world: World) -> None:
    """A refresh opens the session for 15 minutes from then on, and what was before for no more."""
    old = await world.join()
    world.now += 10 * 60
    new = await world.sessions.refresh(old.refresh, ATTRIBUTION)
    assert await world.sessions.find(old.access) is None
    world.now += 15 * 60 - MOMENT
    assert await world.sessions.find(new.access)
    world.now += MOMENT
    assert await world.sessions.find(new.access) is None


async def test_an_invitation_ends_after_a_week(world: World) -> None:
    """What was not accepted in a week cannot be."""
    invited = await world.sign_in.invite(world.tenant.id, EMAIL, Role.VIEWER, ATTRIBUTION)
    world.now += 7 * 86_400
    with pytest.raises(InvalidInvitationTokenError):
        await world.sign_in.accept(invited.token, PASSWORD, ATTRIBUTION)


async def test_another_password_ends_every_session(world: World) -> None:
    """After a change of password no token of before opens anything."""
    tokens = [await world.join()]
    tokens += [await world.sign_in.sign_in(EMAIL, PASSWORD, ATTRIBUTION) for _ in range(3)]
    person = await world.sessions.find(tokens[0].access)
    assert person is not None
    await world.sign_in.change_password(person, PASSWORD + "!", ATTRIBUTION)
    for each in tokens:
        assert await world.sessions.find(each.access) is None
        with pytest.raises(NoSessionError):
            await world.sessions.refresh(each.refresh, ATTRIBUTION)
    with pytest.raises(WrongPasswordError):
        await world.sign_in.sign_in(EMAIL, PASSWORD, ATTRIBUTION)


async def test_who_knew_the_old_password_comes_too_late(world: World) -> None:
    """A sign-in that began before a change of password begins no session after it."""
    tokens = await world.join()
    before = await world.account()
    person = await world.sessions.find(tokens.access)
    assert person is not None
    await world.sign_in.change_password(person, PASSWORD + "!", ATTRIBUTION)
    with pytest.raises(NoSessionError):
        await world.sessions.begin(before, ATTRIBUTION)


async def test_failures_are_told_of_whoever_it_was(world: World) -> None:
    """A failure at an address that somebody has, and at one nobody has, is an event each."""
    await world.join()
    for email in (EMAIL, f"{uuid4()}@example.com"):
        with pytest.raises(WrongPasswordError):
            await world.sign_in.sign_in(email, PASSWORD + "?", ATTRIBUTION)
    assert world.log.operations.count("sign-in-failed") == 2


@pytest.mark.parametrize("drift", [-30, 0, 30])
async def test_a_code_is_accepted_once(world: World, drift: int) -> None:
    """A code of this step or one beside it is accepted once, of 32 at once, and never again."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    code = totp.at(int(world.now) + drift)
    challenge = await world.challenge()
    tries = [world.sign_in.answer(challenge, code, ATTRIBUTION) for _ in range(RIVALS)]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, Tokens) for each in outcomes) == 1
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer(await world.challenge(), code, ATTRIBUTION)


@pytest.mark.parametrize("drift", [-60, 60])
async def test_a_code_of_another_time_is_refused(world: World, drift: int) -> None:
    """A code of two steps ago or ahead is wrong."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer(
            await world.challenge(), totp.at(int(world.now) + drift), ATTRIBUTION
        )


async def test_an_earlier_code_is_refused_after_a_later_one(world: World) -> None:
    """Once a step was accepted, those before it are not, though nobody has used them."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    await world.sign_in.answer(await world.challenge(), totp.at(int(world.now)), ATTRIBUTION)
    with pytest.raises(WrongCodeError):
        await world.sign_in.answer(
            await world.challenge(), totp.at(int(world.now) - 30), ATTRIBUTION
        )


async def test_a_recovery_code_is_accepted_once(world: World) -> None:
    """Of 32 uses of each recovery code at once exactly one succeeds."""
    person = await world.person()
    for _ in range(0, ROUNDS, RECOVERY_CODES):
        _, codes = await world.enroll(person)
        account = await world.account()
        for code in codes:
            tries = [world.factors.check(account, code, ATTRIBUTION) for _ in range(RIVALS)]
            assert await winners(tries, WrongCodeError) == 1
        told = mail(MailKind.SECOND_FACTOR_REMOVED, EMAIL, date_of(world.now))
        made = event(ATTRIBUTION, world.tenant.id, AuditEvent.DISABLE_MFA)
        await world.people.disable(person.user, told, made)
    assert world.log.operations.count("use-recovery-code") == ROUNDS


async def test_a_challenge_ends_after_five_minutes(world: World) -> None:
    """A challenge is answered within 300 seconds, or not at all."""
    totp, _ = await world.enroll(await world.person())
    challenge = await world.challenge()
    world.now += 300
    with pytest.raises(WrongPasswordError):
        await world.sign_in.answer(challenge, totp.at(int(world.now)), ATTRIBUTION)


async def test_no_secret_of_codes_is_in_the_database(world: World) -> None:
    """What is kept of a second factor is a salt, which without the pepper makes no code."""
    totp, codes = await world.enroll(await world.person())
    account = await world.account()
    assert account.totp_salt is not None
    assert account.totp_salt not in totp.byte_secret()
    assert totp.secret not in repr(account)
    assert not any(code in repr(account) for code in codes)


async def test_a_step_up_token_acts_once(world: World) -> None:
    """Of 32 actions with one token at once exactly one is done, and none later."""
    person = await world.person()
    done = 0

    async def handler() -> None:
        nonlocal done
        await asyncio.sleep(0)
        done += 1

    for number in range(ROUNDS):
        token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
        tries = [world.step_up.spend(person, token, handler, is_wrong_code) for _ in range(RIVALS)]
        assert await winners(tries, StepUpRequiredError) == 1
        with pytest.raises(StepUpRequiredError):
            await world.step_up.spend(person, token, handler, is_wrong_code)
        assert done == number + 1


async def test_a_failure_uses_no_step_up_token_up(world: World) -> None:
    """After an action that failed the token acts again, once."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)

    async def fail() -> None:
        raise WrongCodeError

    async def handler() -> str:
        return "done"

    with pytest.raises(WrongCodeError):
        await world.step_up.spend(person, token, fail, is_wrong_code)
    assert await world.step_up.spend(person, token, handler, is_wrong_code) == "done"


async def test_an_action_that_may_have_been_done_uses_a_step_up_token_up(world: World) -> None:
    """Where nobody knows what became of an action, its token does not act a second time."""
    person = await world.person()
    token = await world.step_up.issue(person, PASSWORD, ATTRIBUTION)

    async def lose() -> None:
        raise UnavailableError

    with pytest.raises(UnavailableError):
        await world.step_up.spend(person, token, lose, is_wrong_code)
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, lose, is_wrong_code)


async def test_a_step_up_token_ends_after_300_seconds(world: World) -> None:
    """A token acts until its 300 seconds are over, and not for anybody else."""
    person = await world.person()
    token, other_token = [
        await world.step_up.issue(person, PASSWORD, ATTRIBUTION) for _ in range(2)
    ]

    async def handler() -> None:
        """Do nothing."""

    other = replace(person, user=UserId(uuid4()))
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(other, token, handler, is_wrong_code)
    world.now += 300 - MOMENT
    await world.step_up.spend(person, other_token, handler, is_wrong_code)
    world.now += MOMENT
    with pytest.raises(StepUpRequiredError):
        await world.step_up.spend(person, token, handler, is_wrong_code)


async def test_a_cheap_hash_is_renewed_at_the_next_sign_in(world: World) -> None:
    """Where hashes cost more now, a right password is kept as a new one, and a wrong one is not."""
    await world.join()
    before = await world.account()
    with pytest.raises(WrongPasswordError):
        await world.dearer_entry.sign_in(EMAIL, PASSWORD + "?", ATTRIBUTION)
    assert await world.account() == before
    await world.dearer_entry.sign_in(EMAIL, PASSWORD, ATTRIBUTION)
    after = (await world.account()).password_hash
    assert world.dearer_passwords.is_outdated(before.password_hash)
    assert not world.dearer_passwords.is_outdated(after)
    await world.dearer_entry.sign_in(EMAIL, PASSWORD, ATTRIBUTION)
    assert (await world.account()).password_hash == after


async def test_who_is_challenged_has_a_new_hash_too(world: World) -> None:
    """With a second factor the hash is renewed when the password was right, and the code follows."""
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    with pytest.raises(SecondFactorRequiredError) as challenged:
        await world.dearer_entry.sign_in(EMAIL, PASSWORD, ATTRIBUTION)
    assert not world.dearer_passwords.is_outdated((await world.account()).password_hash)
    await world.dearer_entry.answer(challenged.value.token, totp.at(int(world.now)), ATTRIBUTION)


async def test_whoever_comes_second_to_renew_a_hash_is_let_in(world: World) -> None:
    """Whoever signs in while another sign-in renews the hash is let in nevertheless."""
    await world.join()
    tries = [world.dearer_entry.sign_in(EMAIL, PASSWORD, ATTRIBUTION) for _ in range(8)]
    assert len(await asyncio.gather(*tries)) == 8


async def test_no_renewal_brings_an_old_password_back(world: World) -> None:
    """A hash that is another by now is left as it is."""
    tokens = await world.join()
    before = await world.account()
    person = await world.sessions.find(tokens.access)
    assert person is not None
    await world.sign_in.change_password(person, PASSWORD + "!", ATTRIBUTION)
    changed = await world.account()
    assert not await world.people.renew_hash(before, before.password_hash)
    assert await world.account() == changed


async def test_a_team_keeps_an_owner(world: World) -> None:
    """Of many owners who remove or demote one another all at once, one is left at least."""
    for number in range(ROUNDS):
        owners = [await world.person(f"{number}-{each}@example.com") for each in range(4)]
        acts: list[Awaitable[object]] = []
        for by, whom in zip(owners, owners[1:] + owners[:1], strict=True):
            acts.append(world.teams.remove(by.tenant, whom.user, by, ATTRIBUTION))
            acts.append(world.teams.change_role(by.tenant, whom.user, Role.VIEWER, by, ATTRIBUTION))
        for each in await asyncio.gather(*acts, return_exceptions=True):
            assert each is None or isinstance(each, Member | REFUSALS), each
        left = [each.user for each in await world.teams.members(world.tenant.id)]
        assert Role.OWNER in [each.role for each in left]
        for each in left:
            if each.role is not Role.OWNER:
                await world.teams.remove(world.tenant.id, each.id, OperatorPrincipal(), ATTRIBUTION)


async def test_nothing_is_left_of_a_removed_person(world: World, engine: AsyncEngine) -> None:
    """Somebody of whom there is a row in every table that is about people leaves none in any."""
    await world.join(email="grace@example.com")
    person = await world.person()
    await world.step_up.issue(person, PASSWORD, ATTRIBUTION)
    await world.enroll(person)
    tokens = await world.sessions.begin(await world.account(), ATTRIBUTION)
    await world.sessions.refresh(tokens.refresh, ATTRIBUTION)
    await world.challenge()

    async def rows() -> dict[str, int]:
        kept = {}
        async with engine.connect() as connection:
            for table in (*OF_A_USER, SPENT_TOKENS):
                which = table.c.user_id == person.user if table in OF_A_USER else sa.true()
                count = sa.select(sa.func.count()).select_from(table).where(which)
                kept[table.name] = (await connection.execute(count)).scalar_one()
        return kept

    before = await rows()
    assert before.keys() >= _referring_to("users", "sessions")
    assert all(before.values()), before
    await world.teams.remove(world.tenant.id, person.user, OperatorPrincipal(), ATTRIBUTION)
    assert not any((await rows()).values())
    (left,) = await world.teams.members(world.tenant.id)
    assert left.user.email == "grace@example.com"


def _referring_to(*names: str) -> set[str]:
    """Return the tables with a foreign key to one of these."""
    return {
        table.name
        for table in METADATA.tables.values()
        for key in table.foreign_keys
        if key.column.table.name in names
    }


async def test_nobody_comes_in_while_they_are_removed(world: World) -> None:
    """Whatever somebody asks for while they are removed is done before or refused, and is gone."""
    await world.join(email="grace@example.com")
    for number in range(ROUNDS):
        email = f"{number}@example.com"
        person = await world.person(email)
        account = await world.people.get(person.user)
        outcomes = await asyncio.gather(
            world.sessions.begin(account, ATTRIBUTION),
            world.step_up.issue(person, PASSWORD, ATTRIBUTION),
            world.factors.challenge(account, Factor.APP),
            world.teams.remove(world.tenant.id, person.user, OperatorPrincipal(), ATTRIBUTION),
            world.sign_in.sign_in(email, PASSWORD, ATTRIBUTION),
            return_exceptions=True,
        )
        assert outcomes[3] is None
        for each in outcomes:
            assert isinstance(each, PROMISES) or each is None, each
            if isinstance(each, Tokens):
                assert await world.sessions.find(each.access) is None
                with pytest.raises(NoSessionError):
                    await world.sessions.refresh(each.refresh, ATTRIBUTION)


async def test_an_invitation_that_is_withdrawn_lets_nobody_in(world: World) -> None:
    """Of an acceptance and a withdrawal at once exactly one is done."""
    for number in range(ROUNDS):
        invited = await world.sign_in.invite(
            world.tenant.id, f"{number}@example.com", Role.VIEWER, ATTRIBUTION
        )
        accepted, withdrawn = await asyncio.gather(
            world.sign_in.accept(invited.token, PASSWORD, ATTRIBUTION),
            world.teams.withdraw(world.tenant.id, invited.id, OperatorPrincipal(), ATTRIBUTION),
            return_exceptions=True,
        )
        if withdrawn is None:
            assert isinstance(accepted, InvalidInvitationTokenError)
        else:
            assert isinstance(withdrawn, InvitationNotFoundError)
            assert not isinstance(accepted, BaseException)
        assert await world.teams.invitations(world.tenant.id) == ()
