"""Starts the gateway: ``python -m pqkeep_gateway SETTINGS.toml [--fd N]``.

With ``--fd`` it serves on a listening socket that its parent process opened.
"""

import gc
import signal
import sys

from pqkeep_protocol.startup.hardening import forbid_imports

FORBIDDEN = frozenset({"cryptography", "pqcrypto", "pqkeep_keyservice", "rich"})

if __name__ == "__main__":
    forbid_imports(FORBIDDEN)  # must run before any other import

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the event loop handles it
    gc.disable()  # imports create no garbage, and collection makes them 17 % slower
    from pqkeep_gateway.process import main

    gc.enable()
    sys.exit(main())
