"""How much of large bodies is in memory at once, fair between those who send them.

A body counts as its bytes come, until its answer was read: what nobody has sent yet costs nothing.
Where there would be more than MAX_HELD, whoever has the most loses the body that began last: so one
who has less than another is not refused. A body that is whole waits for its turn to be handled, in
which it is in memory several times: as text, decoded, in a frame, and as an answer.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from enum import Enum, auto

from starlette.types import Receive

from pqkeep_gateway.http.disconnection import ClientGoneError, until_gone
from pqkeep_gateway.http.errors import unavailable

LARGE = 64 * 1024
"""Bytes of a body that need not wait to be handled."""
MAX_HELD = 192 * 1024 * 1024
"""Bytes of all bodies that are larger or come in pieces."""
MAX_HANDLED = 16 * 1024 * 1024
"""Bytes of those that are handled at once."""
MAX_HANDLED_OF_ONE = 12 * 1024 * 1024
"""Bytes of them that are of one sender: others need not wait until all of these are answered."""
HANDLED_SECONDS = 1.0
"""After which its room is another's: what waits for a slow signature must not have others wait."""
WAIT_SECONDS = 10.0
"""How long a body waits to be handled."""
BUSY = "too many large bodies are under way"

Sender = Hashable
"""A tenant, or the network of somebody who is of none."""


class LargeBodies:
    """All large bodies of a gateway."""

    def __init__(self, max_held: int = MAX_HELD) -> None:
        self._max_held = max_held
        self._bodies: dict[Sender, dict[LargeBody, None]] = {}  # each: the oldest first
        self._held_of: Counter[Sender] = Counter()
        self._waiting: OrderedDict[Sender, deque[LargeBody]] = OrderedDict()
        self._handled_of: Counter[Sender] = Counter()
        self._handled = 0
        self.held = 0
        """Bytes of all that count."""
        self.next = asyncio.Lock()
        """Of who is parsed: the event loop would parse all that are there before anything else."""

    def hold(self, body: "LargeBody", size: int) -> None:
        """Count so many bytes more of a body, and have bodies give up until there is room."""
        self._bodies.setdefault(body.sender, {})[body] = None
        self._held_of[body.sender] += size
        self.held += size
        while self.held > self._max_held and self._has_one_given_up():
            pass

    def forget(self, body: "LargeBody") -> None:
        """Count a body no longer."""
        bodies = self._bodies[body.sender]
        del bodies[body]
        self._held_of[body.sender] -= body.size
        self.held -= body.size
        if not bodies:
            del self._bodies[body.sender], self._held_of[body.sender]

    def queue(self, body: "LargeBody") -> None:
        """Have a body be handled when there is room for it, one sender after the other."""
        self._waiting.setdefault(body.sender, deque()).append(body)
        self._assign()

    def leave_queue(self, body: "LargeBody") -> None:
        """Have a body not be handled."""
        self._waiting[body.sender].remove(body)
        self._assign()

    def finish(self, body: "LargeBody") -> None:
        """Take back the room in which a body was handled."""
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
        """Begin the next body of each sender that there is room for; return whether to go on."""
        has_begun = False
        for sender in tuple(self._waiting):
            queue = self._waiting[sender]
            own = self._handled_of[sender]
            if queue and (not own or own + queue[0].size <= MAX_HANDLED_OF_ONE):
                size = queue[0].size
                if self._handled and self._handled + size > MAX_HANDLED:
                    return False  # and none that is smaller takes its room
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
    """Or about to be; the answer is still to be read."""
    ENDED = auto()


class LargeBody:
    """The body of one request, if it is large or comes in pieces."""

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
        """Take the function that closes its connection at once."""
        self._bodies = bodies
        self._evict = evict
        self._state = _State.RECEIVED
        self._turn: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.sender: Sender = None
        self.received = bytearray()
        """What has come of it."""
        self.size = 0
        """How many bytes of it count: what has come, until the request has ended."""

    def sent_by(self, sender: Sender) -> "LargeBody":
        """Say who sends it."""
        self.sender = sender
        return self

    def add(self, piece: bytes | bytearray) -> None:
        """Take a piece of it. Raises ApiError if there is no room for it."""
        self._require()
        if piece:
            self.received += piece
            self.size += len(piece)
            self._bodies.hold(self, len(piece))
            self._require()

    async def wait(self, receive: Receive) -> None:
        """Return in a turn of the event loop in which it may be handled, and no other is parsed.

        Raises ApiError if it may not, and ClientGoneError.
        """
        self._turn = asyncio.get_running_loop().create_future()
        self._state = _State.WAITING
        self._bodies.queue(self)
        if not self._turn.done():
            await self._until_turn(self._turn, receive)
        async with self._bodies.next:
            await asyncio.sleep(0)

    def begin(self) -> None:
        """Have it be handled."""
        self._state = _State.HANDLED
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)
        self._timer = asyncio.get_running_loop().call_later(HANDLED_SECONDS, self.answer)

    def answer(self) -> None:
        """Say that it was handled, or will not be soon: its room is another's."""
        if self._timer is not None:
            self._timer.cancel()
        if self._state is _State.HANDLED:
            self._state = _State.ANSWERED
            self._bodies.finish(self)

    def end(self) -> None:
        """Say that its request has ended, however."""
        self.answer()
        if self._state is _State.WAITING:
            self._bodies.leave_queue(self)
        if self._state is not _State.ENDED:
            self._state = _State.ENDED
            self._forget()

    def gives_up(self) -> bool:
        """Let go of it unless it is being handled; return whether that was done."""
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
