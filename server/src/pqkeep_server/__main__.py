"""The processes of ``pqkeepd start``: ``python -m pqkeep_server supervise|announce|reread``.

The supervising process stays and only waits, so it imports next to nothing. Short-lived processes
do the work that needs more modules.
"""

import sys

from pqkeep_protocol.startup.hardening import forbid_imports

UNUSED = frozenset({"msgspec", "rich", "ssl"})
"""Modules that the standard library and structlog import if they are installed."""

if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "supervise":
        forbid_imports(UNUSED)  # before anything else is imported
        from pqkeep_server.supervise import main
    elif what == "announce":
        from pqkeep_server.readiness import main
    else:
        from pqkeep_server.start import main
    sys.exit(main(words))
