"""Second factors: time-based codes (TOTP, RFC 6238) and recovery codes, each accepted once.

The secret behind the codes is in no database: it is derived from the pepper and a salt, so that
whoever copies the database cannot make codes.
"""

import base64
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from pyotp import TOTP

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.users import Account, UserStore
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

ISSUER = "pqkeep"
STEP_SECONDS = 30
DRIFT = (0, -1, 1)
"""Steps by which somebody's clock may differ."""
RECOVERY_CODES = 10
CHALLENGE_LIFE = timedelta(minutes=5)
_SALT_SIZE = 16
_SECRET_SIZE = 20
_RECOVERY_SIZE = 10


class Factor(StrEnum):
    """Where the code comes from that somebody owes."""

    APP = "app"
    EMAIL = "email"


class WrongCodeError(Exception):
    """The code is not right, or not any more."""


class NotEnrolledError(Exception):
    """There is no second factor, or none to confirm."""


class AlreadyEnrolledError(Exception):
    """There is a second factor already."""


class SecondFactorRequiredError(Exception):
    """The password was right; a code is needed too."""

    def __init__(self, token: str, factor: Factor) -> None:
        """Carry the token to show with the code, and where that comes from."""
        super().__init__()
        self.token = token
        self.factor = factor


@dataclass(frozen=True, slots=True)
class Enrollment:
    """What an authenticator app needs to know."""

    secret: str = field(repr=False)
    uri: str = field(repr=False)


class SecondFactorStore(UserStore, Protocol):
    """Where second factors are kept. All raise UnavailableError."""

    async def enroll(self, user: UserId, salt: bytes) -> None:
        """Keep the salt of a factor to confirm. Raises AlreadyEnrolledError."""
        ...

    async def confirm(
        self, user: UserId, codes: Sequence[bytes], mail: OutgoingMail, made: Event
    ) -> bool:
        """Let the factor hold from now on, with recovery codes' digests; False: it does already."""
        ...

    async def disable(self, user: UserId, mail: OutgoingMail, made: Event) -> None:
        """Forget factor and recovery codes."""
        ...

    async def accept_step(self, user: UserId, salt: bytes, step: int) -> bool:
        """Remember a step as the last one accepted, in one step, if it is later than the last."""
        ...

    async def use_recovery_code(
        self, user: UserId, digest: bytes, mail: OutgoingMail, used: Event
    ) -> bool:
        """Use a recovery code up, in one step, if it is there."""
        ...

    async def challenge(self, user: UserId, digest: bytes, until: datetime) -> None:
        """Keep a challenge instead of the person's earlier one. Raises UserNotFoundError."""
        ...

    async def challenged(self, digest: bytes, now: datetime) -> UserId | None:
        """Return who was challenged."""
        ...

    async def answered(self, digest: bytes) -> bool:
        """Use a challenge up, in one step, if it is there."""
        ...


class SecondFactors:
    """Enrolls second factors and checks codes."""

    def __init__(
        self,
        store: SecondFactorStore,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
        *,
        by_email: bool,
    ) -> None:
        """Derive secrets from the pepper; steps are counted by a clock that does not jump.

        ``by_email``: whether codes can be sent to whoever must have a second factor, and has none.
        """
        self._by_email = by_email
        self._store = store
        self._attempts = attempts
        self._pepper = pepper
        self._courier = audit_delivery
        self._clock = clock

    async def enroll(self, whose: SessionPrincipal) -> Enrollment:
        """Begin with a new factor, which holds when it is confirmed. Raises AlreadyEnrolledError."""
        account = await self._store.get(whose.user)
        salt = secrets.token_bytes(_SALT_SIZE)
        await self._store.enroll(whose.user, salt)
        totp = self._totp(whose.user, salt)
        return Enrollment(
            totp.secret, totp.provisioning_uri(name=account.user.email, issuer_name=ISSUER)
        )

    async def confirm(
        self, whose: SessionPrincipal, code: str, attribution: Attribution
    ) -> tuple[str, ...]:
        """Let the factor hold; return recovery codes, this once.

        Raises NotEnrolledError, WrongCodeError, TooManyAttemptsError.
        """
        account = await self._store.get(whose.user)
        if account.totp_salt is None or account.has_mfa:
            raise NotEnrolledError
        await self._attempts.count(account.user.email, attribution.source_address)
        if not await self._is_right(account, code):
            raise WrongCodeError
        codes = tuple(_recovery_code() for _ in range(RECOVERY_CODES))
        digests = [self._recovery_digest(whose.user, each) for each in codes]
        made = event(attribution, whose.tenant, AuditEvent.ENABLE_MFA)
        told = self._letter(MailKind.SECOND_FACTOR_ADDED, account)
        if not await self._store.confirm(whose.user, digests, told, made):
            raise NotEnrolledError
        await self._courier.deliver()
        return codes

    async def disable(self, whose: SessionPrincipal, code: str, attribution: Attribution) -> None:
        """Do without. Raises NotEnrolledError, WrongCodeError, TooManyAttemptsError."""
        account = await self._store.get(whose.user)
        await self.check(account, code, attribution)
        told = self._letter(MailKind.SECOND_FACTOR_REMOVED, account)
        await self._store.disable(
            whose.user, told, event(attribution, whose.tenant, AuditEvent.DISABLE_MFA)
        )
        await self._courier.deliver()

    def of(self, account: Account) -> Factor | None:
        """Return where the code comes from that somebody owes beside the password, if they do.

        Who chose codes by e-mail owes one even where none can be sent: nobody gets in then.
        """
        if account.has_mfa:
            return Factor.APP
        if account.email_codes or (account.must_have_mfa and self._by_email):
            return Factor.EMAIL
        return None

    async def challenge(self, account: Account, factor: Factor) -> SecondFactorRequiredError:
        """Return what to raise at somebody whose password was right."""
        token = new_credential(CredentialKind.CHALLENGE)
        until = date_of(self._clock()) + CHALLENGE_LIFE
        await self._store.challenge(account.user.id, self._pepper.digest(token), until)
        return SecondFactorRequiredError(token, factor)

    async def answer(self, token: str, code: str, attribution: Attribution) -> Account | None:
        """Return who answers a challenge; None where there is none.

        Raises WrongCodeError, TooManyAttemptsError.
        """
        digest = self._pepper.digest(token)
        user = await self._store.challenged(digest, date_of(self._clock()))
        if user is None:
            return None
        account = await self._store.get(user)
        await self.check(account, code, attribution)
        return account if await self._store.answered(digest) else None

    async def check(self, account: Account, code: str, attribution: Attribution) -> None:
        """Use a code of either kind up.

        Raises NotEnrolledError, WrongCodeError, TooManyAttemptsError.
        """
        if not account.has_mfa:
            raise NotEnrolledError
        user = account.user
        attribution = attribution.by(str(user))
        await self._attempts.count(user.email, attribution.source_address)
        if await self._is_right(account, code):
            return
        digest = self._recovery_digest(user.id, code)
        used = event(attribution, user.tenant, AuditEvent.USE_RECOVERY_CODE)
        told = self._letter(MailKind.RECOVERY_CODE_USED, account)
        if await self._store.use_recovery_code(user.id, digest, told, used):
            await self._courier.deliver()
            return
        await self.tell_of_failure(account, attribution)
        raise WrongCodeError

    async def tell_of_failure(self, account: Account, attribution: Attribution) -> None:
        """Record that a code was wrong."""
        user = account.user
        who = attribution.by(str(user))
        failed = event(who, user.tenant, AuditEvent.SECOND_FACTOR_FAILED, outcome="ERR_MFA_001")
        await self._courier.record(failed)

    async def _is_right(self, account: Account, code: str) -> bool:
        salt = account.totp_salt
        if salt is None or not (code.isascii() and code.isdigit()):
            return False
        totp, now = self._totp(account.user.id, salt), int(self._clock()) // STEP_SECONDS
        for step in (now + each for each in DRIFT):
            if hmac.compare_digest(totp.generate_otp(step), code):
                return await self._store.accept_step(account.user.id, salt, step)
        return False

    def _letter(self, kind: MailKind, account: Account) -> OutgoingMail:
        return mail(kind, account.user.email, date_of(self._clock()))

    def _totp(self, user: UserId, salt: bytes) -> TOTP:
        secret = self._pepper.derive("pqkeep/v1/totp", user.bytes, salt)[:_SECRET_SIZE]
        return TOTP(base64.b32encode(secret).decode())

    def _recovery_digest(self, user: UserId, code: str) -> bytes:
        text = code.replace("-", "").replace(" ", "").lower().encode("utf-8", "surrogatepass")
        return self._pepper.derive("pqkeep/v1/recovery-code", user.bytes, text)


def _recovery_code() -> str:
    """Return 80 random bits in four groups of letters and digits."""
    text = base64.b32encode(secrets.token_bytes(_RECOVERY_SIZE)).decode().lower()
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))
