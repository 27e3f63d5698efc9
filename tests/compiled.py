"""Compiles the tests' imports once, before several processes of pytest need them.

Otherwise, in a fresh checkout, each process compiles every module and rewrites all assertions. This
takes ten seconds of CPU time in each process.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[1]
FOLDERS = ("tests", "*/tests", "*/src")
IS_REWRITTEN = ("test_*.py", "conftest.py", "tests/fixtures/*.py")


def compile_in_parallel(config: pytest.Config) -> None:
    """Compile changed modules, in as many processes as there are processors."""
    if sys.dont_write_bytecode or not config.getoption("numprocesses", default=None):
        return
    files = [path for pattern in FOLDERS for at in ROOT.glob(pattern) for path in at.rglob("*.py")]
    count = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    children = [
        fork.Process(target=_compile, args=(config, files[place::count])) for place in range(count)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()


def _compile(config: pytest.Config, files: Sequence[Path]) -> None:
    """Compile files as an import would. A file with an error fails later, at its import."""
    for path in files:
        if any(path.match(pattern) for pattern in IS_REWRITTEN):
            with suppress(SyntaxError):
                _rewrite(config, path)
        else:
            compileall.compile_file(str(path), quiet=2)


def _rewrite(config: pytest.Config, path: Path) -> None:
    """Compile a test module with rewritten assertions, as pytest does."""
    folder = rewrite.get_cache_dir(path)
    compiled = folder / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, compiled) is None:
        rewrite.try_makedirs(folder)
        source_hash, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, compiled)
