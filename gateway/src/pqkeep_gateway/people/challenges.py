"""Challenges: sign-ins with a correct password that still need a code.

A correct password gives a challenge token. The client sends it again with the code.
"""

from datetime import timedelta
from enum import StrEnum

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of, new_credential
from pqkeep_gateway.people.attempt_limits import network_digest
from pqkeep_gateway.storage.second_factors import SqlChallenges
from pqkeep_gateway.storage.users import Account, SqlUsers

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
