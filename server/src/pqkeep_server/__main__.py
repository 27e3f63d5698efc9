"""What ``pqkeepd start`` becomes and has done: ``python -m pqkeep_server supervise|announce|reread``.

The process that stays only waits, so it imports next to nothing. What needs more is done by
processes that end.
"""

import sys

from pqkeep_protocol.startup.forbidden_imports import forbid_imports

UNUSED = frozenset({"msgspec", "rich", "ssl"})
"""What the standard library and structlog import where they find it."""

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
