"""Step-up authentication: a user authenticates again before a sensitive action.

A step-up gives a token for one action. The token is reserved before the action, so that only one of
several concurrent requests acts. If the action certainly had no effect, the token is released. If
it succeeds or its outcome is unknown, the token is used up. If the gateway stops during the action,
the token stays reserved and cannot be used again.

A request with an Idempotency-Key may be repeated with its used token. A client that lost the
response can so get it again.

A step-up can also give a proof. It covers the session's sensitive actions for five minutes. Actions
that always need their own step-up are excepted (``pqkeep_gateway.access.callers``). The proof is a
token in its own cookie, so a copy of the access token does not include it. The database has a
digest of token, session, user, role and end: the proof ends with the session, and when the role
changes.
"""

import hmac
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeVar

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import (
    CredentialKind,
    Pepper,
    Purpose,
    kind_of,
    new_credential,
)
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal, UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passkeys import Assertion, Passkeys
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.second_factors import SecondFactors, WrongPresentPasswordError
from pqkeep_gateway.storage.identities import Provider, SqlIdentities
from pqkeep_gateway.storage.step_up_tokens import SqlStepUpTokens
from pqkeep_gateway.storage.users import SqlUsers
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution, Idempotency

T = TypeVar("T")

LIFETIME = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class SteppedUp:
    """The tokens that a step-up gives."""

    token: str = field(repr=False)
    """The step-up token, which is for one action."""
    proof: str | None = field(default=None, repr=False)
    """For the session's cookie; None if it was not requested."""


class StepUpRequiredError(Exception):
    """The step-up token is missing, expired, used, reserved, or another user's."""


class Proofs(NamedTuple):
    """The parts that verify a person's proof."""

    codes: SecondFactors
    passkeys: Passkeys
    passwords: Passwords


class StepUp:
    """Issues tokens, and accepts a token for one action. Tokens are stored as digests."""

    def __init__(
        self,
        store: SqlStepUpTokens,
        users: SqlUsers,
        proofs: Proofs,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._proofs = proofs
        self._attempts = attempts
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def needs_code(self, principal: SessionPrincipal) -> bool:
        """Return whether a step-up needs a second factor (True) or the password (False)."""
        return (await self._users.get(principal.user)).has_second_factor

    async def issue(
        self,
        principal: SessionPrincipal,
        proof: str | Assertion,
        attribution: Attribution,
        *,
        for_session: bool = False,
    ) -> SteppedUp:
        """Step up by a passkey, a correct code or, without a second factor, a correct password.

        ``for_session``: also return a proof that covers the session. Raises WrongPasskeyError,
        WrongCodeError, UsedCodeError, WrongPresentPasswordError, TooManyAttemptsError.
        """
        account = await self._users.get(principal.user)
        factor_at: datetime | None = None
        async with self._attempts.step_up(principal.session):
            if isinstance(proof, Assertion):
                passkey = await self._proofs.passkeys.check_step_up(principal, proof, attribution)
                factor_at = passkey.created_at
            elif account.has_second_factor:
                await self._proofs.codes.check(account, proof, attribution)
                factor_at = account.codes_at
            elif not await self._proofs.passwords.verify(
                account, proof, attribution.source_address
            ):
                failed = event(
                    attribution, principal.tenant, AuditEvent.STEP_UP_FAILED, outcome="ERR_MFA_001"
                )
                await self._audit_delivery.record(failed)
                raise WrongPresentPasswordError
        return await self._step_up(
            principal, attribution, for_session=for_session, factor_at=factor_at
        )

    async def factor_at(self, principal: SessionPrincipal, token: str) -> datetime | None:
        """Return when the factor behind a token was added; None without a token."""
        return await self._store.factor_at(principal.user, self._pepper.digest(token))

    async def issue_after_reauthentication(
        self,
        principal: SessionPrincipal,
        reauthentication: str,
        attribution: Attribution,
        *,
        for_session: bool = False,
    ) -> SteppedUp | None:
        """Step up once, with the token from the provider's callback.

        Returns None for an invalid token, and if the user has a second factor, which is then
        required.
        """
        if kind_of(reauthentication) is not CredentialKind.REAUTHENTICATION:
            return None
        if await self.needs_code(principal):
            return None
        granted = await self._store.find_reauthentication(principal.session)
        if granted is None:
            return None
        digest = reauthentication_digest(
            self._pepper, principal.session, principal.user, granted.until, reauthentication
        )
        now = date_of(self._clock())
        if not await self._store.use_reauthentication(principal.session, digest, now):
            return None
        return await self._step_up(principal, attribution, for_session=for_session)

    async def covers(self, principal: SessionPrincipal, proof: str) -> bool:
        """Return whether the proof is the session's, and has not expired."""
        if kind_of(proof) is not CredentialKind.PROOF:
            return False
        granted = await self._store.find_proof(principal.session)
        if granted is None or granted.until <= date_of(self._clock()):
            return False
        digest = self._proof_digest(principal, proof, granted.until)
        return hmac.compare_digest(granted.digest, digest)

    async def _step_up(
        self,
        principal: SessionPrincipal,
        attribution: Attribution,
        *,
        for_session: bool,
        factor_at: datetime | None = None,
    ) -> SteppedUp:
        token = new_credential(CredentialKind.STEP_UP)
        proof = new_credential(CredentialKind.PROOF) if for_session else None
        until = date_of(self._clock()) + LIFETIME
        stepped_up = event(attribution, principal.tenant, AuditEvent.STEP_UP)
        await self._store.add(
            principal,
            self._pepper.digest(token),
            None if proof is None else self._proof_digest(principal, proof, until),
            until,
            factor_at,
            stepped_up,
        )
        await self._audit_delivery.deliver()
        return SteppedUp(token, proof)

    def _proof_digest(self, principal: SessionPrincipal, proof: str, until: datetime) -> bytes:
        return self._pepper.derive(
            Purpose.PROOF,
            principal.session.bytes,
            principal.user.bytes,
            principal.role.encode(),
            until.isoformat().encode(),
            proof.encode(),
        )

    async def spend(
        self,
        principal: SessionPrincipal,
        token: str,
        action: Callable[[], Awaitable[T]],
        had_no_effect: Callable[[Exception], bool],
        idempotency: Idempotency | None = None,
    ) -> T:
        """Run the action, and use up the token unless the action failed without effect.

        An action with an Idempotency-Key runs once; a repetition gets its first result. Raises
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


def reauthentication_digest(
    pepper: Pepper, session: SessionId, user: UserId, until: datetime, token: str
) -> bytes:
    """Return the stored digest (32 bytes) of a token from a provider's callback."""
    end = until.isoformat().encode()
    return pepper.derive(Purpose.REAUTHENTICATION, session.bytes, user.bytes, end, token.encode())


class StepUpMethod(StrEnum):
    """A way to authenticate again."""

    PASSKEY = "passkey"
    """A passkey, or a recovery code."""
    APP = "app"
    """A code of the authenticator app, or a recovery code."""
    PASSWORD = "password"  # noqa: S105 - a kind of proof
    SINGLE_SIGN_ON = "single-sign-on"
    """Signing in at the provider again."""


class Methods(NamedTuple):
    """A user's methods, and the provider's name if single sign-on is one of them."""

    methods: tuple[StepUpMethod, ...]
    provider: str | None


class StepUpMethods:
    """The step-up methods of a user."""

    def __init__(
        self,
        users: SqlUsers,
        passwords: Passwords,
        identities: SqlIdentities,
        providers: Iterable[Provider],
    ) -> None:
        self._users = users
        self._passwords = passwords
        self._identities = identities
        self._providers = tuple(providers)

    async def of(self, principal: SessionPrincipal) -> Methods:
        """Return a user's methods. If the person has second factors, only these are offered."""
        account = await self._users.get(principal.user)
        if account.has_second_factor:
            by_passkey = (StepUpMethod.PASSKEY,) if account.passkeys else ()
            by_app = (StepUpMethod.APP,) if account.has_mfa else ()
            return Methods(by_passkey + by_app, None)
        issuers = await self._identities.issuers_of(principal.user)
        names = [
            provider.name
            for provider in self._providers
            if provider.tenant == principal.tenant and provider.issuer in issuers
        ]
        has_password = self._passwords.hash_of(account) is not None
        by_password = (StepUpMethod.PASSWORD,) if has_password else ()
        by_provider = (StepUpMethod.SINGLE_SIGN_ON,) if names else ()
        return Methods(by_password + by_provider, names[0] if names else None)
