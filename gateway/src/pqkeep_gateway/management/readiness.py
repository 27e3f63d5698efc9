"""Whether requests would be answered, and what is missing where they would not."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

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
"""What the gateway needs."""


class Readiness:
    """What the gateway needs, and has."""

    def __init__(
        self,
        key_service: Cached[Samples | None],
        checks: Mapping[str, Callable[[], Awaitable[object]]],
        is_mail_deferred: Callable[[], bool],
    ) -> None:
        """Take the key service's numbers, and what raises an exception where a part is missing."""
        self._is_mail_deferred = is_mail_deferred
        self._key_service = key_service
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
    def degraded(self) -> list[str]:
        """The names of what is missing and not needed for any answer."""
        return [MAIL_SERVER] if self._is_mail_deferred() else []

    async def parts(self) -> Mapping[str, bool]:
        """Return which of PARTS are there."""
        others = asyncio.gather(*(check.get() for check in self._checks.values()))
        samples, found = await asyncio.gather(self._key_service.get(), others)
        up = () if samples is None else samples.get("pqkeep_keys_database_up", ())
        return {
            KEY_SERVICE: samples is not None,
            KEYS_DATABASE: any(sample.value for sample in up),
            **dict(zip(self._checks, found, strict=True)),
        }

    async def reasons(self) -> list[str]:
        """Return the names of what is missing; STOPPING where the process ends."""
        parts = await self.parts()
        missing = [name for name in PARTS if not parts[name]]
        if KEY_SERVICE in missing:  # of its database nothing is known then
            missing.remove(KEYS_DATABASE)
        return [*missing, STOPPING] if self._is_stopping else missing


def _succeeds(check: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[bool]]:
    async def succeeds() -> bool:
        await check()
        return True

    return succeeds
