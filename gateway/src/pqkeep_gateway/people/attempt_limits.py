"""How often a password or a code may be tried, and how much mail may be asked for."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.access.principals import SessionId
from pqkeep_gateway.access.rate_limit import HOUR, MINUTE, Limit, RateLimiter
from pqkeep_gateway.access.source_address import network_of
from pqkeep_gateway.people.users import email_key
from pqkeep_protocol.keys import TenantId

ATTEMPTS = Limit(10, 15 * MINUTE)
"""Failures: of a password from one address, of an account's code, or of one session's step-up."""
ATTEMPTS_PER_ACCOUNT = Limit(100, 15 * MINUTE)
"""Wrong passwords of one account from everywhere: one stranger alone shuts nobody out."""
ATTEMPTS_PER_SOURCE = Limit(300, 15 * MINUTE)
"""Failures from one address, which may be shared by a whole company."""
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
    """Counts failed attempts, and mail that is asked for.

    Each kind of attempt is counted where only whoever makes it is stopped: passwords by account and
    address, codes (for which the password is known) by account, step-ups by session. The rate
    limiter is given no e-mail address, only a digest of it.
    """

    def __init__(self, rate_limiter: RateLimiter, pepper: Pepper) -> None:
        self._rate_limiter = rate_limiter
        self._pepper = pepper

    def password(self, email: str, source_address: str) -> AbstractAsyncContextManager[None]:
        """Count an attempt at a password, unless the block succeeds. Raises TooManyAttemptsError."""
        account, network = self._account(email), network_of(source_address)
        return self._attempt(
            (f"attempts from {network}", ATTEMPTS_PER_SOURCE),
            (f"passwords at {account} from {network}", ATTEMPTS),
            (f"passwords at {account}", ATTEMPTS_PER_ACCOUNT),
        )

    def code(self, email: str, source_address: str) -> AbstractAsyncContextManager[None]:
        """Count an attempt at a code that finishes a sign-in, unless the block succeeds.

        Raises TooManyAttemptsError.
        """
        return self._attempt(
            (f"attempts from {network_of(source_address)}", ATTEMPTS_PER_SOURCE),
            (f"codes at {self._account(email)}", ATTEMPTS),
        )

    def step_up(self, session: SessionId) -> AbstractAsyncContextManager[None]:
        """Count an attempt at a code or password within a session, unless the block succeeds.

        Raises TooManyAttemptsError.
        """
        return self._attempt((f"step-ups of {session}", ATTEMPTS))

    async def count_mail(self, email: str, source_address: str) -> None:
        """Count one message that a stranger asks for. Raises TooManyAttemptsError."""
        await self._count(f"mail from {network_of(source_address)}", MAIL_PER_SOURCE)
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

    @asynccontextmanager
    async def _attempt(self, *counted: tuple[str, Limit]) -> AsyncIterator[None]:
        """Count before the block, so that many at once are bounded too; take back if it succeeds."""
        for subject, limit in counted:
            await self._count(subject, limit)
        yield
        for subject, _ in counted:
            await self._rate_limiter.withdraw(subject)

    async def _count(self, subject: str, limit: Limit) -> None:
        wait = await self._rate_limiter.enter(subject, limit)
        if wait is not None:
            raise TooManyAttemptsError(limit, wait)

    def _account(self, email: str) -> str:
        text = email_key(email).encode("utf-8", "surrogatepass")
        return self._pepper.derive("pqkeep/v1/account", text).hex()
