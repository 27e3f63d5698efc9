"""Log lines of pqkeep and of libraries, as JSON or text, with exceptions."""

import json
import logging
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from tests.patience import PATIENCE

from pqkeep_protocol.startup.logs import (
    MAX_EVENTS,
    MAX_LINES,
    PERIOD_SECONDS,
    RepetitionFilter,
    logger,
)

PROGRAM = """
import logging
from pqkeep_protocol.startup.logs import logger, write_logs

write_logs("example", {form!r})
_LOG = logger("pqkeep_example")
_LOG.info("the server is unreachable", error="no answer\\nin time", tries=3)
try:
    1 / 0
except ZeroDivisionError:
    _LOG.exception("request failed", request_id="7")
_LOG.debug("never seen")
logging.getLogger("uvicorn.error").warning("running on %s", "here", extra={{"color_message": "x"}})
logging.getLogger("alembic.runtime").info("never seen")
"""


def run(form: str, stderr: int = subprocess.PIPE) -> str:
    """Return the lines that another process wrote."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM.format(form=form)],
        stderr=stderr,
        check=True,
        timeout=PATIENCE,
    )
    return (ended.stderr or b"").decode()


@pytest.mark.parametrize("form", ["json", "auto"])
def test_json_where_nobody_looks(form: str) -> None:
    """If standard error is not a terminal, each line is a JSON object with its fields."""
    first, second, third = map(json.loads, run(form).splitlines())
    time = datetime.fromisoformat(first.pop("timestamp"))
    assert timedelta() <= datetime.now(UTC) - time < timedelta(minutes=1)
    assert first == {
        "event": "the server is unreachable",
        "error": "no answer\nin time",
        "tries": 3,
        "level": "info",
        "logger": "pqkeep_example",
        "process": "example",
    }
    assert (second["event"], second["level"], second["request_id"]) == (
        *("request failed", "error"),
        "7",
    )
    assert second["exception"].startswith("Traceback")
    assert "ZeroDivisionError" in second["exception"]
    assert (third["event"], third["logger"], third["level"]) == (
        *("running on here", "uvicorn.error"),
        "warning",
    )
    assert "color_message" not in third


def test_text_on_a_terminal() -> None:
    """On a terminal fields are key=value, and a line break in a value is escaped."""
    reader, writer = pty.openpty()
    try:
        run("auto", writer)
        said = os.read(reader, 65_536).decode()
    finally:
        os.close(reader)
        os.close(writer)
    first = said.splitlines()[0]
    assert "the server is unreachable" in first
    assert "tries" in first
    assert r"'no answer\nin time'" in first
    assert "\x1b[" in first


def test_text_elsewhere() -> None:
    """If configured, text goes to a file too, without colours."""
    said = run("text")
    assert r"error='no answer\nin time' process=example tries=3" in said
    assert "Traceback" in said
    assert "\x1b" not in said


def test_events_reach_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    """Without setup, events and fields go to the standard library's logger."""
    with caplog.at_level(logging.INFO):
        logger("pqkeep_example").bind(mail="m").warning("not delivered", error="no route")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pqkeep_example", logging.WARNING)
    assert record.msg == {"event": "not delivered", "mail": "m", "error": "no route"}


WHICH_PROGRAM = """
from pqkeep_protocol.startup.logs import logger, write_logs

write_logs("example", "json", {"gateway": 3, "shard": "b"})
_LOG = logger("pqkeep_example")
_LOG.info("connected")
_LOG.info("connected to another", shard="c")
"""


def test_lines_say_which_of_several_processes_wrote_them() -> None:
    """Each line has the fields that name its process. An event's own fields win."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", WHICH_PROGRAM],
        stderr=subprocess.PIPE,
        check=True,
        timeout=PATIENCE,
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [(line["gateway"], line["shard"]) for line in lines] == [(3, "b"), (3, "c")]


REPEATING_PROGRAM = """
import logging
from pqkeep_protocol.startup.logs import logger, write_logs

write_logs("example", "json")
_LOG = logger("pqkeep_example")
for number in range(10_000):
    _LOG.error("the server is unreachable", number=number)
    logging.getLogger("library").warning("request %d is bad", number)
_LOG.error("the server is reachable")
"""


def test_one_event_cannot_fill_the_log() -> None:
    """Few of ten thousand lines of one event are written, ours or a library's; others all are.

    The program can run into a second period.
    """
    ended = subprocess.run(
        [sys.executable, "-I", "-c", REPEATING_PROGRAM],
        stderr=subprocess.PIPE,
        check=True,
        timeout=PATIENCE,
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert len(lines) <= 2 * 2 * MAX_LINES + 1
    assert lines[-1]["event"] == "the server is reachable"
    assert [line["number"] for line in lines if "number" in line][:3] == [0, 1, 2]


class Repeated:
    """A filter with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 6000.0
        self.filter = RepetitionFilter(lambda: self.now)

    def left_out(self, message: object, name: str = "example") -> int | None:
        """Return the line's count of omitted lines, or None if the line itself is omitted."""
        record = logging.LogRecord(name, logging.ERROR, "", 0, message, (), None)
        return record.left_out if self.filter.filter(record) else None  # type: ignore[attr-defined]


@pytest.mark.parametrize("message", ["lost", {"event": "lost", "error": "x"}])
def test_the_next_line_says_how_many_were_left_out(message: object) -> None:
    """After a period the event is written again, with the number of omitted lines."""
    repeated = Repeated()
    written = [repeated.left_out(message) for _ in range(MAX_LINES + 7)]
    assert written == MAX_LINES * [0] + 7 * [None]
    repeated.now += PERIOD_SECONDS
    assert [repeated.left_out(message) for _ in range(2)] == [7, 0]


def test_events_are_counted_apart() -> None:
    """Other events, and the same event of another logger, are still written."""
    repeated = Repeated()
    for _ in range(2 * MAX_LINES):
        repeated.left_out("lost")
    assert repeated.left_out("lost") is None
    assert repeated.left_out("found") == 0
    assert repeated.left_out("lost", name="other") == 0


def test_counting_lines_takes_bounded_memory() -> None:
    """The number of counted events is limited."""
    repeated = Repeated()
    for number in range(3 * MAX_EVENTS):
        repeated.now += number % 2 * PERIOD_SECONDS
        for _ in range(MAX_LINES + 1):
            repeated.left_out(f"event {number}")
    assert len(repeated.filter._lines) <= MAX_EVENTS
    assert len(repeated.filter._left_out) <= MAX_EVENTS


def test_each_line_of_the_access_log_counts() -> None:
    """Lines of the access log are never omitted."""
    repeated = Repeated()
    lines = 3 * MAX_LINES * [{"event": "request answered"}]
    assert {repeated.left_out(line) for line in lines} == {0}
