"""Signing in with a password, on either database."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from argon2 import PasswordHasher
from gateway.tests.world import ATTRIBUTION, EMAIL, HERE, NEW_PASSWORD, PASSWORD, World

from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.people.challenges import SecondFactorRequiredError
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
COSTLIER = PasswordHasher(2, 16, 1)


async def test_failures_are_recorded_for_any_address(world: World) -> None:
    """A failed sign-in is recorded with or without an account for the address."""
    await world.join()
    for email in (EMAIL, f"{uuid4()}@example.com"):
        with pytest.raises(WrongPasswordError):
            await world.sign_in.with_password(email, PASSWORD + "?", ATTRIBUTION)
    assert world.log.operations.count("sign-in-failed") == 2


async def test_a_changed_password_ends_every_session(world: World) -> None:
    """A change of the password invalidates all earlier tokens."""
    tokens = [await world.join()]
    tokens += [await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION) for _ in range(3)]
    person = await world.sessions.find(tokens[0].access, HERE)
    assert person is not None
    await world.password_change.change(person, PASSWORD + "!", ATTRIBUTION)
    for token in tokens:
        assert await world.sessions.find(token.access, HERE) is None
        with pytest.raises(InvalidRefreshTokenError):
            await world.sessions.refresh(token.refresh, b"", ATTRIBUTION)
    with pytest.raises(WrongPasswordError):
        await world.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)


async def test_a_changed_password_is_reported_by_mail(world: World) -> None:
    """A changed password is reported by mail to the account's address."""
    person = await world.person()
    await world.password_change.change(person, NEW_PASSWORD, ATTRIBUTION)
    assert (await world.mail(MailKind.PASSWORD_CHANGED)).to == EMAIL


async def test_an_outdated_hash_is_replaced_at_the_next_sign_in(world: World) -> None:
    """If the costs were raised, a correct password is rehashed, and a wrong one is not."""
    costlier = world.restarted(hasher=COSTLIER)
    await world.join()
    before = await world.account()
    with pytest.raises(WrongPasswordError):
        await costlier.sign_in.with_password(EMAIL, PASSWORD + "?", ATTRIBUTION)
    assert await world.account() == before
    await costlier.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
    after = (await world.account()).password_hash
    assert costlier.passwords.is_outdated(before.password_hash)
    assert not costlier.passwords.is_outdated(after)
    await costlier.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
    assert (await world.account()).password_hash == after


async def test_a_challenged_account_is_rehashed_too(world: World) -> None:
    """With a second factor the hash is replaced after the password, before the code."""
    costlier = world.restarted(hasher=COSTLIER)
    totp, _ = await world.enroll(await world.person())
    world.now += 300
    with pytest.raises(SecondFactorRequiredError) as challenged:
        await costlier.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION)
    assert not costlier.passwords.is_outdated((await world.account()).password_hash)
    await costlier.sign_in.answer_challenge(
        challenged.value.token, totp.at(int(world.now)), ATTRIBUTION
    )


async def test_concurrent_sign_ins_rehash_once(world: World) -> None:
    """A sign-in succeeds while a concurrent one replaces the hash."""
    costlier = world.restarted(hasher=COSTLIER)
    await world.join()
    attempts = [costlier.sign_in.with_password(EMAIL, PASSWORD, ATTRIBUTION) for _ in range(8)]
    assert len(await asyncio.gather(*attempts)) == 8


async def test_no_rehash_restores_an_old_password(world: World) -> None:
    """A rehash does not overwrite a password that was changed meanwhile."""
    tokens = await world.join()
    before = await world.account()
    person = await world.sessions.find(tokens.access, HERE)
    assert person is not None
    await world.password_change.change(person, PASSWORD + "!", ATTRIBUTION)
    changed = await world.account()
    assert not await world.users.save_rehashed_password(before, before.password_hash or "")
    assert await world.account() == changed
