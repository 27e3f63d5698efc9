"""Prometheus's rule engine over the metrics of a real installation."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.docs.conftest import shell
from tests.patience import PATIENCE

__all__ = ["prometheus", "shell"]
ROOT = Path(__file__).parents[2]
BUILT = ROOT / ".interop" / "bin"
PROGRAM = shutil.which("alerts", path=str(BUILT))
RULES = ROOT / "deploy" / "observability" / "alerts.yml"
HISTORY = range(3600, 0, -60)
"""Before its first scrape, an installation counts as having had the same values for an hour."""


@dataclass
class Prometheus:
    """Scrapes management addresses, and evaluates the alert rules without waiting for ``for``."""

    process: subprocess.Popen[str]
    targets: tuple[str, ...] = ()
    is_known: bool = False
    """Whether the targets were scraped once."""

    def active(self, ahead: float = 0.0) -> set[str]:
        """Scrape, and return the active alerts. Its clock is so many seconds ahead."""
        texts = {target: _scrape(target) for target in self.targets}
        now = time.time()
        if not self.is_known:
            if not all(texts.values()):
                return {"PqkeepDown"}
            self.is_known = True
            for seconds in HISTORY:
                self._evaluate(now - seconds, texts)
        return self._evaluate(now + ahead, texts)

    def until(self, *alerts: str, ahead: float = 0.0, do: Callable[[], object] = int) -> None:
        """Scrape until these alerts are active. Before each scrape, do something."""
        deadline = time.monotonic() + PATIENCE
        while missing := {*alerts} - self.active(ahead):
            assert time.monotonic() < deadline, missing
            do()
            time.sleep(0.2)

    def until_silent(self, *alerts: str) -> None:
        """Scrape until none of these alerts is active."""
        deadline = time.monotonic() + PATIENCE
        while found := {*alerts} & self.active():
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def until_only(self, alerts: AbstractSet[str], ignored: AbstractSet[str]) -> None:
        """Scrape until exactly these alerts are active, apart from ignored alerts."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.active() - ignored) != alerts:
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def until_other(self, metric: str, value: str) -> None:
        """Scrape until a metric has another value."""
        deadline = time.monotonic() + PATIENCE
        while self.value(metric) in {value, ""}:
            assert time.monotonic() < deadline, value
            time.sleep(0.2)
        self.active()

    def value(self, metric: str) -> str:
        """Return the first value of a metric; empty if no target has it."""
        texts = "\n".join(map(_scrape, self.targets))
        found = re.search(rf"^{metric}(?:{{.*}})? (\S+)", texts, re.MULTILINE)
        return found[1] if found else ""

    def _evaluate(self, at: float, targets: dict[str, str]) -> set[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"at": at, "targets": targets}) + "\n")
        self.process.stdin.flush()
        active: dict[str, list[dict[str, str]]] = json.loads(self.process.stdout.readline())
        return {*active}


def _scrape(url: str) -> str:
    try:
        with urlopen(f"{url}/metrics", timeout=5) as response:  # noqa: S310 - http
            text: str = response.read().decode()
            return text
    except (URLError, OSError):
        return ""


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    """A Prometheus without targets."""
    if PROGRAM is None:
        pytest.skip("make watchers builds the program that evaluates alerts")
    with subprocess.Popen(
        [PROGRAM, RULES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Prometheus(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
