"""Limits the memory for large bodies, with fairness between senders.

The received bytes of a body count until its response was read; bytes that are not sent yet do not.
Above MAX_HELD in total, the sender with the most bytes loses the body that began last. So a sender
with few bytes is never refused because of one with many. A complete body waits for its turn to be
handled. It is then in memory several times: as text, as bytes, in a frame, and in a response.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from enum import Enum, auto

from starlette.types import Receive

from pqkeep_gateway.http.errors import ClientGoneError, unavailable, until_gone

LARGE = 64 * 1024
"""Bytes of a body up to which it need not wait to be handled."""
MAX_HELD = 192 * 1024 * 1024
"""Bytes of all bodies that are larger than LARGE or arrive in pieces."""
MAX_HANDLED = 16 * 1024 * 1024
"""Bytes of bodies that are handled at once."""
MAX_HANDLED_OF_ONE = 12 * 1024 * 1024
"""Bytes of one sender's bodies that are handled at once, so that other senders need not wait for
all."""
HANDLED_SECONDS = 1.0
"""After this time a body's capacity is released, so that a slow signature does not delay others."""
WAIT_SECONDS = 10.0
"""The longest time that a body waits to be handled."""
BUSY = "too many large bodies are in progress"

Sender = Hashable
"""A tenant, or the network of a caller without a tenant."""


class LargeBodies:
    """All large bodies of a gateway."""

    def __init__(self, max_held: int = MAX_HELD) -> None:
        self._max_held = max_held
        self._bodies: dict[Sender, dict[LargeBody, None]] = {}  # the oldest body of a sender first
        self._held_of: Counter[Sender] = Counter()
        self._waiting: OrderedDict[Sender, deque[LargeBody]] = OrderedDict()
        self._handled_of: Counter[Sender] = Counter()
        self._handled = 0
        self.held = 0
        """Bytes of all counted bodies."""
        self.next = asyncio.Lock()
        """Held by the body that is parsed. Otherwise the event loop would parse all waiting bodies
        in a row."""

    def hold(self, body: "LargeBody", size: int) -> None:
        """Count more bytes of a body, and drop bodies until the total is within the limit."""
        self._bodies.setdefault(body.sender, {})[body] = None
        self._held_of[body.sender] += size
        self.held += size
        while self.held > self._max_held and self._has_one_given_up():
            pass

    def forget(self, body: "LargeBody") -> None:
        """Stop counting a body."""
        bodies = self._bodies[body.sender]
        del bodies[body]
        self._held_of[body.sender] -= body.size
        self.held -= body.size
        if not bodies:
            del self._bodies[body.sender], self._held_of[body.sender]

    def queue(self, body: "LargeBody") -> None:
        """Queue a body for handling, in turns between senders."""
        self._waiting.setdefault(body.sender, deque()).append(body)
        self._assign()

    def leave_queue(self, body: "LargeBody") -> None:
        """Remove a body from the queue."""
        self._waiting[body.sender].remove(body)
        self._assign()

    def finish(self, body: "LargeBody") -> None:
        """Release the capacity of a handled body."""
        self._handled -= body.size
        self._handled_of[body.sender] -= body.size
        self._handled_of += Counter()  # drops senders at zero
        self._assign()

    def _has_one_given_up(self) -> bool:
        return any(
            body.gives_up()
            for sender, _ in self._held_of.most_common()
            for body in reversed(tuple(self._bodies[sender]))
        )

    def _assign(self) -> None:
        while self._begins_one_of_each():
            pass

    def _begins_one_of_each(self) -> bool:
        """Begin the next body of each sender within the limits; return whether to continue."""
        has_begun = False
        for sender in tuple(self._waiting):
            queue = self._waiting[sender]
            own = self._handled_of[sender]
            if queue and (not own or own + queue[0].size <= MAX_HANDLED_OF_ONE):
                size = queue[0].size
                if self._handled and self._handled + size > MAX_HANDLED:
                    return False  # a smaller body must not overtake it
                self._handled += size
                self._handled_of[sender] += size
                queue.popleft().begin()
                self._waiting.move_to_end(sender)
                has_begun = True
            if not queue:
                del self._waiting[sender]
        return has_begun


class _State(Enum):
    RECEIVED = auto()
    WAITING = auto()
    HANDLED = auto()
    ANSWERED = auto()
    """Handled, or no longer limited; the response is not read yet."""
    ENDED = auto()


class LargeBody:
    """The body of one request, if it is large or arrives in pieces."""

    __slots__ = (
        "_bodies",
        "_evict",
        "_state",
        "_timer",
        "_turn",
        "received",
        "sender",
        "size",
    )

    def __init__(self, bodies: LargeBodies, evict: Callable[[], object]) -> None:
        """Take the body's connection."""
        self._bodies = bodies
        self._evict = evict
        self._state = _State.RECEIVED
        self._turn: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.sender: Sender = None
        self.received = bytearray()
        """The received bytes."""
        self.size = 0
        """The counted bytes: those received, until the request has ended."""

    def sent_by(self, sender: Sender) -> "LargeBody":
        """Set the sender."""
        self.sender = sender
        return self

    def add(self, piece: bytes | bytearray) -> None:
        """Add a piece. Raises ApiError if the limit is exceeded."""
        self._require()
        if piece:
            self.received += piece
            self.size += len(piece)
            self._bodies.hold(self, len(piece))
            self._require()

    async def wait(self, receive: Receive) -> None:
        """Return when the body may be handled, while no other body is parsed.

        Raises ApiError after WAIT_SECONDS, and ClientGoneError.
        """
        self._turn = asyncio.get_running_loop().create_future()
        self._state = _State.WAITING
        self._bodies.queue(self)
        if not self._turn.done():
            await self._until_turn(self._turn, receive)
        async with self._bodies.next:
            await asyncio.sleep(0)

    def begin(self) -> None:
        """Begin to handle it."""
        self._state = _State.HANDLED
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        self._timer = asyncio.get_running_loop().call_later(HANDLED_SECONDS, self.respond)

    def respond(self) -> None:
        """Release its capacity, because it was handled or takes longer than HANDLED_SECONDS."""
        if self._timer is not None:
            self._timer.cancel()
        if self._state is _State.HANDLED:
            self._state = _State.ANSWERED
            self._bodies.finish(self)

    def end(self) -> None:
        """Note the end of its request, with or without success."""
        self.respond()
        if self._state is _State.WAITING:
            self._bodies.leave_queue(self)
        if self._state is not _State.ENDED:
            self._state = _State.ENDED
            self._forget()

    def gives_up(self) -> bool:
        """Drop the body unless it is being handled; return whether it was dropped."""
        if self._state is _State.HANDLED:
            return False
        if self._state is _State.ANSWERED:
            self._evict()
        if self._turn is not None:
            self._turn.cancel()
        self.end()
        return True

    def _forget(self) -> None:
        self.received.clear()
        if self.size:
            self._bodies.forget(self)
            self.size = 0

    def _require(self) -> None:
        if self._state is _State.ENDED:
            raise unavailable(BUSY)

    async def _until_turn(self, turn: "asyncio.Future[None]", receive: Receive) -> None:
        gone = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait(
                (turn, gone), timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done() and not turn.done():
                raise ClientGoneError
        finally:
            gone.cancel()
        if turn.cancelled() or not turn.done():
            raise unavailable(BUSY)
