"""Where the tests have their files: in memory, where there is room and programs may be run from it.

Every change that a server under test makes is durable before it answers, and a disk takes a fifth of
the tests' time for that. What a killed process leaves is the same in either place.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - folders of the tests' own are made there
LEAST_FREE = 8 << 30
"""Bytes: ten times what the tests write."""


def keep_files_in_memory() -> None:
    """Make temporary files there from now on, and in processes that are started, unless told where."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize < LEAST_FREE or found.f_flag & os.ST_NOEXEC:
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
