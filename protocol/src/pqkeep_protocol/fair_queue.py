"""A bounded queue for a few slots, fair between subjects (tenants or source addresses)."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Subject = TypeVar("Subject", bound=Hashable)
Slot = TypeVar("Slot")


class QueueFullError(Exception):
    """The queue is full, and no subject has more waiting than this one."""


class QueueTimeoutError(Exception):
    """No slot was free before the deadline."""


class FairQueue(Generic[Subject, Slot]):
    """Hands out slots round-robin by subject.

    No subject holds more than ``per_subject`` slots at once. If more than ``max_waiting`` wait, the
    subject with the most loses its newest. So a subject with fewer waiting than another is never
    refused.
    """

    def __init__(self, slots: Iterable[Slot], *, per_subject: int, max_waiting: int) -> None:
        self._free = list(slots)
        self._per_subject = per_subject
        self._max_waiting = max_waiting
        self._held: Counter[Subject] = Counter()
        self._waiting: OrderedDict[Subject, deque[asyncio.Future[Slot]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """The number of callers that wait for a slot."""
        return sum(map(len, self._waiting.values()))

    async def acquire(self, subject: Subject, deadline: float | None = None) -> Slot:
        """Return a slot as soon as the subject may have one. ``release`` it afterwards.

        The deadline is in the event loop's time. Raises QueueFullError or QueueTimeoutError.
        """
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(subject, deque()).append(future)
        self._assign()
        self._refuse_one_too_many(subject)
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except (TimeoutError, asyncio.CancelledError) as ended:
            self._give_up(subject, future)
            if isinstance(ended, TimeoutError):
                raise QueueTimeoutError from None
            raise
        finally:
            del future  # its exception refers to this frame and to those of its callers

    def release(self, subject: Subject, slot: Slot) -> None:
        """Take a slot back."""
        self._free.append(slot)
        self._held[subject] -= 1
        self._held += Counter()  # drops subjects at zero
        self._assign()

    def _assign(self) -> None:
        """Hand free slots to waiting callers, one subject after the other."""
        for subject in tuple(self._waiting):
            queue = self._waiting[subject]
            while queue and queue[0].done():
                del queue[0]
            if queue and self._free and self._held[subject] < self._per_subject:
                self._held[subject] += 1
                queue.popleft().set_result(self._free.pop())
                self._waiting.move_to_end(subject)
            if not queue:
                del self._waiting[subject]

    def _refuse_one_too_many(self, subject: Subject) -> None:
        """Refuse the newest of the longest queue if too many wait; of equals, the subject's."""
        if self.waiting <= self._max_waiting:
            return
        own = self._waiting[subject]
        longest = max(self._waiting.values(), key=lambda queue: (len(queue), queue is own))
        last = longest.pop()
        if not last.done():
            last.set_exception(QueueFullError())

    def _give_up(self, subject: Subject, future: asyncio.Future[Slot]) -> None:
        if future.done() and not future.cancelled() and future.exception() is None:
            self.release(subject, future.result())  # assigned at the same moment
        elif future in self._waiting.get(subject, ()):
            self._waiting[subject].remove(future)
