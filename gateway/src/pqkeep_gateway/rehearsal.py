"""Rehearsals: a request runs up to its first change, to find its errors.

A sensitive request without a proof of identity is rehearsed before the proof is requested. It runs
the same code, so it gets the error that the request would get. A rehearsal changes nothing: every
place with an effect calls ``before_change`` first. These are commits of transactions, requests to
the key service except look-ups, requests to the payment provider, and announcements to other
gateways.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Attribution

POLICY = "rehearsal"
"""The policy in audit records of a rehearsal's look-ups."""
_IS_REHEARSAL: ContextVar[bool] = ContextVar("is_rehearsal", default=False)


class RehearsedError(Exception):
    """The rehearsal has reached a change without finding an error."""


def is_rehearsal() -> bool:
    """Return whether the current task rehearses a request."""
    return _IS_REHEARSAL.get()


def before_change() -> None:
    """Raise RehearsedError in a rehearsal. Call this immediately before a change takes effect."""
    if _IS_REHEARSAL.get():
        raise RehearsedError


async def rehearse(work: Callable[[], Awaitable[object]]) -> None:
    """Raise the error that the work would raise, and change nothing."""
    token = _IS_REHEARSAL.set(True)
    try:
        await work()
    except RehearsedError:
        return
    finally:
        _IS_REHEARSAL.reset(token)


async def rehearse_absence(
    look_up: Callable[[], Awaitable[object]], absent: ErrorKind, present: ErrorKind
) -> None:
    """In a rehearsal, raise KeyServiceError with ``present`` unless a look-up raises ``absent``."""
    if not is_rehearsal():
        return
    try:
        await look_up()
    except KeyServiceError as refusal:
        if refusal.kind is absent:
            return
        raise
    raise KeyServiceError(present)


def attributed(attribution: Attribution) -> Attribution:
    """Return the attribution of a look-up; in a rehearsal, its audit record has POLICY."""
    return attribution.under(POLICY) if is_rehearsal() else attribution
