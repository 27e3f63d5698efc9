"""Log lines: JSON or text, of pqkeep and of libraries, with their exceptions."""

import json
import logging
import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from pqkeep_protocol.startup.logs import logger

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
    """Write some lines in another process; return them."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM.format(form=form)],
        stderr=stderr,
        check=True,
        timeout=60,
    )
    return (ended.stderr or b"").decode()


@pytest.mark.parametrize("form", ["json", "auto"])
def test_json_where_nobody_looks(form: str) -> None:
    """Where standard error is no terminal each line is one JSON object with its fields."""
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
    """On a terminal the fields are key=value, and a value with a line break stays on its line."""
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
    """Asked for, text is written to a file too, without colours."""
    said = run("text")
    assert r"error='no answer\nin time' process=example tries=3" in said
    assert "Traceback" in said
    assert "\x1b" not in said


def test_events_reach_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    """Without any set-up an event and its fields go to the standard library's logger."""
    with caplog.at_level(logging.INFO):
        logger("pqkeep_example").bind(mail="m").warning("not delivered", error="no route")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pqkeep_example", logging.WARNING)
    assert record.msg == {"event": "not delivered", "mail": "m", "error": "no route"}
