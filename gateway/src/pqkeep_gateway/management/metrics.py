"""The gateway's metrics: a row of docs/observability.md each, beside those of the key service."""

from pqkeep_gateway.delivery.mail_delivery import OUTCOMES
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.observer import CLIENT_GONE, DOCUMENT, SUCCESS
from pqkeep_gateway.management.readiness import PARTS, SHARD_PARTS
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.metrics import ALGORITHMS, NONE, SHARD, VERSION, Kind, Metric, names
from pqkeep_protocol.tls_groups import NAMES

OTHER = "other"
"""A group that has no name here."""
_OPERATIONS = names([*Operation, *AuditEvent], DOCUMENT, NONE)

GATEWAY_METRICS = (
    Metric(
        "pqkeep_requests_total",
        Kind.COUNTER,
        "HTTP requests. The outcome is success, client-gone, or the error code; the operation is"
        " none where a request reached no endpoint.",
        {
            "operation": _OPERATIONS,
            "algorithm": ALGORITHMS,
            "outcome": frozenset({SUCCESS, CLIENT_GONE, *(code.code for code in Code)}),
        },
    ),
    Metric(
        "pqkeep_request_duration_seconds",
        Kind.HISTOGRAM,
        "From a request's head to its answer.",
        {"operation": _OPERATIONS},
    ),
    Metric(
        "pqkeep_key_service_refusals_total",
        Kind.COUNTER,
        "Calls that a shard's key service refused or did not answer, by the kind of the error.",
        {"kind": names(ErrorKind), "shard": SHARD},
    ),
    Metric(
        "pqkeep_queue_length",
        Kind.GAUGE,
        "What waits in the gateway: calls for a key service's answer, passwords for a thread.",
        {"queue": frozenset({"key_service", "passwords"})},
    ),
    Metric("pqkeep_connections", Kind.GAUGE, "Open connections of clients."),
    Metric(
        "pqkeep_connections_closed_total",
        Kind.COUNTER,
        "Connections closed because there were too many: refused because an address opened them too"
        " fast, refused because all others were in use, evicted in favour of a new one, or ended"
        " because answers that nobody read took too much memory.",
        {"reason": frozenset({"too_fast", "full", "evicted", "unread"})},
    ),
    Metric(
        "pqkeep_tls_handshakes_total",
        Kind.COUNTER,
        "TLS handshakes by key exchange group: those with MLKEM in their name are post-quantum.",
        {"group": frozenset({*NAMES.values(), OTHER})},
    ),
    Metric("pqkeep_tls_failures_total", Kind.COUNTER, "TLS connections that failed."),
    Metric(
        "pqkeep_tls_certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "When the TLS certificate expires, in seconds since 1970.",
    ),
    Metric(
        "pqkeep_link_certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "When the certificate of each end of the link between hosts expires, in seconds since 1970.",
        {"end": frozenset({"gateway", "key_service"})},
    ),
    Metric(
        "pqkeep_event_loop_lag_seconds",
        Kind.HISTOGRAM,
        "How late the gateway's event loop is, measured twice a second.",
    ),
    Metric(
        "pqkeep_ready",
        Kind.GAUGE,
        "1 where a part that the gateway needs answers, 0 where it does not.",
        {"part": frozenset(PARTS)},
    ),
    Metric(
        "pqkeep_shard_ready",
        Kind.GAUGE,
        "1 where a shard's key service, or its database, answers, 0 where it does not.",
        {"part": frozenset(SHARD_PARTS), "shard": SHARD},
    ),
    Metric(
        "pqkeep_shard_tenants",
        Kind.GAUGE,
        "Tenants in each shard that ever was, without deleted ones.",
        {"shard": SHARD},
    ),
    Metric(
        "pqkeep_audit_outbox_events",
        Kind.GAUGE,
        "Events in the accounts database that are not in the audit log: waiting, or refused by it.",
        {"state": frozenset({"waiting", "refused"})},
    ),
    Metric(
        "pqkeep_audit_outbox_age_seconds",
        Kind.GAUGE,
        "The age of the oldest event that waits; at 300 changes are refused.",
    ),
    Metric(
        "pqkeep_audit_sink_age_seconds",
        Kind.GAUGE,
        "The age of the oldest record of each shard's log that the audit sink does not have; 0"
        " where another gateway streams to it.",
        {"shard": SHARD},
    ),
    Metric(
        "pqkeep_mail_attempts_total",
        Kind.COUNTER,
        "Attempts to deliver an e-mail, by their outcome; after deferred and failed there is another.",
        {"outcome": OUTCOMES},
    ),
    Metric("pqkeep_mail_waiting", Kind.GAUGE, "E-mails that are not delivered yet."),
    Metric("pqkeep_mail_age_seconds", Kind.GAUGE, "The age of the oldest of them."),
    Metric(
        "pqkeep_build_info",
        Kind.GAUGE,
        "1, with the versions of pqkeep and Python that the gateway runs.",
        {"version": VERSION, "python": VERSION},
    ),
)
"""What the gateway measures."""
