"""All stores and services of the gateway on one database, with cheap passwords and a clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID, uuid4

import pytest
from argon2 import PasswordHasher
from pyotp import TOTP
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper
from pqkeep_gateway.access.entitlements import Entitlements, TenantStatus, Tier
from pqkeep_gateway.access.last_uses import LastUse
from pqkeep_gateway.access.principals import OperatorPrincipal, Principal, SessionPrincipal
from pqkeep_gateway.access.rate_limit import Limit, MemoryRateLimiter
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, mailed_code, mailed_token
from pqkeep_gateway.people.attempt_limits import AttemptLimits, KnownNetworks
from pqkeep_gateway.people.challenges import Challenges, EmailCodes, SecondFactorRequiredError
from pqkeep_gateway.people.invitations import Invitations, TeamMembers
from pqkeep_gateway.people.passkeys import Ceremonies, Passkeys, RelyingParty
from pqkeep_gateway.people.password_resets import PasswordResets
from pqkeep_gateway.people.passwords import PasswordChange, Passwords
from pqkeep_gateway.people.registration import Registration
from pqkeep_gateway.people.second_factors import SecondFactors
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.people.sign_in import SignIn
from pqkeep_gateway.people.step_up import Proofs, StepUp
from pqkeep_gateway.shards import HERE as PLACED_HERE
from pqkeep_gateway.shards import Departures, Placement, Shards, Then
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.audit_outbox import SqlAuditOutbox
from pqkeep_gateway.storage.invitations import Invitation, SqlInvitations
from pqkeep_gateway.storage.known_networks import SqlKnownNetworks
from pqkeep_gateway.storage.outgoing_mail import SqlMailOutbox
from pqkeep_gateway.storage.passkeys import SqlPasskeys
from pqkeep_gateway.storage.password_resets import SqlPasswordResets
from pqkeep_gateway.storage.registrations import SqlRegistrations
from pqkeep_gateway.storage.second_factors import SqlChallenges, SqlSecondFactors
from pqkeep_gateway.storage.sessions import SqlSessions
from pqkeep_gateway.storage.step_up_tokens import SqlStepUpTokens
from pqkeep_gateway.storage.team import SqlTeam
from pqkeep_gateway.storage.tenants import SqlTenants, Tenant
from pqkeep_gateway.storage.users import Account, SqlUsers
from pqkeep_gateway.tenancy import plans
from pqkeep_gateway.tenancy.api_keys import ApiKeys
from pqkeep_gateway.tenancy.tenants import Tenants
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_keyservice.operations import keyless
from pqkeep_protocol.audit import Event, EventRefusal, Recorded, RecordEvents, RefusedEvent
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD, TenantId
from pqkeep_protocol.messages import Attribution, KeyService, R_co, Request, VerifySignature

R = TypeVar("R")
HERE = "192.0.2.7"
ATTRIBUTION = Attribution("request-1", "anonymous", HERE)
EMAIL, OTHER_EMAIL = "ada@example.com", "grace@example.com"
PASSWORD, NEW_PASSWORD = "the horse prefers oats", "the horse is tired of oats"
OPERATOR = OperatorPrincipal()
CHEAP = PasswordHasher(1, 8, 1)
PARTY = RelyingParty("keys.example.com", "https://keys.example.com")

CONCURRENCY = 32
"""Concurrent uses of something single-use."""
ROUNDS = int(os.environ.get("PQKEEP_ROUNDS", "3"))
"""How often each race runs. ``make races`` runs it 200 times."""
FEW_ROUNDS = max(1, ROUNDS // 4)
"""How often a slow race runs."""
MOMENT = 1 / 1024
"""A fraction of a second that a float represents exactly."""


@dataclass
class FakeAuditLog:
    """A key service that only records events, each once. It can be made unavailable."""

    recorded: dict[UUID, Event] = field(default_factory=dict)
    received: int = 0
    """Events received, repetitions among them."""
    is_unavailable: bool = False
    loses_responses: bool = False
    refuses: str = ""
    """Set this event to let it answer, if it does not answer at once."""
    responses: asyncio.Event | None = None
    """Set when it answers, if it does not do so at once."""

    async def execute(self, request: Request[R_co], _: Attribution, /) -> R_co:
        """Record, and then respond. Signatures are verified as in the key service."""
        if isinstance(request, VerifySignature):
            if self.is_unavailable:
                raise KeyServiceError(ErrorKind.UNAVAILABLE)
            return cast(R_co, keyless.respond(request))
        assert isinstance(request, RecordEvents)
        if self.is_unavailable:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        if self.responses is not None:
            await self.responses.wait()
        refused = []
        for sent in request.events:
            self.received += 1
            if sent.operation == self.refuses:
                refused.append(RefusedEvent(sent.id, EventRefusal.NOT_AN_EVENT))
            else:
                self.recorded.setdefault(sent.id, sent)
        if self.loses_responses:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        return cast(R_co, Recorded(refused=tuple(refused)))

    @property
    def operations(self) -> list[str]:
        """The recorded operations, in order."""
        return [logged.operation for logged in self.recorded.values()]


class Everywhere:
    """A PlacementDirectory with every tenant in the shard ``default``."""

    async def find(self, tenant: TenantId) -> Placement:
        return PLACED_HERE

    async def visited(self, tenant: TenantId) -> Sequence[str]:
        return (DEFAULT_SHARD,)


class Called:
    """A TenantKeyService over a fake that has only ``execute``."""

    def __init__(self, service: KeyService) -> None:
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    async def execute(
        self, request: Request[R], attribution: Attribution, _: Placement | None = None, /
    ) -> R:
        return await self._service.execute(request, attribution)

    def call(
        self, request: Request[R], attribution: Attribution, _: Placement | None, then: Then[R], /
    ) -> None:
        async def ask() -> None:
            try:
                result = await self._service.execute(request, attribution)
            except KeyServiceError as refusal:
                then(KeyServiceError(refusal.kind))
            else:
                then(result)

        task = asyncio.create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def one_shard(service: KeyService) -> Shards:
    """Return the shards of an installation with one shard."""
    return Shards({DEFAULT_SHARD: Called(service)}, Everywhere(), Departures())


class Unlimited(MemoryRateLimiter):
    """A rate limiter that refuses nothing."""

    async def enter(self, subject: str, limit: Limit, as_of: int | None = None) -> float | None:
        return None


@dataclass
class FakeLastUses:
    """Last uses in memory, which can be unavailable."""

    saved: list[dict[bytes, LastUse]] = field(default_factory=list)
    """The newest uses that each call stored."""
    administered: dict[tuple[TenantId, int], float] = field(default_factory=dict)
    is_unavailable: bool = False

    async def save(self, uses: Mapping[bytes, Sequence[LastUse]], /) -> None:
        if self.is_unavailable:
            raise UnavailableError
        self.saved.append({digest: found[-1] for digest, found in uses.items()})

    async def save_administration(
        self, administered: Mapping[tuple[TenantId, int], float], /
    ) -> None:
        self.administered |= administered


class SettableClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    """All services of the gateway without HTTP, and one tenant without people."""

    def __init__(
        self,
        engine: AsyncEngine,
        pepper: Pepper,
        log: FakeAuditLog,
        tenant: Tenant,
        *,
        clock: SettableClock | None = None,
        hasher: PasswordHasher = CHEAP,
        sends_mail: bool = True,
        has_limits: bool = False,
        has_passwords: bool = True,
    ) -> None:
        self.engine, self.pepper, self.log, self.tenant = engine, pepper, log, tenant
        self.clock = clock = clock or SettableClock()
        self.changes_announced = 0
        self.audit_outbox = SqlAuditOutbox(engine)
        self.audit_delivery = delivery = AuditDelivery(self.audit_outbox, one_shard(log))
        self.mail_outbox = SqlMailOutbox(engine)

        self.lookups = lookups = CredentialLookups(clock)
        self.stored_tenants = SqlTenants(engine)
        self.tenants = Tenants(self.stored_tenants, self._announce_change, delivery)
        self.api_keys = ApiKeys(
            SqlApiKeys(engine),
            plans.read(),
            pepper,
            lookups,
            self._announce_change,
            delivery,
            timedelta(seconds=30),
            clock,
        )
        self.users = users = SqlUsers(engine)
        disabled_for = () if has_passwords else (tenant.id,)
        self.passwords = passwords = Passwords(pepper, hasher, disabled_for=disabled_for)
        self.known_networks = KnownNetworks(SqlKnownNetworks(engine), pepper, clock)
        limiter = MemoryRateLimiter(clock) if has_limits else Unlimited(clock)
        attempts = AttemptLimits(limiter, self.known_networks, pepper)
        self.sessions = sessions = Sessions(
            SqlSessions(engine), lookups, pepper, delivery, clock, timedelta(days=30)
        )
        self.factors = SecondFactors(
            SqlSecondFactors(engine), users, attempts, pepper, delivery, clock
        )
        store = SqlChallenges(engine)
        self.challenges = Challenges(store, users, lookups, pepper, clock, sends_mail=sends_mail)
        self.codes = EmailCodes(
            store, users, self.challenges, sessions, attempts, pepper, delivery, clock
        )
        self.passkeys = Passkeys(
            SqlPasskeys(engine),
            users,
            self.factors,
            passwords,
            attempts,
            lookups,
            Ceremonies(PARTY, one_shard(log), pepper, clock),
            delivery,
        )
        self.sign_in = SignIn(
            users,
            sessions,
            passwords,
            attempts,
            self.factors,
            self.challenges,
            self.passkeys,
            delivery,
        )
        self.password_change = PasswordChange(users, passwords, delivery, clock)
        self.step_up = StepUp(
            SqlStepUpTokens(engine),
            users,
            Proofs(self.factors, self.passkeys, passwords),
            attempts,
            pepper,
            delivery,
            clock,
        )
        self.members = TeamMembers(SqlTeam(engine), delivery)
        self.invitations = Invitations(
            SqlInvitations(engine),
            users,
            sessions,
            passwords,
            attempts,
            lookups,
            pepper,
            delivery,
            clock,
        )
        self.registration = Registration(
            SqlRegistrations(engine), users, sessions, passwords, attempts, lookups, pepper, clock
        )
        self.resets = PasswordResets(
            SqlPasswordResets(engine), users, passwords, attempts, lookups, pepper, delivery, clock
        )

    def restarted(
        self,
        *,
        hasher: PasswordHasher = CHEAP,
        sends_mail: bool = True,
        has_limits: bool = False,
        has_passwords: bool = True,
    ) -> World:
        """Return the same installation with changed settings."""
        return World(
            self.engine,
            self.pepper,
            self.log,
            self.tenant,
            clock=self.clock,
            hasher=hasher,
            sends_mail=sends_mail,
            has_limits=has_limits,
            has_passwords=has_passwords,
        )

    @property
    def now(self) -> float:
        """Seconds since 1970, UTC."""
        return self.clock.now

    @now.setter
    def now(self, seconds: float) -> None:
        self.clock.now = seconds

    async def join(self, role: Role = Role.OWNER, email: str = EMAIL) -> Tokens:
        """Invite a person, who accepts."""
        invited = await self.invite(email, role)
        _, tokens = await self.invitations.accept(invited.token, PASSWORD, ATTRIBUTION)
        return tokens

    async def invite(self, email: str, role: Role, by: Principal = OPERATOR) -> Invitation:
        """Invite a person to the tenant."""
        return await self.invitations.invite(self.tenant.id, email, role, by, ATTRIBUTION)

    async def person(self, email: str = EMAIL) -> SessionPrincipal:
        """Let a person join and return their session."""
        return await self.principal(await self.join(email=email))

    async def principal(self, tokens: Tokens) -> SessionPrincipal:
        """Return the principal of the session."""
        found = await self.sessions.find(tokens.access, HERE)
        assert found is not None
        return found

    async def account(self, email: str = EMAIL) -> Account:
        """Return the account with an address."""
        found = await self.users.find_by_email(email)
        assert found is not None
        return found

    async def enroll(self, person: SessionPrincipal) -> tuple[TOTP, tuple[str, ...]]:
        """Enroll an authenticator; return its code generator and the recovery codes."""
        totp = TOTP((await self.factors.enroll(person)).secret)
        return totp, await self.factors.confirm(person, totp.at(int(self.now)), ATTRIBUTION)

    async def challenge(self, email: str = EMAIL) -> str:
        """Return the challenge that follows a correct password."""
        with pytest.raises(SecondFactorRequiredError) as required:
            await self.sign_in.with_password(email, PASSWORD, ATTRIBUTION)
        return required.value.token

    async def email_code(self, challenge: str) -> str:
        """Request a code; return it from the mail."""
        await self.codes.send(challenge, ATTRIBUTION)
        return mailed_code(await self.mail(MailKind.CODE), self.pepper)

    async def reset_token(self, email: str = EMAIL) -> str:
        """Return the token in the mail for a forgotten password."""
        await self.resets.begin(email, ATTRIBUTION)
        mail = await self.mail(MailKind.PASSWORD_RESET)
        return mailed_token(mail, CredentialKind.PASSWORD_RESET, self.pepper)

    async def registration_token(self, email: str = OTHER_EMAIL) -> str:
        """Return the token in the mail for a sign-up."""
        await self.registration.begin(email, ATTRIBUTION)
        mail = await self.mail(MailKind.REGISTRATION)
        return mailed_token(mail, CredentialKind.REGISTRATION, self.pepper)

    async def mail(self, kind: MailKind) -> OutgoingMail:
        """Return the only mail of a kind, and empty the outbox."""
        now = date_of(self.now)
        claimed = await self.mail_outbox.claim(1000, now, now)
        for mail in claimed:
            await self.mail_outbox.remove(mail)
        (found,) = (mail for mail in claimed if mail.kind is kind)
        return found

    async def _announce_change(self) -> None:
        self.changes_announced += 1


def new_tenant(name: str = "", tier: Tier = Tier.FREE) -> Tenant:
    """Return a tenant without storing it."""
    now = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)
    tenant = TenantId(uuid4())
    return Tenant(tenant, name or str(tenant), Entitlements(tier), TenantStatus.ACTIVE, now, now)


async def add_tenant(engine: AsyncEngine, tenant: Tenant) -> Tenant:
    """Store a tenant."""
    created = event(ATTRIBUTION, tenant.id, AuditEvent.CREATE_TENANT)
    return await SqlTenants(engine).add(tenant, created)


async def count_successes(attempts: Sequence[Awaitable[Any]], *refusals: type[Exception]) -> int:
    """Return how many concurrent attempts succeed; the others must raise one of the errors."""
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException) or isinstance(outcome, refusals), outcome
    return sum(not isinstance(outcome, BaseException) for outcome in outcomes)
