"""The state of the installation for operators: each part, and what is waiting.

Each part is looked up at most once a second. Values of an unavailable part are None.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TypeVar

from pqkeep_gateway.management.collection import Sources
from pqkeep_gateway.management.readiness import (
    AUDIT_LOG,
    CHECK_SECONDS,
    KEY_SERVICE,
    KEYS_DATABASE,
    MAIL_SERVER,
    PARTS,
    SHARD_PARTS,
    WAIT_SECONDS,
    Problems,
    Readiness,
    in_words,
)
from pqkeep_gateway.shards import Shards, StoredShard
from pqkeep_gateway.storage.monitoring import Accounts
from pqkeep_gateway.storage.operators import Operator
from pqkeep_gateway.tenancy.operators import Operators
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    Checkpoint,
    ListCheckpoints,
    ListWitnesses,
    WitnessState,
)
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, KeyService
from pqkeep_protocol.metrics import Samples

T = TypeVar("T")
_ATTRIBUTION = Attribution("", "gateway", "")

AUDIT_SINK = "audit_sink"
"""A part besides those of readiness."""
SINK_SECONDS = 300.0
"""The longest acceptable delay of an audit sink."""

_UNKNOWN = "unknown while the key service does not respond"
_UNNAMED = "it is missing in the settings"
_LATE = f"it is more than {SINK_SECONDS:.0f} seconds behind"
NAMES = (*PARTS, MAIL_SERVER, AUDIT_LOG, AUDIT_SINK)
"""The names of all parts."""


class MailMode(StrEnum):
    """The destination of e-mail."""

    SMTP = "smtp"
    FOLDER = "folder"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the installation, with the reason if it is not ready."""

    name: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of one shard."""

    name: str
    reason: str | None
    """The reason why it serves no requests, or None."""
    stored: StoredShard | None
    """The stored facts. None while the accounts database does not respond."""
    checkpoint: Checkpoint | None = None
    """The newest checkpoint of its log."""
    numbers: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    """Its key service's metrics by name and labels."""
    witnesses: tuple[WitnessState, ...] | None = None
    """The witnesses of its log; None while its key service does not respond."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The state of all parts."""

    parts: tuple[Part, ...]
    accounts: Accounts | None
    operators: tuple[Operator, ...] | None
    shards: tuple[ShardState, ...]
    """Shard ``default`` comes first. Shards that are missing in the settings come last."""
    mail: MailMode
    certificates: Mapping[str, float]
    """Expiry times, in Unix seconds."""


class Inspection:
    """Inspects the installation."""

    def __init__(
        self,
        readiness: Readiness,
        sources: Sources,
        find_accounts: Callable[[], Awaitable[Accounts]],
        operators: Operators,
        shards: Shards,
        mail: MailMode,
    ) -> None:
        self._readiness = readiness
        self._sources = sources
        self._accounts = _cached(find_accounts, "the accounts' numbers")
        self._operators = _cached(operators.list, "the operators")
        self._checkpoints = {
            name: Cached[Checkpoint | None](
                partial(_find_checkpoint, shards.of(name)),
                otherwise=None,
                name=f"the newest checkpoint of {name}",
                seconds=CHECK_SECONDS,
                wait_seconds=WAIT_SECONDS,
            )
            for name in shards.names
        }
        self._witnesses = {
            name: Cached[tuple[WitnessState, ...] | None](
                partial(_find_witnesses, shards.of(name)),
                otherwise=None,
                name=f"the witnesses of {name}",
                seconds=CHECK_SECONDS,
                wait_seconds=WAIT_SECONDS,
            )
            for name in shards.names
        }
        self._mail = mail

    async def inspect(self) -> Installation:
        """Return the state of all parts, within some seconds even if parts are unavailable."""
        problems, accounts, operators, shards = await asyncio.gather(
            self._readiness.problems(),
            self._accounts.get(),
            self._operators.get(),
            self._inspect_shards(),
        )
        degraded = await self._readiness.degraded()
        parts = (*_parts(problems), *self._others(accounts, degraded))
        return Installation(
            parts=parts,
            accounts=accounts,
            operators=operators,
            shards=shards,
            mail=self._mail,
            certificates=dict(self._certificates()),
        )

    async def _inspect_shards(self) -> tuple[ShardState, ...]:
        problems, listed, samples, checkpoints, witnesses = await asyncio.gather(
            self._readiness.shard_problems(),
            self._sources.shards.get(),
            _gathered(self._sources.key_services),
            _gathered(self._checkpoints),
            _gathered(self._witnesses),
        )
        stored = {shard.name: shard for shard in listed or ()}
        named = tuple(
            ShardState(
                name,
                _shard_reason(problems[name]),
                stored.get(name),
                checkpoints[name],
                _numbers(samples[name] or {}),
                witnesses[name],
            )
            for name in self._checkpoints
        )
        unnamed = (
            ShardState(shard.name, _UNNAMED, shard)
            for shard in stored.values()
            if shard.name not in self._checkpoints and shard.tenants
        )
        return (*named, *unnamed)

    def _others(self, accounts: Accounts | None, degraded: Mapping[str, str]) -> Iterator[Part]:
        """Yield the other parts that exist and have a known state."""
        if accounts is not None:
            yield Part(AUDIT_LOG, degraded.get(AUDIT_LOG))
        if self._mail is not MailMode.DISABLED:
            yield Part(MAIL_SERVER, degraded.get(MAIL_SERVER))
        if streams := self._sources.audit_streams:
            is_late = any(stream.lag_seconds > SINK_SECONDS for stream in streams.values())
            yield Part(AUDIT_SINK, _LATE if is_late else None)

    def _certificates(self) -> Iterator[tuple[str, float]]:
        tls, link = self._sources.tls, self._sources.link
        if tls is not None:
            yield "https", tls.expires
        if link is not None:
            yield "link.gateway", link.expires_at
            if link.peer_expires_at:
                yield "link.keyservice", link.peer_expires_at


async def _find_checkpoint(keys: KeyService) -> Checkpoint | None:
    request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=Algorithm.ML_DSA_65)
    found = (await keys.execute(request, _ATTRIBUTION)).checkpoints
    return found[0] if found else None


async def _find_witnesses(keys: KeyService) -> tuple[WitnessState, ...]:
    return (await keys.execute(ListWitnesses(tenant=INSTALLATION), _ATTRIBUTION)).witnesses


async def _gathered(asked: Mapping[str, Cached[T]]) -> Mapping[str, T]:
    found = await asyncio.gather(*(question.get() for question in asked.values()))
    return dict(zip(asked, found, strict=True))


def _shard_reason(problems: Problems) -> str | None:
    found = ((part, problems[part]) for part in SHARD_PARTS)
    return next((in_words(part, problem) for part, problem in found if problem is not None), None)


def _cached(find: Callable[[], Awaitable[T]], name: str) -> Cached[T | None]:
    return Cached[T | None](
        find, otherwise=None, name=name, seconds=CHECK_SECONDS, wait_seconds=WAIT_SECONDS
    )


def _parts(problems: Problems) -> Iterator[Part]:
    for name, problem in problems.items():
        if name == KEYS_DATABASE and problems[KEY_SERVICE] is not None:
            yield Part(name, _UNKNOWN)
        else:
            yield Part(name, None if problem is None else in_words(name, problem))


def _numbers(samples: Samples) -> Mapping[tuple[str, ...], float]:
    return {
        (name, *sample.labels): sample.value
        for name, series in samples.items()
        for sample in series
    }
