"""How often somebody may try a password or a code, or have a letter written."""

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.rate_limit import (
    ATTEMPTS,
    ATTEMPTS_FROM_ADDRESS,
    INVITATIONS,
    LETTERS,
    LETTERS_FROM_ADDRESS,
    Limit,
    RateLimiter,
)
from pqkeep_gateway.people.users import email_key
from pqkeep_protocol.keys import TenantId


class TooManyAttemptsError(Exception):
    """Somebody has tried too often."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until another try is made."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class AttemptLimits:
    """Counts tries, for each account and for each address, whether they succeed or not."""

    def __init__(self, rate_limiter: RateLimiter, pepper: Pepper) -> None:
        """Count in windows, which are told no e-mail address."""
        self._windows = rate_limiter
        self._pepper = pepper

    async def count(self, email: str, source_address: str) -> None:
        """Count one try. Raises TooManyAttemptsError."""
        await self._enter(f"attempts from {source_address}", ATTEMPTS_FROM_ADDRESS)
        await self._enter(f"attempts at {self._account(email)}", ATTEMPTS)

    async def count_letter(self, email: str, source_address: str) -> None:
        """Count one letter that somebody asks for. Raises TooManyAttemptsError."""
        await self._enter(f"letters from {source_address}", LETTERS_FROM_ADDRESS)
        await self._enter(f"letters to {self._account(email)}", LETTERS)

    async def count_code(self, email: str) -> None:
        """Count one code by e-mail: apart, so that nobody uses them up without the password."""
        await self._enter(f"codes to {self._account(email)}", LETTERS)

    async def count_invitation(self, email: str, tenant: TenantId) -> None:
        """Count one letter by which a person invites another. Raises TooManyAttemptsError."""
        await self._enter(f"invitations of {tenant}", INVITATIONS)
        await self._enter(f"invitations to {self._account(email)}", LETTERS)

    async def _enter(self, subject: str, limit: Limit) -> None:
        wait = await self._windows.enter(subject, limit)
        if wait is not None:
            raise TooManyAttemptsError(limit, wait)

    def _account(self, email: str) -> str:
        text = email_key(email).encode("utf-8", "surrogatepass")
        return self._pepper.derive("pqkeep/v1/account", text).hex()
