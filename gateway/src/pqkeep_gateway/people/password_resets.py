"""Forgotten passwords: a mailed token allows a new one.

The response is the same for known and unknown addresses. A reset ends every session and begins
none, so an account with a second factor still needs it to sign in.
"""

from datetime import timedelta
from uuid import uuid4

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, mailed_token, new_mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits, network_digest
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError, SqlPasswordResets
from pqkeep_gateway.storage.users import SqlUsers
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

LIFETIME = timedelta(minutes=30)


class PasswordResets:
    """Mails tokens for a new password, and accepts them once. Tokens are stored as digests."""

    def __init__(
        self,
        store: SqlPasswordResets,
        users: SqlUsers,
        passwords: Passwords,
        attempts: AttemptLimits,
        lookups: CredentialLookups,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._passwords = passwords
        self._attempts = attempts
        self._lookups = lookups
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def begin(self, email: str, attribution: Attribution) -> None:
        """Send a token to an address. Raises TooManyAttemptsError.

        The work is the same for an unknown address and for a tenant without passwords. But that
        mail is discarded when it is due.
        """
        await self._attempts.count_mail(email, attribution.source_address)
        account = await self._users.find_by_email(email)
        is_possible = account is not None and self._passwords.are_enabled(account.user.tenant)
        kind = MailKind.PASSWORD_RESET if is_possible else MailKind.DISCARDED
        to = email if account is None else account.user.email
        mail = new_mail(kind, to, date_of(self._clock()), LIFETIME)
        token = mailed_token(mail, CredentialKind.PASSWORD_RESET, self._pepper)
        tenant = INSTALLATION if account is None else account.user.tenant
        requested = event(attribution, tenant, AuditEvent.FORGOT_PASSWORD)
        digest = self._pepper.digest(token)
        await self._store.add(to, digest, mail, requested)
        self._lookups.accept(digest)
        await self._audit_delivery.deliver()

    async def complete(self, token: str, password: str, attribution: Attribution) -> None:
        """Replace a password, once.

        Raises InvalidPasswordResetTokenError, TooManyUnknownCredentialsError, InvalidPasswordError.
        """
        if kind_of(token) is not CredentialKind.PASSWORD_RESET:
            raise InvalidPasswordResetTokenError
        digest, now = self._pepper.digest(token), date_of(self._clock())
        email = await self._lookups.find(
            digest, attribution.source_address, lambda digest: self._store.find(digest, now)
        )
        account = None if email is None else await self._users.find_by_email(email)
        if email is None or (account and not self._passwords.are_enabled(account.user.tenant)):
            raise InvalidPasswordResetTokenError
        user = UserId(uuid4()) if account is None else account.user.id
        password_hash = await self._passwords.hash(
            user, password, attribution.source_address, is_stranger=True
        )
        network = network_digest(self._pepper, email, attribution.source_address)
        await self._store.complete(digest, password_hash, network, now, attribution)
        await self._audit_delivery.deliver()
