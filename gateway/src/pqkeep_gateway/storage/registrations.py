"""Addresses that wait for their owners, in SQL."""

from datetime import datetime
from uuid import uuid4

import sqlalchemy as sa

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.mail.outgoing_mail import OutgoingMail
from pqkeep_gateway.people.registration import InvalidRegistrationTokenError
from pqkeep_gateway.people.users import Account, EmailTakenError, User, email_key
from pqkeep_gateway.storage.database import microseconds, transaction
from pqkeep_gateway.storage.outbox import put
from pqkeep_gateway.storage.outgoing_mail import post
from pqkeep_gateway.storage.people import SqlPeople, user_row
from pqkeep_gateway.storage.schema import REGISTRATIONS, TENANTS, USERS
from pqkeep_gateway.storage.tenancy import tenant_row
from pqkeep_gateway.tenancy.tenants import NameTakenError, Tenant
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution


class SqlRegistrations(SqlPeople):
    """A RegistrationStore."""

    async def begin(self, email: str, digest: bytes, mail: OutgoingMail) -> None:
        """Keep an address, instead of earlier ones that are the same or over, and the letter."""
        key = email_key(email)
        is_over = REGISTRATIONS.c.until_us <= microseconds(mail.written_at)
        same_or_over = sa.or_(REGISTRATIONS.c.email_key == key, is_over)
        row = {
            "digest": digest,
            "email": email,
            "email_key": key,
            "until_us": microseconds(mail.until),
        }
        async with transaction(self._engine) as connection:
            await connection.execute(sa.delete(REGISTRATIONS).where(same_or_over))
            await connection.execute(sa.insert(REGISTRATIONS), row)
            await post(connection, mail)

    async def is_open(self, digest: bytes, now: datetime) -> bool:
        """Return whether a registration can be completed."""
        query = sa.select(REGISTRATIONS.c.digest).where(_open(digest, now))
        async with transaction(self._engine) as connection:
            return (await connection.execute(query)).one_or_none() is not None

    async def complete(
        self,
        digest: bytes,
        tenant: Tenant,
        password_hash: str,
        now: datetime,
        attribution: Attribution,
    ) -> Account:
        """Use a registration up and keep the tenant and its owner.

        Raises InvalidRegistrationTokenError, NameTakenError, EmailTakenError.
        """
        use_up = sa.delete(REGISTRATIONS).where(_open(digest, now)).returning(REGISTRATIONS.c.email)
        email = ""
        try:
            async with transaction(self._engine) as connection:
                email = (await connection.execute(use_up)).scalar() or ""
                if not email:
                    raise InvalidRegistrationTokenError
                owner = User(UserId(uuid4()), tenant.id, email, Role.OWNER, now)
                account = Account(owner, password_hash)
                await connection.execute(sa.insert(TENANTS), tenant_row(tenant))
                await connection.execute(sa.insert(USERS), user_row(account))
                await put(connection, (event(attribution, tenant.id, AuditEvent.SIGN_UP),))
        except sa.exc.IntegrityError:
            is_taken = await self.find(email) is not None
            raise (EmailTakenError if is_taken else NameTakenError) from None
        return account


def _open(digest: bytes, now: datetime) -> sa.ColumnElement[bool]:
    is_valid = REGISTRATIONS.c.until_us > microseconds(now)
    return sa.and_(REGISTRATIONS.c.digest == digest, is_valid)
