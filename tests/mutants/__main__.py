"""``make mutants``: the tests must find nine of ten changes to the most important modules.

Each mutant is tested in a copy of the tree, with its module's tests on SQLite. It fails if fewer
are killed, or if a survivor has no reason in ``survivors.toml``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from tests.mutants.modules import MODULES, Module
from tests.mutants.mutations import mutants

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")
KILLED = 0.9
"""The fraction of a module's mutants that must be killed."""
LONGEST = 300
"""Seconds of CPU time for the tests of an unchanged module."""
SLOWER, SPARE = 3, 3
"""The factor and the additional seconds for a mutant's tests."""


class Copy:
    """A copy of the tree that tests one mutant at a time."""

    def __init__(self, root: Path, python: Path) -> None:
        self._root = root
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, names.stdout.split("\0")):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
        sources = os.pathsep.join(str(root / each / "src") for each in DISTRIBUTIONS)
        self._tests = subprocess.Popen(
            [python, "-m", "tests.mutants.forked_tests"],
            cwd=root,
            env=os.environ | {"PYTHONPATH": sources},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process with the tests."""
        self._tests.communicate()

    def passes(self, module: Module, text: str, seconds: int) -> tuple[bool, float]:
        """Return True if a module's tests pass with a changed text, and their CPU time.

        Tests that exceed the given seconds of CPU time fail.
        """
        path = self._root / module.path
        original = path.read_text()
        try:
            path.write_text(text)
            _forget_compiled(path)
            code, used = self._run(module.tests, seconds).split()
            return code == "0", float(used)
        finally:
            path.write_text(original)
            _forget_compiled(path)

    def _run(self, tests: tuple[str, ...], seconds: int) -> str:
        assert self._tests.stdin
        assert self._tests.stdout
        print(json.dumps([seconds, tests]), file=self._tests.stdin, flush=True)
        return self._tests.stdout.readline()


def _forget_compiled(path: Path) -> None:
    """Remove a module's compiled form, which could match a text of the same size and second."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def main() -> int:
    """Try the mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", action="append", choices=MODULES, help="default: all")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=int, default=sys.maxsize, help="mutants a module")
    arguments = parser.parse_args()
    expected = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        # absolute, and not resolved: what it links to is outside of its environment
        python = arguments.python.absolute()
        copies = [Copy(Path(folder) / str(n), python) for n in range(arguments.processes)]
        outcomes = [
            _try(name, copies, arguments.sample, expected.get(name, {}))
            for name in arguments.module or MODULES
        ]
        for copy in copies:
            copy.close()
    return 0 if all(outcomes) else 1


def _try(name: str, copies: list[Copy], sample: int, expected: dict[str, str]) -> bool:
    """Test mutants of one module; print and return whether enough were killed."""
    module = MODULES[name]
    source = (ROOT / module.path).read_text()
    found = mutants(source)
    tried = sorted(found, key=lambda text: sha256(found[text].encode()).digest())[:sample]
    is_passed, used = copies[0].passes(module, source, LONGEST)
    if not is_passed:
        print(f"{name}: its tests do not pass without a mutant")
        return False
    seconds = math.ceil(used * SLOWER + SPARE)
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def passes(text: str) -> bool:
        copy = free.get()
        try:
            return copy.passes(module, text, seconds)[0]
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as threads:
        results = list(threads.map(passes, tried))
    survivors = {found[text] for text, passed in zip(tried, results, strict=True) if passed}
    killed = results.count(False)
    print(f"{name}: {killed} of {len(tried)} killed, of {len(found)} mutants", flush=True)
    for each in sorted(survivors - expected.keys()):
        print(f"  survived: {each}", flush=True)
    gone = {each for each in expected if each not in survivors and len(tried) == len(found)}
    for each in sorted(gone):
        print(f"  listed, and killed or gone: {each}", flush=True)
    return killed >= KILLED * len(tried) and not gone and survivors <= expected.keys()


if __name__ == "__main__":
    sys.exit(main())
