"""For each kind of notice, the cause opens it, a mail reports it, and the cause's end closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from gateway.tests.world import ATTRIBUTION, HERE, Called, World, new_tenant

from pqkeep_gateway.access.admission import Busy
from pqkeep_gateway.access.api_key_limits import ApiKeyLimits
from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.clock import date_of
from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.last_uses import LastUses
from pqkeep_gateway.access.scopes import Scope, Scopes
from pqkeep_gateway.notices import Finding, Notice, NoticeKind
from pqkeep_gateway.outgoing_mail import MailKind, compose
from pqkeep_gateway.storage.last_uses import LEARNING, SqlLastUses
from pqkeep_gateway.storage.notices import MAIL_PAUSE, SqlNotices
from pqkeep_gateway.storage.sessions import RefreshTokenReusedError
from pqkeep_gateway.storage.usage import SqlUsage
from pqkeep_gateway.tenancy.notice_checks import NoticeChecks
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    REFUSED,
    CountOperations,
    DeniedUses,
    KeySurvey,
    NotableKey,
    NotableKeys,
    OperationCount,
    OperationCounts,
    SurveyKeys,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution

NONE = NotableKeys(0, 0, ())
ELSEWHERE = "198.51.100.9"
QUOTA = 1_000


@dataclass
class FakeKeys:
    """A key service with settable facts about keys."""

    survey: KeySurvey = field(
        default_factory=lambda: KeySurvey(old=NONE, unused=NONE, scheduled=NONE, denied=())
    )
    refusals: Mapping[int, int] = field(default_factory=dict)
    """By hours ago."""
    is_unavailable: bool = False
    asked: list[SurveyKeys] = field(default_factory=list)

    async def execute(self, request: Any, _: Attribution, /) -> Any:
        if self.is_unavailable:
            raise KeyServiceError(ErrorKind.UNAVAILABLE)
        if isinstance(request, SurveyKeys):
            self.asked.append(request)
            return self.survey
        assert isinstance(request, CountOperations)
        newest = request.since_hour + 23
        return OperationCounts(
            counts=tuple(
                OperationCount(newest - ago, REFUSED, count) for ago, count in self.refusals.items()
            )
        )


class Checked:
    """A tenant with an owner, its checks, and its key service."""

    def __init__(
        self,
        world: World,
        operators: Sequence[str] = (),
        installation: Mapping[tuple[NoticeKind, str], Finding | None] | None = None,
    ) -> None:
        self.world = world
        self.installation = installation or {}
        self.keys = FakeKeys()
        self.store = SqlNotices(world.engine)
        self.used_up: dict[TenantId, Busy | None] = {}
        self.usage = SqlUsage(world.engine)
        self.last_uses = LastUses(SqlLastUses(world.engine))
        self.is_silent = False
        self.asked = asyncio.Event()
        self.checks = NoticeChecks(
            self.store,
            world.stored_tenants,
            Called(cast(Any, self.keys)),
            Quotas(self.usage, dict.fromkeys(Tier, QUOTA), world.clock),
            self.find_installation,
            self.take,
            world.clock,
            operators,
        )

    async def find_installation(self) -> Mapping[tuple[NoticeKind, str], Finding | None]:
        self.asked.set()
        if self.is_silent:
            await asyncio.Event().wait()
        return self.installation

    def take(self) -> Mapping[TenantId, Busy | None]:
        taken, self.used_up = self.used_up, {}
        return taken

    async def open(self) -> dict[NoticeKind, Notice]:
        """Check, and return the open notices."""
        self.checks.note(self.world.tenant.id)
        assert await self.checks.check_due() >= 1
        page = await self.store.list(self.world.tenant.id, None)
        return {notice.kind: notice for notice in page.notices}

    async def opens(self, kind: NoticeKind) -> str:
        """Check, and return the text of the notice, which a mail also has."""
        await self.mails()  # those of earlier notices
        self.world.now += MAIL_PAUSE.total_seconds()
        notice = (await self.open())[kind]
        texts = await self.mails()
        assert len(texts) == 1, "one mail to the owner"
        assert " ".join(notice.text.split()) in " ".join(texts[0].split())
        assert "https://x.example/portal/notices" in texts[0]
        return notice.text

    async def mails(self) -> list[str]:
        """Take all mail, and return the texts of digests."""
        now = date_of(self.world.now)
        texts = []
        for mail in await self.world.mail_outbox.claim(1000, now, now):
            await self.world.mail_outbox.remove(mail)
            if mail.kind is MailKind.NOTICES:
                message = compose(mail, self.world.pepper, "a@example.com", "https://x.example")
                assert message is not None
                texts.append(message.get_content())
        return texts

    async def closes(self, kind: NoticeKind) -> None:
        """Check that the notice is closed."""
        assert kind not in await self.open()


@pytest.fixture
async def checked(world: World) -> Checked:
    """A tenant with an owner who has a second factor."""
    person = await world.person()
    await world.enroll(person)
    return Checked(world)


def notable(at_us: int = 1_800_000_000_000_000) -> NotableKeys:
    """Return one key version."""
    key = NotableKey(DEFAULT_KEYRING, Algorithm.ML_KEM_768, KeyVersion(2), at_us)
    return NotableKeys(1, at_us, (key,))


@pytest.mark.parametrize(
    ("kind", "survey"),
    [
        (NoticeKind.KEY_OLD, {"old": notable()}),
        (NoticeKind.KEY_UNUSED, {"unused": notable()}),
        (NoticeKind.KEY_DESTRUCTION, {"scheduled": notable()}),
    ],
)
async def test_keys_open_notices(
    checked: Checked, kind: NoticeKind, survey: dict[str, NotableKeys]
) -> None:
    """The key is named; an unavailable key service closes nothing; the end of the cause does."""
    facts: dict[str, Any] = {"old": NONE, "unused": NONE, "scheduled": NONE, "denied": ()}
    checked.keys.survey = KeySurvey(**{**facts, **survey})
    assert "default/Kyber768 v2" in await checked.opens(kind)
    checked.keys.is_unavailable = True
    assert kind in await checked.open()
    checked.keys.is_unavailable = False
    checked.keys.survey = KeySurvey(**facts)
    await checked.closes(kind)


async def test_a_rule_about_to_deny_opens_a_notice(checked: Checked) -> None:
    """The notice names the rule and the uses that are left."""
    at = date_of(checked.world.now) + timedelta(days=9)
    checked.keys.survey = KeySurvey(
        old=NONE, unused=NONE, scheduled=NONE, denied=(DeniedUses("no-kyber", at, 7),)
    )
    text = await checked.opens(NoticeKind.RULE_DENIES)
    assert "no-kyber" in text
    assert "7 uses" in text


async def test_rising_refusals_and_a_used_quota_open_notices(checked: Checked) -> None:
    """Ten refusals after a quiet day are a rise, and four fifths of a quota are nearly all."""
    world = checked.world
    checked.keys.refusals = {1: 10, 9: 9}
    assert "10 in the last 4 hours" in await checked.opens(NoticeKind.REFUSALS_RISING)
    checked.keys.refusals = {1: 10, 9: 10}
    await checked.closes(NoticeKind.REFUSALS_RISING)
    month = f"{date_of(world.now):%Y-%m}"
    assert await checked.usage.reserve(world.tenant.id, month, QUOTA, 799)
    await checked.closes(NoticeKind.QUOTA_NEARLY_USED)
    assert await checked.usage.reserve(world.tenant.id, month, QUOTA, 1)
    assert "800 of this month's 1,000" in await checked.opens(NoticeKind.QUOTA_NEARLY_USED)


async def test_a_used_up_rate_limit_names_the_api_key(checked: Checked) -> None:
    """The gateway that refused opens the notice, and it closes when refusals end."""
    checked.used_up = {checked.world.tenant.id: Busy(3, "ci", 4120)}
    assert "API key 3 (ci) sent 4,120" in await checked.opens(NoticeKind.RATE_LIMIT_USED_UP)
    checked.world.now += 900
    await checked.closes(NoticeKind.RATE_LIMIT_USED_UP)


async def test_api_keys_open_notices(checked: Checked) -> None:
    """Without scopes, about to expire, unused: each by its own cause, and revoking closes all."""
    world = checked.world
    made = await world.api_keys.create(world.tenant, ATTRIBUTION)
    assert "has no scopes" in await checked.opens(NoticeKind.API_KEY_TOO_POWERFUL)
    found = await checked.open()
    assert NoticeKind.API_KEY_UNUSED not in found
    world.now += timedelta(days=90).total_seconds()
    assert "90 days" in await checked.opens(NoticeKind.API_KEY_UNUSED)
    scopes = Scopes((Scope(operations=("use",)),))
    ends = date_of(world.now) + timedelta(days=15)
    await world.api_keys.create(
        world.tenant, ATTRIBUTION, limits=ApiKeyLimits(scopes=scopes, expires_at=ends)
    )
    assert NoticeKind.API_KEY_EXPIRING not in await checked.open()
    world.now += timedelta(days=2).total_seconds()
    assert "API key 2 expires" in await checked.opens(NoticeKind.API_KEY_EXPIRING)
    for version in (made.metadata.version, 2):
        await world.api_keys.revoke(world.tenant.id, version, ATTRIBUTION)
    assert await checked.open() == {}


async def test_an_api_key_that_only_uses_keys_needs_no_administration(checked: Checked) -> None:
    """Thirty days of encrypting with an administering API key open the notice; managing closes."""
    world = checked.world
    scopes = Scopes((Scope(operations=("use", "administer")),))
    made = await world.api_keys.create(
        world.tenant, ATTRIBUTION, limits=ApiKeyLimits(scopes=scopes)
    )
    digest = world.pepper.digest(made.plaintext)
    world.now += timedelta(days=31).total_seconds()
    assert NoticeKind.API_KEY_TOO_POWERFUL not in await checked.open()
    checked.last_uses.note(digest, HERE, world.now)
    await checked.last_uses.store()
    text = await checked.opens(NoticeKind.API_KEY_TOO_POWERFUL)
    assert "may administer, and only uses keys" in text
    checked.last_uses.note_administration(world.tenant.id, made.metadata.version, world.now)
    await checked.last_uses.store()
    await checked.closes(NoticeKind.API_KEY_TOO_POWERFUL)


async def test_a_new_network_of_an_api_key_opens_a_notice(checked: Checked) -> None:
    """One use from elsewhere between many is enough; the first day is for learning."""
    world, kind = checked.world, NoticeKind.API_KEY_NEW_NETWORK
    made = await world.api_keys.create(world.tenant, ATTRIBUTION)
    digest = world.pepper.digest(made.plaintext)
    for address in (HERE, "203.0.113.1"):
        checked.last_uses.note(digest, address, world.now)
    await checked.last_uses.store()
    assert kind not in await checked.open()
    world.now += LEARNING.total_seconds()
    for address in (HERE, ELSEWHERE, "192.0.2.99", HERE):
        checked.last_uses.note(digest, address, world.now)
    await checked.last_uses.store()
    text = await checked.opens(kind)
    assert f"API key 1 was used from a new network: {ELSEWHERE}" in text
    await world.api_keys.revoke(world.tenant.id, 1, ATTRIBUTION)
    await checked.closes(kind)


async def test_members_open_notices(checked: Checked) -> None:
    """A member without a factor, a removed factor and a copied refresh token are told."""
    world = checked.world
    tokens = await world.join(Role.VIEWER, "grace@example.com")
    grace = await world.principal(tokens)
    assert "grace@example.com has no" in await checked.opens(NoticeKind.MEMBER_WITHOUT_FACTOR)
    totp, _ = await world.enroll(grace)
    await checked.closes(NoticeKind.MEMBER_WITHOUT_FACTOR)
    world.now += 60
    await world.factors.disable(grace, totp.at(int(world.now)), ATTRIBUTION)
    assert "grace@example.com removed" in await checked.opens(NoticeKind.FACTOR_REMOVED)
    await world.sessions.refresh(tokens.refresh, b"browser", ATTRIBUTION)
    world.now += 60
    with pytest.raises(RefreshTokenReusedError):
        await world.sessions.refresh(tokens.refresh, b"thief", ATTRIBUTION)
    text = await checked.opens(NoticeKind.REFRESH_TOKEN_REUSED)
    assert "grace@example.com" in text
    assert HERE in text


async def test_one_tenants_fault_does_not_stop_the_others(checked: Checked) -> None:
    """A tenant that is gone, or a check that fails, is left out; the claim is released."""
    world = checked.world
    gone = new_tenant().id
    checked.checks.note(gone)
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    assert NoticeKind.API_KEY_TOO_POWERFUL in await checked.open()
    now = date_of(world.now)
    assert set(await checked.store.claim([gone, world.tenant.id], now)) == {gone, world.tenant.id}


async def test_a_list_waits_for_the_check_of_an_event(checked: Checked) -> None:
    """After an event in this gateway, the next list has its consequence."""
    world = checked.world
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    await checked.checks.settle(world.tenant.id)
    assert (await checked.store.list(world.tenant.id, None)).total == 0
    checked.checks.note(world.tenant.id)
    await checked.checks.settle(world.tenant.id)
    assert (await checked.store.list(world.tenant.id, None)).total == 1


async def test_events_do_not_delay_a_due_tenant(checked: Checked) -> None:
    """Each turn also checks the longest due tenants, however many events there are."""
    world = checked.world
    await world.api_keys.create(world.tenant, ATTRIBUTION)
    await checked.store.add_missing_checks(10)
    for _ in range(100):
        checked.checks.note(new_tenant().id)
    await checked.checks.check_due()
    assert (await checked.store.list(world.tenant.id, None)).total == 1


async def test_a_slow_check_does_not_delay_the_end(checked: Checked) -> None:
    """A cancelled check ends at once, and does not wait for the much longer pause."""
    checked.is_silent = True
    running = asyncio.create_task(checked.checks.run())
    await checked.asked.wait()
    await asyncio.sleep(0.3)  # the pause would be 6 s
    running.cancel()
    ended, _ = await asyncio.wait([running], timeout=3)
    assert ended
