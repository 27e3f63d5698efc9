"""How often somebody may try a password or a code."""

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.rate_limit import ATTEMPTS, ATTEMPTS_FROM_ADDRESS, Limit, Windows
from pqkeep_gateway.people.users import email_key


class TooManyAttemptsError(Exception):
    """Somebody has tried too often."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until another try is made."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class Attempts:
    """Counts tries, for each account and for each address, whether they succeed or not."""

    def __init__(self, windows: Windows, pepper: Pepper) -> None:
        """Count in windows, which are told no e-mail address."""
        self._windows = windows
        self._pepper = pepper

    async def count(self, email: str, source_address: str) -> None:
        """Count one try. Raises TooManyAttemptsError."""
        text = email_key(email).encode("utf-8", "surrogatepass")
        account = self._pepper.derive("pqkeep/v1/account", text).hex()
        for subject, limit in (
            (f"attempts from {source_address}", ATTEMPTS_FROM_ADDRESS),
            (f"attempts at {account}", ATTEMPTS),
        ):
            wait = await self._windows.enter(subject, limit)
            if wait is not None:
                raise TooManyAttemptsError(limit, wait)
