"""How pages say times and outcomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS, outcome
from pqkeep_gateway.portal.rendering import until
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (timedelta(seconds=59), "in less than a minute"),
        (timedelta(minutes=1), "in 1 minute"),
        (timedelta(minutes=59, seconds=30), "in 1 hour"),
        (timedelta(hours=23, minutes=59, seconds=59), "in 1 day"),
        (timedelta(days=6, hours=23, minutes=59), "in 7 days"),
        (timedelta(days=6, hours=11), "in 6 days"),
        (timedelta(days=13, hours=23), "in 14 days"),
        (timedelta(days=366), "in 1 year"),
    ],
)
def test_a_time_ahead_is_said_to_the_nearest(ahead: timedelta, said: str) -> None:
    """What was set to seven days a minute ago ends in seven days, not in six."""
    assert until(timestamp(NOW + ahead), NOW) == said


def test_every_outcome_has_words() -> None:
    """Each that the log can have is in the table; another is shown as it is."""
    recorded = {*Outcome, *ErrorKind, *(each.code for each in Code)}
    assert OUTCOME_WORDS.keys() == recorded
    assert all(0 < len(each) <= 28 for each in OUTCOME_WORDS.values())
    assert outcome("ERR_OF_TOMORROW_001") == "ERR_OF_TOMORROW_001"
