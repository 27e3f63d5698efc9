"""Which key service may write to a database: the rules, without I/O and without a clock.

Events go in (the lock was got or refused, its holder was heard of or silent, an epoch was begun, the
session was lost), and decisions come out: what to do next. ``fenced_database.py`` carries them out
on a database server, a real one or a simulated one. A SQLite file is locked while it is open, so its
writer is the only one from the start.

    CONNECTING ──opened──▶ ASKING ──lock_got──▶ BEGINNING ──begun──▶ WRITING
                           │     ▲                                     │
                 lock_refused   holder_heard, holder_ended            lost
                           ▼     │                                     │
                           WAITING              CONNECTING ◀───────────┘

``failed`` leads from each state before WRITING back to CONNECTING, and ``closed`` ends all.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

HELD_SECONDS = 2.0
"""How long a session is not ended that has not been heard of."""
RENEW_SECONDS = 0.5
"""Between two renewals of that time."""
POLL_SECONDS = 0.2
"""Between two looks at the lock of another key service."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0


class State(Enum):
    """Where a key service is on its way to an epoch."""

    CONNECTING = auto()
    ASKING = auto()
    WAITING = auto()
    """Another key service has the lock."""
    BEGINNING = auto()
    WRITING = auto()
    CLOSED = auto()


class Do(Enum):
    """What is to be done next."""

    CONNECT = auto()
    """End the session that there is, and open another."""
    ASK_FOR_LOCK = auto()
    LOOK_AT_HOLDER = auto()
    """End the session that has the lock if its time is over."""
    BEGIN_EPOCH = auto()
    SERVE = auto()
    """Write, and renew the session's time."""
    GIVE_UP = auto()
    """Say that another key service has the lock."""
    STOP = auto()


class Decision(NamedTuple):
    """What is to be done, after some seconds."""

    do: Do
    after: float = 0.0


class Epoch(NamedTuple):
    """A time during which one session is the only one that writes."""

    number: int
    takeovers: int
    """How many epochs were begun by a key service that had waited for another."""


class UnexpectedEventError(Exception):
    """The event cannot happen in this state."""


class Writer:
    """Whether this process may write, as its events tell."""

    def __init__(self, *, stands_by: bool = True) -> None:
        """Begin without a session. Without ``stands_by`` it gives up where the lock is taken."""
        self.epoch = 0
        """The fencing token: the number of the epoch in which this process writes; 0 in none.

        It changes with the event alone, so that it is read as an attribute. No two epochs of a
        database ever have the same number.
        """
        self.serving = 0
        """The epoch in which requests are carried out, because its checks are made; 0 in none."""
        self.newest = 0
        """The last epoch of this process, which may be over."""
        self.takeovers = 0
        """How many epochs were begun by a key service that had waited for another."""
        self.is_standing_by = False
        """Whether another key service is the writer, and this one waits to be."""
        self._state = State.CONNECTING
        self._stands_by = stands_by
        self._failures = 0
        self._renewed_at: float | None = None
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def alone(cls) -> "Writer":
        """Return the writer of a database that no other process can open: always in epoch 1."""
        writer = cls()
        writer._state = State.WRITING
        writer.epoch = writer.newest = 1
        return writer

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function whenever an epoch has begun or ended."""
        self._listeners.append(listener)

    def start(self) -> Decision:
        """Begin, or begin again after GIVE_UP."""
        self._require(State.CONNECTING)
        return Decision(Do.CONNECT)

    def opened(self) -> Decision:
        """Go on with a session that was opened."""
        return self._go(State.CONNECTING, State.ASKING, Decision(Do.ASK_FOR_LOCK))

    def failed(self) -> Decision:
        """Go on after a failure before an epoch was begun: try again, more and more slowly."""
        self._require(State.CONNECTING, State.ASKING, State.WAITING, State.BEGINNING)
        retry = min(FIRST_RETRY_SECONDS * 2**self._failures, LAST_RETRY_SECONDS)
        self._failures = min(self._failures + 1, 16)
        self.is_standing_by = False
        return self._go(self._state, State.CONNECTING, Decision(Do.CONNECT, retry))

    def lock_got(self) -> Decision:
        """Go on with the lock."""
        return self._go(State.ASKING, State.BEGINNING, Decision(Do.BEGIN_EPOCH))

    def lock_refused(self) -> Decision:
        """Go on where another session has the lock."""
        if not self._stands_by:
            return self._go(State.ASKING, State.CONNECTING, Decision(Do.GIVE_UP))
        decision = self._go(State.ASKING, State.WAITING, Decision(Do.LOOK_AT_HOLDER))
        self.is_standing_by = self._state is State.WAITING
        return decision

    def holder_heard(self) -> Decision:
        """Go on where the time of the lock's holder is not over."""
        return self._go(State.WAITING, State.ASKING, Decision(Do.ASK_FOR_LOCK, POLL_SECONDS))

    def holder_ended(self) -> Decision:
        """Go on where the lock's holder was silent, and its session is ended."""
        return self._go(State.WAITING, State.ASKING, Decision(Do.ASK_FOR_LOCK))

    def begun(self, epoch: Epoch) -> Decision:
        """Write from now on."""
        decision = self._go(State.BEGINNING, State.WRITING, Decision(Do.SERVE))
        if self._state is State.WRITING:
            self._failures, self._renewed_at = 0, None
            self.is_standing_by = False
            self.newest, self.takeovers = epoch
            self._change(self.newest)
        return decision

    def checked(self, epoch: int) -> None:
        """Serve in an epoch of which the checks are made, unless it is over."""
        if epoch == self.epoch:
            self.serving = epoch

    def lost(self) -> Decision:
        """Write no more, because the session is over, does not answer, or has been fenced off."""
        decision = self._go(State.WRITING, State.CONNECTING, Decision(Do.CONNECT))
        self._change(0)
        return decision

    def closed(self) -> None:
        """Write no more, and do nothing more."""
        self._state = State.CLOSED
        self.is_standing_by = False
        self._change(0)

    def is_renewal_due(self, now: float) -> bool:
        """Return whether the session has to say that it is in use."""
        return self._renewed_at is None or now - self._renewed_at >= RENEW_SECONDS

    def renewed(self, at: float) -> None:
        """Note when the session has begun to say so."""
        self._renewed_at = at

    def _change(self, epoch: int) -> None:
        self.epoch, self.serving = epoch, 0
        for listener in self._listeners:
            listener()

    def _go(self, expected: State, state: State, decision: Decision) -> Decision:
        if self._state is State.CLOSED:
            return Decision(Do.STOP)
        self._require(expected)
        self._state = state
        return decision

    def _require(self, *states: State) -> None:
        if self._state not in states and self._state is not State.CLOSED:
            raise UnexpectedEventError(self._state)
