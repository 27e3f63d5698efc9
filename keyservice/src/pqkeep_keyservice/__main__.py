"""Starts the key service: ``python -m pqkeep_keyservice SETTINGS.toml``.

Worker processes execute this file at their start too. So it imports the service only if it runs as
the main program.
"""

import gc
import signal
import sys

from pqkeep_protocol.startup.hardening import forbid_imports

FORBIDDEN = frozenset({"pqkeep_gateway", "pqkeep_server", "starlette", "uvicorn", "rich"})

if __name__ == "__main__":
    forbid_imports(FORBIDDEN)  # before anything else is imported

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the event loop handles it
    gc.disable()  # imports create no garbage, and collecting makes them a sixth slower
    from pqkeep_keyservice.process import main

    gc.enable()
    sys.exit(main())
