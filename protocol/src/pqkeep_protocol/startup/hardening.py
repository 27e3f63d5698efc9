"""Settings of the kernel, the C library and the interpreter at the start of a process.

A process gives up privileges before it holds a secret, and keeps freed memory.

Forbidden imports fail. The import contracts prove that pqkeep's own code imports none of them.
Libraries may still try: the Redis client imports cryptography, and structlog imports rich, if they
are installed. A forbidden package looks to them as if it were missing.
"""

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_LIBC = ctypes.CDLL(None, use_errno=True)

# mallopt(3), from <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT = 32 * 1024 * 1024
"""Free bytes at the end of the heap before glibc returns any to the kernel."""
LARGE = 8 * 1024 * 1024
"""Larger allocations live outside the heap. No body and no frame is larger."""
YOUNG = 20_000
"""New objects between two garbage collections: about as many as 32 batches in flight hold."""


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next large body.

    The kernel clears each page that it hands out, which took longer than all the work on a body of
    1 MiB. Other C libraries are not changed.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def collect_rarely() -> None:
    """Run the garbage collector less often, and only over objects made from now on.

    Requests make few cycles. By default Python collects after every 700 new objects. Most of them
    belong to requests in flight, and are examined again each time.
    """
    gc.collect()
    gc.freeze()  # the objects made so far stay, so later collections need not examine them
    gc.set_threshold(YOUNG)
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)  # memory that only the start needed, before the first request


def is_to_begin_again(program: str) -> bool:
    """Return True if this process has imported what only migrations need.

    Those imports take 12 MB that stay until the process executes its program again. In a process
    that was not started as a program, return False.
    """
    main = sys.modules["__main__"].__spec__
    return "alembic" in sys.modules and main is not None and main.name == f"{program}.__main__"


def begin_again() -> None:
    """Execute this process's program again, with fresh memory. Raises OSError."""
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - without a shell


# prctl(2), from <linux/prctl.h>
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def give_up_privileges() -> None:
    """Disable core dumps, debuggers and new privileges; make new files private to the user.

    Raises OSError if the kernel refuses.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    check(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def check(result: int) -> None:
    """Raise OSError if a function of the C library has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


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
