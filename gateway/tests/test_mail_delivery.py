"""Mail is delivered at least once, by one gateway at a time, or expires: on either database."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from email.message import EmailMessage
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.patience import PATIENCE

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.delivery import mail_delivery
from pqkeep_gateway.delivery.mail_delivery import (
    LEASE,
    LONGEST_PAUSE,
    MailDeferredError,
    MailDelivery,
    MailRejectedError,
    pause_after,
)
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, mailed_code, new_mail
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.outgoing_mail import SqlMailOutbox, add_mail
from pqkeep_gateway.storage.schema import OUTGOING_MAIL

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

TO = "ada@example.com"


class FakeMailer:
    """A Mailer that stores mail, or fails on demand."""

    def __init__(self) -> None:
        self.attempts = 0
        self.delivered: list[OutgoingMail] = []
        self.problem: Exception | None = None
        self.hangs = False
        self.rejects = ""

    @property
    def sender(self) -> str:
        """The address in From."""
        return "pqkeep@example.org"

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Store a mail, or raise an error."""
        self.attempts += 1
        await asyncio.sleep(3600 if self.hangs else 0)
        if self.problem is not None:
            raise self.problem
        if mail.to == self.rejects:
            raise MailRejectedError("550")
        self.delivered.append(mail)


class Gateways:
    """Gateways that share an outbox, a mailer and a settable clock."""

    def __init__(self, engine: AsyncEngine, pepper: Pepper) -> None:
        self.now = 1_800_000_000.0
        self.engine = engine
        self.pepper = pepper
        self.mailer = FakeMailer()

    def mail_delivery(self) -> MailDelivery:
        """Return the delivery of another gateway."""
        outbox = SqlMailOutbox(self.engine)
        portal = "https://keep.example.org"
        return MailDelivery(outbox, self.mailer, self.pepper, portal, lambda: self.now)

    async def add(self, to: str = TO, kind: MailKind = MailKind.CODE) -> OutgoingMail:
        """Store a mail that expires in ten minutes."""
        mail = new_mail(kind, to, date_of(self.now), timedelta(minutes=10))
        async with transaction(self.engine) as connection:
            await add_mail(connection, mail)
        return mail

    async def waiting(self) -> Sequence[OutgoingMail]:
        """Return the mails in the outbox."""
        far = date_of(self.now + 10**9)
        return await SqlMailOutbox(self.engine).claim(1000, far, date_of(self.now))


@pytest.fixture
def gateways(engine: AsyncEngine, pepper: Pepper) -> Gateways:
    """An empty outbox."""
    return Gateways(engine, pepper)


async def test_mail_is_delivered_whole_and_once(gateways: Gateways) -> None:
    """Stored mail is delivered unchanged, with the same code, and leaves the outbox."""
    mail = await gateways.add()
    await gateways.mail_delivery().deliver()
    await gateways.mail_delivery().deliver()
    (delivered,) = gateways.mailer.delivered
    assert delivered.attempts == 1
    assert mailed_code(delivered, gateways.pepper) == mailed_code(mail, gateways.pepper)
    assert (delivered.id, delivered.to, delivered.expires_at) == (mail.id, mail.to, mail.expires_at)
    assert await gateways.waiting() == []


async def test_mail_that_is_stored_wakes_the_delivery(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored mail wakes an idle gateway's delivery at once."""
    monkeypatch.setattr(mail_delivery, "IDLE_SECONDS", 10_000.0)
    monkeypatch.setattr(mail_delivery, "POLL_SECONDS", 0.01)
    delivering = asyncio.create_task(gateways.mail_delivery().run())
    try:
        async with asyncio.timeout(PATIENCE):
            for count in range(1, 4):
                await asyncio.sleep(0.05)
                await gateways.add()
                while len(gateways.mailer.delivered) < count:  # noqa: ASYNC110 - another task's
                    await asyncio.sleep(0.01)
    finally:
        delivering.cancel()
        await asyncio.wait([delivering])


async def test_deferred_mail_is_tried_again_with_growing_pauses(gateways: Gateways) -> None:
    """After a temporary failure the retries have doubling pauses until the mail is delivered."""
    await gateways.add()
    gateways.mailer.problem = MailDeferredError("away")
    mail_delivery = gateways.mail_delivery()
    for pause in (2, 4, 8, 16, 32):
        await mail_delivery.deliver()
        attempts = gateways.mailer.attempts
        gateways.now += pause - 0.5
        await mail_delivery.deliver()
        assert gateways.mailer.attempts == attempts
        gateways.now += 0.5
    gateways.mailer.problem = None
    await mail_delivery.deliver()
    assert [mail.attempts for mail in gateways.mailer.delivered] == [6]


async def test_mail_expires(gateways: Gateways, caplog: pytest.LogCaptureFixture) -> None:
    """A mail with an expired code is no longer tried, and this is logged."""
    await gateways.add()
    gateways.mailer.problem = MailDeferredError("away")
    mail_delivery = gateways.mail_delivery()
    for _ in range(350):
        await mail_delivery.deliver()
        gateways.now += 2
    assert gateways.mailer.attempts == 9  # after 0, 2, 6, 14, 30, 62, 126, 254 and 510 seconds
    assert await gateways.waiting() == []
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


async def test_rejected_mail_is_tried_once(gateways: Gateways) -> None:
    """A rejected mail is removed without a retry, and the others are delivered."""
    gateways.mailer.rejects = "nobody@example.com"
    for to in (TO, "nobody@example.com", "grace@example.com"):
        await gateways.add(to)
    await gateways.mail_delivery().deliver()
    await gateways.mail_delivery().deliver()
    assert sorted(mail.to for mail in gateways.mailer.delivered) == [TO, "grace@example.com"]
    assert gateways.mailer.attempts == 3
    assert await gateways.waiting() == []


async def test_an_invalid_address_stops_no_other_mail(gateways: Gateways) -> None:
    """A mail with an invalid address is removed, and the others are delivered."""
    for to in ("ada@example.com, eve@example.com", TO):
        await gateways.add(to)
    await gateways.mail_delivery().deliver()
    assert [mail.to for mail in gateways.mailer.delivered] == [TO]
    assert await gateways.waiting() == []


async def test_discarded_mail_is_not_sent(gateways: Gateways) -> None:
    """Mail for an unknown address is removed without being sent."""
    await gateways.add(kind=MailKind.DISCARDED)
    await gateways.mail_delivery().deliver()
    assert gateways.mailer.attempts == 0
    assert await gateways.waiting() == []


async def test_of_many_gateways_one_delivers_a_mail(gateways: Gateways) -> None:
    """Eight concurrent gateways deliver each of fifty mails exactly once."""
    for _ in range(50):
        await gateways.add()
    await asyncio.gather(*(gateways.mail_delivery().deliver() for _ in range(8)))
    assert set(Counter(mail.id for mail in gateways.mailer.delivered).values()) == {1}
    assert len(gateways.mailer.delivered) == 50


async def test_a_gateway_that_stops_loses_no_mail(gateways: Gateways) -> None:
    """A mail of a gateway that stops during delivery is delivered by another one a minute later."""
    await gateways.add()
    gateways.mailer.hangs = True
    dying = asyncio.create_task(gateways.mail_delivery().deliver())
    while not gateways.mailer.attempts:  # noqa: ASYNC110 - another task counts
        await asyncio.sleep(0.01)
    dying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dying
    gateways.mailer.hangs = False
    await gateways.mail_delivery().deliver()
    assert gateways.mailer.delivered == []
    gateways.now += LEASE.total_seconds()
    await gateways.mail_delivery().deliver()
    assert len(gateways.mailer.delivered) == 1


async def test_a_gateway_that_was_paused_leaves_its_mail_to_others(gateways: Gateways) -> None:
    """A gateway whose lease ended during a pause does not send the mail again."""
    await gateways.add()
    paused, other = gateways.mail_delivery(), gateways.mail_delivery()
    outbox = paused._outbox
    claim = outbox.claim

    async def claim_and_pause(limit: int, now: datetime, lease: datetime) -> Sequence[OutgoingMail]:
        claimed = await claim(limit, now, lease)
        gateways.now += LEASE.total_seconds()
        await other.deliver()
        return claimed

    paused._outbox = Mock(wraps=outbox, claim=claim_and_pause)
    await paused.deliver()
    assert gateways.mailer.attempts == len(gateways.mailer.delivered) == 1
    assert await gateways.waiting() == []


async def test_an_unexpected_error_loses_no_mail(gateways: Gateways) -> None:
    """After any error of a mailer, the delivery is retried."""
    await gateways.add()
    gateways.mailer.problem = ZeroDivisionError()
    mail_delivery = gateways.mail_delivery()
    await mail_delivery.deliver()
    gateways.mailer.problem = None
    gateways.now += 2
    await mail_delivery.deliver()
    assert len(gateways.mailer.delivered) == 1


async def test_an_unknown_kind_stops_no_other_mail(gateways: Gateways) -> None:
    """Mail of an unknown kind is kept, and the others are delivered."""
    unknown = await gateways.add("nobody@example.com")
    of_another_version = (
        sa.update(OUTGOING_MAIL)
        .where(OUTGOING_MAIL.c.id == unknown.id)
        .values(kind="another", next_attempt_at_us=0)
    )
    async with transaction(gateways.engine) as connection:
        await connection.execute(of_another_version)
    await gateways.add()
    await gateways.mail_delivery().deliver()
    assert [mail.to for mail in gateways.mailer.delivered] == [TO]


@pytest.mark.parametrize("column", ["id", "created_at_us", "expires_at_us"])
async def test_a_row_that_cannot_be_read_stops_no_other_mail(
    gateways: Gateways, column: str
) -> None:
    """A damaged mail is kept unsent, and the others are delivered."""
    damaged = await gateways.add("nobody@example.com")
    await gateways.add()
    if column == "id" and gateways.engine.dialect.name == "postgresql":
        return  # its column takes nothing else
    value: object = "zz" if column == "id" else 2**62
    async with transaction(gateways.engine) as connection:
        update = sa.text(f"UPDATE outgoing_mail SET {column} = :value WHERE recipient = :to")  # noqa: S608
        await connection.execute(update, {"value": value, "to": damaged.to})
    await gateways.mail_delivery().deliver()
    assert [mail.to for mail in gateways.mailer.delivered] == [TO]
    async with gateways.engine.connect() as connection:
        count = sa.select(sa.func.count()).select_from(OUTGOING_MAIL)
        assert (await connection.execute(count)).scalar_one() == 1


async def test_the_log_contains_no_address(
    gateways: Gateways, caplog: pytest.LogCaptureFixture
) -> None:
    """Log lines about mail contain no addresses and no codes."""
    caplog.set_level(logging.INFO)
    for problem in (MailDeferredError("away"), MailRejectedError("550"), ZeroDivisionError()):
        mail = await gateways.add()
        gateways.mailer.problem = problem
        await gateways.mail_delivery().deliver()
        assert mail.to not in caplog.text
        assert mailed_code(mail, gateways.pepper) not in caplog.text
    assert str(mail.id) in caplog.text


def test_pauses_have_a_maximum(backend: str) -> None:
    """The longest pause is a quarter of an hour."""
    assert pause_after(1) == timedelta(seconds=2)
    assert pause_after(10**6) == LONGEST_PAUSE == timedelta(minutes=15)
