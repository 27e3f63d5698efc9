"""Names of metrics, and the reasons of /readyz in docs/observability.md."""

from __future__ import annotations

import re
from pathlib import Path

from pqkeep_gateway.management.collection import METRICS
from pqkeep_gateway.management.readiness import AUDIT_LOG, CLOCK, MAIL_SERVER, PARTS, STOPPING
from pqkeep_protocol.metrics import Kind

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "observability.md").read_text()


def test_every_reason_is_explained() -> None:
    """The table of /readyz has each name once."""
    table = DOCUMENT.split("### Readiness")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [
        *PARTS,
        STOPPING,
        AUDIT_LOG,
        CLOCK,
        MAIL_SERVER,
    ]


def test_metrics_have_the_names_of_their_kinds() -> None:
    """Names follow Prometheus: counters end in _total, histograms in _seconds; names are unique."""
    for metric in METRICS:
        assert re.fullmatch(r"pqkeep(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER)
        assert metric.kind is not Kind.HISTOGRAM or metric.name.endswith("_seconds")
    assert len({metric.name for metric in METRICS}) == len(METRICS)
