"""Sessions of operators, on either database: they end with their credential, and expire."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from gateway.tests.world import ATTRIBUTION, CONCURRENCY, HERE, MOMENT, FakeLastUses, World

from pqkeep_gateway.access.admission import Authenticator, UnknownCredentialError
from pqkeep_gateway.access.credential_lookups import (
    UNKNOWN_CREDENTIALS,
    CredentialLookups,
    TooManyUnknownCredentialsError,
)
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.access.rate_limit import MemoryRateLimiter
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.operators import OperatorSession, SqlOperators, SqlOperatorSessions
from pqkeep_gateway.tenancy.operators import Operators, OperatorSessions
from pqkeep_protocol.keys import INSTALLATION

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ADA = OperatorPrincipal("ada", is_read_only=True)


class CountedStore(SqlOperatorSessions):
    """Sessions in the database, with counters of reads and writes."""

    asked = seen = 0

    async def find(self, digest: bytes) -> OperatorSession | None:
        self.asked += 1
        return await super().find(digest)

    async def see(self, digest: bytes, now: object) -> None:
        self.seen += 1
        await super().see(digest, now)  # type: ignore[arg-type]


class Setting:
    """Operators and their sessions in a world's database."""

    def __init__(self, world: World, unnamed: str | None = None) -> None:
        pepper, clock = world.pepper, world.clock
        self.world = world
        self.store = CountedStore(world.engine)
        self.operators = Operators(SqlOperators(world.engine), pepper)
        operator = None if unnamed is None else pepper.digest(unnamed)
        lookups = CredentialLookups(clock)
        authenticator = Authenticator(
            {CredentialKind.API_KEY: SqlApiKeys(world.engine).find},
            SqlOperators(world.engine).find,
            lookups,
            MemoryRateLimiter(clock),
            pepper,
            operator,
            LastUses(FakeLastUses()),
            clock,
        )
        self.sessions = OperatorSessions(
            self.store, authenticator, lookups, pepper, world.audit_delivery, operator, clock
        )

    async def sign_in(self) -> str:
        """Add ada and sign her in; return the session's token."""
        _, token = await self.sessions.begin(await self.operators.add("ada"), ATTRIBUTION)
        return token

    async def find(self, token: str) -> OperatorPrincipal | None:
        """Return the operator of a session token."""
        return await self.sessions.find(token, HERE)


@pytest.fixture
def setting(world: World) -> Setting:
    """No operator."""
    return Setting(world)


async def test_a_session_is_its_operators(setting: Setting) -> None:
    """A session is for reading, and the audit log names its operator at its begin and end."""
    token = await setting.sign_in()
    assert await setting.find(token) == ADA
    await setting.sessions.end(token, ATTRIBUTION)
    assert await setting.find(token) is None
    recorded = list(setting.world.log.recorded.values())[-2:]
    assert [entry.operation for entry in recorded] == ["operator-sign-in", "operator-sign-out"]
    assert {(entry.tenant, entry.principal) for entry in recorded} == {
        (INSTALLATION, "operator:ada")
    }


async def test_the_operator_without_a_name_has_sessions_too(world: World) -> None:
    """The settings' credential can begin a session, which ends when the settings change it."""
    credential = new_credential(CredentialKind.OPERATOR)
    setting = Setting(world, credential)
    principal, token = await setting.sessions.begin(credential, ATTRIBUTION)
    assert principal == OperatorPrincipal()
    assert await setting.find(token) == OperatorPrincipal(is_read_only=True)
    for other in (None, new_credential(CredentialKind.OPERATOR)):
        assert await Setting(world, other).find(token) is None


@pytest.mark.threat("stolen-operator-cookie")
@pytest.mark.parametrize("end", ["rotate", "remove", "replace"])
async def test_a_session_ends_with_its_credential(setting: Setting, end: str) -> None:
    """A rotation or removal ends the operator's sessions, even if the name is used again."""
    token = await setting.sign_in()
    if end == "rotate":
        await setting.operators.rotate("ada")
    else:
        await setting.operators.remove("ada")
    if end == "replace":
        await setting.operators.add("ada")
    assert await setting.find(token) is None


@pytest.mark.parametrize("kind", [*CredentialKind, None])
async def test_only_an_operators_credential_begins_one(
    setting: Setting, kind: CredentialKind | None
) -> None:
    """Only a known operator's credential begins a session, not a token of any other kind."""
    unknown = "ada" if kind is None else new_credential(kind)
    known = await setting.sign_in()
    api_key = await setting.world.api_keys.create(setting.world.tenant, ATTRIBUTION)
    for credential in (unknown, known, api_key.plaintext):
        with pytest.raises(UnknownCredentialError):
            await setting.sessions.begin(credential, ATTRIBUTION)


async def test_tokens_of_other_kinds_open_nothing(setting: Setting) -> None:
    """An operator's credential and a person's tokens are invalid as an operator's session."""
    credential = await setting.operators.add("ada")
    tokens = await setting.world.join()
    for token in (credential, tokens.access, tokens.refresh, ""):
        assert await setting.find(token) is None
    assert setting.store.asked == 0


async def test_an_idle_session_ends(setting: Setting) -> None:
    """A session ends after 30 minutes without a request; each request extends it."""
    token = await setting.sign_in()
    for _ in range(3):
        setting.world.now += 30 * 60 - MOMENT
        assert await setting.find(token) == ADA
    setting.world.now += 30 * 60
    assert await setting.find(token) is None


@pytest.mark.threat("stolen-operator-cookie")
async def test_a_session_ends_after_eight_hours(setting: Setting) -> None:
    """A session ends eight hours after its start, and its row is removed."""
    began, token = setting.world.now, await setting.sign_in()
    while setting.world.now + 20 * 60 < began + 8 * 3600:
        setting.world.now += 20 * 60
        assert await setting.find(token) == ADA
    setting.world.now = began + 8 * 3600
    assert await setting.find(token) is None
    digest = setting.world.pepper.digest(token)
    assert await setting.store.find(digest) is not None
    await setting.sessions.begin(await setting.operators.rotate("ada"), ATTRIBUTION)
    assert await setting.store.find(digest) is None


async def test_it_is_stored_once_a_minute_that_a_session_is_used(setting: Setting) -> None:
    """A session's use is stored once a minute, at the first request."""
    token = await setting.sign_in()
    for _ in range(20):
        await setting.find(token)
    assert setting.store.seen == 0
    setting.world.now += timedelta(minutes=1).total_seconds()
    for _ in range(20):
        await setting.find(token)
    assert setting.store.seen == 1


@pytest.mark.threat("stolen-operator-cookie")
async def test_random_tokens_stop_reaching_the_database(setting: Setting) -> None:
    """Of a thousand unknown tokens, only the budget's number is looked up; sessions continue."""
    mine = await setting.sign_in()
    outcomes = []
    for _ in range(1000):
        try:
            outcomes.append(await setting.find(new_credential(CredentialKind.OPERATOR_SESSION)))
        except TooManyUnknownCredentialsError:
            outcomes.append(ADA)
    assert setting.store.asked == outcomes.count(None) == UNKNOWN_CREDENTIALS.events
    assert await setting.find(mine) == ADA


async def test_guesses_at_credentials_have_the_same_budget(setting: Setting) -> None:
    """Sign-ins with unknown credentials have the same budget as guesses in X-API-Key."""
    refused = 0
    for _ in range(UNKNOWN_CREDENTIALS.events + 10):
        try:
            await setting.sessions.begin(new_credential(CredentialKind.OPERATOR), ATTRIBUTION)
        except TooManyUnknownCredentialsError:
            refused += 1
        except UnknownCredentialError:
            pass
    assert refused == 10


async def test_signing_out_at_once_is_recorded_once(setting: Setting) -> None:
    """All of 32 concurrent sign-outs of one session succeed, and the log has one of them."""
    token = await setting.sign_in()
    await asyncio.gather(*(setting.sessions.end(token, ATTRIBUTION) for _ in range(CONCURRENCY)))
    await setting.world.audit_delivery.empty()
    assert await setting.find(token) is None
    assert setting.world.log.operations.count("operator-sign-out") == 1


async def test_a_use_does_not_bring_a_session_back(setting: Setting) -> None:
    """A use that is stored after the session's end has no effect."""
    token = await setting.sign_in()
    await setting.sessions.end(token, ATTRIBUTION)
    digest = setting.world.pepper.digest(token)
    await setting.store.see(digest, setting.world.tenant.created_at)
    assert await setting.store.find(digest) is None
