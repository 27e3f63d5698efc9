"""Assigns tests to processes: ``make test``, or ``pytest -n 4``.

The tests of a file stay together in order, because they share slow fixtures. Tests of
tests/contract with the same kind of database also stay together. The tests of tests/crash_recovery
do too.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

CONTRACT = "tests/contract/"
CRASHES = "tests/crash_recovery/"
SERVER = "[postgresql"
"""The prefix of the parameters for an installation on a server."""


class WorkUnits(LoadScopeScheduling):
    """Hands out work units in the order of collection: an idle process gets the next one."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the work unit of a test."""
        if nodeid.startswith(CONTRACT):
            return CONTRACT + SERVER if SERVER in nodeid else CONTRACT
        return CRASHES if nodeid.startswith(CRASHES) else nodeid.partition("::")[0]
