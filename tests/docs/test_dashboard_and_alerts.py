"""The dashboard and the alert rules use only existing metrics, labels and values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml  # type: ignore[import-untyped]
from tests.fixtures.installation import Installation

from pqkeep_gateway.management.collection import METRICS
from pqkeep_protocol.metrics import Kind, Metric

FOLDER = Path(__file__).parents[2] / "deploy" / "observability"
BY_NAME = {metric.name: metric for metric in METRICS}
ADDED = frozenset({"instance", "job", "le"})
"""Labels of Prometheus and of histograms."""
OTHERS = frozenset(
    {
        *("up", "process_cpu_seconds_total", "process_resident_memory_bytes"),
        *("process_open_fds", "process_max_fds", "process_start_time_seconds"),
    }
)
"""Metrics of Prometheus and of its client library."""
FUNCTIONS = frozenset(
    {
        *("sum", "min", "max", "count", "rate", "increase", "deriv", "time", "by", "or", "and"),
        *("unless", "on", "absent", "abs", "timestamp", "changes", "predict_linear"),
        *("histogram_quantile", "min_over_time"),
    }
)
SELECTOR = re.compile(r"([a-z_][a-z0-9_]*)(?:\{([^}]*)\})?(?=[\[\s),<>=*/+-]|$)")
MATCHER = re.compile(r'([a-z_]+)(=~|!=|=)"([^"]*)"')


def alert_rules() -> list[dict[str, Any]]:
    """Return every alert rule."""
    read: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    read: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return read


def expressions() -> dict[str, str]:
    """Return every expression by its place."""
    alerts = {rule["alert"]: rule["expr"] for rule in alert_rules()}
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
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
    for series, matchers in SELECTOR.findall(re.sub(r"\[\w+\]|offset \w+", "", rest)):
        if series in FUNCTIONS | OTHERS:
            continue
        metric = metric_of(series)
        if metric is None:
            found.append(series)
            continue
        possible |= set(metric.labels)
        for label, how, values in MATCHER.findall(matchers):
            if label in ADDED or values == f"${label}":
                continue
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


CONDITIONAL = frozenset(
    {
        "pqkeep_audit_sink_age_seconds",  # a sink
        "pqkeep_key_service_warned_operations_total",  # a rule with a date
        "pqkeep_keys_database_problem",  # a database that cannot be written
        "pqkeep_last_backup_timestamp_seconds",  # a backup
        "pqkeep_link_certificate_expiry_timestamp_seconds",  # two hosts
        "pqkeep_tls_certificate_expiry_timestamp_seconds",  # TLS
        "pqkeep_witness_cosignature_timestamp_seconds",  # witnesses
        "pqkeep_witnesses",
    }
)
"""Metrics of alerts that have no value without the named thing."""


def test_each_metric_of_an_alert_is_scraped(installation: Installation) -> None:
    """A running installation has a value of each metric that an alert names."""
    demo = installation.demo()
    demo.ask("POST", "/kms/keys/generate", {"algorithm": "Kyber768", "if_absent": True})
    demo.post("/kem/encrypt", {"plaintext": "AAAA"})
    with urlopen(f"{installation.ready['management_url']}/metrics") as response:  # noqa: S310 - http
        scraped = set(re.findall(r"^([a-z_]+)", response.read().decode(), re.MULTILINE))
    named = {
        series
        for rule in alert_rules()
        for series, _ in SELECTOR.findall(re.sub(r"\[\w+\]|offset \w+", "", rule["expr"]))
        if metric_of(series) or series in OTHERS - {"up"}
    }
    assert named - scraped <= CONDITIONAL


def test_each_alert_has_its_runbook() -> None:
    """The runbook of each alert is a section of docs/runbooks.md, in the web site's address."""
    page = (FOLDER.parents[1] / "docs" / "runbooks.md").read_text()
    sections = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^##+ (.+)$", page, re.MULTILINE)
    }
    named = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alert_rules()}
    addresses = {f"https://pqkeep.example/docs/runbooks.html#{section}" for section in sections}
    assert {alert: url for alert, url in named.items() if url not in addresses} == {}


def test_each_panel_follows_the_variables() -> None:
    """Every series of the dashboard is of the chosen gateways and shards."""
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert names == ["datasource", "instance", "shard"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            selectors = SELECTOR.findall(re.sub(r"\[\w+\]", "", target["expr"]))
            for series, matchers in selectors:
                metric = metric_of(series)
                if metric is None and series not in OTHERS:
                    continue
                assert 'instance=~"$instance"' in matchers, target["expr"]
                has_shard = metric is not None and "shard" in metric.labels
                assert ('shard=~"$shard"' in matchers) is has_shard, target["expr"]


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
