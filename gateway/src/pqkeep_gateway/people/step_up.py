"""Step-up authentication: proving again who one is, just before a sensitive action.

A token is reserved before the action and released if the action certainly had no effect, so that of
many concurrent requests only one acts. An action that succeeds, or whose outcome is unknown, uses
the token up. If the gateway stops in between, the token stays reserved and is of no more use.

A token that was used up by a request with an Idempotency-Key is accepted from that request again,
so that whoever got no answer can ask for the first one.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of, new_credential
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import SecondFactors, WrongPresentPasswordError
from pqkeep_gateway.people.users import UserStore
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution, Idempotency

T = TypeVar("T")

LIFETIME = timedelta(seconds=300)


class StepUpRequiredError(Exception):
    """There is no token, or it has expired, was used, is reserved or is another user's."""


class StepUpStore(Protocol):
    """Step-up tokens in the database. All methods raise UnavailableError."""

    async def add(
        self, user: UserId, digest: bytes, expires_at: datetime, audit_event: Event
    ) -> None:
        """Store a token, and remove the user's expired ones. Raises UserNotFoundError."""
        ...

    async def use_reauthentication(self, session: SessionId, now: datetime) -> bool:
        """Use up that a session's provider has asked its person again, in one conditional UPDATE.

        Returns whether it has.
        """
        ...

    async def reserve(self, user: UserId, digest: bytes, now: datetime) -> bool:
        """Reserve a user's token, in one conditional UPDATE; return whether it was free."""
        ...

    async def was_used_by(
        self, user: UserId, digest: bytes, idempotency: Idempotency, now: datetime
    ) -> bool:
        """Return whether a user's token was used up by a request, and has not expired.

        Raises IdempotencyKeyReusedError if it was another request with the same Idempotency-Key.
        """
        ...

    async def release(self, digest: bytes) -> None:
        """Undo a reservation."""
        ...

    async def use_up(self, digest: bytes, idempotency: Idempotency | None) -> None:
        """Remove a token, or keep it for repetitions of the request until it expires."""
        ...


class StepUp:
    """Issues tokens, and accepts each for one action. They are stored as digests."""

    def __init__(
        self,
        store: StepUpStore,
        users: UserStore,
        factors: SecondFactors,
        passwords: Passwords,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._factors = factors
        self._passwords = passwords
        self._attempts = attempts
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def needs_code(self, principal: SessionPrincipal) -> bool:
        """Return whether a token takes a code (True) or the password (False)."""
        return (await self._users.get(principal.user)).has_mfa

    async def issue(self, principal: SessionPrincipal, proof: str, attribution: Attribution) -> str:
        """Return a token for a correct code or, without an authenticator, a correct password.

        Raises WrongCodeError, WrongPresentPasswordError, TooManyAttemptsError.
        """
        account = await self._users.get(principal.user)
        async with self._attempts.step_up(principal.session):
            if account.has_mfa:
                await self._factors.check(account, proof, attribution)
            elif not await self._passwords.verify(account, proof, attribution.source_address):
                failed = event(
                    attribution, principal.tenant, AuditEvent.STEP_UP_FAILED, outcome="ERR_MFA_001"
                )
                await self._audit_delivery.record(failed)
                raise WrongPresentPasswordError
        return await self._new_token(principal, attribution)

    async def issue_after_reauthentication(
        self, principal: SessionPrincipal, attribution: Attribution
    ) -> str | None:
        """Return a token if the person's provider has asked them again for this session, once.

        Not for people with an authenticator: their code is needed. None: the provider has not.
        """
        if await self.needs_code(principal):
            return None
        now = date_of(self._clock())
        if not await self._store.use_reauthentication(principal.session, now):
            return None
        return await self._new_token(principal, attribution)

    async def _new_token(self, principal: SessionPrincipal, attribution: Attribution) -> str:
        token = new_credential(CredentialKind.STEP_UP)
        expires_at = date_of(self._clock()) + LIFETIME
        issued = event(attribution, principal.tenant, AuditEvent.STEP_UP)
        await self._store.add(principal.user, self._pepper.digest(token), expires_at, issued)
        await self._audit_delivery.deliver()
        return token

    async def spend(
        self,
        principal: SessionPrincipal,
        token: str,
        action: Callable[[], Awaitable[T]],
        had_no_effect: Callable[[Exception], bool],
        idempotency: Idempotency | None = None,
    ) -> T:
        """Act, and use a token up unless the action failed without effect.

        An action with an Idempotency-Key acts once and then gives its first result again. Raises
        StepUpRequiredError, IdempotencyKeyReusedError.
        """
        if kind_of(token) is not CredentialKind.STEP_UP:
            raise StepUpRequiredError
        user, digest, now = principal.user, self._pepper.digest(token), date_of(self._clock())
        if not await self._store.reserve(user, digest, now):
            if idempotency is None or not await self._store.was_used_by(
                user, digest, idempotency, now
            ):
                raise StepUpRequiredError
            return await action()
        try:
            result = await action()
        except Exception as error:
            if had_no_effect(error):
                await self._store.release(digest)
            else:
                with suppress(UnavailableError):  # then it stays reserved
                    await self._store.use_up(digest, idempotency)
            raise
        await self._store.use_up(digest, idempotency)
        return result
