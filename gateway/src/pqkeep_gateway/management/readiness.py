"""Readiness: whether requests can be served, and the unavailable parts."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence

from pqkeep_gateway.shards import StoredShard
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.commits import IN_WORDS, WriteProblem
from pqkeep_protocol.metrics import Samples

CHECK_SECONDS = 1.0
"""The period of checks: each part is checked at most once a second."""
WAIT_SECONDS = 2.0
"""The time limit of a check. So a failure is known within five seconds."""

KEY_SERVICE = "key_service"
KEYS_DATABASE = "keys_database"
ACCOUNTS_DATABASE = "accounts_database"
RATE_LIMITS = "rate_limits"
STOPPING = "stopping"
MAIL_SERVER = "mail_server"
"""The mail server is unavailable. Nothing is refused: messages wait."""
AUDIT_LOG = "audit_log"
"""Events have waited too long for the audit log, so changes are refused. Uses of keys are not."""
PARTS = (KEY_SERVICE, KEYS_DATABASE, ACCOUNTS_DATABASE, RATE_LIMITS)
"""The parts that the gateway needs. Of several shards one is enough."""
SHARD_PARTS = (KEY_SERVICE, KEYS_DATABASE)
"""The parts of each shard."""
CLOCK = "clock"
"""A key service's clock differs from the gateway's. It affects sessions, schedules and records."""
CLOCK_SECONDS = 5.0
"""The largest acceptable difference between the two clocks."""
SHARD_SETTINGS = "shard_settings"
"""A shard with tenants is missing in the settings."""

_WORDS: Mapping[str, str] = {
    KEY_SERVICE: "no active key service responds",
    AUDIT_LOG: "an event has waited so long for the audit log that changes are refused",
    MAIL_SERVER: "the last message could not be delivered; the delivery will be retried",
    SHARD_SETTINGS: "the shard has tenants but is missing in the settings",
    STOPPING: "the gateway is stopping",
}
"""Descriptions of parts, instead of those of WriteProblem."""

Check = Callable[[], Awaitable[object]]
"""Raises UnavailableError, with the reason, if a part is unusable."""
Problems = Mapping[str, WriteProblem | None]
"""The problem of each part; None: no problem."""


class Readiness:
    """The state of the parts that the gateway needs."""

    def __init__(
        self,
        key_services: Mapping[str, Cached[Samples | None]],
        shards: Cached[Sequence[StoredShard] | None],
        checks: Mapping[str, Check],
        check_log: Check,
        is_mail_deferred: Callable[[], bool],
        clock: Callable[[], float] = time.time,
        *,
        bearable: Collection[str] = (),
    ) -> None:
        """Take the key services' metrics, the stored shards, and the checks of other parts.

        ``check_log``: whether events reach the audit log. ``bearable``: parts without which
        requests are served.
        """
        self._bearable = bearable
        self._is_mail_deferred = is_mail_deferred
        self._clock = clock
        self._key_services = key_services
        self._shards = shards
        self._causes: dict[str, str] = {}
        """The last cause that a check gave for a part's problem."""
        self._checks = {name: self._cached(name, check) for name, check in checks.items()}
        self._log = self._cached(AUDIT_LOG, check_log)
        self._is_stopping = False

    def stop(self) -> None:
        """Stop being ready: the process ends after its pending responses."""
        self._is_stopping = True

    async def degraded(self) -> dict[str, str]:
        """Return the unavailable parts with the reasons, while other requests are served.

        A shard's part has the shard's name: key_service:NAME, keys_database:NAME,
        shard_settings:NAME.
        """
        shards, stored, log = await asyncio.gather(
            self.shard_problems(), self._shards.get(), self._log.get()
        )
        missing = dict(_missing(shards)) if len(shards) > 1 else {}
        missing |= {
            f"{SHARD_SETTINGS}:{shard.name}": _WORDS[SHARD_SETTINGS]
            for shard in stored or ()
            if shard.tenants and shard.name not in shards
        }
        if log is WriteProblem.FAILED:  # otherwise the accounts database reports it
            missing[AUDIT_LOG] = _WORDS[AUDIT_LOG]
        if (clocks := await self._clock_problem()) is not None:
            missing[CLOCK] = clocks
        for part in self._bearable:
            if (problem := await self._checks[part].get()) is not None:
                missing[part] = self._described(part, problem)
        if self._is_mail_deferred():
            missing[MAIL_SERVER] = _WORDS[MAIL_SERVER]
        return missing

    async def _clock_problem(self) -> str | None:
        """Return a description of a key service's wrong clock; None if all are right."""
        for shard, service in self._key_services.items():
            for sample in (await service.get() or {}).get("pqkeep_key_service_time_seconds", ()):
                ahead = sample.value - self._clock()  # the sample can be some seconds old
                if ahead > CLOCK_SECONDS or ahead < -CLOCK_SECONDS - CHECK_SECONDS - WAIT_SECONDS:
                    which = "ahead of" if ahead > 0 else "behind"
                    return (
                        f"the clock of the key service of the shard {shard} is {abs(ahead):.0f} s"
                        f" {which} the gateway's: correct the wrong one (chronyd or"
                        " systemd-timesyncd)"
                    )
        return None

    async def shard_problems(self) -> Mapping[str, Problems]:
        """Return the problems of SHARD_PARTS for each shard."""
        found = await asyncio.gather(*(service.get() for service in self._key_services.values()))
        return {
            shard: _shard_problems(samples)
            for shard, samples in zip(self._key_services, found, strict=True)
        }

    async def problems(self) -> Problems:
        """Return the problems of PARTS.

        A part of a shard is a problem if it fails in all shards.
        """
        others = asyncio.gather(*(check.get() for check in self._checks.values()))
        shards, found = await asyncio.gather(self.shard_problems(), others)
        return {
            **{part: _common([shard[part] for shard in shards.values()]) for part in SHARD_PARTS},
            **dict(zip(self._checks, found, strict=True)),
        }

    async def reasons(self) -> dict[str, str]:
        """Return the unavailable parts with the reasons."""
        problems = await self.problems()
        missing = {
            part: self._described(part, problem)
            for part in PARTS
            if part not in self._bearable and (problem := problems[part]) is not None
        }
        if KEY_SERVICE in missing:  # the state of its database is unknown
            missing.pop(KEYS_DATABASE, None)
        return {**missing, STOPPING: _WORDS[STOPPING]} if self._is_stopping else missing

    def _described(self, part: str, problem: WriteProblem) -> str:
        return self._causes.get(part) or in_words(part, problem)

    def _cached(self, name: str, check: Check) -> Cached[WriteProblem | None]:
        async def problem() -> WriteProblem | None:
            try:
                await check()
            except UnavailableError as error:
                self._causes[name] = error.cause
                return error.problem
            return None

        return Cached(
            problem,
            otherwise=WriteProblem.NO_RESPONSE,
            name=name,
            seconds=CHECK_SECONDS,
            wait_seconds=WAIT_SECONDS,
        )


def in_words(part: str, problem: WriteProblem) -> str:
    """Return the description of an unusable part."""
    return _WORDS.get(part, IN_WORDS[problem])


def _common(problems: Sequence[WriteProblem | None]) -> WriteProblem | None:
    """Return the problem of a part that is needed only once."""
    return None if None in problems else problems[0]


def _missing(shards: Mapping[str, Problems]) -> Iterator[tuple[str, str]]:
    for shard, problems in shards.items():
        for part in SHARD_PARTS:
            if (problem := problems[part]) is not None:
                yield f"{part}:{shard}", in_words(part, problem)
                break  # without the key service, its database is unknown


def _shard_problems(samples: Samples | None) -> Problems:
    if samples is None:
        return dict.fromkeys(SHARD_PARTS, WriteProblem.NO_RESPONSE)
    problem = None
    if not _is_positive(samples, "pqkeep_keys_database_up"):
        labels = [sample.labels[0] for sample in samples.get("pqkeep_keys_database_problem", ())]
        is_known = len(labels) == 1 and labels[0] in set(WriteProblem)
        problem = WriteProblem(labels[0]) if is_known else WriteProblem.NO_RESPONSE
    active = samples.get("pqkeep_key_service_active", ())
    stands_by = problem is None and any(not sample.value for sample in active)
    return {KEY_SERVICE: WriteProblem.NO_RESPONSE if stands_by else None, KEYS_DATABASE: problem}


def _is_positive(samples: Samples, name: str) -> bool:
    return any(sample.value for sample in samples.get(name, ()))
