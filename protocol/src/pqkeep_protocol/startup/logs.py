"""Log lines: structlog over the standard library's logging, for both processes and pqkeepd.

An event is a constant English sentence, and what differs between two of its lines is in fields:
``_LOG.warning("the key service is unreachable", error=...)``. Fields never hold a secret.

Until ``write_logs`` is called, events go to the standard library's loggers and nowhere else.
"""

import logging
import sys

import structlog
from structlog.stdlib import BoundLogger, ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

from pqkeep_protocol.startup.settings import LogFormat


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


def write_logs(process: str, form: LogFormat = "auto") -> None:
    """Write all log lines to standard error, those of libraries too. Called again, it replaces.

    Each line has the time (UTC), the level, the logger and the process.
    """
    is_terminal = sys.stderr.isatty()
    is_text = is_terminal if form == "auto" else form == "text"

    def add_process(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {**event, "process": process}

    renderer: Processor = (
        structlog.dev.ConsoleRenderer(
            colors=is_terminal, exception_formatter=structlog.dev.plain_traceback
        )
        if is_text
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[structlog.processors.format_exc_info],
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                add_process,
                ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
