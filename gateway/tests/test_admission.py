"""Callers are admitted if they are known, not suspended and within the rate limit."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
import redis
from gateway.tests.world import HERE, FakeLastUses

from pqkeep_gateway.access.admission import (
    Admission,
    Admitted,
    Authenticator,
    Busy,
    Found,
    RateLimitedError,
    SuspendedError,
    UnknownCredentialError,
)
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credential_lookups import CredentialLookups
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.access.entitlements import Entitlements, Subscription, Tier
from pqkeep_gateway.access.last_uses import LastUse, LastUses
from pqkeep_gateway.access.local_shares import LocalShares
from pqkeep_gateway.access.principals import (
    ApiKeyPrincipal,
    OperatorPrincipal,
    SessionId,
    SessionPrincipal,
    UserId,
)
from pqkeep_gateway.access.rate_limit import Limit, MemoryRateLimiter, RateLimiter
from pqkeep_gateway.shards import Departures, Placement
from pqkeep_gateway.storage.redis_rate_limiter import RedisRateLimiter
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.keys import TenantId

OPERATOR = new_credential(CredentialKind.OPERATOR)
PER_MINUTE = {tier: 2 + number for number, tier in enumerate(Tier)}
"""Free 2, starter 3, growth 4, …"""


class Nobody:
    """A directory without sessions."""

    async def find(self, token: str, source_address: str) -> None:
        return None


class People:
    """A directory of sessions in which every token belongs to a person of one tenant."""

    def __init__(self) -> None:
        self.entitlements = Entitlements(Tier.FREE)

    async def find(self, token: str, source_address: str) -> SessionPrincipal | None:
        user, session = UserId(UUID(int=3)), SessionId(UUID(int=4))
        tenant = TenantId(UUID(int=1))
        return SessionPrincipal(
            tenant, self.entitlements, user, Role.OWNER, session, suspended=False
        )


class NoOperators:
    """A directory without named operators."""

    async def find(self, digest: bytes) -> OperatorPrincipal | None:
        return None


class FromMemory(Admission):
    """Admits callers from memory where possible, like the gateway."""

    async def admit(
        self, credential: str, source_address: str, *, is_known: bool = True
    ) -> Admitted:
        recalled = self.recall(credential, source_address, is_known=is_known)
        return recalled or await super().admit(credential, source_address, is_known=is_known)


class Admissions:
    """An Admission, and its directory of API keys."""

    def __init__(
        self,
        pepper: Pepper,
        rate_limiter: RateLimiter | None = None,
        kind: type[Admission] = Admission,
    ) -> None:
        self.now = 1000.0
        self.rate_limiter = rate_limiter or MemoryRateLimiter(lambda: self.now)
        self.known: dict[bytes, Found] = {}
        self.unreachable = False
        self.uses = FakeLastUses()
        self.last_uses = LastUses(self.uses)
        authenticator = Authenticator(
            {CredentialKind.API_KEY: self.find},
            NoOperators().find,
            CredentialLookups(lambda: self.now),
            self.rate_limiter,
            pepper,
            pepper.digest(OPERATOR),
            self.last_uses,
            lambda: self.now,
        )
        self.people = People()
        self.departures = Departures()
        self.admission = kind(
            authenticator,
            self.rate_limiter,
            PER_MINUTE,
            self.people.find,
            Nobody().find,
            self.last_uses,
            self.departures,
            clock=lambda: self.now,
        )
        self._pepper = pepper

    async def find(self, digest: bytes) -> Found | None:
        """Find an API key."""
        if self.unreachable:
            raise UnavailableError
        return self.known.get(digest)

    def add(
        self,
        entitlements: Entitlements,
        tenant: int = 1,
        *,
        suspended: bool = False,
        has_people: bool = False,
        version: int = 1,
        name: str | None = None,
    ) -> str:
        """Put an API key of a tenant into the directory."""
        credential = new_credential(CredentialKind.API_KEY)
        principal = ApiKeyPrincipal(
            TenantId(UUID(int=tenant)),
            entitlements,
            version,
            suspended,
            name=name,
            has_people=has_people,
        )
        self.known[self._pepper.digest(credential)] = Found(principal)
        return credential

    def digest(self, credential: str) -> bytes:
        """Return an API key's digest in the directory."""
        return self._pepper.digest(credential)

    async def change(self, credential: str, **changes: object) -> None:
        """Change an API key in the directory, and announce it."""
        digest = self._pepper.digest(credential)
        self.known[digest] = Found(replace(self.known[digest].principal, **changes))  # type: ignore[arg-type]
        await self.rate_limiter.announce_change()

    async def revoke(self, credential: str) -> None:
        """Remove an API key from the directory, and announce the change."""
        del self.known[self._pepper.digest(credential)]
        await self.rate_limiter.announce_change()

    async def admitted(self, credential: str, attempts: int = 12) -> int:
        """Return the number of admitted attempts. Check that these are the first attempts."""
        return await admitted(lambda: self.admission.admit(credential, HERE), attempts)

    async def admitted_to_pages(self, attempts: int, *, ends_access: bool = False) -> int:
        """Return how many of a person's attempts are admitted."""
        admit = self.admission.admit_session
        return await admitted(lambda: admit("", HERE, ends_access=ends_access), attempts)


async def admitted(admit: Callable[[], Awaitable[Admitted]], attempts: int) -> int:
    """Return how many attempts are admitted. Check that these are the first attempts."""
    outcomes = []
    for _ in range(attempts):
        try:
            await admit()
            outcomes.append(True)
        except RateLimitedError:
            outcomes.append(False)
    assert outcomes == sorted(outcomes, reverse=True)
    return sum(outcomes)


@pytest.fixture(params=[Admission, FromMemory])
def admissions(pepper: Pepper, request: pytest.FixtureRequest) -> Admissions:
    """A new Admission for each test, from memory or with look-ups, with the same outcome."""
    return Admissions(pepper, kind=request.param)


async def test_what_is_remembered_is_admitted_from_memory(admissions: Admissions) -> None:
    """The first request needs a look-up, later ones do not; a change causes another look-up."""
    admission, shown = admissions.admission, admissions.add(Entitlements(Tier.ENTERPRISE))
    assert admission.recall(shown, HERE) is None
    first = await admission.admit(shown, HERE)
    recalled = admission.recall(shown, HERE)
    assert first.usage is not None
    assert recalled is not None
    assert recalled.principal is first.principal
    assert recalled.usage is not None
    assert recalled.usage.remaining == first.usage.remaining - 1
    await admissions.change(shown, has_people=True)
    assert admission.recall(shown, HERE) is None
    again = await admission.admit(shown, HERE)
    assert again.principal is not first.principal


async def test_what_is_not_recalled_is_not_counted(admissions: Admissions) -> None:
    """A request that memory cannot admit adds no event to a window and no use of a key."""
    shown = admissions.add(Entitlements(Tier.FREE))
    for _ in range(50):
        assert admissions.admission.recall(shown, HERE) is None
    assert admissions.admission.busiest(TenantId(UUID(int=1))) == []
    assert await admissions.admitted(shown) == PER_MINUTE[Tier.FREE]


async def test_operators_and_strangers_are_not_recalled(admissions: Admissions) -> None:
    """Only API keys are admitted from memory."""
    for shown in (OPERATOR, "", new_credential(CredentialKind.API_KEY)):
        with suppress(UnknownCredentialError):
            await admissions.admission.admit(shown, HERE)
        assert admissions.admission.recall(shown, HERE) is None


async def test_a_change_of_the_principal_ends_what_was_decided(admissions: Admissions) -> None:
    """Cached decisions about a principal end with a change of the principal."""
    shown = admissions.add(Entitlements(Tier.ENTERPRISE))
    before = (await admissions.admission.admit(shown, HERE)).principal
    assert isinstance(before, ApiKeyPrincipal)
    assert before.decided.limit == Limit(PER_MINUTE[Tier.ENTERPRISE], 60)
    await admissions.change(shown, entitlements=Entitlements(Tier.FREE))
    after = (await admissions.admission.admit(shown, HERE)).principal
    assert isinstance(after, ApiKeyPrincipal)
    assert after.decided.limit == Limit(PER_MINUTE[Tier.FREE], 60)
    assert replace(before).decided.limit is None


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("subscription", Subscription)
async def test_the_limit_is_that_of_the_tier_in_force(
    admissions: Admissions, tier: Tier, subscription: Subscription
) -> None:
    """The rate limit comes from the tenant's tier.

    After the subscription ends, it is the free tier's.
    """
    shown = admissions.add(Entitlements(tier, subscription))
    expected = PER_MINUTE[tier] if subscription is Subscription.ACTIVE else PER_MINUTE[Tier.FREE]
    assert await admissions.admitted(shown) == expected


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("subscription", Subscription)
async def test_a_granted_limit_outweighs_the_tier_s(
    admissions: Admissions, tier: Tier, subscription: Subscription
) -> None:
    """A rate limit that an operator granted replaces the tier's, whether it is higher or lower."""
    for tenant, granted in ((1, 1), (2, 11)):
        shown = admissions.add(Entitlements(tier, subscription, granted), tenant)
        assert await admissions.admitted(shown) == granted


async def test_a_refusal_says_how_long_to_wait(admissions: Admissions) -> None:
    """A refusal has the limit and the seconds until the first request leaves the window."""
    shown = admissions.add(Entitlements(Tier.FREE))
    for admissions.now in (1000.0, 1010.0):
        await admissions.admission.admit(shown, HERE)
    admissions.now = 1015.0
    with pytest.raises(RateLimitedError) as raised:
        await admissions.admission.admit(shown, HERE)
    assert (raised.value.limit, raised.value.wait) == (Limit(2, 60), 45.0)


async def test_requests_near_the_limit_are_counted(admissions: Admissions) -> None:
    """Requests from 80 % of the limit on are counted as near.

    Refused requests are counted as reached.
    """
    shown = admissions.add(Entitlements(Tier.FREE, requests_per_minute=10))
    assert admissions.admission.closeness == {"near": 0, "reached": 0}
    assert await admissions.admitted(shown) == 10
    closeness = admissions.admission.closeness
    assert closeness["near"] == 3
    assert closeness["reached"] > 0


async def test_the_keys_of_a_tenant_share_its_limit(admissions: Admissions) -> None:
    """All API keys of a tenant share one window; another tenant has its own."""
    first, second = (admissions.add(Entitlements(Tier.GROWTH)) for _ in range(2))
    other = admissions.add(Entitlements(Tier.GROWTH), tenant=2)
    for shown in (first, second, first, second):
        await admissions.admission.admit(shown, HERE)
    for shown in (first, second):
        with pytest.raises(RateLimitedError):
            await admissions.admission.admit(shown, HERE)
    assert await admissions.admitted(other) == PER_MINUTE[Tier.GROWTH]


async def test_unknown_credentials_count_against_nobody(admissions: Admissions) -> None:
    """Unknown credentials use up no tenant's rate limit."""
    shown = admissions.add(Entitlements(Tier.FREE))
    for stranger in (new_credential(CredentialKind.API_KEY), shown[:-1], "", OPERATOR[:-1]):
        for _ in range(20):
            with pytest.raises(UnknownCredentialError):
                await admissions.admission.admit(stranger, HERE)
    assert await admissions.admitted(shown) == PER_MINUTE[Tier.FREE]


async def test_the_operator_has_no_limit(admissions: Admissions) -> None:
    """The operator is admitted more often than any tier's limit allows."""
    for _ in range(2 * max(PER_MINUTE.values())):
        assert await admissions.admission.admit(OPERATOR, HERE) == Admitted(
            OperatorPrincipal(), None
        )


async def test_too_often_comes_before_suspended(admissions: Admissions) -> None:
    """The rate limit also bounds the recorded refusals of a suspended tenant."""
    shown = admissions.add(Entitlements(Tier.FREE), suspended=True)
    for _ in range(PER_MINUTE[Tier.FREE]):
        with pytest.raises(SuspendedError):
            await admissions.admission.admit(shown, HERE)
    for _ in range(20):
        with pytest.raises(RateLimitedError):
            await admissions.admission.admit(shown, HERE)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"suspended": True}, SuspendedError),
        ({"entitlements": Entitlements(Tier.FREE, requests_per_minute=1)}, RateLimitedError),
    ],
)
async def test_a_change_is_effective_with_the_next_request(
    admissions: Admissions, change: dict[str, object], outcome: type[Exception]
) -> None:
    """After a suspension or with a lower limit, the next request is refused."""
    shown = admissions.add(Entitlements(Tier.FREE))
    await admissions.admission.admit(shown, HERE)
    await admissions.change(shown, **change)
    with pytest.raises(outcome):
        await admissions.admission.admit(shown, HERE)


async def test_a_change_back_is_effective_with_the_next_request(admissions: Admissions) -> None:
    """A resumed tenant, or one with a higher limit, is admitted at its next request."""
    shown = admissions.add(Entitlements(Tier.FREE), suspended=True)
    with pytest.raises(SuspendedError):
        await admissions.admission.admit(shown, HERE)
    await admissions.change(shown, suspended=False)
    assert await admissions.admitted(shown) == PER_MINUTE[Tier.FREE] - 1
    await admissions.change(shown, entitlements=Entitlements(Tier.STARTER))
    assert await admissions.admitted(shown) == 1
    await admissions.change(shown, entitlements=Entitlements(Tier.STARTER, requests_per_minute=10))
    assert await admissions.admitted(shown) == 7


async def test_a_revoked_key_is_nobody_with_the_next_request(admissions: Admissions) -> None:
    """After an announced revocation the API key is unknown, and its requests are not counted."""
    shown, other = (admissions.add(Entitlements(Tier.FREE)) for _ in range(2))
    await admissions.admission.admit(shown, HERE)
    await admissions.revoke(shown)
    with pytest.raises(UnknownCredentialError):
        await admissions.admission.admit(shown, HERE)
    assert await admissions.admitted(other) == PER_MINUTE[Tier.FREE] - 1


async def test_a_revocation_is_heard_by_every_gateway(pepper: Pepper) -> None:
    """An announcement of one gateway causes new look-ups in another with the same windows."""
    here = Admissions(pepper)
    there = Admissions(pepper, here.rate_limiter)
    shown = here.add(Entitlements(Tier.STARTER))
    there.known = here.known
    await there.admission.admit(shown, HERE)
    await here.revoke(shown)
    with pytest.raises(UnknownCredentialError):
        await there.admission.admit(shown, HERE)


async def test_looking_up_again_counts_once(admissions: Admissions) -> None:
    """A request counts once, even if changes cause several look-ups."""
    shown = admissions.add(Entitlements(Tier.ENTERPRISE_PLUS))
    for _ in range(PER_MINUTE[Tier.ENTERPRISE_PLUS]):
        await admissions.rate_limiter.announce_change()
        await admissions.admission.admit(shown, HERE)
    with pytest.raises(RateLimitedError):
        await admissions.admission.admit(shown, HERE)


async def test_a_directory_out_of_reach_admits_nobody(admissions: Admissions) -> None:
    """While the directory is unavailable, only current cached credentials are admitted."""
    shown = admissions.add(Entitlements(Tier.FREE))
    known, _ = await admissions.admission.admit(shown, HERE)
    admissions.unreachable = True
    assert (await admissions.admission.admit(shown, HERE)).principal == known
    await admissions.rate_limiter.announce_change()
    for _ in range(5):
        with pytest.raises(UnavailableError):
            await admissions.admission.admit(shown, HERE)


async def test_requests_at_once_are_counted_exactly(admissions: Admissions) -> None:
    """Of a hundred concurrent requests, exactly the limit's number is admitted."""
    shown = admissions.add(Entitlements(Tier.FREE, requests_per_minute=30))
    outcomes = await asyncio.gather(
        *(admissions.admission.admit(shown, HERE) for _ in range(100)), return_exceptions=True
    )
    assert sum(isinstance(outcome, Admitted) for outcome in outcomes) == 30
    assert sum(isinstance(outcome, RateLimitedError) for outcome in outcomes) == 70


async def test_what_is_admitted_is_noted(admissions: Admissions) -> None:
    """The stored last use is the last admitted request, with time and address."""
    credential = admissions.add(Entitlements(Tier.FREE))
    for admissions.now, address in ((2000.0, "192.0.2.1"), (2001.0, "192.0.2.2")):
        await admissions.admission.admit(credential, address)
    await admissions.last_uses.store()
    (digest,) = admissions.known
    assert admissions.uses.saved == [{digest: LastUse(2001.0, "192.0.2.2")}]


async def test_what_is_refused_is_not_noted(admissions: Admissions) -> None:
    """A request that is refused for its credential or the rate limit is not stored as a use."""
    suspended = admissions.add(Entitlements(Tier.FREE), 2, suspended=True)
    busy, revoked = (admissions.add(Entitlements(Tier.FREE), tenant) for tenant in (3, 4))
    for credential in (busy, revoked):
        await admissions.admitted(credential, PER_MINUTE[Tier.FREE])
    await admissions.last_uses.store()
    admissions.uses.saved.clear()
    await admissions.revoke(revoked)
    for credential in (suspended, busy, revoked, new_credential(CredentialKind.API_KEY)):
        with pytest.raises((SuspendedError, RateLimitedError, UnknownCredentialError)):
            await admissions.admission.admit(credential, HERE)
    await admissions.last_uses.store()
    assert admissions.uses.saved == []


async def test_a_tenant_that_moves_is_asked_about_until_it_has_arrived(
    admissions: Admissions,
) -> None:
    """A tenant is not cached during a move, or after its shard announced the tenant's departure."""
    credential = admissions.add(Entitlements(Tier.ENTERPRISE_PLUS))
    digest = admissions.digest(credential)
    tenant = admissions.known[digest].principal.tenant

    async def placement() -> Placement:
        admitted = await admissions.admission.admit(credential, HERE)
        assert isinstance(admitted.principal, ApiKeyPrincipal)
        return admitted.principal.placement

    def move(to: Placement) -> None:
        principal = replace(admissions.known[digest].principal, placement=to)
        admissions.known[digest] = Found(principal)

    here, there, moving = Placement(), Placement("b"), Placement(is_moving=True)
    assert await placement() == here
    move(moving)
    assert await placement() == here  # no announcement yet
    admissions.departures.add(tenant, here.shard)
    assert await placement() == moving
    move(there)
    assert await placement() == there


HUNDRED = Entitlements(Tier.FREE, requests_per_minute=100)


@pytest.fixture(params=["memory", "redis"])
async def shared(pepper: Pepper, request: pytest.FixtureRequest) -> AsyncIterator[Admissions]:
    """An Admission with either rate limiter, with a tenant that may send 100 requests a minute."""
    limiter: RateLimiter | None = None
    if request.param == "redis":
        url = f"redis://{request.getfixturevalue('redis_server')}"
        with redis.Redis.from_url(url) as connection:
            connection.flushall()
        limiter = RedisRateLimiter(url, None, lambda: 1000.0)
    admissions = Admissions(pepper, limiter)
    admissions.people.entitlements = HUNDRED
    yield admissions
    await admissions.rate_limiter.close()


@pytest.mark.threat("stolen-api-key")
async def test_programs_leave_people_a_share(shared: Admissions) -> None:
    """Programs stop at three quarters of the limit; people and access-ending requests continue."""
    shown = shared.add(HUNDRED, has_people=True)
    assert await shared.admitted(shown, 200) == 75
    assert await shared.admitted_to_pages(100) == 20
    assert await shared.admitted_to_pages(100, ends_access=True) == 5
    assert await shared.admitted(shown, 5) == 0


async def test_without_people_programs_have_it_all(shared: Admissions) -> None:
    """A tenant without people has its whole limit for programs, until a person signs in."""
    shown = shared.add(HUNDRED)
    assert await shared.admitted(shown, 70) == 70
    assert await shared.admitted_to_pages(1) == 1
    assert await shared.admitted(shown, 200) == 4


async def test_programs_have_it_all_where_nobody_signs_in(shared: Admissions) -> None:
    """In a tenant without people, programs can use the whole limit."""
    assert await shared.admitted(shared.add(HUNDRED), 200) == 100


async def test_a_refused_person_is_told_which_api_key_it_was(admissions: Admissions) -> None:
    """The refusal names the API key with the most requests, including refused ones."""
    admissions.people.entitlements = HUNDRED
    loud, quiet = admissions.add(HUNDRED), admissions.add(HUNDRED, version=2, name="ci")
    await admissions.admitted(loud, 60)
    await admissions.admitted(quiet, 300)
    with pytest.raises(RateLimitedError) as refused:
        await admissions.admission.admit_session("", HERE)
    assert refused.value.busiest == Busy(2, "ci", 300)
    admissions.now += 60
    tenant = TenantId(UUID(int=1))
    assert admissions.admission.busiest(tenant) == [Busy(2, "ci", 300), Busy(1, None, 60)]
    admissions.now += 60
    assert admissions.admission.busiest(tenant) == []


@pytest.mark.threat("rate-limit-store-away")
async def test_a_revocation_holds_without_the_store(pepper: Pepper) -> None:
    """Without the store a revoked API key is refused at once, and a used-up share costs no look-up."""
    store = RedisRateLimiter("redis://127.0.0.1:1", None, lambda: 1000.0)
    admissions = Admissions(pepper, LocalShares(store, 1, lambda: 1000.0), FromMemory)
    shown = admissions.add(Entitlements(Tier.FREE))
    await admissions.admission.admit(shown, HERE)
    await admissions.admission.admit(shown, HERE)
    admissions.unreachable = True  # the directory
    with pytest.raises(RateLimitedError):
        await admissions.admission.admit(shown, HERE)
    admissions.unreachable = False
    other = admissions.add(Entitlements(Tier.FREE), tenant=2)
    await admissions.admission.admit(other, HERE)
    await admissions.revoke(other)
    with pytest.raises(UnknownCredentialError):
        await admissions.admission.admit(other, HERE)
    await admissions.rate_limiter.close()
