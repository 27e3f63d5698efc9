"""What goes to which process when the tests run in several: ``make test``, or ``pytest -n 4``.

The tests of a file stay together, in their order, because they share what is slow to start; for
the same reason those of tests/contract stay with the others that ask the same kind of database, and
those of tests/crash_recovery with each other.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

CONTRACT = "tests/contract/"
CRASHES = "tests/crash_recovery/"
SERVER = "[postgresql"
"""How the parameters of a test begin that asks an installation on a server."""


class WorkUnits(LoadScopeScheduling):
    """Hands out work units in the order of collection: whoever is done gets the next."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the work unit that a test belongs to."""
        if nodeid.startswith(CONTRACT):
            return CONTRACT + SERVER if SERVER in nodeid else CONTRACT
        return CRASHES if nodeid.startswith(CRASHES) else nodeid.partition("::")[0]
