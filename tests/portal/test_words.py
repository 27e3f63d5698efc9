"""The words for times and outcomes on pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.portal.outcomes import OUTCOME_WORDS, outcome
from pqkeep_gateway.portal.rendering import address, many, noun, until
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
    """A deadline set to seven days a minute ago is shown as seven days, not six."""
    assert until(timestamp(NOW + ahead), NOW) == said


def test_one_is_not_several() -> None:
    """A number and its noun agree; an unknown number is plural."""
    assert [many(each, "key") for each in (0, 1, 1200)] == ["0 keys", "1 key", "1,200 keys"]
    assert noun(None, "tenant") == "tenants"


def test_an_address_breaks_before_its_at_and_runs_nothing() -> None:
    """A break opportunity is the only markup in an address."""
    assert address("ada@example.com") == "ada<wbr>@example.com"
    assert address("<b>@example.com") == "&lt;b&gt;<wbr>@example.com"


def test_every_outcome_has_words() -> None:
    """Each outcome of a record has words for people; an unknown outcome is shown by its name."""
    recorded = {*Outcome, *ErrorKind, *(each.code for each in Code)}
    assert OUTCOME_WORDS.keys() == recorded
    assert all(0 < len(each) <= 28 for each in OUTCOME_WORDS.values())
    assert outcome("ERR_OF_TOMORROW_001") == "ERR_OF_TOMORROW_001"
