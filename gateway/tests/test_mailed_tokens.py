"""Tokens in mail, on either database: each is valid for one purpose, and is not stored."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, EMAIL, NEW_PASSWORD, OTHER_EMAIL, PASSWORD, World

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credentials import CredentialKind
from pqkeep_gateway.outgoing_mail import mailed_code, mailed_token
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError
from pqkeep_gateway.storage.schema import METADATA

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


async def test_a_token_is_for_one_thing(world: World) -> None:
    """A registration token cannot reset a password, and an invitation token cannot register."""
    await world.join()
    token = await world.registration_token()
    with pytest.raises(InvalidPasswordResetTokenError):
        await world.resets.complete(token, NEW_PASSWORD, ATTRIBUTION)
    with pytest.raises(InvalidRegistrationTokenError):
        await world.registration.complete(await world.reset_token(), "x", PASSWORD, ATTRIBUTION)


async def test_whether_somebody_is_known_is_no_more_work(world: World) -> None:
    """The same statements run for known and unknown addresses."""
    await world.join()
    run: list[str] = []

    def note(*arguments: Any) -> None:
        if not arguments[2].startswith("PRAGMA"):  # it depends on the connection's last use
            run.append(arguments[2])

    sa.event.listen(world.engine.sync_engine, "before_cursor_execute", note)
    seen = []
    for ask in (world.resets.begin, world.registration.begin):
        for email in (EMAIL, OTHER_EMAIL):
            run.clear()
            await ask(email, ATTRIBUTION)
            seen.append(list(run))
    assert seen[0] == seen[1] != []
    assert seen[2] == seen[3] != []


@pytest.mark.threat("accounts-database-reader")
async def test_no_token_is_in_the_database(world: World) -> None:
    """Tables and events contain no token or code of a mail."""
    person = await world.person()
    await world.codes.choose(person, ATTRIBUTION, wanted=True)
    challenge = await world.challenge()
    secrets = [challenge]
    now = date_of(world.now)
    outbox = world.mail_outbox
    await world.resets.begin(EMAIL, ATTRIBUTION)
    await world.registration.begin(OTHER_EMAIL, ATTRIBUTION)
    invited = await world.invite(OTHER_EMAIL, Role.VIEWER)
    await world.codes.send(challenge, ATTRIBUTION)
    for mail in await outbox.claim(100, now, now):
        secrets += [mailed_token(mail, kind, world.pepper) for kind in CredentialKind]
        secrets.append(mailed_code(mail, world.pepper))
    assert invited.token in secrets
    async with world.engine.connect() as connection:
        rows = [
            repr(row)
            for table in METADATA.sorted_tables
            for row in await connection.execute(sa.select(table))
        ]
    stored = "\n".join(rows) + repr(world.log.recorded)
    assert len(rows) > 10
    tokens = [secret for secret in secrets if len(secret) > 6]
    assert not any(token in stored for token in tokens)
    codes = [secret for secret in secrets if len(secret) == 6]
    assert not any(f"'{code}'" in stored for code in codes)
