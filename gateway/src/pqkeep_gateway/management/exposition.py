"""Metrics in Prometheus's text format, version 0.0.4.

Samples with a label value outside the table are left out.
"""

from collections.abc import Iterable, Iterator
from typing import cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from pqkeep_protocol.metrics import BOUNDS, Kind, Metric, Sample, Samples

_UPPER_BOUNDS = [*map(str, BOUNDS), "+Inf"]


class _Collected:
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(table: Iterable[Metric], samples: Samples) -> bytes:
    """Return the metrics of a table that have values, and those of this process."""
    registry = CollectorRegistry(auto_describe=False)
    collected = _Collected([_family(metric, samples) for metric in table])
    registry.register(cast("Collector", collected))
    ProcessCollector(registry=registry)
    text: bytes = generate_latest(registry)
    return text


def _family(metric: Metric, samples: Samples) -> Family:
    labels = list(metric.labels)
    known = _known(metric, samples.get(metric.name, ()))
    match metric.kind:
        case Kind.COUNTER:
            counter = CounterMetricFamily(metric.name, metric.text, labels=labels)
            for sample in known:
                counter.add_metric(sample.labels, sample.value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(metric.name, metric.text, labels=labels)
            for sample in known:
                gauge.add_metric(sample.labels, sample.value)
            return gauge
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.text, labels=labels)
            for sample in known:
                histogram.add_metric(sample.labels, list(_buckets(sample)), sample.value)
            return histogram


def _known(metric: Metric, samples: Iterable[Sample]) -> Iterator[Sample]:
    for sample in samples:
        if len(sample.labels) == len(metric.labels) and all(
            label in values
            for label, values in zip(sample.labels, metric.labels.values(), strict=True)
        ):
            yield sample


def _buckets(sample: Sample) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip(_UPPER_BOUNDS, sample.counts, strict=True):
        total += count
        yield bound, total
