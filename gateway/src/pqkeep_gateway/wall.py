"""The wall between the gateway's process and cryptography.

The gateway's own code imports none, which the import contracts prove. Libraries may try to: the
Redis client does, wherever a cryptography package happens to be installed. Behind the wall they
find that there is none.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FORBIDDEN = frozenset({"cryptography", "pqcrypto", "pqkeep_keyservice"})


class _Wall(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing, and nobody else may look, where it is forbidden: Python's call."""
        if fullname.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"the gateway imports no {fullname}", name=fullname)
        return None


def build() -> None:
    """Make the import of cryptography fail in this process, from now on.

    Raises RuntimeError if some is there already.
    """
    if FORBIDDEN & sys.modules.keys():
        raise RuntimeError("cryptography was imported before the wall was built")
    sys.meta_path.insert(0, _Wall())
