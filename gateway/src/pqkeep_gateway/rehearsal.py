"""Rehearsals: a request is carried out up to its first change, to learn what is wrong with it.

A sensitive request without a proof of identity is rehearsed before the proof is asked for. What it
is refused with then is what the request itself would be refused with, since it runs the same code.
Nothing is changed: each place where a change takes effect calls ``before_change``. Those are the
commit of a transaction, requests to the key service other than look-ups, requests to the payment
provider, and announcements to other gateways.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Attribution

POLICY = "rehearsal"
"""The policy in the audit log's records of what a rehearsal looks up."""
_IS_REHEARSAL: ContextVar[bool] = ContextVar("is_rehearsal", default=False)


class RehearsedError(Exception):
    """The rehearsal has come as far as a change: nothing is wrong with the request up to there."""


def is_rehearsal() -> bool:
    """Return whether the current task rehearses a request."""
    return _IS_REHEARSAL.get()


def before_change() -> None:
    """Call this immediately before a change takes effect. Raises RehearsedError in a rehearsal."""
    if _IS_REHEARSAL.get():
        raise RehearsedError


async def rehearse(work: Callable[[], Awaitable[object]]) -> None:
    """Raise what a piece of work would be refused with, and change nothing."""
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
    """Return the attribution of a look-up: in a rehearsal its record in the audit log says so."""
    return attribution.under(POLICY) if is_rehearsal() else attribution
