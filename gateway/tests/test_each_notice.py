"""Each kind of notice, from its cause to the four places where people find it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest
from gateway.tests.test_approvals import Desk
from gateway.tests.test_installation_notices import NOW as QUIET_AT
from gateway.tests.test_installation_notices import QUIET
from gateway.tests.test_notice_checks import ELSEWHERE, QUOTA, Checked, notable
from gateway.tests.test_passkeys import _add, _authenticator, _refused, _sign_in
from gateway.tests.world import ATTRIBUTION, HERE, World
from standardwebhooks import Webhook as OtherWebhook
from standardwebhooks.webhooks import WebhookVerificationError

from pqkeep_gateway.access.admission import Busy
from pqkeep_gateway.access.api_key_limits import ApiKeyLimits
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.access.scopes import Scope, Scopes
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.management.installation_notices import findings
from pqkeep_gateway.notices import KINDS, OPERATOR_KINDS, TENANT_KINDS, Details, Finding, NoticeKind
from pqkeep_gateway.outgoing_mail import MailKind, compose
from pqkeep_gateway.storage.database import transaction
from pqkeep_gateway.storage.last_uses import LEARNING
from pqkeep_gateway.storage.notices import MAIL_PAUSE, NotDismissibleError
from pqkeep_gateway.storage.sessions import RefreshTokenReusedError
from pqkeep_gateway.storage.webhooks import DISABLED_AFTER, Pauses, Result, SqlWebhooks, publish
from pqkeep_gateway.webhooks import Message, Webhook, WebhookState, new_salt
from pqkeep_protocol.audit import DeniedUses
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION

USE = ApiKeyLimits(scopes=Scopes((Scope(operations=("use",)),)))
SOON = timedelta(seconds=30)
OPERATOR = "ops@example.com"


class Watched:
    """A tenant with an owner and a webhook, and the causes of notices."""

    def __init__(self, world: World, owner: SessionPrincipal) -> None:
        self.world = world
        self.owner = owner
        self.checked = Checked(world)
        self.webhooks = SqlWebhooks(world.engine)
        self.webhook: Webhook

    async def add_webhook(self, name: str, *kinds: str) -> Webhook:
        """Store a webhook."""
        webhook = Webhook(
            id=uuid4(),
            tenant=self.world.tenant.id,
            name=name,
            url="https://hooks.example.com/",
            salt=new_salt(),
            kinds=kinds,
            created_at=date_of(self.world.now),
            created_by="user:1",
        )
        created = event(ATTRIBUTION, webhook.tenant, AuditEvent.CREATE_WEBHOOK)
        await self.webhooks.add(webhook, created)
        return webhook

    async def take(self) -> list[tuple[str, str]]:
        """Take all messages as a receiver that is not ours; return webhook and type of each."""
        taken = []
        self.world.now += 1
        now, real = date_of(self.world.now), datetime.fromtimestamp(int(time.time()), UTC)
        while found := await self.webhooks.claim(100, 100, now, now + SOON):
            for due in found:
                message, body = str(due.delivery.id), due.delivery.body.encode()
                secret = due.webhook.secret(self.world.pepper)
                headers = {
                    "webhook-id": message,
                    "webhook-timestamp": str(int(real.timestamp())),
                    "webhook-signature": due.webhook.signatures(
                        self.world.pepper, message, real, body
                    ),
                }
                content = OtherWebhook(secret).verify(body, headers)
                with pytest.raises(WebhookVerificationError):
                    OtherWebhook(secret).verify(body + b" ", headers)
                taken.append((due.webhook.name, content["type"]))
                pauses = Pauses(SOON, SOON)
                assert await self.webhooks.settle(due, Result(status=204), pauses, now)
        return taken

    # --- Causes -------------------------------------------------------------------------------

    def survey(self, **facts: object) -> None:
        """Let the key service know these facts as well."""
        self.checked.keys.survey = msgspec.structs.replace(self.checked.keys.survey, **facts)

    async def old(self) -> None:
        self.survey(old=notable())

    async def unused(self) -> None:
        self.survey(unused=notable())

    async def scheduled(self) -> None:
        self.survey(scheduled=notable())

    async def denied(self) -> None:
        at = date_of(self.world.now) + timedelta(days=9)
        self.survey(denied=(DeniedUses("no-kyber", at, 7),))

    async def expiring(self) -> None:
        ends = date_of(self.world.now) + timedelta(days=9)
        limits = ApiKeyLimits(scopes=USE.scopes, expires_at=ends)
        await self.world.api_keys.create(self.world.tenant, ATTRIBUTION, limits=limits)

    async def api_key_unused(self) -> None:
        await self.world.api_keys.create(self.world.tenant, ATTRIBUTION, limits=USE)
        self.world.now += timedelta(days=91).total_seconds()

    async def new_network(self) -> None:
        world = self.world
        made = await world.api_keys.create(world.tenant, ATTRIBUTION, limits=USE)
        digest = world.pepper.digest(made.plaintext)
        self.checked.last_uses.note(digest, HERE, world.now)
        await self.checked.last_uses.store()
        world.now += LEARNING.total_seconds()
        self.checked.last_uses.note(digest, ELSEWHERE, world.now)
        await self.checked.last_uses.store()

    async def too_powerful(self) -> None:
        await self.world.api_keys.create(self.world.tenant, ATTRIBUTION)

    async def refusals(self) -> None:
        self.checked.keys.refusals = {1: 10}

    async def rate_limit(self) -> None:
        self.checked.used_up = {self.world.tenant.id: Busy(3, "ci", 4120)}

    async def quota(self) -> None:
        month = f"{date_of(self.world.now):%Y-%m}"
        assert await self.checked.usage.reserve(self.world.tenant.id, month, QUOTA, 800)

    async def member(self) -> None:
        await self.world.join(Role.VIEWER, "grace@example.com")

    async def approval(self) -> None:
        desk = Desk(self.world)
        await self.world.person("bob@example.com")
        await desk.approvals.require(self.world.tenant.id, ATTRIBUTION, required=True)
        await desk.ask(self.owner)

    async def disabled_webhook(self) -> None:
        webhook = await self.add_webhook("failing", "key-destruction")
        world, pauses = self.world, Pauses(SOON, SOON)
        for _ in range(2):
            world.now += DISABLED_AFTER.total_seconds()
            now = date_of(world.now)
            async with transaction(world.engine) as connection:
                await publish(connection, webhook.tenant, Message("key-destruction", now, {}))
            for due in await self.webhooks.claim(100, 100, now, now + SOON):
                status = 500 if due.webhook.id == webhook.id else 204
                await self.webhooks.settle(due, Result(status=status), pauses, now)
        stored = await self.webhooks.get(webhook.tenant, webhook.id)
        assert stored.state is WebhookState.DISABLED

    async def factor_removed(self) -> None:
        totp, _ = await self.world.enroll(self.owner)
        self.world.now += 60
        await self.world.factors.disable(self.owner, totp.at(int(self.world.now)), ATTRIBUTION)

    async def passkey_copied(self) -> None:
        device = _authenticator(self.owner, counter=7)
        await _add(self.world, self.owner, device)
        await _sign_in(self.world, device)
        device.counter = 1
        challenge = self.world.passkeys.begin_sign_in("pqw_one", HERE).challenge
        await _refused(self.world, "pqw_one", device.use(challenge))

    async def token_reused(self) -> None:
        world = self.world
        tokens = await world.sessions.begin(await world.account(), ATTRIBUTION)
        await world.sessions.refresh(tokens.refresh, b"browser", ATTRIBUTION)
        world.now += 60
        with pytest.raises(RefreshTokenReusedError):
            await world.sessions.refresh(tokens.refresh, b"thief", ATTRIBUTION)


CAUSES: Mapping[str, Mapping[NoticeKind, Callable[[Watched], Awaitable[None]]]] = {
    "keys": {
        NoticeKind.KEY_DESTRUCTION: Watched.scheduled,
        NoticeKind.KEY_OLD: Watched.old,
        NoticeKind.KEY_UNUSED: Watched.unused,
        NoticeKind.RULE_DENIES: Watched.denied,
        NoticeKind.REFUSALS_RISING: Watched.refusals,
        NoticeKind.RATE_LIMIT_USED_UP: Watched.rate_limit,
        NoticeKind.QUOTA_NEARLY_USED: Watched.quota,
    },
    "API keys in use": {
        NoticeKind.API_KEY_UNUSED: Watched.api_key_unused,
        NoticeKind.API_KEY_NEW_NETWORK: Watched.new_network,
    },
    "new API keys": {
        NoticeKind.API_KEY_EXPIRING: Watched.expiring,
        NoticeKind.API_KEY_TOO_POWERFUL: Watched.too_powerful,
    },
    "people": {
        NoticeKind.WEBHOOK_DISABLED: Watched.disabled_webhook,
        NoticeKind.PASSKEY_COPIED: Watched.passkey_copied,
        NoticeKind.FACTOR_REMOVED: Watched.factor_removed,
        NoticeKind.REFRESH_TOKEN_REUSED: Watched.token_reused,
    },
    "team": {
        NoticeKind.MEMBER_WITHOUT_FACTOR: Watched.member,
        NoticeKind.APPROVAL_WAITING: Watched.approval,
    },
}
"""The causes that one tenant can have together, in the order of their times."""


async def texts_of_mails(world: World, kind: MailKind) -> list[tuple[str, str]]:
    """Take all mail. Return recipient and text, in one line, of the mails of one kind."""
    now, found = date_of(world.now), []
    for mail in await world.mail_outbox.claim(1000, now, now):
        await world.mail_outbox.remove(mail)
        if mail.kind is kind:
            message = compose(mail, world.pepper, "a@example.com", "https://x.example")
            assert message is not None
            found.append((mail.to, " ".join(message.get_content().split())))
    return found


def test_each_kind_has_a_cause() -> None:
    """The table of causes has every kind of a tenant."""
    assert {kind for causes in CAUSES.values() for kind in causes} == set(TENANT_KINDS)


@pytest.mark.threat("hidden-notice")
@pytest.mark.parametrize("area", CAUSES)
async def test_a_cause_reaches_page_bell_mail_and_webhook(world: World, area: str) -> None:
    """The list, the number of new notices, a mail and one signed message follow from each cause.

    A webhook for one kind gets that kind, and a webhook for other kinds gets nothing.
    """
    causes = CAUSES[area]
    watched = Watched(world, await world.person())
    for kind in causes:
        await watched.add_webhook(f"only {kind}", kind)
    for name, kinds in (("all", ()), ("others", ("key-destroyed",))):
        await watched.add_webhook(name, *kinds)
    await watched.checked.open()
    await texts_of_mails(world, MailKind.NOTICES)
    await watched.take()
    world.now += MAIL_PAUSE.total_seconds()
    for cause in causes.values():
        await cause(watched)
    world.now += MAIL_PAUSE.total_seconds()
    notices = await watched.checked.open()
    page = await watched.checked.store.list(world.tenant.id, watched.owner.user)
    mails = [text for _, text in await texts_of_mails(world, MailKind.NOTICES)]
    taken = await watched.take()
    assert page.unseen == page.total >= len(causes)
    assert mails
    assert "others" not in {name for name, _ in taken}
    for kind in causes:
        notice = notices[kind]
        assert notice.text in [shown.text for shown in page.notices]
        assert all(" ".join(notice.text.split()) in text for text in mails)
        assert taken.count(("all", kind)) == 1
        assert [name for name, of in taken if of == kind and name != "all"] == [f"only {kind}"]
        assert {of for name, of in taken if name == f"only {kind}"} == {kind}


@pytest.mark.threat("hidden-notice")
async def test_a_request_for_approval_stays_visible(world: World) -> None:
    """The requester cannot dismiss the notice, so the approvers still see it."""
    watched = Watched(world, await world.person())
    await watched.approval()
    kind = NoticeKind.APPROVAL_WAITING
    notice = (await watched.checked.open())[kind]
    dismissed = event(ATTRIBUTION, world.tenant.id, AuditEvent.DISMISS_NOTICE)
    with pytest.raises(NotDismissibleError):
        await watched.checked.store.dismiss(
            world.tenant.id, notice.id, date_of(world.now), dismissed
        )
    assert kind in await watched.checked.open()


async def test_a_webhook_that_a_person_disables_is_no_notice(world: World) -> None:
    """Only failures open the notice, and enabling the webhook closes it."""
    watched = Watched(world, await world.person())
    await watched.disabled_webhook()
    kind, now = NoticeKind.WEBHOOK_DISABLED, date_of(world.now)
    assert "failing" in (await watched.checked.open())[kind].text
    (webhook,) = await watched.webhooks.list(world.tenant.id)
    for state in (WebhookState.ACTIVE, WebhookState.DISABLED):
        changed = event(ATTRIBUTION, webhook.tenant, AuditEvent.CHANGE_WEBHOOK)
        await watched.webhooks.change(webhook.tenant, webhook.id, changed, now, state=state)
        assert kind not in await watched.checked.open()


async def test_operators_get_each_of_their_notices_by_mail(world: World) -> None:
    """The first turn checks the installation, and mails each kind to the operators' addresses."""
    found = {
        place: finding or Finding(Details(names=("a part",), reason="it is off", at=QUIET_AT))
        for place, finding in findings(QUIET, QUIET_AT).items()
    }
    assert {kind for kind, _ in found} == set(OPERATOR_KINDS)
    checked = Checked(world, operators=(OPERATOR,), installation=found)
    checked.checks.begin()
    assert await checked.checks.check_due() == 1
    page = await checked.store.list(INSTALLATION, None)
    assert {notice.kind for notice in page.notices} == set(OPERATOR_KINDS)
    ((to, text),) = await texts_of_mails(world, MailKind.OPERATOR_NOTICES)
    assert to == OPERATOR
    for (kind, _), finding in found.items():
        assert KINDS[kind].sentence(finding.details) in text
    await checked.checks.check_due()
    assert (await checked.store.list(world.tenant.id, None)).total == 0
    assert await texts_of_mails(world, MailKind.OPERATOR_NOTICES) == []


async def test_a_quiet_tenant_is_checked(world: World) -> None:
    """A tenant without any event is found by the check of the installation."""
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    checked = Checked(world)
    checked.checks.begin()
    await checked.checks.check_due()
    await checked.checks.check_due()
    assert (await checked.store.list(world.tenant.id, None)).total == 1
