"""The key service reads the wall clock in one module, which a simulation replaces."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "keyservice" / "src" / "pqkeep_keyservice"
READS_THE_CLOCK = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|today|utcnow)\(")


def test_one_module_reads_the_wall_clock() -> None:
    """Only one module reads the machine's clock."""
    found = {
        path.name for path in SOURCES.rglob("*.py") if READS_THE_CLOCK.search(path.read_text())
    }
    assert found == {"clock.py"}
