"""Identities at single sign-on providers, in SQL."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import OperatorRole, Role
from pqkeep_gateway.access.entitlements import TenantStatus
from pqkeep_gateway.access.principals import SessionId, UserId
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    insert_if_absent,
    microseconds,
    read_transaction,
    transaction,
)
from pqkeep_gateway.storage.row_mac import is_authentic
from pqkeep_gateway.storage.schema import IDENTITIES, SESSIONS, TENANTS, USED_SIGN_INS, USERS
from pqkeep_gateway.storage.team import ROLE_IS, Team, lock_team
from pqkeep_gateway.storage.tenant_status import lock_tenant
from pqkeep_gateway.storage.users import (
    ACCOUNTS,
    Account,
    User,
    account_of,
    add_user,
    change_user,
    email_key,
    end_sessions,
    user_of,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


@dataclass(frozen=True, slots=True)
class Identity:
    """A person's identity at a provider. Unlike an e-mail address, it is never reassigned."""

    issuer: str
    subject: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VerifiedPerson:
    """A person with a sign-in that a provider has verified."""

    identity: Identity
    email: str | None = field(repr=False)
    """The address that the provider vouches for, or None."""
    groups: frozenset[str]
    authenticated_at: float
    """Seconds since 1970, UTC; 0 if the provider gives no time."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A person's return from a provider."""

    person: VerifiedPerson
    role: Role | None
    """The role of the person's groups."""
    may_join: bool
    """Whether a person who is not a member may become one."""
    state: bytes = field(repr=False)
    """The digest of the state (32 bytes), which can be used only once."""
    state_expires_at: datetime
    now: datetime
    attribution: Attribution


class Refusal(StrEnum):
    """The reasons for a refused sign-in. The sign-in page and the audit log get nothing else."""

    TOO_MANY = "too-many"
    """Too many attempts from this address."""
    UNAVAILABLE = "unavailable"
    """The provider, or a part of the installation, does not respond."""
    COOKIES = "cookies"
    """The browser sent one of our cookies twice: another host of the domain may have set one."""
    EXPIRED = "expired"
    """The sign-in began in another browser, too long ago, or not at all, or has already ended."""
    CANCELLED = "cancelled"
    """The person cancelled the sign-in, or the provider refused it."""
    PROVIDER = "provider"
    """The provider's response is invalid."""
    EMAIL = "email"
    """The provider vouches for no e-mail address of an allowed domain."""
    NO_MEMBER = "no-member"
    """The tenant has no such member, and the provider may not create one."""
    NO_ROLE = "no-role"
    """No group of the person has a role."""
    NO_GROUPS = "no-groups"
    """The provider sent no group of an operator."""
    FROM_ELSEWHERE = "from-elsewhere"
    """A page of another site began an operator's sign-in."""
    OTHER_IDENTITY = "other-identity"
    """The member with this e-mail address has another identity at the provider."""
    SIGNED_OUT = "signed-out"
    """A step-up without a session."""
    NOT_AGAIN = "not-again"
    """A step-up for which the provider did not authenticate the person again."""
    OTHER_PERSON = "other-person"
    """A step-up by another person than the session's."""


class RefusedError(Exception):
    """A single sign-on was refused."""

    def __init__(self, reason: Refusal, user: UserId | None = None) -> None:
        """Take the reason, and the person if known."""
        super().__init__()
        self.reason = reason
        self.user = user


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider from the settings."""

    name: str
    label: str | None
    tenant: TenantId
    issuer: str
    client_id: str
    scopes: tuple[str, ...]
    groups_claim: str
    roles: Mapping[str, Role]
    default_role: Role | None
    creates_members: bool
    email_domains: frozenset[str]
    """The accepted e-mail domains in lower case. Empty: every domain."""
    operator_roles: Mapping[str, OperatorRole] = field(default_factory=dict)
    """Groups of operators. If there are any, the provider signs in operators only, and ``tenant``
    is INSTALLATION, which has no members."""

    def role_of(self, groups: Iterable[str]) -> Role | None:
        """Return the most powerful role of these groups, or the default role."""
        granted = {self.roles[group] for group in groups if group in self.roles}
        return next((role for role in Role if role in granted), self.default_role)

    def operator_role_of(self, groups: Iterable[str]) -> OperatorRole | None:
        """Return the most powerful operator role of these groups, or None."""
        granted = {self.operator_roles[group] for group in groups if group in self.operator_roles}
        return next((role for role in OperatorRole if role in granted), None)

    def vouches_for(self, email: str) -> bool:
        """Return whether the provider may vouch for this e-mail address."""
        domain = email.rpartition("@")[2].lower()
        return not self.email_domains or domain in self.email_domains


_HAS_PEOPLE = TENANTS.c.status.in_((TenantStatus.ACTIVE, TenantStatus.SUSPENDED))


class SqlIdentities:
    """Identities at providers in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def admit(self, arrival: Arrival, provider: Provider) -> Account:
        """Return the member who has signed in through a provider, with the role of their groups.

        In one transaction: marks the state as used; links the member to the identity at the first
        sign-in by the verified e-mail address, or adds the member; ends the sessions of a member
        without a role. Raises RefusedError.
        """
        try:
            async with transaction(self._engine) as connection:
                account = await _admit(connection, arrival, provider)
        except sa.exc.IntegrityError:  # a concurrent sign-in took the address or the identity
            raise RefusedError(Refusal.NO_MEMBER) from None
        if arrival.role is None:
            raise RefusedError(Refusal.NO_ROLE, account.user.id)
        return account

    async def save_reauthentication(
        self,
        session: SessionId,
        user: UserId,
        digest: bytes,
        until: datetime,
        audit_event: Event,
    ) -> bool:
        """Allow a session of this user one step-up, with the token that has this digest.

        Returns whether the session exists.
        """
        grant = (
            sa.update(SESSIONS)
            .where(SESSIONS.c.id == session, SESSIONS.c.user_id == user)
            .values(reauthenticated_until_us=microseconds(until), reauthentication_digest=digest)
        )
        async with transaction(self._engine) as connection:
            if (await connection.execute(grant)).rowcount == 0:
                return False
            await add_audit_event(connection, audit_event)
        return True

    async def issuers_of(self, user: UserId) -> frozenset[str]:
        """Return the issuers at which a user has an identity."""
        query = sa.select(IDENTITIES.c.issuer).where(IDENTITIES.c.user_id == user)
        async with read_transaction(self._engine) as connection:
            return frozenset((await connection.execute(query)).scalars())


async def _admit(connection: AsyncConnection, arrival: Arrival, provider: Provider) -> Account:
    await use_up(connection, arrival.state, arrival.state_expires_at, arrival.now)
    await lock_tenant(connection, provider.tenant)
    team = await lock_team(connection, provider.tenant)
    user = await _member(connection, arrival, provider)
    if arrival.role is None:
        await end_sessions(connection, SESSIONS.c.user_id == user.id)
    else:
        await _save_role(connection, arrival, provider, team, user)
    row = (await connection.execute(ACCOUNTS.where(USERS.c.id == user.id))).one()
    return account_of(connection, row)


async def use_up(
    connection: AsyncConnection, state: bytes, expires_at: datetime, now: datetime
) -> None:
    """Store a state's digest as used, and remove expired states. Raises RefusedError."""
    is_expired = USED_SIGN_INS.c.expires_at_us <= microseconds(now)
    await connection.execute(sa.delete(USED_SIGN_INS).where(is_expired))
    row = {"digest": state, "expires_at_us": microseconds(expires_at)}
    if not await insert_if_absent(connection, USED_SIGN_INS, row):
        raise RefusedError(Refusal.EXPIRED)


async def _member(connection: AsyncConnection, arrival: Arrival, provider: Provider) -> User:
    """Return the tenant's member with this identity; link or add the member if needed."""
    identity = arrival.person.identity
    known = await _with_identity(connection, identity)
    if known is not None:
        if known.tenant != provider.tenant:
            raise RefusedError(Refusal.NO_MEMBER)
        return known
    email = arrival.person.email
    if email is None:
        raise RefusedError(Refusal.EMAIL)
    named = await _one(connection, sa.select(USERS).where(USERS.c.email_key == email_key(email)))
    if named is not None and named.tenant != provider.tenant:
        raise RefusedError(Refusal.NO_MEMBER)
    if arrival.role is None:
        raise RefusedError(Refusal.NO_ROLE, None if named is None else named.id)
    if named is None:
        named = await _add(connection, email, arrival, arrival.role, provider)
    await _link(connection, named, arrival, provider)
    return named


async def _add(
    connection: AsyncConnection, email: str, arrival: Arrival, role: Role, provider: Provider
) -> User:
    query = sa.select(TENANTS.c.id).where(TENANTS.c.id == provider.tenant, _HAS_PEOPLE)
    has_people = (await connection.execute(query)).one_or_none() is not None
    if not (arrival.may_join and has_people):
        raise RefusedError(Refusal.NO_MEMBER)
    user = User(UserId(uuid4()), provider.tenant, email, role, arrival.now)
    await add_user(connection, user, None)
    await _record(connection, arrival, provider, user, AuditEvent.CREATE_MEMBER, ROLE_IS[role])
    return user


async def _link(
    connection: AsyncConnection, user: User, arrival: Arrival, provider: Provider
) -> None:
    """Link a member to an identity.

    Raises RefusedError if the member already has another one there.
    """
    identity = arrival.person.identity
    row = {
        "issuer": identity.issuer,
        "subject": identity.subject,
        "user_id": user.id,
        "linked_at_us": microseconds(arrival.now),
    }
    if not await insert_if_absent(connection, IDENTITIES, row):
        raise RefusedError(Refusal.OTHER_IDENTITY, user.id)
    await _record(connection, arrival, provider, user, AuditEvent.LINK_IDENTITY)


async def _save_role(
    connection: AsyncConnection, arrival: Arrival, provider: Provider, team: Team, user: User
) -> None:
    """Give a member the role of their groups; the last owner remains an owner."""
    role = arrival.role
    if role is None or role is user.role or team.is_last_owner(user.id):
        return
    await change_user(connection, user.id, role=role)
    await _record(connection, arrival, provider, user, AuditEvent.ASSIGN_ROLE, ROLE_IS[role])


async def _record(
    connection: AsyncConnection,
    arrival: Arrival,
    provider: Provider,
    user: User,
    *operations: AuditEvent,
) -> None:
    who = arrival.attribution.by(str(user))
    policy = f"provider-{provider.name}"
    events = [event(who, user.tenant, operation, policy=policy) for operation in operations]
    await add_audit_event(connection, *events)


async def _with_identity(connection: AsyncConnection, identity: Identity) -> User | None:
    """Return the user with an identity. Raises RefusedError if the row is forged."""
    query = sa.select(IDENTITIES).where(
        IDENTITIES.c.issuer == identity.issuer, IDENTITIES.c.subject == identity.subject
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    if not is_authentic(connection, IDENTITIES, row):
        raise RefusedError(Refusal.NO_MEMBER)
    return await _one(connection, sa.select(USERS).where(USERS.c.id == row.user_id))


async def _one(connection: AsyncConnection, query: sa.Select[Any]) -> User | None:
    """Return the user in a row. Raises RefusedError if the row is forged."""
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    if not is_authentic(connection, USERS, row):
        raise RefusedError(Refusal.NO_MEMBER)
    return user_of(row)
