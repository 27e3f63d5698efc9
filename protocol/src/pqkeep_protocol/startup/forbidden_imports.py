"""Makes forbidden imports fail in a process.

The import contracts prove that pqkeep's own code imports none of them. Libraries may still try: the
Redis client imports cryptography, and structlog imports rich, if they are installed. A forbidden
package looks to them as if it were missing.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _ForbiddenFinder:
    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a forbidden package, before any other finder."""
        if fullname.partition(".")[0] in self._packages:
            raise ModuleNotFoundError(f"this process must not import {fullname}", name=fullname)
        return None


def forbid_imports(packages: frozenset[str]) -> None:
    """Forbid the import of top-level packages in this process from now on.

    Raises RuntimeError if one of them is already loaded.
    """
    if loaded := packages & sys.modules.keys():
        raise RuntimeError(f"imported before its import was forbidden: {', '.join(loaded)}")
    sys.meta_path.insert(0, _ForbiddenFinder(packages))
