"""How often a password or a code may be tried, and how much mail may be asked for."""

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.rate_limit import HOUR, MINUTE, Limit, RateLimiter
from pqkeep_gateway.people.users import email_key
from pqkeep_protocol.keys import TenantId

ATTEMPTS_PER_ACCOUNT = Limit(10, 15 * MINUTE)
ATTEMPTS_PER_SOURCE = Limit(300, 15 * MINUTE)
"""A source address may be shared by a whole company."""
MAIL_PER_ACCOUNT = Limit(5, 15 * MINUTE)
MAIL_PER_SOURCE = Limit(60, 15 * MINUTE)
INVITATIONS_PER_TENANT = Limit(60, HOUR)


class TooManyAttemptsError(Exception):
    """A limit of this file is reached."""

    def __init__(self, limit: Limit, wait: float) -> None:
        """Carry the limit, and the seconds until the next attempt is allowed."""
        super().__init__()
        self.limit = limit
        self.wait = wait


class AttemptLimits:
    """Counts attempts by account and by source address, whether they succeed or not.

    The rate limiter is given no e-mail address, only a digest of it.
    """

    def __init__(self, rate_limiter: RateLimiter, pepper: Pepper) -> None:
        self._rate_limiter = rate_limiter
        self._pepper = pepper

    async def count(self, email: str, source_address: str) -> None:
        """Count one attempt at a password or a code. Raises TooManyAttemptsError."""
        await self._count(f"attempts from {source_address}", ATTEMPTS_PER_SOURCE)
        await self._count(f"attempts at {self._account(email)}", ATTEMPTS_PER_ACCOUNT)

    async def count_mail(self, email: str, source_address: str) -> None:
        """Count one message that a stranger asks for. Raises TooManyAttemptsError."""
        await self._count(f"mail from {source_address}", MAIL_PER_SOURCE)
        await self._count(f"mail to {self._account(email)}", MAIL_PER_ACCOUNT)

    async def count_code(self, email: str) -> None:
        """Count one code by e-mail. Raises TooManyAttemptsError.

        Separate from other mail, so that nobody uses the limit up without knowing the password.
        """
        await self._count(f"codes to {self._account(email)}", MAIL_PER_ACCOUNT)

    async def count_invitation(self, email: str, tenant: TenantId) -> None:
        """Count one invitation by a person. Raises TooManyAttemptsError."""
        await self._count(f"invitations of {tenant}", INVITATIONS_PER_TENANT)
        await self._count(f"invitations to {self._account(email)}", MAIL_PER_ACCOUNT)

    async def _count(self, subject: str, limit: Limit) -> None:
        wait = await self._rate_limiter.enter(subject, limit)
        if wait is not None:
            raise TooManyAttemptsError(limit, wait)

    def _account(self, email: str) -> str:
        text = email_key(email).encode("utf-8", "surrogatepass")
        return self._pepper.derive("pqkeep/v1/account", text).hex()
