"""Privileges that the process gives up before it holds a key."""

import ctypes
import multiprocessing
import os
import resource
import signal

from pqkeep_protocol.startup.hardening import check, give_up_privileges

_LIBC = ctypes.CDLL(None, use_errno=True)

# prctl(2) and mlockall(2), from <linux/prctl.h> and <sys/mman.h>
_PR_SET_PDEATHSIG = 1
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


def harden() -> bool:
    """Disable core dumps, debuggers and new privileges, and lock memory.

    Returns whether memory is locked: only if its limit is infinite, because otherwise later
    allocations could fail. Raises OSError if the kernel refuses anything else.
    """
    give_up_privileges()
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return False
    check(_LIBC.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT))
    return True


def harden_worker() -> None:
    """Do the same in a worker process, which ends with its parent, and not by Ctrl-C."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        _die_with(parent.pid)
    harden()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit now if it has ended already."""
    check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)
