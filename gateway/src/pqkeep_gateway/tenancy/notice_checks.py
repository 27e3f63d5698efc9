"""Checks the notices of all tenants in the background, and at once after an event.

A gateway claims the longest due tenants, gets their facts and applies the rules. Another gateway
takes over if it ends. The pause after a check is proportional to its duration, so checks give way
to requests: if the databases are busy, a check takes longer, and so does the pause. A request that
changes a key, an API key or a member makes its tenant due at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from uuid import uuid4

from pqkeep_gateway.access.admission import Busy
from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.background import repeat
from pqkeep_gateway.notices import Finding, Notice, NoticeKind
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.storage.notices import PERIOD, NoticePage, SqlNotices
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.tenancy.notice_rules import Facts, findings
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import REFUSED, CountOperations, KeySurvey, SurveyKeys
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

POLL_SECONDS = 10.0
"""The time between two searches for due tenants."""
AT_ONCE = 16
"""Tenants that are claimed at once."""
IDLE_PART = 19
"""Pauses are so many times longer than checks: at most a twentieth of the time is spent."""
MOST_NOTED = 10_000
"""Tenants with an event that wait for their check. Others are due in PERIOD anyway."""
NEW_CHECKS = 500
"""Checks that are added at once for tenants without one."""
SETTLE_SECONDS = 2.0
"""The longest wait of a list for a check that has begun."""
HOURS = 24
_HOUR_SECONDS = 3600
_ATTRIBUTION = Attribution("", "gateway", "")

FindInstallation = Callable[[], Awaitable[Mapping[tuple[NoticeKind, str], Finding | None]]]
"""Returns what the rules for operators find, by kind and subject."""


class NoticeChecks:
    """Checks tenants, and the installation."""

    def __init__(
        self,
        store: SqlNotices,
        tenants: SqlTenants,
        keys: TenantKeyService,
        quotas: Quotas,
        find_installation: FindInstallation,
        take_refused: Callable[[], Mapping[TenantId, Busy | None]],
        clock: Clock,
        operators: Sequence[str] = (),
    ) -> None:
        """Take the function that returns tenants with a used-up rate limit since its last call.

        ``operators``: the e-mail addresses that get notices about the installation.
        """
        self._operators = operators
        self._store = store
        self._tenants = tenants
        self._keys = keys
        self._quotas = quotas
        self._find_installation = find_installation
        self._take_refused = take_refused
        self._clock = clock
        self._noted: dict[TenantId, None] = {}
        """The tenants with an event since the last check, the oldest event first."""
        self._begun: dict[TenantId, asyncio.Event] = {}
        """The noted tenants that are being checked here. The event is set when the check ends."""
        self._wake = asyncio.Event()

    def note(self, tenant: TenantId) -> None:
        """Note an event after which a tenant must be checked. It costs one dictionary entry."""
        if len(self._noted) < MOST_NOTED:
            self._noted[tenant] = None
            self._wake.set()

    def begin(self) -> None:
        """Let the installation be checked. That check finds tenants without a check of their own."""
        self.note(INSTALLATION)

    async def run(self) -> None:
        """Check until cancelled."""
        self.begin()
        await repeat(self._turn, 0)

    async def _turn(self) -> None:
        """Check what is due, then wait for an event or POLL_SECONDS."""
        began = perf_counter()
        try:
            checked = await self.check_due()
        except Exception:  # not a cancellation: it must not wait
            await asyncio.sleep(IDLE_PART * (perf_counter() - began))
            raise
        await asyncio.sleep(IDLE_PART * (perf_counter() - began))
        if not checked:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()

    async def check_due(self) -> int:
        """Check tenants with an event, and the longest due ones; return how many.

        Raises UnavailableError.
        """
        await self._report_refused()
        now = date_of(self._clock())
        noted = list(self._noted)[: AT_ONCE // 2]  # so that events do not delay other tenants
        self._begun |= {tenant: asyncio.Event() for tenant in noted if tenant not in self._begun}
        claimed: list[TenantId] = []
        try:
            claimed += await self._store.claim(noted, now) if noted else ()
            for tenant in claimed:
                self._noted.pop(tenant, None)
            claimed += await self._store.claim_due(AT_ONCE - len(claimed), now)
            for tenant in claimed:
                try:
                    await self.check(tenant)
                except UnavailableError:
                    raise
                except Exception:  # noqa: BLE001 - one tenant must not stop the others
                    _LOG.exception("the notices of a tenant cannot be checked", tenant=str(tenant))
        finally:
            try:
                if claimed:
                    await self._store.finish(claimed, date_of(self._clock()) + PERIOD)
            finally:
                for tenant in noted:
                    self._end(tenant)
        return len(claimed)

    async def settle(self, tenant: TenantId) -> None:
        """Check a tenant now if an event is waiting, so that a list shows its effect."""
        if tenant in self._begun:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._begun[tenant].wait()
        if tenant not in self._noted or tenant in self._begun:
            return
        self._begun[tenant] = asyncio.Event()
        try:
            with suppress(UnavailableError):  # the stored notices are shown
                if await self._store.claim([tenant], date_of(self._clock())):
                    self._noted.pop(tenant, None)
                    try:
                        await self.check(tenant)
                    finally:
                        await self._store.finish([tenant], date_of(self._clock()) + PERIOD)
        finally:
            self._end(tenant)

    def _end(self, tenant: TenantId) -> None:
        """Let those continue that wait for the check of a tenant."""
        if ended := self._begun.pop(tenant, None):
            ended.set()

    async def installation(self) -> NoticePage:
        """Return the notices to operators as they are now, even without the accounts database."""
        now = date_of(self._clock())
        found = await self._find_installation()
        with suppress(UnavailableError):
            await self._store.reconcile(INSTALLATION, found, now)
            return await self._store.list(INSTALLATION, None)
        notices = tuple(
            Notice(uuid4(), INSTALLATION, kind, subject, finding.details, now, now)
            for (kind, subject), finding in found.items()
            if finding is not None
        )
        return NoticePage(notices, len(notices), len(notices))

    async def check(self, tenant: TenantId) -> None:
        """Apply the rules to a tenant's facts. Raises UnavailableError."""
        if tenant == INSTALLATION:
            await self._store.add_missing_checks(NEW_CHECKS)
            found = await self._find_installation()
        else:
            facts = await self._facts(tenant)
            if facts is None:
                return
            found = {(kind, ""): finding for kind, finding in findings(facts)}
        now = date_of(self._clock())
        await self._store.reconcile(tenant, found, now)
        await self._store.mail_digest(tenant, now, self._operators)

    async def _facts(self, tenant: TenantId) -> Facts | None:
        """Return what is known about a tenant; None if it does not exist."""
        try:
            stored = await self._tenants.get(tenant)
        except TenantNotFoundError:
            return None
        now = date_of(self._clock())
        settings = await self._store.settings(tenant)
        days = {
            kind: settings.of(kind).days
            for kind in (NoticeKind.KEY_OLD, NoticeKind.KEY_UNUSED, NoticeKind.RULE_DENIES)
        }
        survey = SurveyKeys(
            tenant=tenant,
            old_days=days[NoticeKind.KEY_OLD],
            unused_days=days[NoticeKind.KEY_UNUSED],
            denied_days=days[NoticeKind.RULE_DENIES],
        )
        return Facts(
            now=now,
            settings=settings,
            accounts=await self._store.find_accounts(tenant, now),
            keys=await self._survey(survey),
            refusals=await self._refusals(tenant),
            quota=await self._quotas.used(tenant, stored.entitlements),
        )

    async def _survey(self, request: SurveyKeys) -> KeySurvey | None:
        try:
            return await self._keys.execute(request, _ATTRIBUTION)
        except KeyServiceError:
            return None  # unknown: the notices about keys stay as they are

    async def _refusals(self, tenant: TenantId) -> list[int] | None:
        newest = int(self._clock()) // _HOUR_SECONDS
        first = newest - HOURS + 1
        request = CountOperations(tenant=tenant, since_hour=first, hours=1)
        try:
            counted = await self._keys.execute(request, _ATTRIBUTION)
        except KeyServiceError:
            return None
        hours = [0] * HOURS
        for count in counted.counts:
            if count.operation == REFUSED and 0 <= count.hour - first < HOURS:
                hours[count.hour - first] += count.count
        return hours

    async def _report_refused(self) -> None:
        """Open the notices about rate limits that were used up since the last call."""
        now = date_of(self._clock())
        for tenant, busiest in self._take_refused().items():
            await self._store.report_rate_limit(tenant, busiest, now)
