"""What an operator wants to know of the installation: whether each part works, and what waits.

Everything is looked up once a second at the most, however often it is asked for, and what a part
that is missing would tell is None.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from pqkeep_gateway.audit_events import MAX_DELAY
from pqkeep_gateway.management.collection import Backlog, Sources
from pqkeep_gateway.management.readiness import (
    ACCOUNTS_DATABASE,
    CHECK_SECONDS,
    KEY_SERVICE,
    KEYS_DATABASE,
    MAIL_SERVER,
    RATE_LIMITS,
    WAIT_SECONDS,
    Readiness,
)
from pqkeep_gateway.tenancy.operators import Operator, Operators
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Checkpoint, ListCheckpoints
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, KeyService
from pqkeep_protocol.metrics import Samples

T = TypeVar("T")
_ATTRIBUTION = Attribution("", "gateway", "")

AUDIT_LOG = "audit_log"
AUDIT_SINK = "audit_sink"
"""What is told besides the parts of readiness."""
_MAX_DELAY_SECONDS = MAX_DELAY.total_seconds()
SINK_SECONDS = 300.0
"""How far an audit sink may be behind."""

_UNKNOWN = "not known while the key service does not answer"
REASONS: Mapping[str, str] = {
    KEY_SERVICE: "it does not answer",
    KEYS_DATABASE: "the key service cannot read it",
    ACCOUNTS_DATABASE: "it does not answer",
    RATE_LIMITS: "the store of rate limits does not answer",
    MAIL_SERVER: "the last message could not be delivered, and is tried again",
    AUDIT_LOG: "an event waits for so long that changes are refused",
    AUDIT_SINK: f"it is more than {SINK_SECONDS:.0f} seconds behind",
}
"""What is said of a part that is not ready."""


class MailMode(StrEnum):
    """Where e-mail goes."""

    SMTP = "smtp"
    FOLDER = "folder"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the installation; the reason says why it is not ready."""

    name: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Accounts:
    """What the accounts database has."""

    backlog: Backlog
    mail_attempted: int
    """Waiting messages of which an attempt was made."""
    tenants: int
    suspended: int
    scheduled: int
    """Suspended tenants that are to be deleted."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything that is told."""

    parts: tuple[Part, ...]
    accounts: Accounts | None
    operators: tuple[Operator, ...] | None
    checkpoint: Checkpoint | None
    numbers: Mapping[tuple[str, ...], float]
    """The key service's numbers, each by its name and its labels."""
    mail: MailMode
    certificates: Mapping[str, float]
    """When each expires, in Unix seconds."""


class Inspection:
    """Inspects the installation."""

    def __init__(
        self,
        readiness: Readiness,
        sources: Sources,
        find_accounts: Callable[[], Awaitable[Accounts]],
        operators: Operators,
        keys: KeyService,
        mail: MailMode,
    ) -> None:
        self._readiness = readiness
        self._sources = sources
        self._accounts = _cached(find_accounts, "the accounts' numbers")
        self._operators = _cached(operators.list, "the operators")
        self._checkpoint = Cached[Checkpoint | None](
            self._find_checkpoint,
            otherwise=None,
            name="the newest checkpoint",
            seconds=CHECK_SECONDS,
            wait_seconds=WAIT_SECONDS,
        )
        self._keys = keys
        self._mail = mail

    async def inspect(self) -> Installation:
        """Return the state of everything, within some seconds whatever is missing."""
        parts, accounts, operators, checkpoint, samples = await asyncio.gather(
            self._readiness.parts(),
            self._accounts.get(),
            self._operators.get(),
            self._checkpoint.get(),
            self._sources.key_service.get(),
        )
        ready = {**parts, **dict(self._others(accounts))}
        return Installation(
            parts=tuple(_part(name, ready) for name in ready),
            accounts=accounts,
            operators=operators,
            checkpoint=checkpoint,
            numbers=_numbers(samples or {}),
            mail=self._mail,
            certificates=dict(self._certificates()),
        )

    async def _find_checkpoint(self) -> Checkpoint | None:
        request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=Algorithm.ML_DSA_65)
        found = (await self._keys.execute(request, _ATTRIBUTION)).checkpoints
        return found[0] if found else None

    def _others(self, accounts: Accounts | None) -> Iterator[tuple[str, bool]]:
        """Yield which of the other parts are ready, as far as they are there and known."""
        if accounts is not None:
            oldest = accounts.backlog.oldest_event_us
            yield AUDIT_LOG, not oldest or time.time() - oldest / 1_000_000 < _MAX_DELAY_SECONDS
        if self._mail is not MailMode.DISABLED:
            yield MAIL_SERVER, not self._readiness.degraded
        if self._sources.audit_stream is not None:
            yield AUDIT_SINK, self._sources.audit_stream.lag_seconds <= SINK_SECONDS

    def _certificates(self) -> Iterator[tuple[str, float]]:
        tls, link = self._sources.tls, self._sources.link
        if tls is not None:
            yield "https", tls.expires
        if link is not None:
            yield "link.gateway", link.expires_at
            if link.peer_expires_at:
                yield "link.keyservice", link.peer_expires_at


def _cached(find: Callable[[], Awaitable[T]], name: str) -> Cached[T | None]:
    return Cached[T | None](
        find, otherwise=None, name=name, seconds=CHECK_SECONDS, wait_seconds=WAIT_SECONDS
    )


def _part(name: str, ready: Mapping[str, bool]) -> Part:
    if ready[name]:
        return Part(name, None)
    is_unknown = name == KEYS_DATABASE and not ready[KEY_SERVICE]
    return Part(name, _UNKNOWN if is_unknown else REASONS[name])


def _numbers(samples: Samples) -> Mapping[tuple[str, ...], float]:
    return {
        (name, *sample.labels): sample.value for name, each in samples.items() for sample in each
    }
