"""The audit log's records: new records, their rows, and the texts that are hashed.

A record's text is JSON with names in alphabetical order and no spaces (RFC 8785). The hash of that
text is its leaf in the Merkle tree. A record stores the number of its format, and that format's
rule never changes. A new name needs a new format (docs/audit.md).
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec import Struct

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Event, EventRefusal
from pqkeep_protocol.audit_events import Outcome, RecordedOperation, gateway_operation
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyringName, KeyVersion, RecordedName, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    DeleteRule,
    ListKeyrings,
    ListKeys,
    ListRules,
    OverrideRule,
    PutRule,
)

_ENCODER = msgspec.json.Encoder()

_SECOND_US = 1_000_000
MAX_EVENT_AGE_US = 30 * 24 * 3600 * _SECOND_US
"""How much older than the newest record an event can be. Events wait while the gateways are
down."""
MAX_EVENT_LEAD_US = 5 * 60 * _SECOND_US
"""The largest difference by which the gateways' clocks can be ahead."""


class NewRecord(NamedTuple):
    """The content of a record for one operation. The commit adds its place in the log.

    It never holds key material, plaintext, messages or signatures.
    """

    tenant: TenantId
    principal: str
    operation: RecordedOperation
    algorithm: str | None
    key_version: int | None
    outcome: str
    request_id: str
    source_address: str
    policy: str
    event_id: str | None = None
    """The id of a gateway's event."""
    happened_at_us: int | None = None
    """The time of a gateway's event, in microseconds since 1970."""
    public_key_sha256: bytes | None = None
    """The hash (32 bytes) of the generated key or the caller's key."""
    keyring_revision: int | None = None
    """The revision of a changed key, after the change."""
    keyring: KeyringName | None = None
    """The keyring's name. None if the operation has no keyring."""
    target: str | None = None
    """The target key version of a re-encryption, as keyring/algorithm/version."""
    rule: RecordedName | None = None
    """The rule that warned of the operation or refused it."""
    campaign: RecordedName | None = None
    """The campaign that a re-encryption belongs to."""


def target_text(keyring: KeyringName, algorithm: Algorithm, version: KeyVersion) -> str:
    """Return a target key version in the form of records."""
    return f"{keyring}/{algorithm}/{version}"


def target_of(text: str) -> tuple[KeyringName, Algorithm, KeyVersion]:
    """Return the key version that ``target_text`` named."""
    keyring, algorithm, version = text.split("/")
    return keyring, Algorithm(algorithm), KeyVersion(int(version))


def operation_record(
    request: AnyRequest,
    attribution: Attribution,
    version: KeyVersion | None,
    outcome: Outcome | ErrorKind,
    target: str | None = None,
    own_keyring: KeyringName | None = None,
    rule: RecordedName | None = None,
    campaign: RecordedName | None = None,
) -> NewRecord:
    """Return the record of one operation.

    ``own_keyring`` is the keyring of a supplied key that is the tenant's own.
    """
    supplied = getattr(request, "public_key", None)
    # Positional arguments: keyword arguments take half as long again, in every request.
    return NewRecord(
        request.tenant,
        attribution.principal,
        request.operation,
        request.algorithm,
        version,
        outcome,
        attribution.request_id,
        attribution.source_address,
        attribution.policy,
        None,
        None,
        None if supplied is None else sha256(supplied).digest(),
        None,
        _keyring(request) if supplied is None else own_keyring,
        target,
        rule,
        campaign,
    )


_OF_NO_KEYRING = (ListKeyrings, ListRules, PutRule, DeleteRule, OverrideRule)


def _keyring(request: AnyRequest) -> KeyringName | None:
    is_of_all = isinstance(request, ListKeys) and request.all_keyrings
    return None if is_of_all or isinstance(request, _OF_NO_KEYRING) else request.keyring


def event_record(event: Event, newest_us: int, now_us: int) -> NewRecord | EventRefusal:
    """Return the record of a gateway's event, or the reason for its refusal.

    ``newest_us`` is the newest record's time (0 without one), in microseconds since 1970. Both
    times set the range for the event, because one of the clocks may have been wrong.
    """
    operation = gateway_operation(event.operation, event.outcome)
    if operation is None:
        return EventRefusal.NOT_AN_EVENT
    earliest = min(newest_us or now_us, now_us) - MAX_EVENT_AGE_US
    latest = max(newest_us, now_us) + MAX_EVENT_LEAD_US
    if not earliest <= event.at_us <= latest:
        return EventRefusal.OUT_OF_TIME
    return NewRecord(
        tenant=event.tenant,
        principal=event.principal,
        operation=operation,
        algorithm=event.algorithm,
        key_version=event.key_version,
        outcome=event.outcome,
        request_id=event.request_id,
        source_address=event.source_address,
        policy=event.policy,
        event_id=str(event.id),
        happened_at_us=event.at_us,
        keyring=event.keyring,
        campaign=event.campaign,
        target=event.target,
    )


class Row(NamedTuple):
    """One row of the table, in the order of its columns.

    Rows that are read become one too, by ``_make``: access to a value is then many times faster.
    """

    id: int
    format: int
    tenant_id: str
    number: int
    recorded_at_us: int
    nonce: bytes
    principal: str
    operation: str
    algorithm: str | None
    key_version: int | None
    outcome: str
    request_id: str
    source_address: str
    policy: str
    event_id: str | None
    happened_at_us: int | None
    public_key_sha256: bytes | None
    keyring_revision: int | None
    keyring: str | None
    target: str | None
    rule: str | None
    campaign: str | None


Format = Callable[[Row], Struct]
"""Makes a record from its row: a Struct with the format's names in alphabetical order."""

Formats = Mapping[int, Format]


class Format1(Struct, frozen=True):
    """A record of format 1."""

    algorithm: str | None
    campaign: str | None
    event_id: str | None
    format: int
    happened_at: str | None
    id: int
    key_version: int | None
    keyring: str | None
    keyring_revision: int | None
    nonce: str
    number: int
    operation: str
    outcome: str
    policy: str
    principal: str
    public_key_sha256: str | None
    recorded_at: str
    request_id: str
    rule: str | None
    source_address: str
    target: str | None
    tenant_id: str


def format_1(row: Row) -> Format1:
    """Return a record of format 1."""
    # Positional arguments: CPython passes more than 15 keyword arguments through a slow dictionary.
    return Format1(
        row.algorithm,
        row.campaign,
        row.event_id,
        row.format,
        None if row.happened_at_us is None else iso_timestamp(row.happened_at_us),
        row.id,
        row.key_version,
        row.keyring,
        row.keyring_revision,
        row.nonce.hex(),
        row.number,
        row.operation,
        row.outcome,
        row.policy,
        row.principal,
        None if row.public_key_sha256 is None else row.public_key_sha256.hex(),
        iso_timestamp(row.recorded_at_us),
        row.request_id,
        row.rule,
        row.source_address,
        row.target,
        row.tenant_id,
    )


FORMATS: Formats = {1: format_1}
"""The formats by number. New records use the largest. An entry here never changes."""


def record_text(row: Row, formats: Formats = FORMATS) -> bytes:
    """Return the text that is hashed into a record's leaf."""
    return _ENCODER.encode(formats[row.format](row))


@lru_cache(maxsize=256)  # all records of a transaction have the same time
def iso_timestamp(microseconds: int) -> str:
    """Return microseconds since 1970 as ISO 8601, UTC, to the microsecond."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
