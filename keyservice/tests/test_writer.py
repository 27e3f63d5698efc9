"""The state machine for the one key service that may write, and its gate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pqkeep_keyservice.storage.writer import (
    LAST_RETRY_SECONDS,
    POLL_SECONDS,
    RENEW_SECONDS,
    Decision,
    Do,
    Epoch,
    UnexpectedEventError,
    Writer,
)

AFTER: dict[Do, tuple[Callable[[Writer], Decision], ...]] = {
    Do.CONNECT: (Writer.opened, Writer.failed),
    Do.ASK_FOR_LOCK: (Writer.lock_got, Writer.lock_refused, Writer.failed),
    Do.LOOK_AT_HOLDER: (Writer.holder_heard, Writer.holder_ended, Writer.failed),
    Do.BEGIN_EPOCH: (Writer.failed,),
    Do.SERVE: (Writer.lost,),
    Do.GIVE_UP: (Writer.start,),
    Do.STOP: (),
}
"""Possible events of a writer, without the beginning of an epoch."""
EVENTS = frozenset(event for events in AFTER.values() for event in events)
STEPS = [Writer.opened, Writer.lock_got]


def note_epoch(writer: Writer, changes: list[int]) -> None:
    """Note a writer's epoch."""
    changes.append(writer.epoch)


class Writers(RuleBasedStateMachine):
    """Several key services on one database, each with a state machine, and one lock."""

    @initialize(stands_by=st.lists(st.booleans(), min_size=2, max_size=3))
    def begin(self, stands_by: list[bool]) -> None:
        """Start each of them."""
        self.writers = [Writer(stands_by=waits) for waits in stands_by]
        self.decisions = [writer.start() for writer in self.writers]
        self.changes: list[list[int]] = [[] for _ in self.writers]
        self.holder: int | None = None
        self.newest = 0
        for writer, changes in zip(self.writers, self.changes, strict=True):
            writer.on_change(partial(note_epoch, writer, changes))

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """Carry out a decision of one of them. The lock is free or not, and anything may fail."""
        number = data.draw(st.integers(0, len(self.writers) - 1))
        writer, do = self.writers[number], self.decisions[number].do
        fails = data.draw(st.booleans()) and Writer.failed in AFTER[do]
        if fails or do is Do.SERVE:
            self._leave(number)
            self.decisions[number] = writer.failed() if fails else writer.lost()
        elif do is Do.ASK_FOR_LOCK:
            is_free = self.holder is None
            self.holder = number if is_free else self.holder
            self.decisions[number] = writer.lock_got() if is_free else writer.lock_refused()
        elif do is Do.LOOK_AT_HOLDER:
            if data.draw(st.booleans()):
                self.holder = None  # which does not know it yet
                self.decisions[number] = writer.holder_ended()
            else:
                self.decisions[number] = writer.holder_heard()
        elif do is Do.BEGIN_EPOCH:
            self.newest += 1
            self.decisions[number] = writer.begun(Epoch(self.newest, 0))
        elif do in {Do.CONNECT, Do.GIVE_UP}:
            self.decisions[number] = writer.opened() if do is Do.CONNECT else writer.start()

    @rule(data=st.data(), epoch=st.integers(0, 9))
    def check(self, data: st.DataObject, epoch: int) -> None:
        """Complete the checks of an epoch, which may have ended."""
        data.draw(st.sampled_from(self.writers)).checked(epoch)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Stop one key service."""
        number = data.draw(st.integers(0, len(self.writers) - 1))
        self._leave(number)
        self.writers[number].closed()
        self.decisions[number] = Decision(Do.STOP)

    @rule(data=st.data(), event=st.sampled_from(sorted(EVENTS, key=lambda rule_: rule_.__name__)))
    @precondition(lambda self: any(decision.do is not Do.STOP for decision in self.decisions))
    def confuse(self, data: st.DataObject, event: Callable[[Writer], Decision]) -> None:
        """Send one of them an event that cannot happen. It refuses, and does not change."""
        number = data.draw(st.integers(0, len(self.writers) - 1))
        writer, do = self.writers[number], self.decisions[number].do
        first = do is Do.CONNECT and event is Writer.start
        if do is Do.STOP or event in AFTER[do] or first:
            return
        before = vars(writer).copy()
        with pytest.raises(UnexpectedEventError):
            event(writer)
        assert vars(writer) == before

    @invariant()
    def the_token_is_that_of_an_epoch_that_is_not_known_to_be_over(self) -> None:
        """Only a serving key service has a token, and no two have the same."""
        for writer, decision in zip(self.writers, self.decisions, strict=True):
            assert bool(writer.epoch) == (decision.do is Do.SERVE)
            assert writer.serving in {0, writer.epoch}
            assert not (writer.is_standing_by and writer.epoch)
        tokens = [writer.epoch for writer in self.writers if writer.epoch]
        assert len(set(tokens)) == len(tokens)

    @invariant()
    def only_the_newest_epoch_has_the_lock(self) -> None:
        """While the holder writes, no other has a later token."""
        if self.holder is not None and (token := self.writers[self.holder].epoch):
            assert token == max(writer.epoch for writer in self.writers)

    @invariant()
    def every_change_was_told(self) -> None:
        """Listeners saw each fencing token once, and the last one is current."""
        for writer, changes in zip(self.writers, self.changes, strict=True):
            assert (changes[-1] if changes else 0) == writer.epoch
            tokens = [change for change in changes if change]
            assert tokens == sorted(set(tokens))

    @invariant()
    def who_gives_up_does_not_wait(self) -> None:
        """A command never ends another's session, and a standby never gives up."""
        for writer, decision in zip(self.writers, self.decisions, strict=True):
            assert decision.do is not (Do.GIVE_UP if writer._stands_by else Do.LOOK_AT_HOLDER)

    def _leave(self, number: int) -> None:
        if self.holder == number:
            self.holder = None


Writers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


TestWriters = Writers.TestCase


def serving(epoch: int = 1) -> Writer:
    """Return the writer of an epoch."""
    writer = Writer()
    writer.start()
    for step in STEPS:
        step(writer)
    assert writer.begun(Epoch(epoch, 0)).do is Do.SERVE
    return writer


def test_failures_are_tried_again_more_and_more_slowly() -> None:
    """Retry delays double up to a second, and start again after an epoch."""
    writer = Writer()
    writer.start()
    pauses = [writer.failed().after for _ in range(40)]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(pauses) == pauses[-1] == LAST_RETRY_SECONDS
    for step in STEPS:
        step(writer)
    writer.begun(Epoch(1, 0))
    assert writer.lost() == Decision(Do.CONNECT)
    assert writer.failed().after == pauses[0]


def test_a_holder_that_is_heard_of_is_waited_for() -> None:
    """The lock is requested after a pause, or at once if its holder was silent."""
    writer = Writer()
    writer.start()
    writer.opened()
    assert writer.lock_refused().do is Do.LOOK_AT_HOLDER
    assert writer.holder_heard() == Decision(Do.ASK_FOR_LOCK, POLL_SECONDS)
    writer.lock_refused()
    assert writer.holder_ended() == Decision(Do.ASK_FOR_LOCK)
    assert writer.is_standing_by


def test_a_renewal_is_due_at_first_and_then_every_half_second() -> None:
    """Each epoch begins with a renewal."""
    writer = serving()
    assert writer.is_renewal_due(0.0)
    writer.renewed(5.0)
    assert not writer.is_renewal_due(5.0 + RENEW_SECONDS - 0.01)
    assert writer.is_renewal_due(5.0 + RENEW_SECONDS)
    writer.lost()
    for step in STEPS:
        step(writer)
    writer.begun(Epoch(2, 0))
    assert writer.is_renewal_due(5.0)


def test_checks_of_an_epoch_that_is_over_do_not_count() -> None:
    """Requests run only in the epoch of the checks."""
    writer = serving(3)
    writer.checked(2)
    assert writer.serving == 0
    writer.checked(3)
    assert writer.serving == 3
    writer.lost()
    writer.checked(3)
    assert (writer.epoch, writer.serving, writer.newest) == (0, 0, 3)


def test_a_file_has_one_writer_from_the_start() -> None:
    """A file's epoch is the first, and serving waits for the checks."""
    writer = Writer.alone()
    assert (writer.epoch, writer.serving) == (1, 0)
    writer.checked(1)
    assert writer.serving == 1
