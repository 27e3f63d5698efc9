"""The audit log's data types in the API."""

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.text import Base64, base64
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    AuditKeys,
    Checkpoint,
    Cosignature,
    WitnessProblem,
    WitnessState,
)

Hash = Annotated[Base64, Meta(description="SHA-256, 32 bytes.")]
Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
KeyVersion = Annotated[int, Meta(ge=1)]


class RecordData(Data, frozen=True, kw_only=True):
    """The record of one operation, action or refusal."""

    algorithm: str | None
    event_id: str | None
    format: Annotated[int, Meta(ge=1, description="The version of the record's format.")]
    happened_at: Instant | None
    id: Annotated[int, Meta(ge=1, description="The record's position in the log.")]
    key_version: int | None
    nonce: Annotated[str, Meta(description="16 random bytes, so that a hash reveals nothing.")]
    number: Annotated[
        int, Meta(ge=1, description=("The record's position among the tenant's records."))
    ]
    operation: str
    outcome: str
    policy: str
    principal: str
    recorded_at: Instant
    request_id: str
    source_address: str
    tenant_id: str
    keyring_revision: Annotated[
        int | None, Meta(description="The revision of the key or keyring after the change.")
    ]
    public_key_sha256: Annotated[
        str | None,
        Meta(description="Fingerprint of the generated key, or of the caller's public key."),
    ]
    keyring: Annotated[str | None, Meta(description="The key's keyring.")]
    target: Annotated[
        str | None,
        Meta(
            description="The target of a re-encryption, or the other keys that a failed "
            "decryption tried: keyring/algorithm/version."
        ),
    ]
    rule: Annotated[
        str | None,
        Meta(description="The rule with a date that warned of the operation or refused it."),
    ]
    campaign: Annotated[str | None, Meta(description="The campaign that the record belongs to.")]


class CountData(Data, frozen=True, kw_only=True):
    """The number of records with one value."""

    value: Annotated[
        str,
        Meta(
            description="The value, as in records. An hour or a day is the time of its beginning."
        ),
    ]
    count: Annotated[int, Meta(ge=1)]


class CountsData(Data, frozen=True, kw_only=True):
    """Records by a value: the most frequent first, or the newest hour or day."""

    counts: tuple[CountData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of counted records.")]
    values: Annotated[
        int, Meta(ge=0, description="The number of values, including values that are not listed.")
    ]
    next: Annotated[
        int | str | None,
        Meta(
            description="Send this as `before` to count older records; null if all were counted. "
            "At most 10,000 records are read at once."
        ),
    ]


class RecordsData(Data, frozen=True, kw_only=True):
    """One page of records."""

    records: tuple[RecordData, ...]
    next: Annotated[
        int | str | None,
        Meta(
            description="Send this as `after` (or `before`) for the next page; null at the "
            "end. A record's id, or a text if the records are in several logs."
        ),
    ]
    logs: (
        Annotated[
            tuple[str, ...],
            Meta(description="The log id of each record, if they are in several logs."),
        ]
        | UnsetType
    ) = UNSET


class CosignatureData(Data, frozen=True, kw_only=True):
    """A witness's statement that it has seen the log grow to this size and root."""

    witness: Annotated[str, Meta(description="The name of the witness's key.")]
    origin: Annotated[str, Meta(description="The name of the log that was cosigned.")]
    at: Instant
    signature: Annotated[
        Base64,
        Meta(description="Key id (4 bytes), time (8) and signature, as in a C2SP signature line."),
    ]


class CheckpointData(Data, frozen=True, kw_only=True):
    """The signed size and root of the log at a time."""

    log_id: str
    size: Annotated[int, Meta(ge=0, description="The number of records that it covers.")]
    root: Hash
    at: Instant
    algorithm: Algorithm
    key_version: KeyVersion
    signature: Base64
    cosignatures: (
        Annotated[
            tuple[CosignatureData, ...],
            Meta(description="Cosignatures of witnesses, if there are any."),
        ]
        | UnsetType
    ) = UNSET


class CheckpointsData(Data, frozen=True, kw_only=True):
    """Checkpoints, by size."""

    checkpoints: tuple[CheckpointData, ...]


class WitnessData(Data, frozen=True, kw_only=True):
    """A witness, and the last checkpoint that it cosigned."""

    name: str
    origin: Annotated[str, Meta(description="The name of the log that the witness knows.")]
    size: Annotated[
        int | None,
        Meta(description="The number of cosigned records; null before the first cosignature."),
    ]
    at: Annotated[
        Instant | None,
        Meta(description="The time of its newest cosignature; null before the first."),
    ]
    problem: Annotated[
        WitnessProblem | None,
        Meta(
            description="Why it does not cosign now. With `conflict` it has cosigned another"
            " history of the log: records were lost or replaced."
        ),
    ]


class WitnessesData(Data, frozen=True, kw_only=True):
    """The witnesses in the key service's settings."""

    witnesses: tuple[WitnessData, ...]


class ProofData(Data, frozen=True, kw_only=True):
    """A record, its index in a tree, and its inclusion proof."""

    record: RecordData
    leaf_index: int
    size: int
    path: tuple[Hash, ...]
    checkpoint: CheckpointData


class ConsistencyData(Data, frozen=True, kw_only=True):
    """A consistency proof between two sizes of the log."""

    first: int
    second: int
    path: tuple[Hash, ...]


class AuditKeyData(Data, frozen=True, kw_only=True):
    """A public key that verifies checkpoints."""

    algorithm: Algorithm
    key_version: KeyVersion
    public_key: Base64


class AuditKeysData(Data, frozen=True, kw_only=True):
    """All keys that have signed checkpoints of this log."""

    log_id: str
    keys: tuple[AuditKeyData, ...]
    note_key: Annotated[
        str | None,
        Meta(
            description=(
                "The key that verifies notes, in C2SP signed-note format; null before"
                " the first note."
            )
        ),
    ]
    logs: (
        Annotated[
            tuple[str, ...],
            Meta(
                description="The ids of all logs with the tenant's records, the oldest first, "
                "if it was moved between shards."
            ),
        ]
        | UnsetType
    ) = UNSET


def record(line: bytes) -> RecordData:
    """Decode a record from its stored text."""
    return _RECORDS.decode(line)


def shown(checkpoint: Checkpoint) -> CheckpointData:
    """Return a checkpoint in its API form."""
    return CheckpointData(
        log_id=str(checkpoint.log_id),
        size=checkpoint.size,
        root=base64(checkpoint.root),
        at=instant(checkpoint.at_us),
        algorithm=checkpoint.algorithm,
        key_version=checkpoint.key_version,
        signature=base64(checkpoint.signature),
        cosignatures=tuple(map(_cosignature, checkpoint.cosignatures)) or UNSET,
    )


def _cosignature(cosignature: Cosignature) -> CosignatureData:
    seconds = int.from_bytes(cosignature.signature[4:12], "big")
    return CosignatureData(
        witness=cosignature.witness,
        origin=cosignature.origin,
        at=instant(seconds * 1_000_000),
        signature=base64(cosignature.signature),
    )


def shown_witness(witness: WitnessState) -> WitnessData:
    """Return a witness in its API form."""
    return WitnessData(
        name=witness.name,
        origin=witness.origin,
        size=witness.size,
        at=None if witness.at is None else instant(witness.at * 1_000_000),
        problem=witness.problem,
    )


def shown_keys(found: AuditKeys) -> AuditKeysData:
    """Return the keys in their API form."""
    return AuditKeysData(
        log_id=str(found.log_id),
        keys=tuple(
            AuditKeyData(
                algorithm=key.algorithm,
                key_version=key.version,
                public_key=base64(key.public_key),
            )
            for key in found.keys
        ),
        note_key=found.note_key,
    )


def instant(microseconds: int) -> str:
    """Return microseconds since 1970 as ISO 8601, UTC, to the microsecond."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{rest:06}Z"


_RECORDS = msgspec.json.Decoder(RecordData)

_LOG_ID = "0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11"
_TENANT_ID = "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11"
_AT = 1_769_860_800_000_000
_HASH = base64(bytes(range(32)))
_NOTE_KEY = base64(b"\x06" + bytes(20))

RECORD = RecordData(
    algorithm=Algorithm.ML_KEM_768,
    event_id=None,
    format=1,
    happened_at=None,
    id=42,
    key_version=1,
    nonce=bytes(range(16)).hex(),
    number=7,
    operation="encrypt",
    outcome="success",
    policy="plan-includes-algorithm",
    principal="api-key:1",
    recorded_at=instant(_AT),
    request_id="order-4711",
    source_address="127.0.0.1",
    tenant_id=_TENANT_ID,
    keyring_revision=None,
    public_key_sha256=None,
    keyring="default",
    target=None,
    rule=None,
    campaign=None,
)
CHECKPOINT = CheckpointData(
    log_id=_LOG_ID,
    size=64,
    root=_HASH,
    at=instant(_AT + 500_000),
    algorithm=Algorithm.ML_DSA_65,
    key_version=1,
    signature=base64(b"\x5a\x01\x7f" * 8),
)
WITNESSES = WitnessesData(
    witnesses=(
        WitnessData(
            name="witness.example/w1",
            origin="pqkeep.example/audit",
            size=64,
            at=instant(_AT + 1_000_000),
            problem=None,
        ),
    )
)
RECORDS = RecordsData(records=(RECORD,), next=42)
COUNTS = CountsData(
    counts=(CountData(value="api-key:1/checkout", count=12),), total=12, values=1, next=None
)
CHECKPOINTS = CheckpointsData(checkpoints=(CHECKPOINT,))
PROOF = ProofData(record=RECORD, leaf_index=41, size=64, path=6 * (_HASH,), checkpoint=CHECKPOINT)
CONSISTENCY = ConsistencyData(first=32, second=64, path=(_HASH,))
KEYS = AuditKeysData(
    log_id=_LOG_ID,
    keys=(
        AuditKeyData(algorithm=Algorithm.ML_DSA_65, key_version=1, public_key=base64(b"\x1d" * 24)),
    ),
    note_key=f"pqkeep/audit/{_LOG_ID}+1d1d1d1d+{_NOTE_KEY}",
)
