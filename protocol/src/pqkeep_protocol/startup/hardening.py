"""What a process asks of the kernel, the C library and the interpreter when it starts.

It gives up privileges before it holds a secret, and keeps freed memory.
"""

import ctypes
import gc
import os
import resource
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)

# mallopt(3), from <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

KEPT = 32 * 1024 * 1024
"""Bytes that are free at the end of the heap before any go back to the kernel."""
LARGE = 8 * 1024 * 1024
"""Bytes of an allocation that is outside of the heap: none of a body or a frame is."""
YOUNG = 20_000
"""New objects between two collections: some 32 batches have as many under way."""


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next large body, instead of giving it back each time.

    The kernel clears memory that it gives out, page by page, which took more time than all that
    is done with a body of 1 MiB. Other C libraries are left as they are.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        mallopt(_M_MMAP_THRESHOLD, LARGE)


def collect_rarely() -> None:
    """Have the collector look for cycles among what was made from now on, and less often.

    Requests make few cycles. Python looks after every 700 new objects, most of which belong to
    requests under way, and looks at them again and again the more of these there are.
    """
    gc.collect()
    gc.freeze()  # what is here now stays: later collections need not examine it
    gc.set_threshold(YOUNG)
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)  # what only the start needed: no request has come yet


def is_to_begin_again(program: str) -> bool:
    """Return whether this process, started as a program, has imported what only migrations need.

    That is 12 MB that no other part of a process gives back: its program is to be executed again.
    """
    main = sys.modules["__main__"].__spec__
    return "alembic" in sys.modules and main is not None and main.name == f"{program}.__main__"


def begin_again() -> None:
    """Execute this process's program again, with nothing in its memory. Raises OSError."""
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - without a shell


# prctl(2), from <linux/prctl.h>
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def give_up_privileges() -> None:
    """Disable core dumps, debuggers and new privileges; let nobody else read new files.

    Raises OSError if the kernel refuses.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    check(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def check(result: int) -> None:
    """Raise OSError where a function of the C library has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
