"""Starts the key service: ``python -m pqkeep_keyservice SETTINGS.toml``.

Worker processes execute this file too when they start, so it imports the service only where it is
meant to run.
"""

import gc
import sys

from pqkeep_protocol.startup.forbidden_imports import forbid_imports

FORBIDDEN = frozenset({"pqkeep_gateway", "pqkeep_server", "starlette", "uvicorn", "rich"})

if __name__ == "__main__":
    forbid_imports(FORBIDDEN)  # before anything else is imported

    gc.disable()  # imports create no garbage, and collecting makes them a sixth slower
    from pqkeep_keyservice.process import main

    gc.enable()
    sys.exit(main())
