"""Passwords: which are taken, how they are kept, and how many are worked on at a time.

They are compared by Argon2id (RFC 9106), of a digest under the pepper: the database alone does not
allow to guess.
"""

import asyncio
import secrets
import unicodedata
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import VerifyMismatchError

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.config import PasswordCosts
from pqkeep_gateway.people.common_passwords import is_common
from pqkeep_gateway.unavailable import UnavailableError

T = TypeVar("T")

MIN_LENGTH = 12
MAX_LENGTH = 1024
"""Characters, as they are given. There are no rules of composition."""

AT_A_TIME = 2
WAITING = 32
"""How many may wait for their turn; the next one hears 503 at once."""

_PURPOSE = "pqkeep/v1/password"


class InvalidPasswordError(Exception):
    """The password is not taken. The message says why, for the person who chose it."""


class Passwords:
    """Hashes and verifies passwords, in threads: the loop goes on meanwhile."""

    def __init__(self, pepper: Pepper, hasher: PasswordHasher) -> None:
        """Hash at the hasher's costs."""
        self._pepper = pepper
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(AT_A_TIME, "password")
        self._working = 0
        self._nobodys = _hash_of_nothing(self._hasher)
        """What is compared where there is nobody: the answer takes as long."""

    async def hash(self, password: str) -> str:
        """Return what to keep. Raises InvalidPasswordError, UnavailableError."""
        require_fit(password)
        return await self.hash_again(password)

    async def hash_again(self, password: str) -> str:
        """Return what to keep of somebody's password, as it is. Raises UnavailableError."""
        return await self._work(lambda: self._hasher.hash(self._digest(password)))

    def is_outdated(self, password_hash: str) -> bool:
        """Return whether a hash has other costs than new ones have."""
        return self._hasher.check_needs_rehash(password_hash)

    async def verify(self, password_hash: str | None, password: str) -> bool:
        """Return whether it is the password; None: of nobody. Raises UnavailableError."""
        return await self._work(lambda: self._verify(password_hash, password))

    def close(self) -> None:
        """Wait for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verify(self, password_hash: str | None, password: str) -> bool:
        try:
            self._hasher.verify(password_hash or self._nobodys, self._digest(password))
        except VerifyMismatchError:
            return False
        return password_hash is not None

    def _digest(self, password: str) -> bytes:
        text = _normal(password).encode("utf-8", "surrogatepass")
        return self._pepper.derive(_PURPOSE, text)

    async def _work(self, work: Callable[[], T]) -> T:
        if self._working >= AT_A_TIME + WAITING:
            raise UnavailableError
        self._working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._working -= 1


def hasher(costs: PasswordCosts) -> PasswordHasher:
    """Return what hashes at such costs."""
    return PasswordHasher(
        time_cost=costs.passes, memory_cost=costs.memory_kib, parallelism=costs.lanes
    )


def require_fit(password: str) -> None:
    """Raise InvalidPasswordError unless a password can be chosen."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidPasswordError(f"must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    if is_common(_normal(password)):
        raise InvalidPasswordError("is one of those that are tried first")


def _hash_of_nothing(hasher: PasswordHasher) -> str:
    """Return a hash of the usual costs that no password has; it takes no time to make."""
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, digest = (
        b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (hasher.salt_len, hasher.hash_len)
    )
    return f"$argon2id$v=19${costs}${salt}${digest}"


def _normal(password: str) -> str:
    """Return one form for what different keyboards send (NFKC, as NIST SP 800-63B has it)."""
    return unicodedata.normalize("NFKC", password)
