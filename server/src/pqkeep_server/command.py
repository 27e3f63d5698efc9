"""The entry point of the command ``pqkeepd``.

It handles Ctrl-C before the imports of the command begin.
"""

import signal


def main() -> None:
    """Import the command, and run it. Until it runs, a signal ends it as signals do, in silence."""
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pqkeep_server.cli import app  # noqa: PLC0415 - takes most of the time of a short command

    signal.signal(signal.SIGINT, interrupted)
    app()
