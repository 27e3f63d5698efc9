"""The rules for the writer of a database, as a state machine without I/O and without a clock.

Events go in: the lock was got or refused, its holder was heard or silent, an epoch began, the
session was lost. Decisions come out: what to do next. ``fenced_database.py`` carries them out on a
database server, real or simulated. A SQLite file stays locked while it is open, so its writer is
alone from the start.

    CONNECTING ──opened──▶ ASKING ──lock_got──▶ BEGINNING ──begun──▶ WRITING
                           │     ▲                                     │
                 lock_refused   holder_heard, holder_ended            lost
                           ▼     │                                     │
                           WAITING              CONNECTING ◀───────────┘

``failed`` leads from each state before WRITING back to CONNECTING. ``closed`` ends everything.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

HELD_SECONDS = 2.0
"""How long a session is protected after its last renewal."""
RENEW_SECONDS = 0.5
"""The time between two renewals."""
POLL_SECONDS = 0.2
"""The time between two looks at another key service's lock."""
FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 1.0


class State(Enum):
    """The states of a key service on its way to an epoch."""

    CONNECTING = auto()
    ASKING = auto()
    WAITING = auto()
    """Another key service has the lock."""
    BEGINNING = auto()
    WRITING = auto()
    CLOSED = auto()


class Do(Enum):
    """The actions that a decision can ask for."""

    CONNECT = auto()
    """End the current session, and open a new one."""
    ASK_FOR_LOCK = auto()
    LOOK_AT_HOLDER = auto()
    """End the holder's session if its time is over."""
    BEGIN_EPOCH = auto()
    SERVE = auto()
    """Write, and renew the session's time."""
    GIVE_UP = auto()
    """Report that another key service has the lock."""
    STOP = auto()


class Decision(NamedTuple):
    """The next action, after a delay in seconds."""

    do: Do
    after: float = 0.0


class Epoch(NamedTuple):
    """A period in which only one session writes."""

    number: int
    takeovers: int
    """The number of epochs so far that a former standby began."""


class UnexpectedEventError(Exception):
    """The event cannot happen in this state."""


class Writer:
    """Whether this process may write, derived from its events."""

    def __init__(self, *, stands_by: bool = True) -> None:
        """Begin without a session. Without ``stands_by`` it gives up if the lock is taken."""
        self.epoch = 0
        """The fencing token: the number of this process's current epoch; 0 outside of an epoch.

        Only events change it, so it can be read as an attribute. No two epochs of a database have
        the same number.
        """
        self.serving = 0
        """The epoch in which requests are executed, after its checks. 0 outside of an epoch."""
        self.newest = 0
        """The last epoch of this process. It may have ended."""
        self.takeovers = 0
        """The number of epochs so far that a former standby began."""
        self.is_standing_by = False
        """Whether this process waits while another key service is the writer."""
        self._state = State.CONNECTING
        self._stands_by = stands_by
        self._failures = 0
        self._renewed_at: float | None = None
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def alone(cls) -> "Writer":
        """Return the writer of a database that only this process can open: always in epoch 1."""
        writer = cls()
        writer._state = State.WRITING
        writer.epoch = writer.newest = 1
        return writer

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function whenever an epoch begins or ends."""
        self._listeners.append(listener)

    def start(self) -> Decision:
        """Start, or start again after GIVE_UP."""
        self._require(State.CONNECTING)
        return Decision(Do.CONNECT)

    def opened(self) -> Decision:
        """Continue with an opened session."""
        return self._go(State.CONNECTING, State.ASKING, Decision(Do.ASK_FOR_LOCK))

    def failed(self) -> Decision:
        """Continue after a failure before an epoch: retry with increasing delays."""
        self._require(State.CONNECTING, State.ASKING, State.WAITING, State.BEGINNING)
        retry = min(FIRST_RETRY_SECONDS * 2**self._failures, LAST_RETRY_SECONDS)
        self._failures = min(self._failures + 1, 16)
        self.is_standing_by = False
        return self._go(self._state, State.CONNECTING, Decision(Do.CONNECT, retry))

    def lock_got(self) -> Decision:
        """Continue with the lock."""
        return self._go(State.ASKING, State.BEGINNING, Decision(Do.BEGIN_EPOCH))

    def lock_refused(self) -> Decision:
        """Continue without the lock, which another session holds."""
        if not self._stands_by:
            return self._go(State.ASKING, State.CONNECTING, Decision(Do.GIVE_UP))
        decision = self._go(State.ASKING, State.WAITING, Decision(Do.LOOK_AT_HOLDER))
        self.is_standing_by = self._state is State.WAITING
        return decision

    def holder_heard(self) -> Decision:
        """Continue while the holder's time is not over."""
        return self._go(State.WAITING, State.ASKING, Decision(Do.ASK_FOR_LOCK, POLL_SECONDS))

    def holder_ended(self) -> Decision:
        """Continue after the silent holder's session has been ended."""
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
        """Serve in an epoch after its checks, unless it has ended."""
        if epoch == self.epoch:
            self.serving = epoch

    def lost(self) -> Decision:
        """Stop writing: the session has ended, does not respond, or was fenced off."""
        decision = self._go(State.WRITING, State.CONNECTING, Decision(Do.CONNECT))
        self._change(0)
        return decision

    def closed(self) -> None:
        """Stop writing for good."""
        self._state = State.CLOSED
        self.is_standing_by = False
        self._change(0)

    def is_renewal_due(self, now: float) -> bool:
        """Return whether the session must renew its time."""
        return self._renewed_at is None or now - self._renewed_at >= RENEW_SECONDS

    def renewed(self, at: float) -> None:
        """Note when a renewal of the session's time began."""
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
