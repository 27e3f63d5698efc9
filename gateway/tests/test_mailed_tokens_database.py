"""What letters hand over, in the accounts database of either kind: good once, in time, for one thing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from argon2 import PasswordHasher
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.access.rate_limit import Limit, MemoryRateLimiter
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, code_of, token_of
from pqkeep_gateway.people import email_codes, password_resets, registration
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.email_codes import EmailCodes, InvalidChallengeError
from pqkeep_gateway.people.password_resets import InvalidPasswordResetTokenError, PasswordResets
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.registration import InvalidRegistrationTokenError, Registration
from pqkeep_gateway.people.second_factors import (
    SecondFactorRequiredError,
    SecondFactors,
    WrongCodeError,
)
from pqkeep_gateway.people.sessions import NoSessionError, Sessions, Tokens
from pqkeep_gateway.people.sign_in import SignIn, WrongPasswordError
from pqkeep_gateway.storage.outgoing_mail import SqlOutgoingMail
from pqkeep_gateway.storage.password_resets import SqlPasswordResets
from pqkeep_gateway.storage.people import SqlSessions
from pqkeep_gateway.storage.registrations import SqlRegistrations
from pqkeep_gateway.storage.schema import METADATA
from pqkeep_gateway.storage.second_factors import SqlSecondFactors
from pqkeep_gateway.storage.tenancy import SqlTenants
from pqkeep_gateway.tenancy.tenants import NameTakenError, Tenant
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

if TYPE_CHECKING:
    from gateway.tests.conftest import EventLog

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ATTRIBUTION = Attribution("1", "anonymous", "127.0.0.1")
EMAIL, OTHER = "ada@example.com", "grace@example.com"
PASSWORD, NEW = "the horse prefers oats", "the horse is tired of oats"
RIVALS = 32


class Unlimited(MemoryRateLimiter):
    """Windows that are never full."""

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        return None


class World:
    """People and letters on a database, with cheap passwords and a clock to set."""

    def __init__(
        self,
        engine: AsyncEngine,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        tenant: Tenant,
        *,
        by_email: bool,
    ) -> None:
        self.now = 1_800_000_000.0
        self.engine = engine
        self.pepper = pepper
        self.tenant = tenant
        self.people = SqlSecondFactors(engine)

        def clock() -> float:
            return self.now

        self.sessions = Sessions(SqlSessions(engine), pepper, audit_delivery, clock)
        passwords = Passwords(pepper, PasswordHasher(1, 8, 1))
        attempts = AttemptLimits(Unlimited(clock), pepper)
        self.factors = SecondFactors(
            self.people, attempts, pepper, audit_delivery, clock, by_email=by_email
        )
        self.sign_in = SignIn(
            *(self.people, self.sessions, passwords, attempts),
            *(self.factors, pepper, audit_delivery, clock),
        )
        self.codes = EmailCodes(
            self.people, self.factors, self.sessions, attempts, pepper, audit_delivery, clock
        )
        self.registration = Registration(
            SqlRegistrations(engine), self.sessions, passwords, attempts, pepper, clock
        )
        self.resets = PasswordResets(
            SqlPasswordResets(engine), passwords, attempts, pepper, audit_delivery, clock
        )

    async def mail(self, kind: MailKind) -> OutgoingMail:
        """Return the one letter of a kind, and take all out of the outbox."""
        outbox = SqlOutgoingMail(self.engine)
        now = date_of(self.now)
        letters = await outbox.claim(1000, now, now)
        for each in letters:
            await outbox.remove(each)
        (found,) = (each for each in letters if each.kind is kind)
        return found

    async def join(self) -> SessionPrincipal:
        """Let Ada in."""
        invited = await self.sign_in.invite(self.tenant.id, EMAIL, Role.OWNER, ATTRIBUTION)
        _, tokens = await self.sign_in.accept(invited.token, PASSWORD, ATTRIBUTION)
        return await self.person(tokens)

    async def person(self, tokens: Tokens) -> SessionPrincipal:
        """Return whose session it is."""
        found = await self.sessions.find(tokens.access)
        assert found is not None
        return found

    async def challenge(self) -> str:
        """Return a challenge to Ada's right password."""
        with pytest.raises(SecondFactorRequiredError) as challenged:
            await self.sign_in.sign_in(EMAIL, PASSWORD, ATTRIBUTION)
        return challenged.value.token

    async def code(self, challenge: str) -> str:
        """Have a code sent; return it."""
        await self.codes.send(challenge, ATTRIBUTION)
        return code_of(await self.mail(MailKind.CODE), self.pepper)

    async def reset_token(self) -> str:
        """Return what a letter hands over to Ada, who forgot her password."""
        await self.resets.begin(EMAIL, ATTRIBUTION)
        written = await self.mail(MailKind.PASSWORD_RESET)
        return token_of(written, CredentialKind.PASSWORD_RESET, self.pepper)

    async def registration_token(self, email: str = OTHER) -> str:
        """Return what a letter hands over to whoever signs up."""
        await self.registration.begin(email, ATTRIBUTION)
        written = await self.mail(MailKind.REGISTRATION)
        return token_of(written, CredentialKind.REGISTRATION, self.pepper)


@pytest.fixture
async def new_world(
    engine: AsyncEngine,
    pepper: Pepper,
    audit_delivery: AuditDelivery,
    new_tenant: Callable[..., Tenant],
) -> Callable[..., World]:
    """Make people on a database with one tenant."""
    tenant = new_tenant()
    await SqlTenants(engine).add(tenant, event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT))
    return lambda by_email=True: World(engine, pepper, audit_delivery, tenant, by_email=by_email)


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    """Nobody is there yet."""
    return new_world()


async def outcomes(attempts: Sequence[Awaitable[Any]], *refusals: type[Exception]) -> int:
    """Return how many of so many attempts at once succeed; the others are refused so."""
    found = await asyncio.gather(*attempts, return_exceptions=True)
    for each in found:
        assert not isinstance(each, BaseException) or isinstance(each, refusals), each
    return sum(not isinstance(each, BaseException) for each in found)


async def test_a_code_is_used_once(world: World) -> None:
    """Of 32 uses of a code at once exactly one begins a session, and none does later."""
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    for _ in range(10):
        challenge = await world.challenge()
        code = await world.code(challenge)
        tries = [world.codes.answer(challenge, code, ATTRIBUTION) for _ in range(RIVALS)]
        assert await outcomes(tries, InvalidChallengeError, WrongCodeError) == 1
        with pytest.raises(InvalidChallengeError):
            await world.codes.answer(challenge, code, ATTRIBUTION)


async def test_many_guesses_at_once_are_five(world: World) -> None:
    """Of 32 guesses at once no more than five are looked at: the right one after them is too late."""
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    code = await world.code(challenge)
    wrong = [f"{(int(code) + 1 + each) % 10**6:06}" for each in range(RIVALS)]
    tries = [world.codes.answer(challenge, each, ATTRIBUTION) for each in wrong]
    assert await outcomes(tries, WrongCodeError) == 0
    with pytest.raises(WrongCodeError):
        await world.codes.answer(challenge, code, ATTRIBUTION)


async def test_the_fifth_try_may_be_the_right_one(world: World) -> None:
    """After four wrong codes the right one is good, typed with a space in it too."""
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    code = await world.code(challenge)
    for _ in range(4):
        with pytest.raises(WrongCodeError):
            await world.codes.answer(challenge, "no", ATTRIBUTION)
    await world.codes.answer(challenge, f"{code[:3]} {code[3:]}", ATTRIBUTION)


async def test_a_code_ends_after_ten_minutes(world: World) -> None:
    """A code is good for ten minutes, to the second, though its challenge was there before."""
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    life = email_codes.LIFE.total_seconds()
    for late, accepted in ((1, True), (0, False)):
        challenge = await world.challenge()
        world.now += 200
        code = await world.code(challenge)
        world.now += life - late
        tries = [world.codes.answer(challenge, code, ATTRIBUTION)]
        assert await outcomes(tries, InvalidChallengeError) == accepted


async def test_a_challenge_that_is_over_gets_no_code(world: World) -> None:
    """Five minutes after the password no code is sent any more, and no letter is written."""
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    await world.mail(MailKind.SECOND_FACTOR_ADDED)
    world.now += 300
    with pytest.raises(InvalidChallengeError):
        await world.codes.send(challenge, ATTRIBUTION)
    now = date_of(world.now)
    assert await SqlOutgoingMail(world.engine).claim(10, now, now) == []


async def test_whoever_chose_codes_needs_one_also_where_none_can_be_sent(
    new_world: Callable[..., World],
) -> None:
    """Where mail was taken away, whoever chose codes is not let in by the password alone."""
    world = new_world()
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    without_mail = new_world(by_email=False)
    with pytest.raises(SecondFactorRequiredError):
        await without_mail.sign_in.sign_in(EMAIL, PASSWORD, ATTRIBUTION)


async def test_a_password_is_reset_once(world: World) -> None:
    """Of 32 uses of one token at once exactly one is done; every session of before is over."""
    await world.join()
    for number in range(5):
        account = await world.people.find(EMAIL)
        assert account is not None
        before = await world.sessions.begin(account, ATTRIBUTION)
        token = await world.reset_token()
        new = [f"{NEW} {number} {each}" for each in range(RIVALS)]
        tries = [world.resets.complete(token, each, ATTRIBUTION) for each in new]
        assert await outcomes(tries, InvalidPasswordResetTokenError) == 1
        assert await world.sessions.find(before.access) is None
        with pytest.raises(NoSessionError):
            await world.sessions.refresh(before.refresh, ATTRIBUTION)


async def test_a_sign_in_with_the_old_password_comes_too_late(world: World) -> None:
    """What began with the old password before a reset begins no session after it."""
    await world.codes.choose(await world.join(), ATTRIBUTION, wanted=True)
    before = await world.people.find(EMAIL)
    assert before is not None
    challenge = await world.challenge()
    code = await world.code(challenge)
    await world.resets.complete(await world.reset_token(), NEW, ATTRIBUTION)
    with pytest.raises(NoSessionError):
        await world.sessions.begin(before, ATTRIBUTION)
    with pytest.raises(InvalidChallengeError):
        await world.codes.answer(challenge, code, ATTRIBUTION)


async def test_a_reset_ends_after_half_an_hour(world: World) -> None:
    """A letter's token is good for 30 minutes, to the second."""
    await world.join()
    life = password_resets.LIFE.total_seconds()
    assert life == 1800
    for late, accepted in ((1, True), (0, False)):
        token = await world.reset_token()
        world.now += life - late
        tries = [world.resets.complete(token, NEW, ATTRIBUTION)]
        assert await outcomes(tries, InvalidPasswordResetTokenError) == accepted
    with pytest.raises(WrongPasswordError):
        await world.sign_in.sign_in(EMAIL, PASSWORD, ATTRIBUTION)


async def test_an_unknown_address_s_token_opens_nothing(world: World) -> None:
    """What is kept where nobody has the address changes no password, even by its token."""
    await world.resets.begin(OTHER, ATTRIBUTION)
    written = await world.mail(MailKind.NOBODY)
    token = token_of(written, CredentialKind.PASSWORD_RESET, world.pepper)
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(token, NEW, ATTRIBUTION)


async def test_a_registration_is_completed_once(world: World) -> None:
    """Of 32 confirmations at once exactly one makes a tenant and its owner."""
    token = await world.registration_token()
    tries = [
        world.registration.complete(token, f"tenant {each}", PASSWORD, ATTRIBUTION)
        for each in range(RIVALS)
    ]
    assert await outcomes(tries, InvalidRegistrationTokenError) == 1
    assert len(await SqlTenants(world.engine).list()) == 2


async def test_a_taken_name_uses_nothing_up(world: World) -> None:
    """A registration whose name is taken can be completed with another, within an hour."""
    life = registration.LIFE.total_seconds()
    token = await world.registration_token()
    world.now += life - 1
    with pytest.raises(NameTakenError):
        await world.registration.complete(token, world.tenant.name, PASSWORD, ATTRIBUTION)
    await world.registration.complete(token, "free", PASSWORD, ATTRIBUTION)
    token = await world.registration_token("third@example.com")
    world.now += life
    with pytest.raises(InvalidRegistrationTokenError):
        await world.registration.complete(token, "late", PASSWORD, ATTRIBUTION)


async def test_a_token_is_for_one_thing(world: World) -> None:
    """A registration's token resets no password, an invitation's completes no registration."""
    await world.join()
    token = await world.registration_token()
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(token, NEW, ATTRIBUTION)
    with pytest.raises(InvalidRegistrationTokenError):
        await world.registration.complete(await world.reset_token(), "x", PASSWORD, ATTRIBUTION)


async def test_whether_somebody_is_known_is_no_more_work(world: World) -> None:
    """For an address that somebody has, and one that nobody has, the same statements are run."""
    await world.join()
    run: list[str] = []

    def note(*arguments: Any) -> None:
        run.append(arguments[2])

    sa.event.listen(world.engine.sync_engine, "before_cursor_execute", note)
    seen = []
    for ask in (world.resets.begin, world.registration.begin):
        for email in (EMAIL, OTHER):
            run.clear()
            await ask(email, ATTRIBUTION)
            seen.append(list(run))
    assert seen[0] == seen[1] != []
    assert seen[2] == seen[3] != []


async def test_no_token_is_in_the_database(world: World, log: EventLog) -> None:
    """No token or code that a letter hands over is in any row of any table, nor in any event."""
    person = await world.join()
    await world.codes.choose(person, ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    secrets = [challenge]
    now = date_of(world.now)
    outbox = SqlOutgoingMail(world.engine)
    await world.resets.begin(EMAIL, ATTRIBUTION)
    await world.registration.begin(OTHER, ATTRIBUTION)
    invited = await world.sign_in.invite(world.tenant.id, OTHER, Role.VIEWER, ATTRIBUTION)
    await world.codes.send(challenge, ATTRIBUTION)
    for each in await outbox.claim(100, now, now):
        secrets += [token_of(each, kind, world.pepper) for kind in CredentialKind]
        secrets.append(code_of(each, world.pepper))
    assert invited.token in secrets
    async with world.engine.connect() as connection:
        rows = [
            repr(row)
            for table in METADATA.sorted_tables
            for row in await connection.execute(sa.select(table))
        ]
    kept = "\n".join(rows) + repr(log.recorded)
    assert len(rows) > 10
    tokens = [each for each in secrets if len(each) > 6]
    assert not any(each in kept for each in tokens)
    codes = [each for each in secrets if len(each) == 6]
    assert not any(f"'{each}'" in kept for each in codes)


async def test_changed_accounts_are_written_to(world: World) -> None:
    """A new password is told by a letter to the person it belongs to."""
    person = await world.join()
    await world.sign_in.change_password(person, NEW, ATTRIBUTION)
    assert (await world.mail(MailKind.PASSWORD_CHANGED)).to == EMAIL
