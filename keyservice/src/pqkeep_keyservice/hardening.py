"""Gives up the process's privileges before it holds a key."""

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

    Returns True if memory is locked. It is locked only if the limit for locked memory is infinite.
    With a limit, later allocations could fail. Raises OSError if the kernel refuses one of the
    other steps.
    """
    give_up_privileges()
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY:
        return False
    check(_LIBC.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT))
    return True


def harden_worker() -> None:
    """Harden a worker process. It ends with its parent process, and ignores SIGINT."""
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        _end_with(parent.pid)
    harden()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; exit now if the parent is gone."""
    check(_LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(os.EX_TEMPFAIL)
