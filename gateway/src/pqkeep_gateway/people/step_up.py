"""Step-up: proving again who one is, just before something that cannot be undone.

A token is reserved before the action and given back if that certainly did nothing; so of many at
once only one acts. An action that succeeds uses the token up, and so does one of which nobody knows
what became of it. If the gateway ends in between, it stays reserved, and is of no more use.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of, new_credential
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import SecondFactors, WrongCodeError
from pqkeep_gateway.people.users import UserStore
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

T = TypeVar("T")

LIFE = timedelta(seconds=300)


class StepUpRequiredError(Exception):
    """No token, or one that is over, used, reserved or somebody else's."""


class StepUpStore(Protocol):
    """Where step-up tokens are kept. All raise UnavailableError."""

    async def add(self, user: UserId, digest: bytes, until: datetime, made: Event) -> None:
        """Keep a token, and forget the person's that have expired. Raises UserNotFoundError."""
        ...

    async def reserve(self, user: UserId, digest: bytes, now: datetime) -> bool:
        """Reserve a token of a person's, in one step, if it is free and not over."""
        ...

    async def release(self, digest: bytes) -> None:
        """Give a token back."""
        ...

    async def consume(self, digest: bytes) -> None:
        """Forget a token."""
        ...


class StepUp:
    """Hands tokens out, and takes them for actions."""

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
        """Ask for a code of somebody with a second factor, and for the password of others."""
        self._store = store
        self._users = users
        self._factors = factors
        self._passwords = passwords
        self._attempts = attempts
        self._pepper = pepper
        self._courier = audit_delivery
        self._clock = clock

    async def needs_code(self, whose: SessionPrincipal) -> bool:
        """Return whether a code is asked for, or else the password."""
        return (await self._users.get(whose.user)).has_mfa

    async def issue(self, whose: SessionPrincipal, proof: str, attribution: Attribution) -> str:
        """Return a token for a right code or password. Raises WrongCodeError, TooManyAttemptsError."""
        account = await self._users.get(whose.user)
        if account.has_mfa:
            await self._factors.check(account, proof, attribution)
        else:
            await self._attempts.count(account.user.email, attribution.source_address)
            if not await self._passwords.verify(account.password_hash, proof):
                failed = event(
                    attribution, whose.tenant, AuditEvent.STEP_UP_FAILED, outcome="ERR_MFA_001"
                )
                await self._courier.record(failed)
                raise WrongCodeError
        token = new_credential(CredentialKind.STEP_UP)
        until = date_of(self._clock()) + LIFE
        made = event(attribution, whose.tenant, AuditEvent.STEP_UP)
        await self._store.add(whose.user, self._pepper.digest(token), until, made)
        await self._courier.deliver()
        return token

    async def spend(
        self,
        whose: SessionPrincipal,
        token: str,
        action: Callable[[], Awaitable[T]],
        did_nothing: Callable[[Exception], bool],
    ) -> T:
        """Act, and use a token up unless the action says that it did nothing.

        Raises StepUpRequiredError.
        """
        digest, now = self._pepper.digest(token), date_of(self._clock())
        is_token = kind_of(token) is CredentialKind.STEP_UP
        if not (is_token and await self._store.reserve(whose.user, digest, now)):
            raise StepUpRequiredError
        try:
            done = await action()
        except Exception as error:
            if did_nothing(error):
                await self._store.release(digest)
            raise
        await self._store.consume(digest)
        return done
