"""Acting as the user that a process's folder belongs to, where root runs a command."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def acting_as_owner_of(folder: Path) -> Iterator[None]:
    """Run a block as a folder's owner, if root calls; otherwise as whoever calls.

    Files that the block makes are the owner's, and it reads nothing that the owner could not.
    Raises OSError.
    """
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    try:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
