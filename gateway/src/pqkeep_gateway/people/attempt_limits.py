"""Limits on attempts at passwords and codes, and on requested mail."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.principals import SessionId
from pqkeep_gateway.access.rate_limit import HOUR, MINUTE, Limit, RateLimiter, TooManyAttemptsError
from pqkeep_gateway.rehearsal import is_rehearsal
from pqkeep_gateway.storage.known_networks import LIFETIME, SqlKnownNetworks
from pqkeep_gateway.storage.users import email_key
from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.keys import TenantId

ATTEMPTS = Limit(10, 15 * MINUTE)
"""Failed attempts at a password from one address, at a code of one account, or at a step-up of one session."""
ATTEMPTS_PER_SOURCE = Limit(300, 15 * MINUTE)
"""Failed attempts from one address. A whole company may share it."""
DELAYS = (0, 5, 20, 60)
"""Seconds between two password attempts at one account, from all unknown networks together."""
ATTEMPTS_PER_DELAY = Limit(20, HOUR)
"""Failed attempts until the next delay applies. The last delay has no end while attempts go on."""
USED_CODES = Limit(20, 15 * MINUTE)
"""Used codes that do not count as guesses.

Above this limit, a used code counts as a failed attempt, because it costs the service as much as a
wrong code.
"""
MAIL_PER_ACCOUNT = Limit(5, 15 * MINUTE)
"""Codes after a correct password, and invitations."""
MAIL_BY_ANYBODY = Limit(2, 30 * MINUTE)
"""Password resets and sign-ups. When one is refused, an earlier one is still valid.

Known and unknown networks have the same limit, so that a refusal does not reveal the kind.
"""
MAIL_PER_SOURCE = Limit(60, 15 * MINUTE)
INVITATIONS_PER_TENANT = Limit(60, HOUR)


class UsedError(Exception):
    """The code is correct but was used before, so it is not a guess."""


class KnownNetworks:
    """The networks from which an account signed in or reset its password."""

    def __init__(self, store: SqlKnownNetworks, pepper: Pepper, clock: Clock) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock

    async def is_known(self, email: str, source_address: str) -> bool:
        """Return whether the address is in a known network. The account need not exist."""
        digest = network_digest(self._pepper, email, source_address)
        return await self._store.is_known(digest, date_of(self._clock()) - LIFETIME)


def network_digest(pepper: Pepper, email: str, source_address: str) -> bytes:
    """Return a 32-byte digest of an account and its network."""
    key = email_key(email).encode("utf-8", "surrogatepass")
    return pepper.derive(Purpose.KNOWN_NETWORK, key, network_of(source_address).encode())


class AttemptLimits:
    """Counts failed attempts and requested mail.

    A limit stops the attacker, not the owner of the account. Password attempts are counted by
    account and address. In a known network nothing else is counted. Attempts from unknown networks
    share a growing delay, and are never stopped. Attempts at a code need the password, and are
    counted by account. Step-ups are counted by session. The rate limiter gets a digest in place of
    the e-mail address.
    """

    def __init__(
        self, rate_limiter: RateLimiter, known_networks: KnownNetworks, pepper: Pepper
    ) -> None:
        self._rate_limiter = rate_limiter
        self._known_networks = known_networks
        self._pepper = pepper

    @asynccontextmanager
    async def password(self, email: str, source_address: str) -> AsyncIterator[bool]:
        """Count a password attempt, unless the block succeeds.

        Yields whether the address is in a known network. Raises TooManyAttemptsError.
        """
        account, network = self._account(email), network_of(source_address)
        here = f"passwords at {account} from {network}", ATTEMPTS
        is_known = await self._known_networks.is_known(email, source_address)
        if is_known:
            attempt = self._attempt(here)
        else:
            attempt = self._attempt(_of_source(network), here, delayed=f"passwords at {account}")
        async with attempt:
            yield is_known

    @asynccontextmanager
    async def code(self, email: str, source_address: str) -> AsyncIterator[None]:
        """Count an attempt at a code that finishes a sign-in, unless the block succeeds.

        Raises TooManyAttemptsError.
        """
        account, network = self._account(email), network_of(source_address)
        if await self._known_networks.is_known(email, source_address):
            attempt = self._attempt((f"codes at {account} from {network}", ATTEMPTS))
        else:
            attempt = self._attempt(_of_source(network), (f"codes at {account}", ATTEMPTS))
        async with attempt:
            yield

    @asynccontextmanager
    async def passkey(self, email: str, source_address: str) -> AsyncIterator[None]:
        """Count an attempt to sign in with a passkey, unless the block succeeds.

        It needs no password, so attempts from elsewhere must not stop the person. Raises
        TooManyAttemptsError.
        """
        account, network = self._account(email), network_of(source_address)
        here = f"passkeys at {account} from {network}", ATTEMPTS
        is_known = await self._known_networks.is_known(email, source_address)
        limits = (here,) if is_known else (_of_source(network), here)
        async with self._attempt(*limits):
            yield

    def step_up(self, session: SessionId) -> AbstractAsyncContextManager[None]:
        """Count an attempt at a code or password within a session, unless the block succeeds.

        Raises TooManyAttemptsError.
        """
        return self._attempt((f"step-ups of {session}", ATTEMPTS))

    async def count_mail(self, email: str, source_address: str) -> None:
        """Count one message that can be requested without signing in.

        Raises TooManyAttemptsError.
        """
        account, network = self._account(email), network_of(source_address)
        if await self._known_networks.is_known(email, source_address):
            await self._count((f"mail to {account} from {network}", MAIL_BY_ANYBODY))
        else:
            source = f"mail from {network}", MAIL_PER_SOURCE
            await self._count(source, (f"mail to {account}", MAIL_BY_ANYBODY))

    async def count_code(self, email: str, source_address: str) -> None:
        """Count one code by e-mail. Raises TooManyAttemptsError.

        Other mail does not use up this limit, so only a person with the password can.
        """
        account, network = self._account(email), network_of(source_address)
        is_known = await self._known_networks.is_known(email, source_address)
        place = f" from {network}" if is_known else ""
        await self._count((f"codes to {account}{place}", MAIL_PER_ACCOUNT))

    async def count_invitation(self, email: str, tenant: TenantId) -> None:
        """Count one invitation by a user. Raises TooManyAttemptsError."""
        await self._count(
            (f"invitations of {tenant}", INVITATIONS_PER_TENANT),
            (f"invitations to {self._account(email)}", MAIL_PER_ACCOUNT),
        )

    async def _count(self, *limits: tuple[str, Limit]) -> None:
        entered: list[str] = []
        try:
            await self._enter(limits, entered)
        except TooManyAttemptsError:
            await self._withdraw(entered)
            raise
        if is_rehearsal():
            await self._withdraw(entered)

    @asynccontextmanager
    async def _attempt(self, *limits: tuple[str, Limit], delayed: str = "") -> AsyncIterator[None]:
        """Count before the block, so that concurrent attempts are limited. Uncount on success.

        A refused attempt, an attempt during overload, and the first USED_CODES used codes do not
        count either.
        """
        entered: list[str] = []
        try:
            await self._enter(limits, entered)
            if delayed:
                await self._enter_delayed(delayed, entered)
            yield
        except (TooManyAttemptsError, OverloadedError):
            await self._withdraw(entered)
            raise
        except UsedError:
            subject = f"used codes, {limits[-1][0]}"
            if await self._rate_limiter.enter(subject, USED_CODES) is None:
                await self._withdraw(entered)
            raise
        await self._withdraw(entered)

    async def _enter(self, limits: Iterable[tuple[str, Limit]], entered: list[str]) -> None:
        for subject, limit in limits:
            wait = await self._rate_limiter.enter(subject, limit)
            if wait is not None:
                raise TooManyAttemptsError(limit, wait)
            entered.append(subject)

    async def _enter_delayed(self, subject: str, entered: list[str]) -> None:
        *growing, delay = DELAYS
        for seconds in growing:
            stage = f"{subject} after {seconds} s"
            if await self._rate_limiter.enter(stage, ATTEMPTS_PER_DELAY) is None:
                entered.append(stage)
                delay = seconds
                break
        if delay > 0:
            await self._enter([(f"{subject} every {delay} s", Limit(1, delay))], entered)

    async def _withdraw(self, entered: Iterable[str]) -> None:
        for subject in entered:
            await self._rate_limiter.withdraw(subject)

    def _account(self, email: str) -> str:
        text = email_key(email).encode("utf-8", "surrogatepass")
        return self._pepper.derive(Purpose.ACCOUNT, text).hex()


def _of_source(network: str) -> tuple[str, Limit]:
    return f"attempts from {network}", ATTEMPTS_PER_SOURCE
