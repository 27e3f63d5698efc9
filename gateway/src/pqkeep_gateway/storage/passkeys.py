"""Passkeys in SQL."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum, auto
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.notices import Details, NoticeKind
from pqkeep_gateway.outgoing_mail import OutgoingMail
from pqkeep_gateway.storage.audit_outbox import add_audit_event
from pqkeep_gateway.storage.database import (
    insert_if_absent,
    microseconds,
    read_transaction,
    time_of,
    transaction,
)
from pqkeep_gateway.storage.notices import close_notices, open_notice
from pqkeep_gateway.storage.outgoing_mail import add_mail
from pqkeep_gateway.storage.row_mac import MAC, authentic_row, is_authentic, mac_after
from pqkeep_gateway.storage.schema import PASSKEYS, RECOVERY_CODES, USED_SIGN_INS, USERS
from pqkeep_gateway.storage.users import (
    ACCOUNTS,
    UserNotFoundError,
    account_of,
    count_passkeys,
    end_other_sessions,
    lock_user,
    person_subject,
    require_other_factor,
)
from pqkeep_protocol.algorithms import GivenKeyAlgorithm
from pqkeep_protocol.audit import Event

MAX_PASSKEYS = 20
"""Passkeys per person."""


class PasskeyNotFoundError(Exception):
    """The user has no such passkey."""


class PasskeyExistsError(Exception):
    """The passkey was added before."""


class TooManyPasskeysError(Exception):
    """The user has MAX_PASSKEYS."""


@dataclass(frozen=True, slots=True)
class Passkey:
    """One WebAuthn credential of a user."""

    id: UUID
    user: UserId
    credential_id: bytes
    algorithm: GivenKeyAlgorithm
    public_key: bytes = field(repr=False)
    """SubjectPublicKeyInfo in DER."""
    counter: int
    """The last signature counter; 0 if the authenticator does not count."""
    is_syncable: bool
    """Whether it can be copied to the person's other devices."""
    is_synced: bool
    """Whether its last use showed that it is backed up or synced."""
    transports: tuple[str, ...]
    name: str
    created_at: datetime
    last_used_at: datetime | None = None


class UsedChallenge(NamedTuple):
    """A challenge that was used, until it expires."""

    digest: bytes
    """The challenge's digest (32 bytes)."""
    expires_at: datetime


class Use(StrEnum):
    """The outcome of a use."""

    ACCEPTED = auto()
    CHALLENGE_USED = auto()
    NOT_HIGHER = auto()
    """The signature counter is not higher than the last one."""
    GONE = auto()
    """The passkey was removed meanwhile."""


class SqlPasskeys:
    """Passkeys in the database. All methods raise UnavailableError."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def list(self, user: UserId) -> tuple[Passkey, ...]:
        """Return a user's passkeys, the oldest first."""
        query = (
            sa.select(PASSKEYS)
            .where(PASSKEYS.c.user_id == user)
            .order_by(PASSKEYS.c.created_at_us, PASSKEYS.c.id)
        )
        async with read_transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
            return tuple(_passkey(row) for row in rows if is_authentic(connection, PASSKEYS, row))

    async def find(self, credential_id: bytes) -> Passkey | None:
        """Return the passkey with a credential id, or None."""
        query = sa.select(PASSKEYS).where(PASSKEYS.c.credential_id == credential_id)
        async with read_transaction(self._engine) as connection:
            row = await authentic_row(connection, PASSKEYS, query)
        return None if row is None else _passkey(row)

    async def get(self, user: UserId, passkey: UUID) -> Passkey:
        """Return one of a user's passkeys. Raises PasskeyNotFoundError."""
        async with read_transaction(self._engine) as connection:
            return _passkey(await _row(connection, user, passkey))

    async def add(
        self,
        principal: SessionPrincipal,
        passkey: Passkey,
        challenge: UsedChallenge,
        recovery_codes: Sequence[bytes],
        mail: OutgoingMail,
        audit_event: Event,
    ) -> Use | None:
        """Store a passkey and use up its challenge. Ends other sessions.

        Returns ACCEPTED with the digests of recovery codes stored, None without: a user who already
        has a second factor keeps the codes. Returns CHALLENGE_USED without effect. Raises
        PasskeyExistsError, TooManyPasskeysError, UserNotFoundError.
        """
        user = principal.user
        row = {
            "id": passkey.id,
            "user_id": user,
            "credential_id": passkey.credential_id,
            "algorithm": passkey.algorithm,
            "public_key": passkey.public_key,
            "counter": passkey.counter,
            "is_syncable": passkey.is_syncable,
            "is_synced": passkey.is_synced,
            "transports": " ".join(passkey.transports),
            "name": passkey.name,
            "created_at_us": microseconds(passkey.created_at),
        }
        try:
            async with transaction(self._engine) as connection:
                await lock_user(connection, user)
                query = ACCOUNTS.where(USERS.c.id == user)
                stored = await authentic_row(connection, USERS, query)
                if stored is None:
                    raise UserNotFoundError
                account = account_of(connection, stored)
                if account.passkeys >= MAX_PASSKEYS:
                    raise TooManyPasskeysError
                if not await _use_up(connection, challenge, passkey.created_at):
                    return Use.CHALLENGE_USED
                await connection.execute(sa.insert(PASSKEYS), row)
                await count_passkeys(connection, user)
                is_first = not account.has_second_factor
                if is_first:
                    await save_recovery_codes(connection, user, recovery_codes, passkey.created_at)
                await end_other_sessions(connection, user, principal.session)
                await add_mail(connection, mail)
                await close_notices(
                    connection,
                    principal.tenant,
                    mail.created_at,
                    subject=person_subject(user),
                    kind=NoticeKind.FACTOR_REMOVED,
                )
                await add_audit_event(connection, audit_event)
        except sa.exc.IntegrityError:
            raise PasskeyExistsError from None
        return Use.ACCEPTED if is_first else None

    async def use(
        self,
        passkey: Passkey,
        challenge: UsedChallenge,
        now: datetime,
        counter: int,
        *,
        is_synced: bool,
    ) -> Use:
        """Use up a challenge, and store the counter of a use.

        The whole decision is one transaction, so a response has one effect. The counter must be
        higher than the stored one, unless both are 0 (Web Authentication, section 6.1.1).
        """
        is_passkey = PASSKEYS.c.id == passkey.id
        query = sa.select(PASSKEYS).where(is_passkey).with_for_update()
        async with transaction(self._engine) as connection:
            if not await _use_up(connection, challenge, now):
                return Use.CHALLENGE_USED
            row = await authentic_row(connection, PASSKEYS, query)
            if row is None:
                return Use.GONE
            if counter <= row.counter and (counter or row.counter):
                return Use.NOT_HIGHER
            values = {
                "counter": counter,
                "is_synced": is_synced,
                "last_used_at_us": microseconds(now),
                MAC: mac_after(connection, PASSKEYS, row, {"counter": counter}),
            }
            await connection.execute(sa.update(PASSKEYS).where(is_passkey).values(values))
        return Use.ACCEPTED

    async def record_clone(self, user: UserId, mail: OutgoingMail, audit_event: Event) -> None:
        """Store the event of a counter that is not higher, with a mail and a notice about it."""
        now = mail.created_at
        details = Details(names=(mail.to,), at=now, source_address=audit_event.source_address)
        subject = person_subject(user)
        kind, tenant = NoticeKind.PASSKEY_COPIED, audit_event.tenant
        async with transaction(self._engine) as connection:
            await add_mail(connection, mail)
            await open_notice(connection, tenant, kind, subject, details, now)
            await add_audit_event(connection, audit_event)

    async def rename(self, user: UserId, passkey: UUID, name: str, audit_event: Event) -> Passkey:
        """Rename one of a user's passkeys. Raises PasskeyNotFoundError."""
        rename = sa.update(PASSKEYS).where(PASSKEYS.c.id == passkey).values(name=name)
        async with transaction(self._engine) as connection:
            await _row(connection, user, passkey)
            await connection.execute(rename)
            await add_audit_event(connection, audit_event)
            return _passkey(await _row(connection, user, passkey))

    async def remove(
        self, principal: SessionPrincipal, passkey: UUID, mail: OutgoingMail, audit_event: Event
    ) -> None:
        """Remove one of a user's passkeys; with the last factor, its recovery codes. Ends sessions.

        Raises PasskeyNotFoundError, LastFactorError.
        """
        user = principal.user
        async with transaction(self._engine) as connection:
            await lock_user(connection, user)
            await _row(connection, user, passkey)
            await connection.execute(sa.delete(PASSKEYS).where(PASSKEYS.c.id == passkey))
            await count_passkeys(connection, user)
            await require_other_factor(connection, user)
            await end_other_sessions(connection, user, principal.session)
            await add_mail(connection, mail)
            now = mail.created_at
            await open_notice(
                connection,
                principal.tenant,
                NoticeKind.FACTOR_REMOVED,
                person_subject(user),
                Details(names=(mail.to,), at=now, source_address=audit_event.source_address),
                now,
            )
            await add_audit_event(connection, audit_event)


async def save_recovery_codes(
    connection: AsyncConnection, user: UserId, digests: Sequence[bytes], now: datetime
) -> None:
    """Replace a user's recovery codes by those with these digests."""
    await connection.execute(sa.delete(RECOVERY_CODES).where(RECOVERY_CODES.c.user_id == user))
    rows = [{"digest": digest, "user_id": user} for digest in digests]
    await connection.execute(sa.insert(RECOVERY_CODES), rows)
    stamp = sa.update(USERS).where(USERS.c.id == user).values(codes_at_us=microseconds(now))
    await connection.execute(stamp)


async def _use_up(connection: AsyncConnection, challenge: UsedChallenge, now: datetime) -> bool:
    """Store a used challenge, and remove expired ones. Return False if it was used."""
    is_expired = USED_SIGN_INS.c.expires_at_us <= microseconds(now)
    await connection.execute(sa.delete(USED_SIGN_INS).where(is_expired))
    row = {"digest": challenge.digest, "expires_at_us": microseconds(challenge.expires_at)}
    return await insert_if_absent(connection, USED_SIGN_INS, row)


async def _row(connection: AsyncConnection, user: UserId, passkey: UUID) -> sa.Row[Any]:
    query = sa.select(PASSKEYS).where(PASSKEYS.c.id == passkey, PASSKEYS.c.user_id == user)
    row = await authentic_row(connection, PASSKEYS, query)
    if row is None:
        raise PasskeyNotFoundError
    return row


def _passkey(row: sa.Row[Any]) -> Passkey:
    return Passkey(
        row.id,
        UserId(row.user_id),
        row.credential_id,
        GivenKeyAlgorithm(row.algorithm),
        row.public_key,
        row.counter,
        bool(row.is_syncable),
        bool(row.is_synced),
        tuple(row.transports.split()),
        row.name,
        time_of(row.created_at_us),
        None if row.last_used_at_us is None else time_of(row.last_used_at_us),
    )
