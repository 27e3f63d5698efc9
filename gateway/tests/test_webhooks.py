"""Webhooks get each message, signed and bounded, from one gateway at a time: on either database."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import sqlalchemy as sa
from gateway.tests.world import ATTRIBUTION, EMAIL, World, add_tenant, new_tenant
from sqlalchemy.ext.asyncio import AsyncEngine
from standardwebhooks import Webhook as OtherWebhook
from standardwebhooks.webhooks import WebhookVerificationError
from tests.fixtures.certificate import new_certificate
from tests.fixtures.webhook_receiver import CLOSED, receiving
from tests.patience import PATIENCE

from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.delivery import webhooks as delivery_module
from pqkeep_gateway.delivery.public_addresses import PublicAddresses
from pqkeep_gateway.delivery.webhooks import (
    ATTEMPTS,
    LEASE,
    LONGEST_PAUSE,
    WebhookDelivery,
    pause_after,
)
from pqkeep_gateway.notices import Details, NoticeKind
from pqkeep_gateway.outgoing_mail import MailKind
from pqkeep_gateway.storage import webhooks as storage
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.notices import open_notice
from pqkeep_gateway.storage.schema import OUTGOING_MAIL, WEBHOOK_DELIVERIES, WEBHOOKS
from pqkeep_gateway.storage.webhooks import DISABLED_AFTER, SqlWebhooks, delete_webhooks, publish
from pqkeep_gateway.webhooks import (
    Delivery,
    DeliveryState,
    Message,
    Problem,
    Webhook,
    WebhookState,
    new_salt,
)
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import TenantId

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

LOOPBACK = Networks(("127.0.0.0/8",))


class Gateways:
    """Gateways that share a database and a settable clock."""

    def __init__(self, world: World, engine: AsyncEngine, pepper: Pepper) -> None:
        self.now = time.time()
        self.world = world
        self.engine = engine
        self.pepper = pepper
        self.stored = SqlWebhooks(engine)
        self.tenant = world.tenant.id

    def delivery(self, allowed: Networks = LOOPBACK, seconds: float = 30.0) -> WebhookDelivery:
        """Return the delivery of another gateway."""
        addresses = PublicAddresses(allowed)
        return WebhookDelivery(
            self.stored, self.pepper, addresses, lambda: self.now, seconds=seconds
        )

    async def add(self, url: str, name: str = "on-call", tenant: TenantId | None = None) -> Webhook:
        """Store a webhook."""
        owner = tenant or self.tenant
        webhook = Webhook(
            id=uuid4(),
            tenant=owner,
            name=name,
            url=url,
            salt=new_salt(),
            created_at=date_of(self.now),
            created_by="user:1",
        )
        await self.stored.add(webhook, event(ATTRIBUTION, owner, AuditEvent.CREATE_WEBHOOK))
        return webhook

    async def publish(self, tenant: TenantId | None = None, text: str = "gone") -> None:
        """Publish a message to all webhooks of a tenant, a millisecond after the last one."""
        self.now += 0.001
        message = Message("key-destruction", date_of(self.now), {"text": text})
        async with transaction(self.engine) as connection:
            await publish(connection, tenant or self.tenant, message)

    async def deliveries(self, webhook: Webhook) -> list[Delivery]:
        """Return a webhook's messages, oldest first."""
        listed, _ = await self.stored.list_deliveries(webhook.tenant, webhook.id, 1000)
        return list(reversed(listed))

    async def last(self, webhook: Webhook) -> Delivery:
        """Return a webhook's newest message."""
        return (await self.deliveries(webhook))[-1]

    async def get(self, webhook: Webhook) -> Webhook:
        """Return a webhook as it is stored."""
        return await self.stored.get(webhook.tenant, webhook.id)


@pytest.fixture
def gateways(world: World, engine: AsyncEngine, pepper: Pepper) -> Gateways:
    """A tenant without webhooks."""
    return Gateways(world, engine, pepper)


async def test_a_receiver_that_is_not_ours_verifies_each_message(
    gateways: Gateways, pepper: Pepper
) -> None:
    """The reference library accepts the signature; another secret or a changed byte fails."""
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url + "?channel=7")
        await gateways.publish()
        await gateways.delivery().send()
        (received,) = receiver.requests
        secret = webhook.secret(pepper)
        content = receiver.take(received, secret)
        assert content["type"] == "key-destruction"
        assert content["data"] == {"text": "gone"}
        assert received.path == "/hook?channel=7"
        assert received.headers["content-type"] == "application/json"
        received.body += b" "
        with pytest.raises(WebhookVerificationError):
            OtherWebhook(secret).verify(received.body, received.headers)
        with pytest.raises(WebhookVerificationError):
            OtherWebhook(webhook.secret(Pepper(bytes(32)))).verify(
                received.body[:-1], received.headers
            )
    sent = await gateways.last(webhook)
    assert (str(sent.id), sent.state, sent.status) == (received.id, DeliveryState.DELIVERED, 204)


async def test_each_notice_that_opens_or_grows_is_a_message(
    gateways: Gateways, pepper: Pepper
) -> None:
    """A webhook gets a stored notice with text and page.

    It gets the notice again if raised again.
    """
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url)
        for _ in range(2):
            async with transaction(gateways.engine) as connection:
                await open_notice(
                    connection,
                    gateways.tenant,
                    NoticeKind.FACTOR_REMOVED,
                    "",
                    Details(names=("ada@example.com",), at=date_of(gateways.now)),
                    date_of(gateways.now),
                )
            gateways.now += 1
        await gateways.delivery().send()
    contents = [receiver.take(received, webhook.secret(pepper)) for received in receiver.requests]
    assert [content["type"] for content in contents] == ["factor-removed"] * len(contents)
    first = contents[0]["data"]
    assert (first["severity"], first["details"]["names"]) == ("danger", ["ada@example.com"])
    assert first["text"].startswith("ada@example.com removed the second factor")
    assert first["page"].startswith("/portal/audit?")


@pytest.mark.threat("replayed-webhook")
async def test_a_replay_is_refused_by_time_and_by_id(gateways: Gateways, pepper: Pepper) -> None:
    """An old timestamp fails the receiver's check, and so does an id that it has taken."""
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        await gateways.delivery().send()
        gateways.now -= 600
        await gateways.publish()
        gateways.now += 1
        await gateways.delivery().send()
    fresh, old = receiver.requests
    secret = webhook.secret(pepper)
    receiver.take(fresh, secret)
    with pytest.raises(KeyError):
        receiver.take(fresh, secret)
    with pytest.raises(WebhookVerificationError, match="too old"):
        receiver.take(old, secret)
    old.headers["webhook-timestamp"] = fresh.headers["webhook-timestamp"]
    with pytest.raises(WebhookVerificationError, match="signature"):
        receiver.take(old, secret)


async def test_failed_messages_are_sent_again_with_growing_pauses(
    gateways: Gateways, pepper: Pepper
) -> None:
    """After 500, a closed connection and 302 the same message comes again, with a new signature."""
    with receiving(500, CLOSED, 302) as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        delivery = gateways.delivery()
        seen = []
        for pause in (5, 20, 80):
            await delivery.send()
            waiting = await gateways.last(webhook)
            seen.append((waiting.status, waiting.problem))
            assert waiting.state is DeliveryState.WAITING
            count = len(receiver.requests)
            gateways.now += pause - 0.5
            await delivery.send()
            assert len(receiver.requests) == count
            gateways.now += 0.5
        await delivery.send()
    assert seen == [(500, None), (None, Problem.CONNECTION), (302, None)]
    assert len({received.id for received in receiver.requests}) == 1
    assert [received.path for received in receiver.requests] == ["/hook"] * 4
    stamps = [received.headers["webhook-timestamp"] for received in receiver.requests]
    assert len(set(stamps)) == 4
    assert delivery.attempts == {"refused": 2, "connection-failed": 1, "delivered": 1}
    sent = await gateways.last(webhook)
    assert (sent.state, sent.attempts, sent.status) == (DeliveryState.DELIVERED, 4, 204)
    after = await gateways.get(webhook)
    assert (after.failures, after.failing_since) == (0, None)


def test_pauses_grow_up_to_four_hours(backend: str) -> None:
    """The pauses quadruple from five seconds up to four hours, for any number of attempts."""
    pauses = [pause_after(attempts) for attempts in range(1, 9)]
    assert pauses[:4] == [timedelta(seconds=seconds) for seconds in (5, 20, 80, 320)]
    assert pauses[-1] == pause_after(10**6) == LONGEST_PAUSE


async def test_two_gateways_send_each_message_once(gateways: Gateways) -> None:
    """Of several gateways that look at the same time, one sends each message."""
    with receiving() as receiver:
        await gateways.add(receiver.url)
        for _ in range(5):
            await gateways.publish()
        await asyncio.gather(*(gateways.delivery().send() for _ in range(4)))
        while len(receiver.requests) < 5:
            await asyncio.gather(*(gateways.delivery().send() for _ in range(4)))
    assert len({received.id for received in receiver.requests}) == 5
    assert len(receiver.requests) == 5


async def test_a_gateway_that_is_killed_loses_nothing(gateways: Gateways) -> None:
    """If a gateway ends, another gateway sends its message after the lease, with the same id."""
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        now = date_of(gateways.now)
        (held,) = await gateways.stored.claim(ATTEMPTS, ATTEMPTS, now, now + LEASE)
        await gateways.delivery().send()
        assert receiver.requests == []
        await gateways.publish(text="second")
        gateways.now += LEASE.total_seconds()
        await gateways.delivery().send()
        assert receiver.requests[0].id == str(held.delivery.id)
        assert len(receiver.requests) == 2
        late = storage.Result(status=500)
        pauses = storage.Pauses(LEASE, LEASE)
        assert not await gateways.stored.settle(held, late, pauses, date_of(gateways.now))
    assert {sent.state for sent in await gateways.deliveries(webhook)} == {DeliveryState.DELIVERED}


@pytest.mark.threat("webhook-into-the-network")
async def test_addresses_of_the_own_network_get_nothing(gateways: Gateways) -> None:
    """Without the operator's setting, loopback is not reached: by address, name, or redirect."""
    with receiving() as receiver, receiving(307) as redirecting:
        port = receiver.url.rpartition(":")[2]
        urls = (
            receiver.url,
            f"http://localhost:{port}",
            f"https://localhost:{port}",
            f"https://2130706433:{port}",
            f"https://[::ffff:127.0.0.1]:{port}",
            "https://169.254.169.254/latest/meta-data/",
        )
        webhooks = [await gateways.add(url, f"hook-{n}") for n, url in enumerate(urls)]
        redirected = await gateways.add(redirecting.url, "redirected")
        await gateways.publish()
        inside = gateways.delivery(Networks(()))
        await inside.send()
        problems = {(await gateways.last(webhook)).problem for webhook in webhooks}
        assert problems == {Problem.ADDRESS}
        assert receiver.requests == redirecting.requests == []
        gateways.now += 5
        await gateways.delivery().send()
        assert (await gateways.last(redirected)).status == 307
        assert [received.path for received in redirecting.requests] == ["/hook"]


@pytest.mark.threat("webhook-into-the-network")
async def test_a_name_that_changes_is_checked_at_each_attempt(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that pointed to an allowed address and then points elsewhere gets nothing."""
    resolve = socket.getaddrinfo
    place = ["127.0.0.1"]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *rest, **named: resolve(place[0], *rest, **named)
    )
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url.replace("127.0.0.1", "hooks.example"))
        await gateways.publish()
        await gateways.delivery().send()
        place[0] = "169.254.169.254"
        await gateways.publish()
        await gateways.delivery().send()
    assert len(receiver.requests) == 1
    assert receiver.requests[0].headers["host"].startswith("hooks.example:")
    assert (await gateways.last(webhook)).problem is Problem.ADDRESS


def _endless(interim: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def respond(peer: socket.socket) -> None:
        with suppress(OSError):
            peer.sendall(interim)
            while True:
                peer.sendall(piece)
                time.sleep(0.01)

    return respond


@pytest.mark.threat("hostile-webhook-receiver")
@pytest.mark.parametrize(
    ("interim", "piece", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x", None),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536, 200),
    ],
)
async def test_slow_and_endless_responses_are_bounded(
    gateways: Gateways, interim: bytes, piece: bytes, status: int | None
) -> None:
    """Endless headers and interim responses end with the attempt's time; a body is not read."""
    with receiving() as receiver:
        receiver.respond = _endless(interim, piece)
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        delivery = gateways.delivery(seconds=0.2 if status is None else 30)
        async with asyncio.timeout(PATIENCE):
            await delivery.send()
            if threads := delivery._threads:
                await asyncio.wait(threads)
    sent = await gateways.last(webhook)
    assert sent.status == status
    assert sent.problem is (None if status else Problem.TIMEOUT)


@pytest.mark.threat("hostile-webhook-receiver")
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4000 + b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + (b"X: " + b"x" * 60_000 + b"\r\n") * 90 + b"\r\n",
    ],
    ids=["interim responses", "headers"],
)
async def test_large_heads_of_responses_are_not_read(gateways: Gateways, head: bytes) -> None:
    """An attempt fails after 64 KiB of headers or interim responses, so it costs little memory."""

    def respond(peer: socket.socket) -> None:
        with suppress(OSError):
            peer.sendall(head)

    with receiving() as receiver:
        receiver.respond = respond
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        await gateways.delivery().send()
    assert (await gateways.last(webhook)).problem is Problem.RESPONSE


@pytest.mark.threat("hostile-webhook-receiver")
async def test_the_receiver_s_certificate_is_verified(
    gateways: Gateways, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that the system does not trust gets no message; a trusted one does."""
    certificate = new_certificate(tmp_path)
    with receiving(tls=certificate.context) as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        await gateways.delivery().send()
        assert receiver.requests == []
        assert (await gateways.last(webhook)).problem is Problem.TLS
        gateways.now += 5
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
        await gateways.delivery().send()
        assert len(receiver.requests) == 1


@pytest.mark.threat("hostile-webhook-receiver")
async def test_failing_receivers_do_not_starve_a_good_one(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers that hang use only their part of the attempts; a good one gets its own."""
    monkeypatch.setattr(delivery_module, "ATTEMPTS", 8)
    monkeypatch.setattr(delivery_module, "UNPROVEN_ATTEMPTS", 6)
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        good = await gateways.add(receiver.url)
        await gateways.publish()
        await gateways.delivery().send()
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        other = await add_tenant(gateways.engine, new_tenant("other"))
        hung = await gateways.add(f"http://127.0.0.1:{silent.getsockname()[1]}/", "hung", other.id)
        await gateways.publish(other.id)
        await _copy(gateways, hung, 50)
        delivery = gateways.delivery(seconds=60)
        assert await delivery.begin()
        gateways.now += 10
        await gateways.publish()
        assert await delivery.begin()
        async with asyncio.timeout(PATIENCE):
            while len(receiver.requests) < 2:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.01)
        assert not await delivery.begin()
        silent.close()
        for attempt in list(delivery._attempts):
            attempt.cancel()
    assert good.name == "on-call"


@pytest.mark.threat("accounts-database-writer")
async def test_a_forged_message_is_not_signed(gateways: Gateways) -> None:
    """A message that was written or changed without the pepper is not sent; the next one is."""
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish(text="changed")
        gateways.now += 1
        await gateways.publish(text="true")
        changed, _ = await gateways.deliveries(webhook)
        forged = sa.update(WEBHOOK_DELIVERIES).where(WEBHOOK_DELIVERIES.c.id == changed.id)
        async with transaction(gateways.engine) as connection:
            await connection.execute(forged.values(body='{"type":"key-destruction"}'))
        await gateways.delivery().send()
    assert [b"true" in received.body for received in receiver.requests] == [True]
    assert {sent.state for sent in await gateways.deliveries(webhook)} == {DeliveryState.DELIVERED}


async def _copy(gateways: Gateways, webhook: Webhook, count: int) -> None:
    """Copy a webhook and its message, with other ids and valid MACs."""
    async with transaction(gateways.engine) as connection:
        hooks = (await connection.execute(sa.select(WEBHOOKS))).mappings().all()
        sent = (await connection.execute(sa.select(WEBHOOK_DELIVERIES))).mappings().all()
        hook = next(dict(row) for row in hooks if row["id"] == webhook.id)
        message = next(dict(row) for row in sent if row["webhook_id"] == webhook.id)
        del hook["mac"], message["mac"]
        for number in range(count):
            name = uuid4()
            new = {**hook, "id": name, "name": f"hung-{number}"}
            await connection.execute(sa.insert(WEBHOOKS), new)
            await connection.execute(
                sa.insert(WEBHOOK_DELIVERIES), {**message, "id": uuid4(), "webhook_id": name}
            )


async def test_one_refused_message_does_not_delay_others_for_long(gateways: Gateways) -> None:
    """A message that a receiver never takes gets its own long pauses; new ones go after theirs."""
    with receiving(400, 204, 400) as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish(text="poison")
        delivery = gateways.delivery()
        await delivery.send()
        gateways.now += 1
        await gateways.publish(text="second")
        await delivery.send()
        assert len(receiver.requests) == 1
        gateways.now += 4
        await delivery.send()
        assert len(receiver.requests) == 3
    first, second = await gateways.deliveries(webhook)
    assert (first.state, second.state) == (DeliveryState.WAITING, DeliveryState.DELIVERED)


async def test_a_webhook_that_fails_for_days_is_disabled(gateways: Gateways) -> None:
    """After five days without a success, or 410, the webhook is disabled and owners are told."""
    await gateways.world.person()
    for status, days in ((500, DISABLED_AFTER), (410, timedelta(0))):
        with receiving(*[status] * 3) as receiver:
            webhook = await gateways.add(receiver.url, f"answers-{status}")
            await gateways.publish()
            await gateways.delivery().send()
            if days:
                assert (await gateways.get(webhook)).state is WebhookState.ACTIVE
                gateways.now += days.total_seconds()
                await gateways.publish()
                await gateways.delivery().send()
            assert (await gateways.get(webhook)).state is WebhookState.DISABLED
            last = await gateways.last(webhook)
            assert (last.state, last.problem) == (DeliveryState.FAILED, Problem.DISABLED)
            count = len(receiver.requests)
            await gateways.publish()
            await gateways.delivery().send()
            assert len(receiver.requests) == count
    async with transaction(gateways.engine) as connection:
        query = sa.select(OUTGOING_MAIL.c.recipient, OUTGOING_MAIL.c.about).where(
            OUTGOING_MAIL.c.kind == MailKind.WEBHOOK_DISABLED
        )
        told = {tuple(row) for row in await connection.execute(query)}
    assert told == {(EMAIL, "answers-500"), (EMAIL, "answers-410")}


async def test_messages_expire_and_can_be_sent_again(gateways: Gateways) -> None:
    """After three days a message fails; sending it again keeps its id, and starts anew."""
    with receiving(500) as receiver:
        webhook = await gateways.add(receiver.url)
        await gateways.publish()
        await gateways.delivery().send()
        gateways.now += timedelta(days=3).total_seconds()
        await gateways.delivery().send()
        expired = await gateways.last(webhook)
        assert (expired.state, expired.problem) == (DeliveryState.FAILED, Problem.EXPIRED)
        assert len(receiver.requests) == 1
        again = await gateways.stored.send_again(
            webhook.tenant,
            webhook.id,
            expired.id,
            date_of(gateways.now),
            event(ATTRIBUTION, webhook.tenant, AuditEvent.RESEND_WEBHOOK_DELIVERY),
        )
        assert (again.state, again.attempts) == (DeliveryState.WAITING, 0)
        await gateways.delivery().send()
    assert [received.id for received in receiver.requests] == [str(expired.id)] * 2
    assert (await gateways.last(webhook)).state is DeliveryState.DELIVERED


async def test_a_rotated_secret_signs_beside_the_new_one(
    gateways: Gateways, pepper: Pepper
) -> None:
    """During the overlap both secrets verify; after it, and with no overlap, only the new one."""
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url)
        rotate = event(ATTRIBUTION, webhook.tenant, AuditEvent.ROTATE_WEBHOOK_SECRET)
        rotated = await gateways.stored.rotate_secret(
            webhook.tenant, webhook.id, timedelta(minutes=2), date_of(gateways.now), rotate
        )
        old, new = webhook.secret(pepper), rotated.secret(pepper)
        await gateways.publish()
        await gateways.delivery().send()
        gateways.now += 120
        await gateways.publish()
        await gateways.delivery().send()
        again = event(ATTRIBUTION, webhook.tenant, AuditEvent.ROTATE_WEBHOOK_SECRET)
        newest = await gateways.stored.rotate_secret(
            webhook.tenant, webhook.id, timedelta(0), date_of(gateways.now), again
        )
        await gateways.publish()
        await gateways.delivery().send()
    both, one, last = receiver.requests
    for secret in (old, new):
        OtherWebhook(secret).verify(both.body, both.headers)
    OtherWebhook(new).verify(one.body, one.headers)
    OtherWebhook(newest.secret(pepper)).verify(last.body, last.headers)
    for secret, received in ((old, one), (new, last)):
        with pytest.raises(WebhookVerificationError):
            OtherWebhook(secret).verify(received.body, received.headers)


@pytest.mark.threat("accounts-database-writer")
async def test_a_row_that_no_gateway_wrote_gets_nothing(gateways: Gateways) -> None:
    """A webhook with a URL or salt that was changed in the database is ignored and not listed."""
    with receiving() as receiver:
        webhook = await gateways.add("http://127.0.0.1:1/")
        async with transaction(gateways.engine) as connection:
            await connection.execute(sa.update(WEBHOOKS).values(url=receiver.url))
        await gateways.publish()
        await gateways.delivery().send()
        assert receiver.requests == []
    assert await gateways.stored.list(webhook.tenant) == []


async def test_the_secret_is_not_in_the_database(
    gateways: Gateways, pepper: Pepper, caplog: pytest.LogCaptureFixture
) -> None:
    """The row has only salts; another tenant's or webhook's row derives another secret."""
    webhook = await gateways.add("https://hooks.example.com/T0K3N")
    async with transaction(gateways.engine) as connection:
        row = str((await connection.execute(sa.select(WEBHOOKS))).one())
    assert webhook.secret(pepper)[6:] not in row
    others = {
        Webhook(
            id=name,
            tenant=tenant,
            name="",
            url="",
            salt=webhook.salt,
            created_at=webhook.created_at,
            created_by="",
        ).secret(pepper)
        for name, tenant in (
            (uuid4(), webhook.tenant),
            (webhook.id, TenantId(uuid4())),
            (webhook.id, webhook.tenant),
        )
    }
    assert len(others) == 3
    assert webhook.secret(pepper) in others
    assert "T0K3N" not in repr(webhook) + caplog.text


async def test_kept_messages_are_bounded(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit, the oldest messages are deleted, finished ones first.

    Old finished ones go too.
    """
    monkeypatch.setattr(storage, "MAX_KEPT", 3)
    with receiving() as receiver:
        webhook = await gateways.add(receiver.url)
        for text in ("a", "b"):
            await gateways.publish(text=text)
            await gateways.delivery().send()
            gateways.now += 1
        receiver.script[:] = [500] * 9
        for text in ("c", "d"):
            await gateways.publish(text=text)
            gateways.now += 1
        states = [sent.state for sent in await gateways.deliveries(webhook)]
        assert states == [DeliveryState.DELIVERED, DeliveryState.WAITING, DeliveryState.WAITING]
        gateways.now += timedelta(days=31).total_seconds()
        await gateways.delivery().send()
        states = [sent.state for sent in await gateways.deliveries(webhook)]
        assert states == [DeliveryState.FAILED] * 2


async def test_the_deletion_of_a_tenant_ends_its_webhooks(gateways: Gateways) -> None:
    """Webhooks and messages go with their tenant, and another tenant's stay."""
    other = await add_tenant(gateways.engine, new_tenant("other"))
    with receiving() as receiver:
        await gateways.add(receiver.url)
        kept = await gateways.add(receiver.url, tenant=other.id)
        await gateways.publish()
        await gateways.publish(other.id)
        async with transaction(gateways.engine) as connection:
            await delete_webhooks(connection, gateways.tenant)
        await gateways.delivery().send()
        assert len(receiver.requests) == 1
    assert await gateways.stored.list(gateways.tenant) == []
    assert [webhook.id for webhook in await gateways.stored.list(other.id)] == [kept.id]


async def test_a_stored_message_wakes_the_delivery(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published message wakes an idle gateway at once, and ending it ends its attempts."""
    monkeypatch.setattr(delivery_module, "IDLE_SECONDS", 10_000.0)
    monkeypatch.setattr(delivery_module, "POLL_SECONDS", 0.01)
    with receiving() as receiver:
        await gateways.add(receiver.url)
        running = asyncio.create_task(gateways.delivery().run())
        try:
            async with asyncio.timeout(PATIENCE):
                for count in (1, 2):
                    await gateways.publish()
                    while len(receiver.requests) < count:  # noqa: ASYNC110 - another thread's
                        await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.wait([running])
