"""Unconfirmed registrations in SQL."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import OutgoingMail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import microseconds, read_transaction, transaction
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.row_mac import authentic_row
from pqkeep_gateway.storage.schema import REGISTRATIONS, USERS
from pqkeep_gateway.storage.shards import place
from pqkeep_gateway.storage.tenants import NameTakenError, Tenant, add_tenant
from pqkeep_gateway.storage.users import Account, EmailTakenError, User, add_user, email_key
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.messages import Attribution


class InvalidRegistrationTokenError(Exception):
    """The registration of the token is unknown, expired or used."""


class SqlRegistrations:
    """Unconfirmed registrations in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine, shards: Collection[str] = (DEFAULT_SHARD,)) -> None:
        """Take the shards for new tenants."""
        self._engine = engine
        self._shards = shards

    async def add(self, email: str, digest: bytes, mail: OutgoingMail) -> None:
        """Store a registration with its mail; remove expired and earlier ones."""
        key = email_key(email)
        is_expired = REGISTRATIONS.c.expires_at_us <= microseconds(mail.created_at)
        is_replaced = sa.or_(REGISTRATIONS.c.email_key == key, is_expired)
        row = {
            "digest": digest,
            "email": email,
            "email_key": key,
            "expires_at_us": microseconds(mail.expires_at),
        }
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(REGISTRATIONS).where(is_replaced))
            await connection.execute(sa.insert(REGISTRATIONS), row)
            await add_mail(connection, mail)

    async def is_valid(self, digest: bytes, now: datetime) -> bool:
        """Return whether there is a pending registration with a token digest."""
        query = sa.select(REGISTRATIONS).where(_is_pending(digest, now))
        async with read_transaction(self._engine) as connection:
            return await authentic_row(connection, REGISTRATIONS, query) is not None

    async def complete(
        self,
        digest: bytes,
        tenant: Tenant,
        new_user: UserId,
        password_hash: str,
        now: datetime,
        attribution: Attribution,
    ) -> Account:
        """Use a registration once, and add the tenant and its owner, in one transaction.

        Raises InvalidRegistrationTokenError, NameTakenError, EmailTakenError.
        """
        use_up = sa.delete(REGISTRATIONS).where(_is_pending(digest, now)).returning(REGISTRATIONS)
        async with transaction(self._engine) as connection:
            row = await authentic_row(connection, REGISTRATIONS, use_up)
            if row is None:
                raise InvalidRegistrationTokenError
            email = row.email
            holder = sa.select(USERS.c.id).where(USERS.c.email_key == email_key(email))
            if (await connection.execute(holder)).one_or_none() is not None:
                raise EmailTakenError
            owner = User(new_user, tenant.id, email, Role.OWNER, now)
            tenant = replace(tenant, shard=await place(connection, self._shards, None))
            try:
                await add_tenant(connection, tenant)
            except sa.exc.IntegrityError:
                raise NameTakenError from None
            try:
                await add_user(connection, owner, password_hash)
            except sa.exc.IntegrityError:
                raise EmailTakenError from None
            await add_audit_event(connection, event(attribution, tenant.id, AuditEvent.SIGN_UP))
        return Account(owner, password_hash)


def _is_pending(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = REGISTRATIONS.c.expires_at_us > microseconds(now)
    return sa.and_(REGISTRATIONS.c.digest == digest, is_valid)
