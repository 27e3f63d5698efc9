"""Letters arrive at least once, by one gateway at a time, or are given up: on either database."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from email.message import EmailMessage

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.mail.mail_delivery import (
    LEASE,
    LONGEST_PAUSE,
    MailDeferredError,
    MailDelivery,
    MailRejectedError,
    pause_after,
)
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, mailed_code, new_mail
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.outgoing_mail import SqlMailOutbox, add_mail

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

TO = "ada@example.com"


class Doorstep:
    """A Mailer that keeps letters, or does with them what it is told."""

    def __init__(self) -> None:
        self.tried = 0
        self.kept: list[OutgoingMail] = []
        self.problem: Exception | None = None
        self.hangs = False
        self.refuses = ""

    @property
    def sender(self) -> str:
        """Whose address the messages come from."""
        return "pqkeep@example.org"

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Keep a letter, or not."""
        self.tried += 1
        await asyncio.sleep(3600 if self.hangs else 0)
        if self.problem is not None:
            raise self.problem
        if mail.to == self.refuses:
            raise MailRejectedError("550")
        self.kept.append(mail)


class World:
    """An outbox, a mailer, and a clock to set."""

    def __init__(self, engine: AsyncEngine, pepper: Pepper) -> None:
        self.now = 1_800_000_000.0
        self.engine = engine
        self.pepper = pepper
        self.doorstep = Doorstep()

    def mail_delivery(self) -> MailDelivery:
        """Return a postman, as another gateway has one too."""
        outbox = SqlMailOutbox(self.engine)
        portal = "https://keep.example.org"
        return MailDelivery(outbox, self.doorstep, self.pepper, portal, lambda: self.now)

    async def write(self, to: str = TO, kind: MailKind = MailKind.CODE) -> OutgoingMail:
        """Write a letter that is good for ten minutes."""
        written = new_mail(kind, to, date_of(self.now), timedelta(minutes=10))
        async with transaction(self.engine) as connection:
            await add_mail(connection, written)
        return written

    async def waiting(self) -> Sequence[OutgoingMail]:
        """Return everything that waits, for however long, and leave it so."""
        far = date_of(self.now + 10**9)
        return await SqlMailOutbox(self.engine).claim(1000, far, date_of(self.now))


@pytest.fixture
def world(engine: AsyncEngine, pepper: Pepper) -> World:
    """No letter yet."""
    return World(engine, pepper)


async def test_a_letter_arrives_whole_and_once(world: World) -> None:
    """What was written is brought as it was, with the same code, and does not wait any more."""
    written = await world.write()
    await world.mail_delivery().deliver()
    await world.mail_delivery().deliver()
    (kept,) = world.doorstep.kept
    assert kept.attempts == 1
    assert mailed_code(kept, world.pepper) == mailed_code(written, world.pepper)
    assert (kept.id, kept.to, kept.expires_at) == (written.id, written.to, written.expires_at)
    assert await world.waiting() == []


async def test_what_is_not_taken_is_tried_again_with_growing_pauses(world: World) -> None:
    """While nothing is taken the pauses double; then the letter arrives."""
    await world.write()
    world.doorstep.problem = MailDeferredError("away")
    mail_delivery = world.mail_delivery()
    for pause in (2, 4, 8, 16, 32):
        await mail_delivery.deliver()
        tried = world.doorstep.tried
        world.now += pause - 0.5
        await mail_delivery.deliver()
        assert world.doorstep.tried == tried
        world.now += 0.5
    world.doorstep.problem = None
    await mail_delivery.deliver()
    assert [each.attempts for each in world.doorstep.kept] == [6]


async def test_it_is_not_tried_for_ever(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """When what a letter is about is over it is given up, and the log says so."""
    await world.write()
    world.doorstep.problem = MailDeferredError("away")
    mail_delivery = world.mail_delivery()
    for _ in range(700):
        await mail_delivery.deliver()
        world.now += 1
    assert world.doorstep.tried == 9  # after 0, 2, 6, 14, 30, 62, 126, 254 and 510 seconds
    assert await world.waiting() == []
    assert [each.levelname for each in caplog.records].count("ERROR") == 1


async def test_who_refuses_for_good_is_asked_once(world: World) -> None:
    """A letter that is refused is given up, and the others arrive."""
    world.doorstep.refuses = "nobody@example.com"
    for to in (TO, "nobody@example.com", "grace@example.com"):
        await world.write(to)
    await world.mail_delivery().deliver()
    await world.mail_delivery().deliver()
    assert sorted(each.to for each in world.doorstep.kept) == [TO, "grace@example.com"]
    assert world.doorstep.tried == 3
    assert await world.waiting() == []


async def test_what_is_no_address_stops_no_other(world: World) -> None:
    """A letter to what is no address is given up, and the others arrive."""
    for to in ("ada@example.com, eve@example.com", TO):
        await world.write(to)
    await world.mail_delivery().deliver()
    assert [each.to for each in world.doorstep.kept] == [TO]
    assert await world.waiting() == []


async def test_nobody_s_letters_disappear(world: World) -> None:
    """What is written where nobody has the address is brought to nobody, and does not wait."""
    await world.write(kind=MailKind.DISCARDED)
    await world.mail_delivery().deliver()
    assert world.doorstep.tried == 0
    assert await world.waiting() == []


async def test_of_many_postmen_one_brings_a_letter(world: World) -> None:
    """Eight gateways at once bring each of fifty letters exactly once."""
    for _ in range(50):
        await world.write()
    await asyncio.gather(*(world.mail_delivery().deliver() for _ in range(8)))
    assert set(Counter(each.id for each in world.doorstep.kept).values()) == {1}
    assert len(world.doorstep.kept) == 50


async def test_a_letter_outlives_its_postman(world: World) -> None:
    """A gateway that ends while it brings a letter loses none: another brings it a minute later."""
    await world.write()
    world.doorstep.hangs = True
    dying = asyncio.create_task(world.mail_delivery().deliver())
    while not world.doorstep.tried:  # noqa: ASYNC110 - another task counts
        await asyncio.sleep(0.01)
    dying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dying
    world.doorstep.hangs = False
    await world.mail_delivery().deliver()
    assert world.doorstep.kept == []
    world.now += LEASE.total_seconds()
    await world.mail_delivery().deliver()
    assert len(world.doorstep.kept) == 1


async def test_a_fault_of_the_mailer_loses_no_letter(world: World) -> None:
    """Whatever a mailer raises, its letter waits, and the others arrive."""
    await world.write()
    world.doorstep.problem = ZeroDivisionError()
    mail_delivery = world.mail_delivery()
    await mail_delivery.deliver()
    world.doorstep.problem = None
    world.now += 2
    await mail_delivery.deliver()
    assert len(world.doorstep.kept) == 1


async def test_the_log_names_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """What the log says of letters has neither an address nor a code."""
    caplog.set_level(logging.INFO)
    for problem in (MailDeferredError("away"), MailRejectedError("550"), ZeroDivisionError()):
        written = await world.write()
        world.doorstep.problem = problem
        await world.mail_delivery().deliver()
        assert written.to not in caplog.text
        assert mailed_code(written, world.pepper) not in caplog.text
    assert str(written.id) in caplog.text


def test_pauses_have_an_end(backend: str) -> None:
    """No pause is longer than a quarter of an hour."""
    assert pause_after(1) == timedelta(seconds=2)
    assert pause_after(10**6) == LONGEST_PAUSE == timedelta(minutes=15)
