"""Programs for checks of the files in deploy/. Not every machine has them."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.sampling import IS_EXHAUSTIVE


def needs(program: str) -> str:
    """Return a program's path. Without it a test is skipped, and fails in `make deploycheck`."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None and not IS_EXHAUSTIVE:
        pytest.skip(f"{program} is not installed")
    assert found is not None, f"{program} is not installed"
    return found
