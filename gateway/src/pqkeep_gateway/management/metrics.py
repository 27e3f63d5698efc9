"""The gateway's metrics. docs/observability.md lists them with those of the key service."""

from pqkeep_gateway.access.rate_limit import Closeness
from pqkeep_gateway.delivery.mail_delivery import OUTCOMES
from pqkeep_gateway.delivery.webhooks import OUTCOMES as WEBHOOK_OUTCOMES
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.observer import CLIENT_GONE, DOCUMENT, SUCCESS
from pqkeep_gateway.management.readiness import PARTS, SHARD_PARTS
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.metrics import ALGORITHMS, NONE, SHARD, VERSION, Kind, Metric, names
from pqkeep_protocol.tls_groups import NAMES

OTHER = "other"
"""A key-exchange group without a name here."""
RATE, QUOTA = "rate", "quota"
"""A tenant's limits: requests in a minute, and operations in a month."""
_OPERATIONS = names([*Operation, *AuditEvent], DOCUMENT, NONE)

GATEWAY_METRICS = (
    Metric(
        "pqkeep_requests_total",
        Kind.COUNTER,
        "HTTP requests. The outcome is success, client-gone, or the error code. A request "
        "that reached no endpoint has the operation none.",
        {
            "operation": _OPERATIONS,
            "algorithm": ALGORITHMS,
            "outcome": frozenset({SUCCESS, CLIENT_GONE, *(code.code for code in Code)}),
        },
    ),
    Metric(
        "pqkeep_request_duration_seconds",
        Kind.HISTOGRAM,
        "Seconds from a request's head to its response.",
        {"operation": _OPERATIONS},
    ),
    Metric(
        "pqkeep_key_service_refusals_total",
        Kind.COUNTER,
        "Calls that a shard's key service refused or did not respond to, by the kind of error.",
        {"kind": names(ErrorKind), "shard": SHARD},
    ),
    Metric(
        "pqkeep_queue_length",
        Kind.GAUGE,
        "Waiting work in the gateway: calls for a key service's response, passwords for a thread.",
        {"queue": frozenset({"key_service", "passwords"})},
    ),
    Metric(
        "pqkeep_limited_requests_total",
        Kind.COUNTER,
        "Requests of tenants that used at least 80 % of a limit (near), and requests that a limit"
        " refused (reached).",
        {"limit": frozenset({RATE, QUOTA}), "state": names(Closeness)},
    ),
    Metric(
        "pqkeep_accounts_database_free_bytes",
        Kind.GAUGE,
        "Free space beside the accounts database, in bytes. No value for a database on a server.",
    ),
    Metric("pqkeep_connections", Kind.GAUGE, "Open connections of clients."),
    Metric(
        "pqkeep_connections_closed_total",
        Kind.COUNTER,
        "Connections closed because of a limit: too_fast (an address opened too many), full "
        "(all connections in use), evicted (replaced by a new one), or unread (unread "
        "responses used too much memory).",
        {"reason": frozenset({"too_fast", "full", "evicted", "unread"})},
    ),
    Metric(
        "pqkeep_tls_handshakes_total",
        Kind.COUNTER,
        "TLS handshakes by key-exchange group. Groups with MLKEM in their name are post-quantum.",
        {"group": frozenset({*NAMES.values(), OTHER})},
    ),
    Metric("pqkeep_tls_failures_total", Kind.COUNTER, "TLS connections that failed."),
    Metric(
        "pqkeep_tls_certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "The expiry of the TLS certificate, in seconds since 1970.",
    ),
    Metric(
        "pqkeep_link_certificate_expiry_timestamp_seconds",
        Kind.GAUGE,
        "The expiry of each end's certificate on the link between hosts, in seconds since 1970.",
        {"end": frozenset({"gateway", "key_service"})},
    ),
    Metric(
        "pqkeep_event_loop_lag_seconds",
        Kind.HISTOGRAM,
        "The delay of the gateway's event loop, measured twice a second.",
    ),
    Metric(
        "pqkeep_ready",
        Kind.GAUGE,
        "1 if a part that the gateway needs responds, otherwise 0.",
        {"part": frozenset(PARTS)},
    ),
    Metric(
        "pqkeep_shard_ready",
        Kind.GAUGE,
        "1 if a shard's key service or its database responds, otherwise 0.",
        {"part": frozenset(SHARD_PARTS), "shard": SHARD},
    ),
    Metric(
        "pqkeep_shard_tenants",
        Kind.GAUGE,
        "Tenants in each shard, removed shards included, without deleted tenants.",
        {"shard": SHARD},
    ),
    Metric(
        "pqkeep_audit_outbox_events",
        Kind.GAUGE,
        "Events in the accounts database that are not in the audit log: waiting, or refused by"
        " the log.",
        {"state": frozenset({"waiting", "refused"})},
    ),
    Metric(
        "pqkeep_audit_outbox_age_seconds",
        Kind.GAUGE,
        "The age of the oldest waiting event in seconds. From 300 on, changes are refused.",
    ),
    Metric(
        "pqkeep_audit_sink_age_seconds",
        Kind.GAUGE,
        "The age of the oldest record of each shard's log that the audit sink lacks; 0 if "
        "another gateway streams.",
        {"shard": SHARD},
    ),
    Metric(
        "pqkeep_mail_attempts_total",
        Kind.COUNTER,
        "Attempts to deliver an e-mail, by outcome. After deferred or failed, another one follows.",
        {"outcome": OUTCOMES},
    ),
    Metric(
        "pqkeep_webhook_attempts_total",
        Kind.COUNTER,
        "Attempts to send a message to a webhook, by outcome. A refused message got another status"
        " than 200 to 299. Another attempt follows after each failure.",
        {"outcome": WEBHOOK_OUTCOMES},
    ),
    Metric("pqkeep_mail_waiting", Kind.GAUGE, "E-mails that are not delivered yet."),
    Metric(
        "pqkeep_mail_age_seconds", Kind.GAUGE, "The age of the oldest waiting e-mail in seconds."
    ),
    Metric(
        "pqkeep_build_info",
        Kind.GAUGE,
        "1, with the gateway's versions of pqkeep and Python.",
        {"version": VERSION, "python": VERSION},
    ),
)
"""The metrics of the gateway."""
