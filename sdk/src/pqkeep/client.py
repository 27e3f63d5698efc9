"""The client of one service with one credential."""

import os
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pqkeep._settings import RETRIES, TIMEOUT, Settings
from pqkeep._transport import Transport
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
    from pqkeep.local import Local


class Client:
    """A client of one pqkeep service with one credential. Threads may share it.

    Close it, or use it in a ``with`` statement.
    """

    def __init__(  # noqa: PLR0913 - most are left out
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
        on_wait: Callable[[str, float], None] | None = None,
    ) -> None:
        """Take the service's address, without ``/api/v1``, and an API key.

        Missing arguments come from the environment: ``PQKEEP_URL``, ``PQKEEP_API_KEY`` or
        ``PQKEEP_API_KEY_FILE``, ``PQKEEP_CA_FILE`` and ``PQKEEP_PROFILE``. A workload has
        ``PQKEEP_TOKEN_FILE`` and ``PQKEEP_ROLE`` in place of an API key. Further values come from
        the named profile (see pqkeep.profiles). A ``Profile`` object excludes all other sources.
        ``timeout`` is in seconds, for a call with all its attempts. ``retries`` is the number of
        attempts after the first. ``http://`` is refused for other machines, unless allowed.
        ``on_wait`` is called once, from another thread, if a call takes more than three seconds. It
        gets the service's address and the seconds until the call's timeout.

        Raises ConfigurationError.
        """
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
        self._transport = Transport(settings, on_wait)
        self._rules = rules = Rules(settings.compliance)
        self.url: str = settings.url
        self.compliance_profile: ComplianceProfile | None = settings.compliance
        self.kem: Kem[Transport] = Kem(self._transport, rules)
        self.signatures: Signatures[Transport] = Signatures(self._transport, rules)
        self.macs: Macs[Transport] = Macs(self._transport, rules)
        self.tools: Tools[Transport] = Tools(self._transport)
        self.keys: Keys[Transport] = Keys(self._transport, rules)
        self.keyrings: Keyrings[Transport] = Keyrings(self._transport)
        self.campaigns: Campaigns[Transport] = Campaigns(self._transport)
        self.rules: AlgorithmRules[Transport] = AlgorithmRules(self._transport)
        self.notices: Notices[Transport] = Notices(self._transport)
        self.webhooks: Webhooks[Transport] = Webhooks(self._transport)
        self.workloads: Workloads[Transport] = Workloads(self._transport)
        self.tenants: Tenants[Transport] = Tenants(self._transport)
        self.team: Team[Transport] = Team(self._transport)
        self.api_keys: ApiKeys[Transport] = ApiKeys(self._transport)
        self.audit: Audit[Transport] = Audit(self._transport)
        self.usage: UsageCounts[Transport] = UsageCounts(self._transport)
        self.installation: InstallationState[Transport] = InstallationState(self._transport)
        self.inventory: Inventory[Transport] = Inventory(self._transport)
        self.operators: Operators[Transport] = Operators(self._transport)
        self.search: Search[Transport] = Search(self._transport)
        self.status: Status[Transport] = Status(self._transport)
        self.requests: Requests[Transport] = Requests(self._transport)

    @cached_property
    def local(self) -> "Local":
        """Local encryption with keys that stay in the service. Needs the extra ``pqkeep[local]``."""
        from pqkeep.local import Local  # noqa: PLC0415 - it loads cryptography

        return Local(self.kem.decapsulate, self.keys.active, self._rules)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<pqkeep.Client, {self._transport!r}>"
