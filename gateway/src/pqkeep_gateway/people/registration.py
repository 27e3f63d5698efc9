"""Self-service sign-up: a user confirms an e-mail address, and then creates a tenant.

The response is the same for known and unknown addresses; only the mail tells. The recipient of the
mail chooses the password, so an attacker cannot prepare an account for another person.
"""

from datetime import timedelta
from uuid import uuid4

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.languages import ENGLISH
from pqkeep_gateway.outgoing_mail import MailKind, mailed_token, new_mail
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError, SqlRegistrations
from pqkeep_gateway.storage.users import SqlUsers, User
from pqkeep_gateway.tenancy.tenants import new_tenant
from pqkeep_protocol.messages import Attribution

LIFETIME = timedelta(hours=1)


class Registration:
    """Mails tokens to new addresses, and accepts them once. Tokens are stored as digests."""

    def __init__(
        self,
        store: SqlRegistrations,
        users: SqlUsers,
        sessions: Sessions,
        passwords: Passwords,
        attempts: AttemptLimits,
        lookups: CredentialLookups,
        pepper: Pepper,
        clock: Clock,
    ) -> None:
        self._store = store
        self._users = users
        self._sessions = sessions
        self._passwords = passwords
        self._attempts = attempts
        self._lookups = lookups
        self._pepper = pepper
        self._clock = clock

    async def begin(self, email: str, attribution: Attribution, language: str = ENGLISH) -> None:
        """Send a token to an address. Raises TooManyAttemptsError.

        ``language``: that of the request, for the mail.
        If the address has an account, the work is the same, but the mail contains no token.
        """
        await self._attempts.count_mail(email, attribution.source_address)
        now = date_of(self._clock())
        is_taken = await self._users.find_by_email(email) is not None
        kind = MailKind.ALREADY_REGISTERED if is_taken else MailKind.REGISTRATION
        mail = new_mail(kind, email, now, LIFETIME, language=language)
        token = mailed_token(mail, CredentialKind.REGISTRATION, self._pepper)
        digest = self._pepper.digest(token)
        await self._store.add(email, digest, mail)
        self._lookups.accept(digest)

    async def complete(
        self,
        token: str,
        name: str,
        password: str,
        attribution: Attribution,
        user_agent: bytes = b"",
    ) -> tuple[User, Tokens]:
        """Create a tenant and its owner, and begin a session.

        Raises InvalidRegistrationTokenError, TooManyUnknownCredentialsError, NameTakenError,
        EmailTakenError, InvalidPasswordError. After an error the token is still valid.
        """
        if kind_of(token) is not CredentialKind.REGISTRATION:
            raise InvalidRegistrationTokenError
        digest, now = self._pepper.digest(token), date_of(self._clock())
        if not await self._lookups.is_known(
            digest, attribution.source_address, lambda digest: self._store.is_valid(digest, now)
        ):
            raise InvalidRegistrationTokenError
        new_user = UserId(uuid4())
        password_hash = await self._passwords.hash(
            new_user, password, attribution.source_address, is_stranger=True
        )
        tenant = new_tenant(name)
        account = await self._store.complete(
            digest, tenant, new_user, password_hash, now, attribution
        )
        tokens = await self._sessions.begin(account, attribution, user_agent=user_agent)
        return account.user, tokens
