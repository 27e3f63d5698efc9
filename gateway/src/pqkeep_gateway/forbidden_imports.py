"""Makes the import of cryptography fail in the gateway's process.

The gateway's own code imports none, which the import contracts prove. Libraries may try to: the
Redis client does, wherever a cryptography package is installed. After ``install`` they find none.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FORBIDDEN = frozenset({"cryptography", "pqcrypto", "pqkeep_keyservice"})


class _ForbiddenFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for a forbidden package, so that no later finder is asked."""
        if fullname.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"the gateway imports no {fullname}", name=fullname)
        return None


def install() -> None:
    """Forbid the imports in this process from now on.

    Raises RuntimeError if one of the packages is loaded already.
    """
    if FORBIDDEN & sys.modules.keys():
        raise RuntimeError("cryptography was imported before its import was forbidden")
    sys.meta_path.insert(0, _ForbiddenFinder())
