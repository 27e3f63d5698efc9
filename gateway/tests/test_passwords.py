"""The accepted passwords, and the limit of concurrent hashes."""

import asyncio
import threading
from datetime import UTC, datetime
from string import ascii_letters
from typing import Literal
from uuid import uuid4

import pytest
from argon2 import PasswordHasher
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.config import PasswordCosts
from pqkeep_gateway.people.common_passwords import common_words, is_common
from pqkeep_gateway.people.passwords import (
    MAX_WAITING,
    THREADS,
    InvalidPasswordError,
    Passwords,
    hasher,
    require_valid,
)
from pqkeep_gateway.storage.users import Account, User
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.keys import TenantId

CHEAP = PasswordHasher(1, 8, 1)
GOOD = "the horse prefers oats"
HERE = "192.0.2.7"
USER, OTHER = (
    User(UserId(uuid4()), TenantId(uuid4()), "", Role.VIEWER, datetime.now(UTC)) for _ in range(2)
)


def with_hash(password_hash: str) -> Account:
    """Return the account of a user with a hash."""
    return Account(USER, password_hash)


class HeldHasher(PasswordHasher):
    """A cheap hasher that waits for a release."""

    def __init__(self) -> None:
        super().__init__(1, 8, 1)
        self.go = threading.Event()

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002
        assert self.go.wait(PATIENCE)
        return super().verify(hash, password)


@pytest.mark.parametrize(
    "password",
    [
        *("password1234", "Password2024", "1234567890123", "qwertyuiop[]"[:10] + "as"),
        *("iloveyou1234", "P@ssw0rd1234", "abcabcabcabc", "letmeinletmein!", "000000000000"),
        *("adminadmin123", "1qaz2wsx3edc", "summerwinter1", "!!Password123!!", "welcome-2026-!"),
        *("q1w2e3r4t5y6", "leavemealone1", "2019telechargement", "basketballandfootball"),
        *("postquantum2026", "pqkeeppqkeep", "Cryptography!1", "dragonslayer123"),
    ],
)
def test_common_passwords_are_refused(password: str) -> None:
    """Common passwords are refused, also in capitals, with punctuation or look-alike signs."""
    assert is_common(password)
    with pytest.raises(InvalidPasswordError):
        require_valid(password)


@given(part=st.text(ascii_letters, min_size=1, max_size=64), length=st.integers(12, 1024))
def test_what_repeats_is_refused(part: str, length: int) -> None:
    """A repetition of up to 64 characters, the last one perhaps cut, is refused."""
    repeated = (part * length)[: max(length, 2 * len(part))]
    assert is_common(repeated)


@pytest.mark.parametrize(("length", "common"), [(64, True), (65, False)])
def test_repetitions_of_long_parts_are_not_looked_for(length: int, *, common: bool) -> None:
    """Repetitions of longer parts are not searched, because 18,000 characters would take long."""
    assert is_common(_varied(length) * 3) is common


@pytest.mark.parametrize("word", ["123456", "password", "football", "telechargement", "pqkeep"])
def test_words_are_found_by_their_digests(word: str) -> None:
    """A password that is a listed word is refused; a word's beginning or extension is not."""
    words = common_words()
    assert len(words) > 19_000
    assert word in words
    assert word + "\0" not in words
    assert word[:2] not in words


@pytest.mark.parametrize(
    "password", [GOOD, "x7!kQ2#mVp9z", "ein pferd frisst gern hafer", "密码不容易猜到的十二个字"]
)
def test_others_are_accepted(password: str) -> None:
    """Passwords in any script without a weak pattern are accepted, without composition rules."""
    require_valid(password)


@pytest.mark.parametrize(("length", "fit"), [(11, False), (12, True), (1024, True), (1025, False)])
def test_lengths(length: int, *, fit: bool) -> None:
    """12 to 1024 characters are accepted."""
    password = (GOOD * 100)[:length] if length < len(GOOD) else _varied(length)
    if fit:
        require_valid(password)
    else:
        with pytest.raises(InvalidPasswordError):
            require_valid(password)


def _varied(length: int) -> str:
    return "".join(chr(0x4E00 + 7 * number) for number in range(length))


async def test_a_password_is_its_own_in_any_form(pepper: Pepper) -> None:
    """A password verifies in composed and decomposed form; no other text does."""
    passwords = Passwords(pepper, CHEAP)
    stored = await passwords.hash(USER.id, "Überraschung am Morgen", HERE)
    assert await passwords.verify(with_hash(stored), "U\u0308berraschung am Morgen", HERE)
    assert not await passwords.verify(with_hash(stored), "Überraschung am Abend", HERE)
    assert not await passwords.verify(None, "Überraschung am Morgen", HERE)


async def test_another_pepper_is_another_hash(pepper: Pepper) -> None:
    """A hash cannot be verified with another pepper."""
    stored = await Passwords(pepper, CHEAP).hash(USER.id, GOOD, HERE)
    assert not await Passwords(Pepper(bytes(32)), CHEAP).verify(with_hash(stored), GOOD, HERE)


async def test_a_hash_is_one_user_s(pepper: Pepper) -> None:
    """A hash in another user's row does not verify that user's password."""
    passwords = Passwords(pepper, CHEAP)
    stored = await passwords.hash(USER.id, GOOD, HERE)
    assert await passwords.verify(Account(USER, stored), GOOD, HERE)
    assert not await passwords.verify(Account(OTHER, stored), GOOD, HERE)


@pytest.mark.threat("accounts-database-writer")
@pytest.mark.parametrize(
    "forged",
    [
        "",
        "garbage",
        "$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$!",
        "$argon2id$v=19$m=8,t=x,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
        "$argon2i$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
        "$argon2id$v=19$m=4294967288,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
        "$argon2id$v=19$m=8,t=4294967295,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
        "$argon2id$v=19$m=65536,t=1,p=4096$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
    ],
)
async def test_a_forged_hash_costs_what_any_other_does(pepper: Pepper, forged: str) -> None:
    """A forged hash is refused without extra memory, time or a crash."""
    async with asyncio.timeout(PATIENCE):
        assert not await Passwords(pepper, CHEAP).verify(with_hash(forged), GOOD, HERE)


async def test_too_many_at_once_are_refused(pepper: Pepper) -> None:
    """Passwords up to the queue's limit are verified; further ones are refused immediately."""
    passwords = Passwords(pepper, CHEAP)
    stored = await passwords.hash(USER.id, GOOD, HERE)
    attempts = [passwords.verify(with_hash(stored), GOOD, HERE) for _ in range(MAX_WAITING + 4)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert outcomes.count(True) == THREADS - 1 + MAX_WAITING
    assert sum(isinstance(outcome, UnavailableError) for outcome in outcomes) == 4 - (THREADS - 1)


@pytest.mark.parametrize(
    "strangers",
    [["198.51.100.1", "198.51.100.2"], [f"2001:db8:{site}::{{}}" for site in (1, 2)]],
    ids=["two addresses", "two /64 of IPv6"],
)
async def test_strangers_keep_nobody_from_a_password(pepper: Pepper, strangers: list[str]) -> None:
    """While two addresses fill the queue, a third one is still served soon."""
    held = HeldHasher()
    passwords = Passwords(pepper, held)
    stored = await passwords.hash(USER.id, GOOD, HERE)
    done: list[str] = []

    async def verify(source_address: str) -> None:
        try:
            await passwords.verify(with_hash(stored), GOOD, source_address)
        finally:
            done.append(source_address)

    flood = [
        asyncio.create_task(verify(stranger.format(number)))
        for number in range(1, MAX_WAITING)
        for stranger in strangers
    ]
    await asyncio.sleep(0)
    refused_at_once = len(done)
    assert refused_at_once > 0
    here = asyncio.create_task(verify(HERE))
    await asyncio.sleep(0)
    held.go.set()
    await here
    assert done.count(HERE) == 1
    await asyncio.gather(*flood, return_exceptions=True)
    waited = len(done) - refused_at_once
    assert done.index(HERE) - refused_at_once < waited / 2  # in turns: not after those before it


@pytest.mark.threat("flood")
async def test_no_flood_of_strangers_keeps_known_people_waiting(pepper: Pepper) -> None:
    """A known person is served while requests from unknown addresses fill their queue."""
    held = HeldHasher()
    passwords = Passwords(pepper, held)
    stored = await passwords.hash(USER.id, GOOD, HERE)
    flood = [
        asyncio.create_task(
            passwords.verify(None, GOOD, f"198.51.{number // 256}.{number % 256}", is_stranger=True)
        )
        for number in range(4 * MAX_WAITING)
    ]
    await asyncio.sleep(0)
    assert passwords.waiting == MAX_WAITING
    here = asyncio.create_task(passwords.verify(with_hash(stored), GOOD, HERE))
    await asyncio.sleep(0)
    held.go.set()
    assert await here
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(outcome, UnavailableError) for outcome in outcomes) == 3 * MAX_WAITING - 1


def test_default_costs() -> None:
    """By default hashes are Argon2id with 64 MiB, three passes and four lanes."""
    usual = hasher(PasswordCosts())
    costs = (usual.type.name, usual.memory_cost, usual.time_cost, usual.parallelism)
    assert costs == ("ID", 65536, 3, 4)


@pytest.mark.parametrize("costs", [CHEAP, hasher(PasswordCosts())])
async def test_the_dummy_hash_has_the_same_costs(pepper: Pepper, costs: PasswordHasher) -> None:
    """The hash for unknown accounts has the same costs, and matches no password."""
    passwords = Passwords(pepper, costs)
    try:
        real = await passwords.hash(USER.id, GOOD, HERE)
        assert len(passwords._dummy_hash) == len(real)
        assert not passwords.is_outdated(passwords._dummy_hash)
        assert not await passwords.verify(with_hash(passwords._dummy_hash), GOOD, HERE)
    finally:
        passwords.close()
