"""The client for asyncio."""

import os
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pqkeep._async_transport import AsyncTransport
from pqkeep._settings import RETRIES, TIMEOUT, Settings
from pqkeep.compliance import ComplianceProfile, Rules
from pqkeep.profiles import Profile
from pqkeep.resources.api_keys import ApiKeys
from pqkeep.resources.audit import Audit
from pqkeep.resources.campaigns import Campaigns
from pqkeep.resources.installation import InstallationState, Operators, Requests, Status, Tools
from pqkeep.resources.inventory import Inventory
from pqkeep.resources.kem import Kem
from pqkeep.resources.keys import Keyrings, Keys
from pqkeep.resources.rules import Rules as AlgorithmRules
from pqkeep.resources.signatures import Macs, Signatures
from pqkeep.resources.team import Search, Team
from pqkeep.resources.tenants import Tenants, UsageCounts
from pqkeep.resources.webhooks import Notices, Webhooks
from pqkeep.resources.workloads import Workloads

if TYPE_CHECKING:
    from pqkeep.local import AsyncLocal


class AsyncClient:
    """The client for asyncio. Its methods are the coroutines of Client's methods.

    Tasks of one event loop may share it. Close it, or use it in an ``async with`` statement.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        profile: str | Profile | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        compliance_profile: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        allow_plain_http: bool = False,
    ) -> None:
        """Take the same arguments as Client."""
        settings = Settings.resolve(
            base_url=base_url,
            api_key=api_key,
            profile=profile,
            ca_file=ca_file,
            compliance_profile=compliance_profile,
            timeout=timeout,
            retries=retries,
            allow_plain_http=allow_plain_http,
        )
        self._transport = AsyncTransport(settings)
        self._rules = rules = Rules(settings.compliance)
        self.url: str = settings.url
        self.compliance_profile: ComplianceProfile | None = settings.compliance
        self.kem: Kem[AsyncTransport] = Kem(self._transport, rules)
        self.signatures: Signatures[AsyncTransport] = Signatures(self._transport, rules)
        self.macs: Macs[AsyncTransport] = Macs(self._transport, rules)
        self.tools: Tools[AsyncTransport] = Tools(self._transport)
        self.keys: Keys[AsyncTransport] = Keys(self._transport, rules)
        self.keyrings: Keyrings[AsyncTransport] = Keyrings(self._transport)
        self.campaigns: Campaigns[AsyncTransport] = Campaigns(self._transport)
        self.rules: AlgorithmRules[AsyncTransport] = AlgorithmRules(self._transport)
        self.notices: Notices[AsyncTransport] = Notices(self._transport)
        self.webhooks: Webhooks[AsyncTransport] = Webhooks(self._transport)
        self.workloads: Workloads[AsyncTransport] = Workloads(self._transport)
        self.tenants: Tenants[AsyncTransport] = Tenants(self._transport)
        self.team: Team[AsyncTransport] = Team(self._transport)
        self.api_keys: ApiKeys[AsyncTransport] = ApiKeys(self._transport)
        self.audit: Audit[AsyncTransport] = Audit(self._transport)
        self.usage: UsageCounts[AsyncTransport] = UsageCounts(self._transport)
        self.installation: InstallationState[AsyncTransport] = InstallationState(self._transport)
        self.inventory: Inventory[AsyncTransport] = Inventory(self._transport)
        self.operators: Operators[AsyncTransport] = Operators(self._transport)
        self.search: Search[AsyncTransport] = Search(self._transport)
        self.status: Status[AsyncTransport] = Status(self._transport)
        self.requests: Requests[AsyncTransport] = Requests(self._transport)

    @cached_property
    def local(self) -> "AsyncLocal":
        """Local encryption with keys that stay in the service. Needs the extra ``pqkeep[local]``."""
        from pqkeep.local import AsyncLocal  # noqa: PLC0415 - it loads cryptography

        return AsyncLocal(self.kem, self.keys, self._rules)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<pqkeep.AsyncClient, {self._transport!r}>"
