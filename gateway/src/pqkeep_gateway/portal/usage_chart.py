"""The chart of operations: the API's use of keys by hour or day, in few kinds."""

from collections.abc import Mapping, Sequence
from typing import Any

from pqkeep_gateway.portal.charts import BarChart, bar_chart
from pqkeep_gateway.portal.reading import Section
from pqkeep_gateway.portal.rendering import instant
from pqkeep_protocol.algorithms import USES, Operation

KINDS = ("Encryption", "Signatures", "Key changes", "Refused")
PERIODS = {"24h": "24 hours", "30d": "30 days"}
_SIGNATURES = {
    Operation.SIGN,
    Operation.VERIFY,
    Operation.SIGN_HASH,
    Operation.VERIFY_HASH,
    Operation.SIGN_MU,
    Operation.VERIFY_MU,
    Operation.SIGN_JWS,
}
_LOOKUPS = {
    Operation.GET_KEY,
    Operation.GET_ACTIVE_KEY,
    Operation.LIST_KEYS,
    Operation.GET_KEYRING,
    Operation.LIST_KEYRINGS,
}
"""Operations that neither use nor change a key: pages do some of them by being looked at."""
_FORMS = {"24h": "%H:%M", "30d": "%d %b"}

Rows = Sequence[tuple[str, dict[str, int]]]


def period_of(query: Mapping[str, str]) -> str:
    """Return the period that a page's query names; the shorter one without any."""
    period = query.get("period", "24h")
    return period if period in PERIODS else "24h"


def usage_rows(usage: Section, period: str) -> Rows:
    """Return the numbers of each kind, by the time when a bucket began (UTC)."""
    return [
        (instant(each.start).strftime(_FORMS[period]), _by_kind(each))
        for each in (usage.data.buckets if usage.data else ())
    ]


def usage_chart(rows: Rows) -> BarChart | None:
    """Return the chart of some rows; None where there is nothing in them."""
    return bar_chart(rows, KINDS) if any(sum(each.values()) for _, each in rows) else None


def uses_and_changes(rows: Rows) -> int:
    """Return how many operations with keys there were, without refusals and look-ups."""
    return sum(number for _, each in rows for kind, number in each.items() if kind != KINDS[3])


def _by_kind(bucket: Any) -> dict[str, int]:
    counts = dict.fromkeys(KINDS, 0)
    for operation, number in bucket.operations.items():
        if operation in _LOOKUPS:
            continue
        is_change, is_signature = operation not in USES, operation in _SIGNATURES
        counts[KINDS[2 if is_change else 1 if is_signature else 0]] += number
    counts[KINDS[3]] = bucket.refused
    return counts
