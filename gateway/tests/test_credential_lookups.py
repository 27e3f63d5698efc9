"""Unknown credentials cost the database little, and do not affect known ones."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Never

import pytest
from gateway.tests.world import (
    ATTRIBUTION,
    HERE,
    NEW_PASSWORD,
    OTHER_EMAIL,
    PASSWORD,
    SettableClock,
    World,
)

from pqkeep_gateway.access.credential_lookups import (
    UNKNOWN_CAPACITY,
    UNKNOWN_CREDENTIALS,
    UNKNOWN_SECONDS,
    CredentialLookups,
    TooManyUnknownCredentialsError,
)
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.rate_limit import MINUTE, Limit
from pqkeep_gateway.access.source_budget import CAPACITY, SourceBudget
from pqkeep_gateway.people.challenges import InvalidChallengeError
from pqkeep_gateway.storage.api_keys import SqlApiKeys
from pqkeep_gateway.storage.invitations import InvalidInvitationTokenError
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError
from pqkeep_gateway.unavailable import UnavailableError

STRANGER, ELSEWHERE = "192.0.2.1", "198.51.100.1"


class Directory:
    """Known credentials, with counted look-ups."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self.lookups = CredentialLookups(self.clock)
        self.known: set[bytes] = set()
        self.asked = 0
        self._numbers = count()

    async def look_up(self, digest: bytes) -> str | None:
        """Look up in place of the database."""
        self.asked += 1
        return "found" if digest in self.known else None

    async def find(self, digest: bytes, source_address: str = STRANGER) -> str | None:
        """Look up if the budget allows it."""
        return await self.lookups.find(digest, source_address, self.look_up)

    def digest(self, *, known: bool = False) -> bytes:
        """Return another digest."""
        digest = next(self._numbers).to_bytes(32, "big")
        if known:
            self.known.add(digest)
        return digest

    async def exhaust(self, source_address: str = STRANGER) -> None:
        """Use up an address's budget."""
        for _ in range(UNKNOWN_CREDENTIALS.events):
            assert await self.find(self.digest(), source_address) is None


@pytest.fixture
def directory() -> Directory:
    """A new directory for each test."""
    return Directory()


@contextmanager
def refused(directory: Directory) -> Iterator[None]:
    """Expect a refusal without a database look-up."""
    asked = directory.asked
    with pytest.raises(TooManyUnknownCredentialsError) as raised:
        yield
    assert directory.asked == asked
    assert raised.value.limit == UNKNOWN_CREDENTIALS
    assert 0 < raised.value.wait <= UNKNOWN_CREDENTIALS.seconds


@pytest.mark.threat("stranger")
async def test_random_credentials_have_a_budget(directory: Directory) -> None:
    """Each minute has its own budget of database look-ups."""
    await directory.exhaust()
    for _ in range(1000):
        with refused(directory):
            await directory.find(directory.digest())
    directory.clock.now += UNKNOWN_CREDENTIALS.seconds
    await directory.exhaust()


async def test_the_budget_is_of_one_address(directory: Directory) -> None:
    """Each address has its own budget, shared by a /64 of IPv6."""
    await directory.exhaust("2001:db8:1:2::1")
    for address in ("2001:db8:1:2::2", "2001:db8:1:2:ffff:ffff:ffff:ffff"):
        with refused(directory):
            await directory.find(directory.digest(), address)
    for address in ("2001:db8:1:3::1", ELSEWHERE):
        assert await directory.find(directory.digest(), address) is None


async def test_many_at_once_are_bounded(directory: Directory) -> None:
    """Look-ups in progress count against the budget too."""
    lookups = (directory.find(directory.digest()) for _ in range(1000))
    outcomes = await asyncio.gather(*lookups, return_exceptions=True)
    assert directory.asked == outcomes.count(None) == UNKNOWN_CREDENTIALS.events


async def test_what_is_known_goes_on_working(directory: Directory) -> None:
    """An accepted credential is looked up even after its address has used up its budget."""
    known = directory.digest(known=True)
    assert await directory.find(known, ELSEWHERE)
    await directory.exhaust()
    for _ in range(1000):
        assert await directory.find(known)


async def test_what_is_new_works_though_the_budget_is_used_up(directory: Directory) -> None:
    """A credential that this gateway created is known at its first use."""
    await directory.exhaust()
    new = directory.digest(known=True)
    directory.lookups.accept(new)
    assert await directory.find(new)


async def test_known_credentials_cost_no_budget(directory: Directory) -> None:
    """Valid credentials of one address cost no budget, in any number."""
    for _ in range(2 * UNKNOWN_CREDENTIALS.events):
        assert await directory.find(directory.digest(known=True))
    await directory.exhaust()


async def test_what_has_ended_is_known_no_longer(directory: Directory) -> None:
    """A revoked credential is looked up once, and then counts against the budget."""
    ended = directory.digest(known=True)
    assert await directory.find(ended)
    directory.known.clear()
    assert await directory.find(ended) is None
    await directory.exhaust()
    directory.clock.now += UNKNOWN_SECONDS
    with refused(directory):
        await directory.find(ended)


async def test_one_unknown_credential_asks_once(directory: Directory) -> None:
    """Repeating an unknown credential within five seconds causes one look-up."""
    digest = directory.digest()
    for _ in range(2 * UNKNOWN_CREDENTIALS.events):
        assert await directory.find(digest) is None
    assert directory.asked == 1
    directory.clock.now += UNKNOWN_SECONDS
    directory.known.add(digest)  # by another gateway
    assert await directory.find(digest)


async def test_a_new_credential_overrides_what_was_unknown(directory: Directory) -> None:
    """A credential that this gateway creates is accepted at once, even after a failed look-up."""
    digest = directory.digest()
    assert await directory.find(digest) is None
    directory.known.add(digest)
    directory.lookups.accept(digest)
    assert await directory.find(digest)


async def test_an_outage_costs_no_budget(directory: Directory) -> None:
    """A failed look-up does not mark a credential as unknown, and costs no budget."""

    async def unavailable(_: bytes) -> Never:
        raise UnavailableError

    for _ in range(2 * UNKNOWN_CREDENTIALS.events):
        with pytest.raises(UnavailableError):
            await directory.lookups.find(directory.digest(), STRANGER, unavailable)
    known = directory.digest(known=True)
    with pytest.raises(UnavailableError):
        await directory.lookups.find(known, STRANGER, unavailable)
    assert await directory.find(known)
    await directory.exhaust()


async def test_memory_is_bounded(directory: Directory) -> None:
    """A flood of different credentials fills at most the capacity."""
    for number in range(2 * UNKNOWN_CAPACITY):
        await directory.find(directory.digest(), f"192.0.{number >> 8}.{number & 0xFF}")
    assert len(directory.lookups._unknown) <= UNKNOWN_CAPACITY
    assert not directory.lookups._accepted


def test_a_source_budget_is_bounded_in_memory() -> None:
    """The number of counted addresses has a limit."""
    budget = SourceBudget(Limit(1, MINUTE), lambda: 1000.0)
    for number in range(CAPACITY + 10):
        assert budget.spend(f"address {number}") is None
    assert len(budget._counts) <= CAPACITY


def test_a_source_budget_tells_the_wait() -> None:
    """The reported wait ends with the period; then the full budget is available again."""
    now = [1000.0]
    budget = SourceBudget(Limit(2, 10), lambda: now[0])
    for _ in range(2):
        now[0] += 3
        assert budget.spend(STRANGER) is None
    assert budget.spend(STRANGER) == 4.0
    now[0] += 4.0
    assert [budget.spend(STRANGER) is None for _ in range(3)] == [True, True, False]


def test_what_is_given_back_can_be_spent() -> None:
    """An event that is taken back can be used again; taking back none changes nothing."""
    budget = SourceBudget(Limit(2, 10), lambda: 1000.0)
    budget.release(STRANGER)
    for _ in range(10):
        assert budget.spend(STRANGER) is None
        budget.release(STRANGER)
    assert [budget.spend(STRANGER) is None for _ in range(3)] == [True, True, False]


async def _exhaust(world: World) -> None:
    for _ in range(UNKNOWN_CREDENTIALS.events):
        token = new_credential(CredentialKind.ACCESS)
        assert await world.sessions.find(token, HERE) is None


async def test_a_session_works_though_its_address_s_budget_is_used_up(world: World) -> None:
    """Without a budget of its address a session still works and refreshes; random tokens do not."""
    before = await world.join()
    assert await world.sessions.find(before.access, HERE)
    await _exhaust(world)
    refreshed = await world.sessions.refresh(before.refresh, b"", ATTRIBUTION)
    after = await world.join(email=OTHER_EMAIL)
    for tokens in (refreshed, after):
        assert await world.sessions.find(tokens.access, HERE)
    with pytest.raises(TooManyUnknownCredentialsError):
        await world.sessions.find(new_credential(CredentialKind.ACCESS), HERE)


async def test_random_refresh_tokens_have_the_same_budget(world: World) -> None:
    """Unknown refresh tokens are invalid, and then limited by the address's budget."""
    for _ in range(UNKNOWN_CREDENTIALS.events):
        with pytest.raises(InvalidRefreshTokenError):
            await world.sessions.refresh(new_credential(CredentialKind.REFRESH), b"", ATTRIBUTION)
    with pytest.raises(TooManyUnknownCredentialsError):
        await world.sessions.refresh(new_credential(CredentialKind.REFRESH), b"", ATTRIBUTION)


async def test_a_new_api_key_is_accepted(world: World) -> None:
    """A created, rotated or repeated API key is looked up even without budget."""
    await _exhaust(world)
    created = await world.api_keys.create(world.tenant, ATTRIBUTION)
    rotated, _ = await world.api_keys.rotate(world.tenant.id, None, ATTRIBUTION)
    for key in (created, rotated):
        digest = world.pepper.digest(key.plaintext)
        assert await world.lookups.find(digest, HERE, SqlApiKeys(world.engine).find)


def _uses_of_unknown_tokens(world: World) -> tuple[Callable[[], Awaitable[object]], ...]:
    return (
        lambda: world.resets.complete(
            new_credential(CredentialKind.PASSWORD_RESET), PASSWORD, ATTRIBUTION
        ),
        lambda: world.invitations.accept(
            new_credential(CredentialKind.INVITATION), PASSWORD, ATTRIBUTION
        ),
        lambda: world.registration.complete(
            new_credential(CredentialKind.REGISTRATION), "name", PASSWORD, ATTRIBUTION
        ),
        lambda: world.challenges.find(new_credential(CredentialKind.CHALLENGE), HERE),
    )


async def test_random_tokens_in_mail_and_challenges_have_the_same_budget(world: World) -> None:
    """Unknown mailed tokens and challenges are invalid, and limited by the address's budget."""
    invalid = (
        InvalidPasswordResetTokenError,
        InvalidInvitationTokenError,
        InvalidRegistrationTokenError,
        InvalidChallengeError,
    )
    uses = _uses_of_unknown_tokens(world)
    for _ in range(UNKNOWN_CREDENTIALS.events // len(uses)):
        for use, error in zip(uses, invalid, strict=True):
            with pytest.raises(error):
                await use()
    for use in uses:
        with pytest.raises(TooManyUnknownCredentialsError):
            await use()


async def test_a_token_works_though_its_address_s_budget_is_used_up(world: World) -> None:
    """Tokens that this gateway creates are accepted even without budget."""
    await _exhaust(world)
    owner = await world.person()
    await world.enroll(owner)
    await world.challenges.find(await world.challenge(), HERE)
    await world.registration.complete(
        await world.registration_token(), "name", PASSWORD, ATTRIBUTION
    )
    await world.resets.complete(await world.reset_token(), NEW_PASSWORD, ATTRIBUTION)
