"""Whether requests would be answered, and what is missing where they would not."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from pqkeep_gateway.tenancy.shards import StoredShard
from pqkeep_protocol.cached import Cached
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
PARTS = (KEY_SERVICE, KEYS_DATABASE, ACCOUNTS_DATABASE, RATE_LIMITS)
"""What the gateway needs; of shards one is enough for it to be of use."""
SHARD_PARTS = (KEY_SERVICE, KEYS_DATABASE)
"""What each shard has."""
SHARD_SETTINGS = "shard_settings"
"""What is missing where tenants are in a shard that the settings do not name."""


class Readiness:
    """What the gateway needs, and has."""

    def __init__(
        self,
        key_services: Mapping[str, Cached[Samples | None]],
        shards: Cached[Sequence[StoredShard] | None],
        checks: Mapping[str, Callable[[], Awaitable[object]]],
        is_mail_deferred: Callable[[], bool],
    ) -> None:
        """Take each key service's numbers, the shards that are stored, and other parts' checks.

        A check raises an exception where its part is missing.
        """
        self._is_mail_deferred = is_mail_deferred
        self._key_services = key_services
        self._shards = shards
        self._checks = {
            name: Cached[bool](
                _succeeds(check),
                otherwise=False,
                name=name,
                seconds=CHECK_SECONDS,
                wait_seconds=WAIT_SECONDS,
            )
            for name, check in checks.items()
        }
        self._is_stopping = False

    def stop(self) -> None:
        """Be ready no more: the process ends once it has answered what it was asked."""
        self._is_stopping = True

    @property
    def is_mail_deferred(self) -> bool:
        """Whether messages wait because the mail server takes none."""
        return self._is_mail_deferred()

    async def degraded(self) -> list[str]:
        """Return the names of what is missing while others are answered.

        Of a shard with the shard's name: key_service:NAME, keys_database:NAME, shard_settings:NAME.
        """
        parts, stored = await asyncio.gather(self.shard_parts(), self._shards.get())
        missing = list(_missing(parts)) if len(parts) > 1 else []
        missing += [
            f"{SHARD_SETTINGS}:{each.name}"
            for each in stored or ()
            if each.tenants and each.name not in parts
        ]
        return [*missing, MAIL_SERVER] if self._is_mail_deferred() else missing

    async def shard_parts(self) -> Mapping[str, Mapping[str, bool]]:
        """Return which of SHARD_PARTS each shard has."""
        found = await asyncio.gather(*(each.get() for each in self._key_services.values()))
        return {
            shard: _shard_parts(samples)
            for shard, samples in zip(self._key_services, found, strict=True)
        }

    async def parts(self) -> Mapping[str, bool]:
        """Return which of PARTS are there; of SHARD_PARTS whether any shard has them."""
        others = asyncio.gather(*(check.get() for check in self._checks.values()))
        shards, found = await asyncio.gather(self.shard_parts(), others)
        return {
            **{part: any(each[part] for each in shards.values()) for part in SHARD_PARTS},
            **dict(zip(self._checks, found, strict=True)),
        }

    async def reasons(self) -> list[str]:
        """Return the names of what is missing; STOPPING where the process ends."""
        parts = await self.parts()
        missing = [name for name in PARTS if not parts[name]]
        if KEY_SERVICE in missing:  # of its database nothing is known then
            missing = [name for name in missing if name != KEYS_DATABASE]
        return [*missing, STOPPING] if self._is_stopping else missing


def _missing(shards: Mapping[str, Mapping[str, bool]]) -> Iterator[str]:
    for shard, parts in shards.items():
        for part in SHARD_PARTS:
            if not parts[part]:
                yield f"{part}:{shard}"
                break  # without the key service nothing is known of its database


def _shard_parts(samples: Samples | None) -> Mapping[str, bool]:
    is_up = _is_positive(samples, "pqkeep_keys_database_up")
    stands_by = samples is not None and any(
        not sample.value for sample in samples.get("pqkeep_key_service_active", ())
    )
    return {
        KEY_SERVICE: samples is not None and not (stands_by and is_up),
        KEYS_DATABASE: is_up,
    }


def _is_positive(samples: Samples | None, name: str) -> bool:
    return any(sample.value for sample in (samples or {}).get(name, ()))


def _succeeds(check: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    async def succeeds() -> bool:
        await check()
        return True

    return succeeds
