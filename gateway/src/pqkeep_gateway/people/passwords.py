"""Passwords: rules, storage, and the queue for hashing.

The stored hash is Argon2id (RFC 9106) of a digest under the pepper. A copy of the database is
therefore not enough to guess passwords. The digest includes the user's id, so a hash works for one
user only.
"""

import asyncio
import secrets
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.config import MAX_LANES, MAX_MEMORY_KIB, MAX_PASSES, PasswordCosts
from pqkeep_gateway.outgoing_mail import MailKind, new_mail
from pqkeep_gateway.people.common_passwords import is_common
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.storage.users import Account, SqlUsers
from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.fair_queue import FairQueue, QueueFullError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

T = TypeVar("T")

MIN_LENGTH = 12
MAX_LENGTH = 1024
"""Characters, before normalisation. There are no composition rules (NIST SP 800-63B)."""

THREADS = 2
"""One thread is for strangers: sign-ins from unknown networks, and requests with a mailed token. The
other is for signed-in users and known networks, so that a flood of strangers does not delay them."""
MAX_WAITING = 64
"""Waiting hashes for each thread, from all addresses together; see FairQueue."""


_NO_USER = UserId(UUID(int=0))


class InvalidPasswordError(Exception):
    """The new password breaks a rule. The message names the rule, for the user."""


class PasswordsDisabledError(Exception):
    """The tenant's users sign in at a provider, and have no passwords here."""


class Passwords:
    """Hashes and verifies passwords in its own threads. Source networks take turns.

    If the queue is full, the newest request of the network with the most raises OverloadedError.
    """

    def __init__(
        self, pepper: Pepper, hasher: PasswordHasher, *, disabled_for: Collection[TenantId] = ()
    ) -> None:
        """Take a hasher with the costs of new hashes, and the tenants without passwords."""
        self._disabled_for = frozenset(disabled_for)
        self._pepper = pepper
        self._hasher = hasher
        self._threads = ThreadPoolExecutor(THREADS, "password")
        self._of_strangers, self._of_known = (
            FairQueue[str, int]([thread], per_subject=1, max_waiting=MAX_WAITING)
            for thread in range(THREADS)
        )
        self._dummy_hash = _dummy_hash(self._hasher)

    @property
    def waiting(self) -> int:
        """How many hashes wait for a thread."""
        return self._of_strangers.waiting + self._of_known.waiting

    def hash_of(self, account: Account | None) -> str | None:
        """Return the hash for signing in; None if the account has no password or may not use it."""
        if account is None or not self.are_enabled(account.user.tenant):
            return None
        return account.password_hash

    def are_enabled(self, tenant: TenantId) -> bool:
        """Return whether a tenant's users may have passwords."""
        return tenant not in self._disabled_for

    def require_enabled(self, tenant: TenantId) -> None:
        """Raise PasswordsDisabledError unless a tenant's users may have passwords."""
        if not self.are_enabled(tenant):
            raise PasswordsDisabledError

    async def hash(
        self, user: UserId, password: str, source_address: str, *, is_stranger: bool = False
    ) -> str:
        """Return the hash of a user's new password. Raises InvalidPasswordError, OverloadedError."""
        require_valid(password)
        return await self.rehash(user, password, source_address, is_stranger=is_stranger)

    async def rehash(
        self, user: UserId, password: str, source_address: str, *, is_stranger: bool = False
    ) -> str:
        """Return a hash of a user's existing password. Raises OverloadedError."""
        return await self._in_thread(
            source_address,
            lambda: self._hasher.hash(self._digest(user, password)),
            is_stranger=is_stranger,
        )

    def is_outdated(self, password_hash: str | None) -> bool:
        """Return whether the hash has other costs than new hashes. False for None."""
        return password_hash is not None and self._hasher.check_needs_rehash(password_hash)

    async def verify(
        self,
        account: Account | None,
        password: str,
        source_address: str,
        *,
        is_stranger: bool = False,
    ) -> bool:
        """Return whether the password is the account's. Raises OverloadedError.

        ``is_stranger``: the address is in no known network of the account. Without an account or a
        password hash, the check takes as long.
        """
        return await self._in_thread(
            source_address, lambda: self._verify(account, password), is_stranger=is_stranger
        )

    def close(self) -> None:
        """Cancel waiting hashes."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verify(self, account: Account | None, password: str) -> bool:
        password_hash = self.hash_of(account)
        if password_hash is not None and not _is_acceptable(password_hash):
            _LOG.error("a password hash was not written by a gateway: it is ignored")
            password_hash = None
        user = _NO_USER if account is None else account.user.id
        try:
            self._hasher.verify(password_hash or self._dummy_hash, self._digest(user, password))
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError):
            _LOG.error("a password hash was not written by a gateway: it is ignored")
            return False
        return password_hash is not None

    def _digest(self, user: UserId, password: str) -> bytes:
        text = _normalised(password).encode("utf-8", "surrogatepass")
        return self._pepper.derive(Purpose.PASSWORD, user.bytes, text)

    async def _in_thread(
        self, source_address: str, work: Callable[[], T], *, is_stranger: bool = False
    ) -> T:
        network = network_of(source_address)
        queue = self._of_strangers if is_stranger else self._of_known
        try:
            thread = await queue.acquire(network)
        except QueueFullError:
            raise OverloadedError from None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            queue.release(network, thread)


def hasher(costs: PasswordCosts) -> PasswordHasher:
    """Return an Argon2id hasher with these costs."""
    return PasswordHasher(
        time_cost=costs.passes, memory_cost=costs.memory_kib, parallelism=costs.lanes
    )


def _is_acceptable(password_hash: str) -> bool:
    """Return whether a stored hash is Argon2id, with costs within the limits of the settings.

    Without this check, a forged row could use all memory, or occupy a thread for hours.
    """
    try:
        costs = extract_parameters(password_hash)
    except (InvalidHashError, ValueError):
        return False
    return (
        costs.type is Type.ID
        and costs.memory_cost <= MAX_MEMORY_KIB
        and costs.time_cost <= MAX_PASSES
        and costs.parallelism <= MAX_LANES
    )


def require_valid(password: str) -> None:
    """Raise InvalidPasswordError if a new password breaks a rule."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise InvalidPasswordError(f"must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    if is_common(_normalised(password)):
        raise InvalidPasswordError("is a common password that attackers try first")


def _dummy_hash(hasher: PasswordHasher) -> str:
    """Return a random hash with the usual costs, which matches no password."""
    costs = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, digest = (
        b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (hasher.salt_len, hasher.hash_len)
    )
    return f"$argon2id$v=19${costs}${salt}${digest}"


def _normalised(password: str) -> str:
    """Return the NFKC form, which is the same for all keyboards (NIST SP 800-63B)."""
    return unicodedata.normalize("NFKC", password)


class PasswordChange:
    """Replaces passwords of signed-in users."""

    def __init__(
        self,
        users: SqlUsers,
        passwords: Passwords,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        self._users = users
        self._passwords = passwords
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def change(
        self, principal: SessionPrincipal, password: str, attribution: Attribution
    ) -> None:
        """Replace a password, and end every session of the user.

        Raises InvalidPasswordError, PasswordsDisabledError.
        """
        self._passwords.require_enabled(principal.tenant)
        require_valid(password)
        before_change()  # hashing takes long
        user = principal.user
        password_hash = await self._passwords.hash(user, password, attribution.source_address)
        email = (await self._users.get(user)).user.email
        mail = new_mail(MailKind.PASSWORD_CHANGED, email, date_of(self._clock()))
        changed = event(attribution, principal.tenant, AuditEvent.CHANGE_PASSWORD)
        await self._users.save_password(user, password_hash, mail, changed)
        await self._audit_delivery.deliver()
