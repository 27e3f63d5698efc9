"""Privileges that a process gives up before it holds a secret."""

import ctypes
import os
import resource

_LIBC = ctypes.CDLL(None, use_errno=True)

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
