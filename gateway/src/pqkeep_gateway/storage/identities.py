"""Identities at providers of single sign-on, in SQL."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.callers import Role
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
    email_key,
    end_sessions,
    save_role,
    user_of,
)
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is at a provider; an e-mail address may be given to somebody else, this is not."""

    issuer: str
    subject: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class VerifiedPerson:
    """Whom a provider has signed in."""

    identity: Identity
    email: str | None = field(repr=False)
    """The address that the provider vouches for; None if there is none."""
    groups: frozenset[str]
    authenticated_at: float
    """Seconds since 1970, UTC; 0 where the provider does not say."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Somebody who has come back from a provider."""

    person: VerifiedPerson
    role: Role | None
    """What their groups give them."""
    may_join: bool
    """Whether they may become a member, if they are not."""
    state: bytes = field(repr=False)
    """The digest of the state (32 bytes), which is used up."""
    state_expires_at: datetime
    now: datetime
    attribution: Attribution


class Refusal(StrEnum):
    """Why nobody was signed in: all that the sign-in page and the audit log are told."""

    TOO_MANY = "too-many"
    """Too many attempts from this address."""
    UNAVAILABLE = "unavailable"
    """The provider, or something here, does not answer."""
    COOKIES = "cookies"
    """The browser sent a cookie of ours twice: another host of the domain may have set one."""
    EXPIRED = "expired"
    """It was begun in another browser, too long ago or not at all, or is over already."""
    CANCELLED = "cancelled"
    """The person, or the provider for them, said no."""
    PROVIDER = "provider"
    """The provider's answer is not valid."""
    EMAIL = "email"
    """The provider vouches for no e-mail address of an allowed domain."""
    NO_MEMBER = "no-member"
    """The tenant has no such member, and none may be made."""
    NO_ROLE = "no-role"
    """None of the person's groups has a role."""
    OTHER_IDENTITY = "other-identity"
    """The member with this e-mail address is somebody else at the provider."""
    SIGNED_OUT = "signed-out"
    """A step-up without a session."""
    NOT_AGAIN = "not-again"
    """A step-up for which the provider did not ask the person again."""
    OTHER_PERSON = "other-person"
    """A step-up by another person than the session's."""


class RefusedError(Exception):
    """Nobody is signed in."""

    def __init__(self, reason: Refusal, user: UserId | None = None) -> None:
        """Carry the reason, and who it was if that is known."""
        super().__init__()
        self.reason = reason
        self.user = user


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, as the operator set it up."""

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
    """In lower case; none: any domain."""

    def role_of(self, groups: Iterable[str]) -> Role | None:
        """Return the most powerful role of these groups; None if they have none."""
        granted = {self.roles[group] for group in groups if group in self.roles}
        return next((role for role in Role if role in granted), self.default_role)

    def vouches_for(self, email: str) -> bool:
        """Return whether the provider may say whose an e-mail address is."""
        domain = email.rpartition("@")[2].lower()
        return not self.email_domains or domain in self.email_domains


_HAS_PEOPLE = TENANTS.c.status.in_((TenantStatus.ACTIVE, TenantStatus.SUSPENDED))


class SqlIdentities:
    """Identities at providers in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def admit(self, arrival: Arrival, provider: Provider) -> Account:
        """Return the member whom a provider has signed in, with the role of their groups.

        Uses the state up; links a member to an identity at their first sign-in, by the e-mail
        address that the provider vouches for, or adds them; ends the sessions of a member without a
        role. All in one transaction. Raises RefusedError.
        """
        try:
            async with transaction(self._engine) as connection:
                account = await _admit(connection, arrival, provider)
        except sa.exc.IntegrityError:  # the address, or the identity, was taken at the same time
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
        """Let a session of this user step up once, with the token that has this digest.

        Returns whether there is such a session.
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
        """Return at which issuers somebody has an identity."""
        query = sa.select(IDENTITIES.c.issuer).where(IDENTITIES.c.user_id == user)
        async with read_transaction(self._engine) as connection:
            return frozenset((await connection.execute(query)).scalars())


async def _admit(connection: AsyncConnection, arrival: Arrival, provider: Provider) -> Account:
    await _use_up(connection, arrival)
    await lock_tenant(connection, provider.tenant)
    team = await lock_team(connection, provider.tenant)
    user = await _member(connection, arrival, provider)
    if arrival.role is None:
        await end_sessions(connection, SESSIONS.c.user_id == user.id)
    else:
        await _save_role(connection, arrival, provider, team, user)
    return account_of((await connection.execute(ACCOUNTS.where(USERS.c.id == user.id))).one())


async def _use_up(connection: AsyncConnection, arrival: Arrival) -> None:
    """Store the state as used, and remove those that have expired. Raises RefusedError."""
    is_expired = USED_SIGN_INS.c.expires_at_us <= microseconds(arrival.now)
    await connection.execute(sa.delete(USED_SIGN_INS).where(is_expired))
    row = {"digest": arrival.state, "expires_at_us": microseconds(arrival.state_expires_at)}
    if not await insert_if_absent(connection, USED_SIGN_INS, row):
        raise RefusedError(Refusal.EXPIRED)


async def _member(connection: AsyncConnection, arrival: Arrival, provider: Provider) -> User:
    """Return the tenant's member with this identity, linked or added if need be."""
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
    """Store who a member is at the provider. Raises RefusedError if they are somebody else there."""
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
    """Give a member the role of their groups; the last owner stays one."""
    role = arrival.role
    if role is None or role is user.role or team.is_last_owner(user.id):
        return
    await save_role(connection, user.id, role)
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
    """Return who has an identity. Raises RefusedError if the database has been changed."""
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
    """Return the user in a row. Raises RefusedError if the database has been changed."""
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        return None
    if not is_authentic(connection, USERS, row):
        raise RefusedError(Refusal.NO_MEMBER)
    return user_of(row)
