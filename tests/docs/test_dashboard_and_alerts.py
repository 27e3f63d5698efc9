"""The dashboard and the alert rules use only existing metrics, labels and values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pqkeep_gateway.management.collection import METRICS
from pqkeep_protocol.metrics import Kind, Metric

FOLDER = Path(__file__).parents[2] / "deploy" / "observability"
BY_NAME = {metric.name: metric for metric in METRICS}
ADDED = frozenset({"instance", "job", "le"})
"""Labels of Prometheus and of histograms."""
OTHERS = frozenset({"up", "process_cpu_seconds_total"})
"""Metrics of Prometheus and of its client library."""
FUNCTIONS = frozenset(
    {
        *("sum", "min", "max", "count", "rate", "increase", "deriv", "time", "by", "or", "and"),
        *("unless", "on", "absent"),
        *("histogram_quantile", "min_over_time"),
    }
)
SELECTOR = re.compile(r"([a-z_][a-z0-9_]*)(?:\{([^}]*)\})?(?=[\[\s),<>=*/+-]|$)")
MATCHER = re.compile(r'([a-z_]+)(=~|!=|=)"([^"]*)"')


def expressions() -> dict[str, str]:
    """Return every expression by its place."""
    rules: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    alerts = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    return alerts | panels


def metric_of(series: str) -> Metric | None:
    """Return the metric with a series of this name."""
    name = re.sub(r"_(bucket|sum|count)$", "", series)
    found = BY_NAME.get(series) or BY_NAME.get(name)
    is_histogram = found is not None and found.kind is Kind.HISTOGRAM
    return found if is_histogram == (name != series) else None


def problems(expression: str) -> list[str]:
    """Return the unknown names in an expression."""
    found = []
    grouping = {
        label.strip()
        for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        for label in labels.split(",")
    }
    rest = re.sub(r"\b(?:by|on) \([^)]*\)", "", expression)
    possible = set(ADDED)
    for series, matchers in SELECTOR.findall(re.sub(r"\[\w+\]", "", rest)):
        if series in FUNCTIONS | OTHERS:
            continue
        metric = metric_of(series)
        if metric is None:
            found.append(series)
            continue
        possible |= set(metric.labels)
        for label, how, values in MATCHER.findall(matchers):
            if label not in metric.labels:
                found.append(f"{series}: {label}")
                continue
            chosen = values.split("|") if how == "=~" else [values]
            found += [
                f"{series}: {label}={value}"
                for value in chosen
                if value not in metric.labels[label]
            ]
    return found + sorted(grouping - possible)


def test_every_name_exists() -> None:
    """Every metric, label and label value in an expression exists."""
    found = expressions()
    assert len(found) > 40
    assert {where: problems(each) for where, each in found.items() if problems(each)} == {}


def test_every_metric_is_shown() -> None:
    """Each metric is in the dashboard or in an alert."""
    asked = " ".join(expressions().values())
    assert [name for name in BY_NAME if name not in asked] == []


@pytest.mark.parametrize(
    "expression",
    [
        "sum(rate(pqkeep_request_total[5m]))",
        "pqkeep_request_duration_seconds",
        "pqkeep_connections_bucket",
        'pqkeep_ready{part="redis"} == 0',
        'pqkeep_ready{tenant="7"}',
        "sum by (tenant) (pqkeep_connections)",
        'rate(pqkeep_requests_total{outcome=~"success|ERR_NONE_001"}[5m])',
    ],
)
def test_what_does_not_exist_is_noticed(expression: str) -> None:
    """An unknown metric, label or value is found."""
    assert problems(expression) != []
