"""Credentials become principals, are remembered, and are forgotten at once."""

import asyncio
import time
from uuid import uuid4

import pytest

from pqkeep_gateway.access.authentication import Authenticator, Known
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.principals import ApiKeyPrincipal, OperatorPrincipal, Plan
from pqkeep_protocol.keys import TenantId

OPERATOR = new_credential(CredentialKind.OPERATOR)


class Directory:
    """An ApiKeyDirectory in memory, which can be told to take its time."""

    def __init__(self) -> None:
        self.known: dict[bytes, Known] = {}
        self.asked = 0
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def find(self, digest: bytes) -> Known | None:
        """Look up first, then wait: what was found can be out of date when it is returned."""
        self.asked += 1
        found = self.known.get(digest)
        self.started.set()
        await self.go_on.wait()
        return found


class Setting:
    """An authenticator before a directory, and one API key in it."""

    def __init__(self, pepper: Pepper) -> None:
        self.directory = Directory()
        self.now = 1000.0
        self.authenticator = Authenticator(
            self.directory, pepper, pepper.digest(OPERATOR), lambda: self.now
        )
        self.pepper = pepper
        self.tenant = TenantId(uuid4())
        self.api_key = self.add(self.tenant)

    def add(self, tenant: TenantId, accepted_until: float | None = None) -> str:
        """Put one more API key into the directory."""
        credential = new_credential(CredentialKind.API_KEY)
        principal = ApiKeyPrincipal(tenant, Plan.FREE, 1, suspended=False)
        self.directory.known[self.pepper.digest(credential)] = Known(principal, accepted_until)
        return credential

    def revoke(self, credential: str) -> None:
        """Take an API key out of the directory."""
        del self.directory.known[self.pepper.digest(credential)]


@pytest.fixture
async def setting(pepper: Pepper) -> Setting:
    """A new one for each test."""
    return Setting(pepper)


async def test_an_api_key_is_its_tenant(setting: Setting) -> None:
    """Who shows an API key is that key's tenant."""
    found = await setting.authenticator.authenticate(setting.api_key)
    assert isinstance(found, ApiKeyPrincipal)
    assert found.tenant == setting.tenant


async def test_the_operator_needs_no_directory(setting: Setting) -> None:
    """The operator's credential is recognised by its digest alone."""
    found = await setting.authenticator.authenticate(OPERATOR)
    assert found == OperatorPrincipal()
    assert setting.directory.asked == 0


async def test_nobody(setting: Setting) -> None:
    """Credentials that nobody has, and what is no credential, are nobody."""
    for shown in (
        new_credential(CredentialKind.API_KEY),
        new_credential(CredentialKind.OPERATOR),
        "",
        setting.api_key[:-1],
        OPERATOR + "x",
        "é" * 53,
    ):
        assert await setting.authenticator.authenticate(shown) is None


async def test_an_operators_digest_is_no_api_key(setting: Setting) -> None:
    """A directory that knew the digest of an operator's credential would not be asked for it."""
    stranger = new_credential(CredentialKind.OPERATOR)
    principal = ApiKeyPrincipal(setting.tenant, Plan.FREE, 1, suspended=False)
    setting.directory.known[setting.pepper.digest(stranger)] = Known(principal)
    assert await setting.authenticator.authenticate(stranger) is None


async def test_nonsense_does_not_reach_the_directory(setting: Setting) -> None:
    """What is no credential by its form costs no look-up."""
    for shown in ("", "x" * 53, setting.api_key[:-1] + "!", "pqk_" + "0" * 49):
        assert await setting.authenticator.authenticate(shown) is None
    assert setting.directory.asked == 0


async def test_the_directory_is_asked_once(setting: Setting) -> None:
    """An API key that is known is not looked up again."""
    for _ in range(3):
        assert await setting.authenticator.authenticate(setting.api_key)
    assert setting.directory.asked == 1


async def test_nobody_is_not_remembered(setting: Setting) -> None:
    """An API key that is made a moment after it was first shown works at once."""
    shown = new_credential(CredentialKind.API_KEY)
    assert await setting.authenticator.authenticate(shown) is None
    principal = ApiKeyPrincipal(setting.tenant, Plan.FREE, 2, suspended=False)
    setting.directory.known[setting.pepper.digest(shown)] = Known(principal)
    assert await setting.authenticator.authenticate(shown) == principal


async def test_what_is_forgotten_is_looked_up_again(setting: Setting) -> None:
    """After forget, a revoked API key is nobody, at once."""
    assert await setting.authenticator.authenticate(setting.api_key)
    setting.revoke(setting.api_key)
    setting.authenticator.forget(setting.tenant)
    assert await setting.authenticator.authenticate(setting.api_key) is None


async def test_forget_forgets_every_key_of_one_tenant_only(setting: Setting) -> None:
    """All API keys of the tenant are looked up again, and nobody else's."""
    second = setting.add(setting.tenant)
    other = setting.add(TenantId(uuid4()))
    for shown in (setting.api_key, second, other):
        assert await setting.authenticator.authenticate(shown)
    assert setting.directory.asked == 3
    setting.authenticator.forget(setting.tenant)
    assert await setting.authenticator.authenticate(other)
    assert setting.directory.asked == 3
    for shown in (setting.api_key, second):
        assert await setting.authenticator.authenticate(shown)
    assert setting.directory.asked == 5


async def test_a_look_up_overtaken_by_forget_is_not_kept(setting: Setting) -> None:
    """A look-up that began before a revocation and ends after it is used once, never kept."""
    setting.directory.go_on.clear()
    looking = asyncio.create_task(setting.authenticator.authenticate(setting.api_key))
    await setting.directory.started.wait()
    setting.revoke(setting.api_key)
    setting.authenticator.forget(setting.tenant)
    setting.directory.go_on.set()
    assert await looking is not None
    assert await setting.authenticator.authenticate(setting.api_key) is None


async def test_an_overlap_ends_by_the_clock(setting: Setting) -> None:
    """A rotated API key is its tenant until its overlap ends, remembered or not, and then nobody."""
    remembered = setting.add(setting.tenant, accepted_until=1030.0)
    late = setting.add(setting.tenant, accepted_until=1030.0)
    authenticate = setting.authenticator.authenticate
    for setting.now in (1000.0, 1029.999):
        assert await authenticate(remembered)
    assert setting.directory.asked == 1
    for setting.now in (1030.0, 1030.001, 9e9):
        assert await authenticate(remembered) is None
        assert await authenticate(late) is None
        assert await authenticate(setting.api_key)


async def test_an_overlap_of_nothing(setting: Setting) -> None:
    """Where a rotated API key has no overlap, the moment it was rotated is the end of it."""
    rotated = setting.add(setting.tenant, accepted_until=setting.now)
    assert await setting.authenticator.authenticate(rotated) is None


async def test_an_overlap_can_be_ended_early(setting: Setting) -> None:
    """A rotated API key that is revoked in its overlap is nobody at once."""
    rotated = setting.add(setting.tenant, accepted_until=1030.0)
    assert await setting.authenticator.authenticate(rotated)
    setting.revoke(rotated)
    setting.authenticator.forget(setting.tenant)
    assert await setting.authenticator.authenticate(rotated) is None


async def test_the_clock_is_the_world_s(setting: Setting, pepper: Pepper) -> None:
    """Unless another clock is given, an overlap ends by the seconds since 1970."""
    authenticator = Authenticator(setting.directory, pepper, pepper.digest(OPERATOR))
    over = setting.add(setting.tenant, accepted_until=time.time())
    lasting = setting.add(setting.tenant, accepted_until=time.time() + 30)
    assert await authenticator.authenticate(over) is None
    assert await authenticator.authenticate(lasting)


async def test_principals_show_no_secret(setting: Setting) -> None:
    """A principal's text, which logs and the audit log have, says who and nothing else."""
    found = await setting.authenticator.authenticate(setting.api_key)
    assert str(found) == "api-key:1"
    assert setting.api_key not in repr(found)
    assert str(OperatorPrincipal()) == "operator"
