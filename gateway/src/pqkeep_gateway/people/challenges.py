"""Challenges: sign-ins with a correct password that still need a code.

A correct password gives a challenge token. The client sends it again with the code. Users without
an authenticator app get the code by e-mail.

A mailed code belongs to one challenge and expires with it. It is stored as a digest under the
pepper. It is accepted once, and becomes invalid after five attempts. It never replaces an app or a
passkey.
"""

from datetime import timedelta
from enum import StrEnum

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import (
    CredentialKind,
    Pepper,
    Purpose,
    kind_of,
    new_credential,
)
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.outgoing_mail import MailKind, mailed_code, new_mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits, network_digest
from pqkeep_gateway.people.second_factors import WrongCodeError, second_factor_failed, typed_code
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.storage.second_factors import SqlChallenges
from pqkeep_gateway.storage.users import Account, AccountChangedError, SqlUsers
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import Attribution

LIFETIME = timedelta(minutes=5)


class Factor(StrEnum):
    """The source of the required code."""

    APP = "app"
    """The authenticator app. A passkey or a recovery code is accepted, too."""
    PASSKEY = "passkey"
    """A sign-in with a passkey, which needs no password. A recovery code is accepted, too."""
    EMAIL = "email"


class SecondFactorRequiredError(Exception):
    """The password was correct; a code is required too."""

    def __init__(self, token: str, factor: Factor) -> None:
        """Take the challenge's token, and the source of the code."""
        super().__init__()
        self.token = token
        self.factor = factor


class InvalidChallengeError(Exception):
    """The token is unknown, or its challenge has expired or was used."""


class Challenges:
    """Decides which accounts need a code, and issues challenges. Tokens are stored as digests."""

    def __init__(
        self,
        store: SqlChallenges,
        users: SqlUsers,
        lookups: CredentialLookups,
        pepper: Pepper,
        clock: Clock,
        *,
        sends_mail: bool,
    ) -> None:
        self._store = store
        self._users = users
        self._lookups = lookups
        self._pepper = pepper
        self._clock = clock
        self._sends_mail = sends_mail

    def required_factor(self, account: Account) -> Factor | None:
        """Return the source of the code that an account needs, or None.

        An account that chose codes by e-mail needs one even if this service sends no mail. It
        cannot sign in then.
        """
        if account.has_mfa:
            return Factor.APP
        if account.passkeys:
            return Factor.PASSKEY
        if account.email_codes or (account.must_have_mfa and self._sends_mail):
            return Factor.EMAIL
        return None

    async def issue(
        self, account: Account, factor: Factor, source_address: str
    ) -> SecondFactorRequiredError:
        """Return the error to raise after a correct password. Raises AccountChangedError."""
        token = new_credential(CredentialKind.CHALLENGE)
        now = date_of(self._clock())
        digest = self._pepper.digest(token)
        network = network_digest(self._pepper, account.user.email, source_address)
        await self._store.add(account, digest, network, now, now + LIFETIME)
        self._lookups.accept(digest)
        return SecondFactorRequiredError(token, factor)

    async def find(self, token: str, source_address: str) -> tuple[bytes, Account]:
        """Return a pending challenge's digest, and its account.

        Raises InvalidChallengeError, TooManyUnknownCredentialsError.
        """
        if kind_of(token) is not CredentialKind.CHALLENGE:
            raise InvalidChallengeError
        digest, now = self._pepper.digest(token), date_of(self._clock())
        user = await self._lookups.find(
            digest, source_address, lambda digest: self._store.find(digest, now)
        )
        if user is None:
            raise InvalidChallengeError
        return digest, await self._users.get(user)

    async def remove(self, digest: bytes) -> None:
        """Use up a challenge. Raises InvalidChallengeError if another request used it first."""
        if not await self._store.remove(digest):
            raise InvalidChallengeError


CODE_LIFETIME = timedelta(minutes=10)
MAX_ATTEMPTS = 5


class AuthenticatorRequiredError(Exception):
    """The account has an authenticator or a passkey, so no code is sent by e-mail."""


class EmailCodes:
    """Sends codes and checks them."""

    def __init__(
        self,
        store: SqlChallenges,
        users: SqlUsers,
        challenges: Challenges,
        sessions: Sessions,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._challenges = challenges
        self._sessions = sessions
        self._attempts = attempts
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def send(self, token: str, attribution: Attribution) -> None:
        """Send a code for a challenge.

        Raises InvalidChallengeError, TooManyUnknownCredentialsError, AuthenticatorRequiredError,
        TooManyAttemptsError.
        """
        challenge, account = await self._challenges.find(token, attribution.source_address)
        if self._challenges.required_factor(account) is not Factor.EMAIL:
            raise AuthenticatorRequiredError
        user = account.user
        await self._attempts.count_code(user.email, attribution.source_address)
        mail = new_mail(MailKind.CODE, user.email, date_of(self._clock()), CODE_LIFETIME)
        digest = self._digest(challenge, mailed_code(mail, self._pepper))
        sent = event(attribution.by(str(user)), user.tenant, AuditEvent.SEND_EMAIL_CODE)
        if not await self._store.save_email_code(challenge, digest, mail, sent):
            raise InvalidChallengeError
        await self._audit_delivery.deliver()

    async def check(
        self, token: str, code: str, attribution: Attribution, user_agent: bytes = b""
    ) -> Tokens:
        """Begin a session with the code that was sent.

        Raises InvalidChallengeError, TooManyUnknownCredentialsError, WrongCodeError,
        TooManyAttemptsError.
        """
        challenge, account = await self._challenges.find(token, attribution.source_address)
        async with self._attempts.code(account.user.email, attribution.source_address):
            factor = self._challenges.required_factor(account)
            is_correct = factor is Factor.EMAIL and await self._store.use_email_code(
                challenge, self._digest(challenge, code), date_of(self._clock()), MAX_ATTEMPTS
            )
            if not is_correct:
                await self._audit_delivery.record(second_factor_failed(account, attribution))
                raise WrongCodeError
        try:
            return await self._sessions.begin(
                account, attribution, used_second_factor=True, user_agent=user_agent
            )
        except AccountChangedError:
            raise InvalidChallengeError from None

    async def choose(
        self, principal: SessionPrincipal, attribution: Attribution, *, wanted: bool
    ) -> None:
        """Switch codes by e-mail on or off, and end the user's other sessions.

        While the user has an authenticator, the setting has no effect.
        """
        account = await self._users.get(principal.user)
        kind = MailKind.SECOND_FACTOR_ADDED if wanted else MailKind.SECOND_FACTOR_REMOVED
        mail = new_mail(kind, account.user.email, date_of(self._clock()))
        operation = AuditEvent.ENABLE_EMAIL_CODES if wanted else AuditEvent.DISABLE_EMAIL_CODES
        chosen = event(attribution, principal.tenant, operation)
        await self._users.save_email_codes(principal, mail, chosen, wanted=wanted)
        await self._audit_delivery.deliver()

    def _digest(self, challenge: bytes, code: str) -> bytes:
        text = typed_code(code).encode("utf-8", "surrogatepass")
        return self._pepper.derive(Purpose.EMAIL_CODE, challenge, text)
