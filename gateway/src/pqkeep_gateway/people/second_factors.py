"""Second factors: time-based codes (TOTP, RFC 6238) and recovery codes. A code is accepted once.

The TOTP secret is not stored. It is derived from the pepper and a salt, so a copy of the database
is not enough to compute codes.
"""

import base64
import hmac
import secrets
from dataclasses import dataclass, field

from pyotp import TOTP

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, new_mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits, UsedError
from pqkeep_gateway.storage.second_factors import SqlSecondFactors
from pqkeep_gateway.storage.users import Account, SqlUsers
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

ISSUER = "pqkeep"
STEP_SECONDS = 30
DRIFT = (0, -1, 1)
"""Accepted differences of an authenticator's clock, in time steps."""
RECOVERY_CODES = 10
_SALT_SIZE = 16
_SECRET_SIZE = 20
_RECOVERY_CODE_SIZE = 10


class WrongCodeError(Exception):
    """The code is wrong, or has expired."""


class UsedCodeError(WrongCodeError, UsedError):
    """The code is correct, but it or a later one was accepted before."""

    def __init__(self, wait: int) -> None:
        """Take the seconds until the authenticator shows a fresh code."""
        super().__init__()
        self.wait = wait


class WrongPresentPasswordError(WrongCodeError):
    """The password for a step-up is wrong."""


class NotEnrolledError(Exception):
    """The account has no authenticator, or no enrollment to confirm."""


@dataclass(frozen=True, slots=True)
class Enrollment:
    """The secret for an authenticator app, as text and as a URI."""

    secret: str = field(repr=False)
    uri: str = field(repr=False)


class SecondFactors:
    """Enrolls authenticators and checks codes."""

    def __init__(
        self,
        store: SqlSecondFactors,
        users: SqlUsers,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._attempts = attempts
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def enroll(self, principal: SessionPrincipal) -> Enrollment:
        """Begin to enroll an authenticator. ``confirm`` completes the enrollment.

        Raises AlreadyEnrolledError.
        """
        account = await self._users.get(principal.user)
        salt = secrets.token_bytes(_SALT_SIZE)
        await self._store.save_enrollment(principal.user, salt)
        totp = self._totp(principal.user, salt)
        return Enrollment(
            totp.secret, totp.provisioning_uri(name=account.user.email, issuer_name=ISSUER)
        )

    async def confirm(
        self, principal: SessionPrincipal, code: str, attribution: Attribution
    ) -> tuple[str, ...]:
        """Complete an enrollment, and end the user's other sessions.

        Returns the recovery codes. Only their digests are stored.

        Raises NotEnrolledError, WrongCodeError, TooManyAttemptsError.
        """
        account = await self._users.get(principal.user)
        salt = account.totp_salt
        if salt is None or account.has_mfa:
            raise NotEnrolledError
        async with self._attempts.step_up(principal.session):
            if not await self._accept_totp(account, code):
                raise WrongCodeError
        codes, digests = self.new_recovery_codes(principal.user)
        enabled = event(attribution, principal.tenant, AuditEvent.ENABLE_MFA)
        mail = self._new_mail(MailKind.SECOND_FACTOR_ADDED, account)
        if not await self._store.confirm(principal, salt, digests, mail, enabled):
            raise NotEnrolledError
        await self._audit_delivery.deliver()
        return codes

    async def disable(
        self, principal: SessionPrincipal, code: str, attribution: Attribution
    ) -> None:
        """Remove an authenticator, and end the user's other sessions.

        Raises NotEnrolledError, WrongCodeError, TooManyAttemptsError, LastFactorError.
        """
        account = await self._users.get(principal.user)
        if not account.has_mfa:
            raise NotEnrolledError
        async with self._attempts.step_up(principal.session):
            await self.check(account, code, attribution)
        mail = self._new_mail(MailKind.SECOND_FACTOR_REMOVED, account)
        disabled = event(attribution, principal.tenant, AuditEvent.DISABLE_MFA)
        await self._store.remove(principal, mail, disabled)
        await self._audit_delivery.deliver()

    async def check(self, account: Account, code: str, attribution: Attribution) -> None:
        """Accept an authenticator's code or a recovery code, once. The caller counts attempts.

        Raises NotEnrolledError, WrongCodeError, UsedCodeError.
        """
        if not account.has_second_factor:
            raise NotEnrolledError
        user = account.user
        attribution = attribution.by(str(user))
        try:
            if account.has_mfa and await self._accept_totp(account, code):
                return
        except UsedCodeError:
            await self._audit_delivery.record(second_factor_failed(account, attribution))
            raise
        digest = self._recovery_digest(user.id, code)
        used = event(attribution, user.tenant, AuditEvent.USE_RECOVERY_CODE)
        mail = self._new_mail(MailKind.RECOVERY_CODE_USED, account)
        if await self._store.remove_recovery_code(user.id, digest, mail, used):
            await self._audit_delivery.deliver()
            return
        await self._audit_delivery.record(second_factor_failed(account, attribution))
        raise WrongCodeError

    async def _accept_totp(self, account: Account, code: str) -> bool:
        """Return whether a code is correct, and accept it once. Raises UsedCodeError."""
        salt = account.totp_salt
        code = typed_code(code)
        if salt is None or not (code.isascii() and code.isdigit()):
            return False
        totp, seconds = self._totp(account.user.id, salt), int(self._clock())
        now = seconds // STEP_SECONDS
        used = None
        for step in (now + drift for drift in DRIFT):
            if hmac.compare_digest(totp.generate_otp(step), code):
                if await self._store.save_totp_step(account.user.id, salt, step):
                    return True
                used = step
        if used is None:
            return False
        raise UsedCodeError((max(used, now) + 1) * STEP_SECONDS - seconds)

    def new_recovery_codes(self, user: UserId) -> tuple[tuple[str, ...], list[bytes]]:
        """Return new recovery codes, and the digests to store."""
        codes = tuple(_new_recovery_code() for _ in range(RECOVERY_CODES))
        return codes, [self._recovery_digest(user, recovery) for recovery in codes]

    def _new_mail(self, kind: MailKind, account: Account) -> OutgoingMail:
        return new_mail(kind, account.user.email, date_of(self._clock()))

    def _totp(self, user: UserId, salt: bytes) -> TOTP:
        secret = self._pepper.derive(Purpose.TOTP, user.bytes, salt)[:_SECRET_SIZE]
        return TOTP(base64.b32encode(secret).decode())

    def _recovery_digest(self, user: UserId, code: str) -> bytes:
        text = typed_code(code).lower().encode("utf-8", "surrogatepass")
        return self._pepper.derive(Purpose.RECOVERY_CODE, user.bytes, text)


def typed_code(text: str) -> str:
    """Return a code without white space and dashes."""
    return "".join(text.split()).translate(_DASHES)


_DASHES = dict.fromkeys(map(ord, "-\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{FIGURE DASH}\N{EN DASH}"))


def second_factor_failed(account: Account, attribution: Attribution) -> Event:
    """Return the audit event of a wrong code."""
    user = account.user
    who = attribution.by(str(user))
    return event(who, user.tenant, AuditEvent.SECOND_FACTOR_FAILED, outcome="ERR_MFA_001")


def _new_recovery_code() -> str:
    """Return 80 random bits in base32, in four groups of four characters."""
    text = base64.b32encode(secrets.token_bytes(_RECOVERY_CODE_SIZE)).decode().lower()
    return "-".join(text[at : at + 4] for at in range(0, len(text), 4))
