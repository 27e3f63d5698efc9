"""Privileges that the process gives up before it holds a key."""

import ctypes
import os
import resource
import signal

_LIBC = ctypes.CDLL(None, use_errno=True)

# prctl(2) and mlockall(2), from <linux/prctl.h> and <sys/mman.h>
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


def harden() -> bool:
    """Disable core dumps, debuggers and new privileges, and lock memory.

    Returns whether memory is locked: only if its limit is infinite, because otherwise later
    allocations could fail. Raises OSError if the kernel refuses anything else.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _check(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return False
    _check(_LIBC.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT))
    return True


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit now if it has ended already."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
