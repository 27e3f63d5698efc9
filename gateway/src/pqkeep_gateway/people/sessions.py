"""Sessions: what a person who has signed in shows afterwards.

Two opaque tokens open a session. The access token goes with each request for a quarter of an hour;
the refresh token is exchanged for a new pair, once. One that was exchanged already and comes again
has been copied: then the session ends for whoever has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from uuid import uuid4

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of, new_credential
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.people.users import Account
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

ACCESS_LIFE = timedelta(minutes=15)
REFRESH_LIFE = timedelta(days=7)


class SessionNotFoundError(Exception):
    """The person has no session of this identifier."""


class NoSessionError(Exception):
    """The token opens no session, or none any more."""


class RefreshTokenReusedError(NoSessionError):
    """The token was exchanged before, and has ended its session now."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What opens a session."""

    access: str = field(repr=False)
    refresh: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tokens as they are kept: digests, and until when each is accepted."""

    access: bytes = field(repr=False)
    access_until: datetime
    refresh: bytes = field(repr=False)
    refresh_until: datetime


@dataclass(frozen=True, slots=True)
class Session:
    """What is told of a session."""

    id: SessionId
    user: UserId
    created_at: datetime
    refreshed_at: datetime
    source_address: str
    by_code: bool = False
    """Whether it was begun with a code beside the password."""


class SessionStore(Protocol):
    """Where sessions are kept. All raise UnavailableError."""

    async def add(
        self, session: Session, pair: Pair, password_hash: str, events: Sequence[Event]
    ) -> None:
        """Keep a new session and when it began, and forget the person's that have expired.

        Raises NoSessionError if the person has another password by now, or is no longer there.
        """
        ...

    async def find(self, access: bytes, now: datetime) -> SessionPrincipal | None:
        """Return whose session an access token's digest opens."""
        ...

    async def refresh(
        self, spent: bytes, pair: Pair, now: datetime, attribution: Attribution
    ) -> None:
        """Put a pair in the place of the one with this refresh token, in one step.

        Raises NoSessionError; RefreshTokenReusedError if the token was spent before, which has ended
        its session.
        """
        ...

    async def list(self, user: UserId, now: datetime) -> tuple[Session, ...]:
        """Return a person's sessions, the newest first."""
        ...

    async def end(self, user: UserId, session: SessionId, events: Sequence[Event]) -> None:
        """End a session of a person's. Raises NoSessionError."""
        ...


class Sessions:
    """Begins, refreshes and ends sessions."""

    def __init__(
        self, store: SessionStore, pepper: Pepper, audit_delivery: AuditDelivery, clock: Clock
    ) -> None:
        """Keep tokens as digests under the pepper; time is a clock's that does not jump."""
        self._store = store
        self._pepper = pepper
        self._courier = audit_delivery
        self._clock = clock

    async def begin(
        self, account: Account, attribution: Attribution, *, by_code: bool = False
    ) -> Tokens:
        """Begin a session of somebody who has proven who they are.

        Raises NoSessionError if their password was changed meanwhile.
        """
        user = account.user
        now = date_of(self._clock())
        tokens, pair = self._new(now)
        session = Session(
            SessionId(uuid4()), user.id, now, now, attribution.source_address, by_code
        )
        begun = event(attribution.by(str(user)), user.tenant, AuditEvent.SIGN_IN)
        await self._store.add(session, pair, account.password_hash, (begun,))
        await self._courier.deliver()
        return tokens

    async def find(self, access_token: str) -> SessionPrincipal | None:
        """Be the SessionDirectory."""
        if kind_of(access_token) is not CredentialKind.ACCESS:
            return None
        now = date_of(self._clock())
        return await self._store.find(self._pepper.digest(access_token), now)

    async def refresh(self, refresh_token: str, attribution: Attribution) -> Tokens:
        """Exchange a refresh token for a new pair. Raises NoSessionError."""
        if kind_of(refresh_token) is not CredentialKind.REFRESH:
            raise NoSessionError
        now = date_of(self._clock())
        tokens, pair = self._new(now)
        try:
            await self._store.refresh(self._pepper.digest(refresh_token), pair, now, attribution)
        except RefreshTokenReusedError:
            await self._courier.deliver()
            raise
        return tokens

    async def list(self, user: UserId) -> tuple[Session, ...]:
        """Return a person's sessions, the newest first."""
        return await self._store.list(user, date_of(self._clock()))

    async def end(
        self,
        whose: SessionPrincipal,
        session: SessionId,
        attribution: Attribution,
        operation: AuditEvent,
    ) -> None:
        """End one of somebody's sessions. Raises NoSessionError."""
        ended = event(attribution, whose.tenant, operation)
        await self._store.end(whose.user, session, (ended,))
        await self._courier.deliver()

    def _new(self, now: datetime) -> tuple[Tokens, Pair]:
        tokens = Tokens(
            new_credential(CredentialKind.ACCESS),
            new_credential(CredentialKind.REFRESH),
        )
        pair = Pair(
            self._pepper.digest(tokens.access),
            now + ACCESS_LIFE,
            self._pepper.digest(tokens.refresh),
            now + REFRESH_LIFE,
        )
        return tokens, pair
