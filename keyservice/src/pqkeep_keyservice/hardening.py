"""What the process takes away from itself before it holds a key."""

import ctypes
import logging
import os
import resource

_LOG = logging.getLogger(__name__)

# prctl(2) and mlockall(2), from <linux/prctl.h> and <sys/mman.h>
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


def harden() -> None:
    """Write no core dump, be no debugger's target, gain no privilege, swap no key out.

    Memory is locked only where the limit on it is infinite: below that, later allocations would
    fail. Raises OSError where the kernel refuses the rest.
    """
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        _check(libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT))
    else:
        _LOG.warning("memory is not locked: the memlock limit is not infinite")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
