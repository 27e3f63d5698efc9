"""Whether requests would be answered, and what is missing where they would not."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from pqkeep_gateway.shards import StoredShard
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.commits import IN_WORDS, WriteProblem
from pqkeep_protocol.metrics import Samples

CHECK_SECONDS = 1.0
"""How old what is known of a part may be: it is asked once a second at the most."""
WAIT_SECONDS = 2.0
"""How long a part may take to answer; what is lost is so known within five seconds."""

KEY_SERVICE = "key_service"
KEYS_DATABASE = "keys_database"
ACCOUNTS_DATABASE = "accounts_database"
RATE_LIMITS = "rate_limits"
STOPPING = "stopping"
MAIL_SERVER = "mail_server"
"""What is missing without anything being refused: messages wait."""
AUDIT_LOG = "audit_log"
"""What is missing where events wait for so long that changes are refused, and uses of keys are not."""
PARTS = (KEY_SERVICE, KEYS_DATABASE, ACCOUNTS_DATABASE, RATE_LIMITS)
"""What the gateway needs; of shards one is enough for it to be of use."""
SHARD_PARTS = (KEY_SERVICE, KEYS_DATABASE)
"""What each shard has."""
CLOCK = "clock"
"""What is wrong where a key service's clock is not the gateway's: sessions, schedules, records."""
CLOCK_SECONDS = 5.0
"""By how much the two clocks may differ."""
SHARD_SETTINGS = "shard_settings"
"""What is missing where tenants are in a shard that the settings do not name."""

_WORDS: Mapping[str, str] = {
    KEY_SERVICE: "no key service answers that serves",
    AUDIT_LOG: "an event waits for so long that changes are refused",
    MAIL_SERVER: "the last message could not be delivered, and is tried again",
    SHARD_SETTINGS: "the settings do not name it, and tenants are in it",
    STOPPING: "the gateway has been told to stop",
}
"""What is said of a part, where it is not its WriteProblem."""

Check = Callable[[], Awaitable[object]]
"""Raises UnavailableError, with the reason, where a part cannot be used."""
Problems = Mapping[str, WriteProblem | None]
"""What is wrong with each part; None: nothing is."""


class Readiness:
    """What the gateway needs, and has."""

    def __init__(
        self,
        key_services: Mapping[str, Cached[Samples | None]],
        shards: Cached[Sequence[StoredShard] | None],
        checks: Mapping[str, Check],
        check_log: Check,
        is_mail_deferred: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take each key service's numbers, the shards that are stored, and other parts' checks.

        ``check_log``: whether events reach the audit log.
        """
        self._is_mail_deferred = is_mail_deferred
        self._clock = clock
        self._key_services = key_services
        self._shards = shards
        self._checks = {name: _cached(name, check) for name, check in checks.items()}
        self._log = _cached(AUDIT_LOG, check_log)
        self._is_stopping = False

    def stop(self) -> None:
        """Be ready no more: the process ends once it has answered what it was asked."""
        self._is_stopping = True

    async def degraded(self) -> dict[str, str]:
        """Return the names of what is missing while others are answered, each with the reason.

        Of a shard with the shard's name: key_service:NAME, keys_database:NAME, shard_settings:NAME.
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
        if log is WriteProblem.FAILED:  # otherwise the accounts database says the same of itself
            missing[AUDIT_LOG] = _WORDS[AUDIT_LOG]
        if (clocks := await self._clock_problem()) is not None:
            missing[CLOCK] = clocks
        if self._is_mail_deferred():
            missing[MAIL_SERVER] = _WORDS[MAIL_SERVER]
        return missing

    async def _clock_problem(self) -> str | None:
        """Return which key service's clock differs too much from this host's."""
        for shard, service in self._key_services.items():
            for sample in (await service.get() or {}).get("pqkeep_key_service_time_seconds", ()):
                ahead = sample.value - self._clock()  # the sample may be some seconds old
                if ahead > CLOCK_SECONDS or ahead < -CLOCK_SECONDS - CHECK_SECONDS - WAIT_SECONDS:
                    which = "ahead of" if ahead > 0 else "behind"
                    return (
                        f"the clock of the key service of the shard {shard} is {abs(ahead):.0f} s"
                        f" {which} the gateway's: correct the wrong one (chronyd or"
                        " systemd-timesyncd)"
                    )
        return None

    async def shard_problems(self) -> Mapping[str, Problems]:
        """Return what is wrong with SHARD_PARTS of each shard."""
        found = await asyncio.gather(*(service.get() for service in self._key_services.values()))
        return {
            shard: _shard_problems(samples)
            for shard, samples in zip(self._key_services, found, strict=True)
        }

    async def problems(self) -> Problems:
        """Return what is wrong with PARTS; with SHARD_PARTS where no shard has them."""
        others = asyncio.gather(*(check.get() for check in self._checks.values()))
        shards, found = await asyncio.gather(self.shard_problems(), others)
        return {
            **{part: _common([shard[part] for shard in shards.values()]) for part in SHARD_PARTS},
            **dict(zip(self._checks, found, strict=True)),
        }

    async def reasons(self) -> dict[str, str]:
        """Return the names of what is missing, each with the reason."""
        problems = await self.problems()
        missing = {
            part: in_words(part, problem)
            for part in PARTS
            if (problem := problems[part]) is not None
        }
        if KEY_SERVICE in missing:  # of its database nothing is known then
            missing.pop(KEYS_DATABASE, None)
        return {**missing, STOPPING: _WORDS[STOPPING]} if self._is_stopping else missing


def in_words(part: str, problem: WriteProblem) -> str:
    """Return what people are told of a part that cannot be used."""
    return _WORDS.get(part, IN_WORDS[problem])


def _common(problems: Sequence[WriteProblem | None]) -> WriteProblem | None:
    """Return what is wrong with a part of which one is enough."""
    return None if None in problems else problems[0]


def _missing(shards: Mapping[str, Problems]) -> Iterator[tuple[str, str]]:
    for shard, problems in shards.items():
        for part in SHARD_PARTS:
            if (problem := problems[part]) is not None:
                yield f"{part}:{shard}", in_words(part, problem)
                break  # without the key service nothing is known of its database


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


def _cached(name: str, check: Check) -> Cached[WriteProblem | None]:
    async def problem() -> WriteProblem | None:
        try:
            await check()
        except UnavailableError as error:
            return error.problem
        return None

    return Cached(
        problem,
        otherwise=WriteProblem.NO_RESPONSE,
        name=name,
        seconds=CHECK_SECONDS,
        wait_seconds=WAIT_SECONDS,
    )
