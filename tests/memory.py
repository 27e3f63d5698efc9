"""The folder for the tests' files: in memory, if there is space and programs can run there.

A server under test writes every change durably before it responds. On a disk this takes a fifth of
the tests' time. A killed process leaves the same files in either place.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - folders of the tests' own are made there
LEAST_FREE = 8 << 30
"""Bytes: ten times the tests' files."""


def keep_files_in_memory() -> None:
    """Make temporary files there, also in child processes, unless the environment says otherwise."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    found = os.statvfs(MEMORY)
    if found.f_bavail * found.f_frsize < LEAST_FREE or found.f_flag & os.ST_NOEXEC:
        return
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
