"""Credentials are resolved to principals, and cached with the number of changes."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest
from gateway.tests.world import HERE, FakeLastUses

from pqkeep_gateway.access.admission import (
    RECORDED_SECONDS,
    AddressNotAllowedError,
    Authenticated,
    Authenticator,
    Found,
)
from pqkeep_gateway.access.api_key_limits import ApiKeyLimits
from pqkeep_gateway.access.callers import OperatorRole
from pqkeep_gateway.access.credential_lookups import (
    UNKNOWN_CREDENTIALS,
    CredentialLookups,
    TooManyUnknownCredentialsError,
)
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_protocol.keys import TenantId

OPERATOR = new_credential(CredentialKind.OPERATOR)


class Directory:
    """API keys in memory, with optional delays."""

    def __init__(self) -> None:
        self.known: dict[bytes, Found] = {}
        self.asked = 0
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def find(self, digest: bytes) -> Found | None:
        """Look up first, then wait: the result can be outdated when it is returned."""
        self.asked += 1
        found = self.known.get(digest)
        self.started.set()
        await self.go_on.wait()
        return found


class OperatorDirectory:
    """Operators in memory."""

    def __init__(self) -> None:
        self.names: dict[bytes, str] = {}
        self.asked = 0

    async def find(self, digest: bytes) -> OperatorPrincipal | None:
        self.asked += 1
        name = self.names.get(digest)
        return None if name is None else OperatorPrincipal(name)


class Setting:
    """An authenticator before a directory, and one API key in it."""

    def __init__(self, pepper: Pepper) -> None:
        self.directory = Directory()
        self.operators = OperatorDirectory()
        self.now = 1000.0
        self.rate_limiter = MemoryRateLimiter(lambda: self.now)
        self.lookups = CredentialLookups(lambda: self.now)
        self.authenticator = Authenticator(
            {CredentialKind.API_KEY: self.directory.find},
            self.operators.find,
            self.lookups,
            self.rate_limiter,
            pepper,
            pepper.digest(OPERATOR),
            LastUses(FakeLastUses()),
            lambda: self.now,
        )
        self.pepper = pepper
        self.tenant = TenantId(uuid4())
        self.principal = ApiKeyPrincipal(self.tenant, Entitlements(Tier.FREE), 1, suspended=False)
        self.api_key = self.add()

    def add(self, accepted_until: float | None = None) -> str:
        """Add another API key of the tenant to the directory."""
        credential = new_credential(CredentialKind.API_KEY)
        self.directory.known[self.pepper.digest(credential)] = Found(self.principal, accepted_until)
        return credential

    def revoke(self, credential: str) -> None:
        """Remove an API key from the directory."""
        del self.directory.known[self.pepper.digest(credential)]

    def authenticated(self, as_of: int) -> Authenticated:
        """Return the principal of the API key."""
        return Authenticated(self.principal, as_of, self.pepper.digest(self.api_key))


@pytest.fixture
async def setting(pepper: Pepper) -> Setting:
    """A new setting for each test."""
    return Setting(pepper)


async def test_an_api_key_is_its_tenant(setting: Setting) -> None:
    """An API key leads to the principal in the directory."""
    found = await setting.authenticator.authenticate(setting.api_key, HERE)
    assert found == setting.authenticated(as_of=0)


async def test_the_operator_needs_no_directory(setting: Setting) -> None:
    """The operator's credential is recognised by its digest alone."""
    found = await setting.authenticator.authenticate(OPERATOR, HERE)
    assert found == OperatorPrincipal()
    assert setting.directory.asked == setting.operators.asked == 0


async def test_a_named_operator_is_looked_up_each_time(setting: Setting) -> None:
    """A named operator is looked up in each request, so a removal takes effect at the next one."""
    credential = new_credential(CredentialKind.OPERATOR)
    digest = setting.pepper.digest(credential)
    setting.operators.names[digest] = "ada"
    for _ in range(2):
        found = await setting.authenticator.authenticate(credential, HERE)
        assert found == OperatorPrincipal("ada")
        assert str(found) == "operator:ada"
    del setting.operators.names[digest]
    assert await setting.authenticator.authenticate(credential, HERE) is None


async def test_unknown_operators_have_the_budget_of_unknown_credentials(setting: Setting) -> None:
    """Unknown operator credentials stop reaching the database, like unknown API keys."""
    for _ in range(UNKNOWN_CREDENTIALS.events):
        shown = new_credential(CredentialKind.OPERATOR)
        assert await setting.authenticator.authenticate(shown, HERE) is None
    with pytest.raises(TooManyUnknownCredentialsError):
        await setting.authenticator.authenticate(new_credential(CredentialKind.OPERATOR), HERE)
    assert setting.operators.asked == UNKNOWN_CREDENTIALS.events
    assert await setting.authenticator.authenticate(OPERATOR, HERE) == OperatorPrincipal()


async def test_nobody(setting: Setting) -> None:
    """Unknown credentials and malformed ones lead to no principal."""
    for shown in (
        new_credential(CredentialKind.API_KEY),
        new_credential(CredentialKind.OPERATOR),
        "",
        setting.api_key[:-1],
        OPERATOR + "x",
        "é" * 53,
    ):
        assert await setting.authenticator.authenticate(shown, HERE) is None


async def test_an_operators_digest_is_no_api_key(setting: Setting) -> None:
    """The digest of an operator's credential is never looked up among API keys."""
    stranger = new_credential(CredentialKind.OPERATOR)
    setting.directory.known[setting.pepper.digest(stranger)] = Found(setting.principal)
    assert await setting.authenticator.authenticate(stranger, HERE) is None


async def test_nonsense_does_not_reach_the_directory(setting: Setting) -> None:
    """A malformed credential costs no look-up."""
    for shown in ("", "x" * 53, setting.api_key[:-1] + "!", "pqk_" + "0" * 49):
        assert await setting.authenticator.authenticate(shown, HERE) is None
    assert setting.directory.asked == 0


async def test_the_directory_is_asked_once(setting: Setting) -> None:
    """A known API key is not looked up again."""
    for _ in range(3):
        assert await setting.authenticator.authenticate(setting.api_key, HERE)
    assert setting.directory.asked == 1


async def test_a_new_api_key_is_known_at_once(setting: Setting) -> None:
    """An API key that is created just after its first use works immediately."""
    shown = new_credential(CredentialKind.API_KEY)
    assert await setting.authenticator.authenticate(shown, HERE) is None
    setting.directory.known[setting.pepper.digest(shown)] = Found(setting.principal)
    setting.lookups.accept(setting.pepper.digest(shown))
    assert await setting.authenticator.authenticate(shown, HERE)


async def test_what_is_forgotten_is_looked_up_again(setting: Setting) -> None:
    """After forget, a revoked API key is refused immediately."""
    assert await setting.authenticator.authenticate(setting.api_key, HERE)
    setting.revoke(setting.api_key)
    setting.authenticator.forget(setting.api_key)
    assert await setting.authenticator.authenticate(setting.api_key, HERE) is None


@pytest.mark.threat("rate-limit-store")
async def test_what_is_remembered_has_an_end(setting: Setting) -> None:
    """With a frozen change counter, a revoked API key is refused after cache_seconds."""
    setting.rate_limiter.cache_seconds = 30.0
    assert await setting.authenticator.authenticate(setting.api_key, HERE)
    setting.now += 29.9
    assert await setting.authenticator.authenticate(setting.api_key, HERE)
    assert setting.directory.asked == 1
    setting.now += 0.1
    assert await setting.authenticator.authenticate(setting.api_key, HERE)
    assert setting.directory.asked == 2
    setting.revoke(setting.api_key)
    setting.now += 30.0
    assert await setting.authenticator.authenticate(setting.api_key, HERE) is None


async def test_forget_forgets_one_credential_only(setting: Setting) -> None:
    """Forgetting one API key leaves the others cached; forgetting an unknown one has no effect."""
    second = setting.add()
    for shown in (setting.api_key, second):
        assert await setting.authenticator.authenticate(shown, HERE)
    for shown in (setting.api_key, new_credential(CredentialKind.API_KEY), OPERATOR, ""):
        setting.authenticator.forget(shown)
    assert setting.directory.asked == 2
    assert await setting.authenticator.authenticate(second, HERE)
    assert setting.directory.asked == 2
    assert await setting.authenticator.authenticate(setting.api_key, HERE)
    assert setting.directory.asked == 3


async def test_a_look_up_is_as_old_as_its_beginning(setting: Setting) -> None:
    """A look-up during a change is cached with the number of changes before it."""
    setting.directory.go_on.clear()
    looking = asyncio.create_task(setting.authenticator.authenticate(setting.api_key, HERE))
    await setting.directory.started.wait()
    await setting.rate_limiter.announce_change()
    setting.directory.go_on.set()
    assert await looking == setting.authenticated(as_of=0)
    setting.authenticator.forget(setting.api_key)
    found = await setting.authenticator.authenticate(setting.api_key, HERE)
    assert found == setting.authenticated(as_of=1)


async def test_an_overlap_ends_by_the_clock(setting: Setting) -> None:
    """A rotated API key is accepted until its overlap ends, cached or not."""
    remembered = setting.add(accepted_until=1030.0)
    late = setting.add(accepted_until=1030.0)
    authenticate = setting.authenticator.authenticate
    for setting.now in (1000.0, 1029.999):
        assert await authenticate(remembered, HERE)
    assert setting.directory.asked == 1
    for setting.now in (1030.0, 1030.001, 9e9):
        assert await authenticate(remembered, HERE) is None
        assert await authenticate(late, HERE) is None
        assert await authenticate(setting.api_key, HERE)


async def test_an_overlap_of_nothing(setting: Setting) -> None:
    """An API key that was rotated without an overlap is refused at once."""
    rotated = setting.add(accepted_until=setting.now)
    assert await setting.authenticator.authenticate(rotated, HERE) is None


async def test_principals_show_no_secret(setting: Setting) -> None:
    """A principal's text in logs and the audit log contains its name and no secret."""
    found = await setting.authenticator.authenticate(setting.api_key, HERE)
    assert isinstance(found, Authenticated)
    assert str(found.principal) == "api-key:1"
    assert setting.api_key not in repr(found)
    assert str(OperatorPrincipal()) == "operator"
    assert str(OperatorPrincipal("ada", role=OperatorRole.READ_ONLY)) == "operator:ada/read-only"


async def test_an_api_key_expires_at_the_second(setting: Setting) -> None:
    """An API key is refused from its expiry on, even if it is cached."""
    expiring = setting.add(accepted_until=setting.now + 10)
    setting.now += 9.999
    assert await setting.authenticator.authenticate(expiring, HERE)
    setting.now += 0.001
    assert await setting.authenticator.authenticate(expiring, HERE) is None


async def test_an_api_key_is_accepted_from_its_addresses(setting: Setting) -> None:
    """An API key is accepted only from its networks, cached or not, also as a mapped address."""
    limits = ApiKeyLimits(addresses=Networks(["192.0.2.0/24", "2001:db8::/32"]))
    setting.principal = replace(setting.principal, limits=limits)
    authenticate = setting.authenticator.authenticate
    for _ in range(2):
        bound = setting.add()
        for address in ("192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"):
            assert await authenticate(bound, address)
        for address in ("198.51.100.7", "::ffff:198.51.100.7", "2001:db9::1", "", "unix"):
            with pytest.raises(AddressNotAllowedError) as refused:
                await authenticate(bound, address)
            assert refused.value.principal is setting.principal
    assert await authenticate(setting.api_key, "198.51.100.7")


async def test_an_address_that_is_not_allowed_is_recorded_once_a_minute(setting: Setting) -> None:
    """Uses from other addresses are recorded once a minute per API key, to protect the log."""
    limits = ApiKeyLimits(addresses=Networks(["192.0.2.0/24"]))
    setting.principal = replace(setting.principal, limits=limits)
    first, second = setting.add(), setting.add()

    async def is_recorded(credential: str, address: str) -> bool:
        with pytest.raises(AddressNotAllowedError) as refused:
            await setting.authenticator.authenticate(credential, address)
        return refused.value.is_recorded

    assert not await is_recorded(first, "198.51.100.7")
    assert await is_recorded(first, "198.51.100.7")
    assert await is_recorded(first, "203.0.113.9")
    assert not await is_recorded(second, "198.51.100.7")
    setting.now += RECORDED_SECONDS / 2
    assert await is_recorded(first, "198.51.100.7")  # which does not put the next record off
    setting.now += RECORDED_SECONDS / 2
    assert not await is_recorded(first, "198.51.100.7")


async def test_an_expired_api_key_is_unknown_from_anywhere(setting: Setting) -> None:
    """An expired API key gets the response of an unknown one, and no record."""
    limits = ApiKeyLimits(addresses=Networks(["192.0.2.0/24"]))
    setting.principal = replace(setting.principal, limits=limits)
    expired = setting.add(accepted_until=setting.now)
    assert await setting.authenticator.authenticate(expired, "198.51.100.7") is None
