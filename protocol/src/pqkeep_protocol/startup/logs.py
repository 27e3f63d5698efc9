"""Log lines: structlog over the standard library's logging, for both processes and pqkeepd.

An event is a constant English sentence. Variable parts are fields:
``_LOG.warning("the key service is unreachable", error=...)``. Fields never hold a secret.

An attacker can repeat an event, for example while a database is down. So each event has at most
MAX_LINES lines in a period. The next line has the number of omitted lines.

Before ``write_logs`` is called, events go only to the standard library's loggers.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

if TYPE_CHECKING:
    from pqkeep_protocol.startup.settings import LogFormat

MAX_LINES = 20
"""Lines of one event in PERIOD_SECONDS."""
PERIOD_SECONDS = 60.0
UNBOUNDED = frozenset({"request answered"})
"""Events without that limit: the access log, which is off by default."""
MAX_EVENTS = 1000
"""Events counted at a time. Libraries' events need not be constant texts."""


class RepetitionFilter(logging.Filter):
    """Limits the lines of each event. ``left_out`` of the next record counts the omitted ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._period = 0.0
        self._lines: dict[tuple[str, str], int] = {}
        self._left_out: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        period = self._clock() // PERIOD_SECONDS
        if period != self._period or len(self._lines) >= MAX_EVENTS:
            self._period = period
            self._lines.clear()
        if len(self._left_out) >= MAX_EVENTS:
            self._left_out.clear()
        text = record.msg.get("event") if isinstance(record.msg, dict) else record.msg
        if text in UNBOUNDED:
            record.left_out = 0
            return True
        event = (record.name, str(text))
        lines = self._lines[event] = self._lines.get(event, 0) + 1
        if lines > MAX_LINES:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return False
        record.left_out = self._left_out.pop(event, 0)
        return True


def logger(name: str) -> BoundLogger:
    """Return a module's logger."""
    bound: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=(
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            ProcessorFormatter.wrap_for_formatter,
        ),
        wrapper_class=BoundLogger,
    )
    return bound


def write_warnings() -> None:
    """Write warnings to standard error as sentences, for an interactive command."""

    def sentence(_: WrappedLogger, __: str, event: EventDict) -> str:
        fields = ", ".join(f"{name}: {value}" for name, value in event.items() if name != "event")
        return f"pqkeepd: warning: {event['event']}" + (f" ({fields})" if fields else "")

    handler = logging.StreamHandler()
    handler.setFormatter(
        ProcessorFormatter(processors=[ProcessorFormatter.remove_processors_meta, sentence])
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def write_logs(
    process: str, form: "LogFormat" = "auto", which: Mapping[str, str | int] | None = None
) -> None:
    """Write all log lines, including those of libraries, to standard error. It can be called again.

    Each line has the time (UTC), the level, the logger, the process and the fields of ``which``,
    which tell processes of one kind apart.
    """
    own_fields = {} if which is None else which
    is_terminal = sys.stderr.isatty()
    is_text = is_terminal if form == "auto" else form == "text"

    def add_process(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**own_fields, **event, "process": process}

    def add_left_out(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        left_out = event["_record"].left_out
        return {**event, "left_out": left_out} if left_out else event

    renderer: Processor = (
        structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
        )
        if is_text
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler()
    handler.addFilter(RepetitionFilter())
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.processors.format_exc_info],
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                add_process,
                add_left_out,
                ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
