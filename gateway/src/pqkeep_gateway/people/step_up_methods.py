"""How a signed-in person can step up."""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.storage.identities import Provider, SqlIdentities
from pqkeep_gateway.storage.users import SqlUsers


class StepUpMethod(StrEnum):
    """What proves again who somebody is."""

    APP = "app"
    """A code of the authenticator app, or a recovery code."""
    PASSWORD = "password"  # noqa: S105 - a kind of proof
    SINGLE_SIGN_ON = "single-sign-on"
    """Signing in at the provider again."""


class Methods(NamedTuple):
    """A person's methods, and the name of their provider if it is among them."""

    methods: tuple[StepUpMethod, ...]
    provider: str | None


class StepUpMethods:
    """Tells how people can step up."""

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
        """Return a person's methods. Who has an authenticator app needs it."""
        account = await self._users.get(principal.user)
        if account.has_mfa:
            return Methods((StepUpMethod.APP,), None)
        issuers = await self._identities.issuers_of(principal.user)
        names = [
            each.name
            for each in self._providers
            if each.tenant == principal.tenant and each.issuer in issuers
        ]
        has_password = self._passwords.hash_of(account) is not None
        by_password = (StepUpMethod.PASSWORD,) if has_password else ()
        by_provider = (StepUpMethod.SINGLE_SIGN_ON,) if names else ()
        return Methods(by_password + by_provider, names[0] if names else None)
