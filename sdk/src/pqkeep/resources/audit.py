"""The audit log and its proofs. pqkeep.audit verifies them offline."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar, Unpack

from pqkeep._call import API, Call, Page, Pages, Place, change, get
from pqkeep._data import Data
from pqkeep._operation import Listing, Operation
from pqkeep.models import (
    AuditKey,
    AuditKeys,
    AuditRecord,
    Checkpoint,
    ConsistencyProof,
    Cosignature,
    InclusionProof,
    RecordCount,
    RecordCounts,
    RecordFilters,
    Witness,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Audit(Generic[T_co]):
    """The records of a tenant; of all tenants with the operator's credential.

    An installation has a log for each shard. The operator names a log by its ``shard``; the default
    is ``default``. A tenant that moved between shards has records in several logs. ``records`` and
    ``export`` return them all. In the other methods, ``log`` is a log id from ``keys().logs``; the
    default is the log of the tenant's present shard.
    """

    _transport: T_co

    @Listing
    def records(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        order: Literal["asc", "desc"] = "asc",
        page_size: int | None = None,
        **filters: Unpack[RecordFilters],
    ) -> Pages[AuditRecord]:
        """Yield records, by id or the newest first. Pages are requested as needed.

        ``after`` and ``before`` are ids.
        """
        place = "after" if order == "asc" else "before"
        query: dict[str, str | int | None] = {
            "after": after,
            "before": before,
            "order": order,
            "limit": page_size,
        }
        query |= _query(filters)

        def page(at: Place | None) -> Call[Page[AuditRecord]]:
            return get("/audit/records", _page, query if at is None else query | {place: at})

        return page

    @Operation
    def counts(
        self,
        *,
        by: Literal["principal", "key", "address", "outcome", "operation", "hour", "day"],
        before: int | str | None = None,
        limit: int | None = None,
        **filters: Unpack[RecordFilters],
    ) -> Call[RecordCounts]:
        """Count records by a value, from the newest on, with the filters of ``records``.

        A request reads at most 10,000 records; the result's ``next`` is the next one's ``before``.
        """
        query = {"by": by, "before": before, "limit": limit}
        return get("/audit/counts", _counts, query | _query(filters))

    @Operation
    def proof(
        self, record_id: int, *, log: str | None = None, shard: str | None = None
    ) -> Call[InclusionProof]:
        """Return a record and its inclusion proof up to a signed checkpoint.

        Raises NotFoundError until a checkpoint covers the record, which takes up to a second.
        """
        return get(f"/audit/records/{record_id:d}/proof", _proof, {"log": log, "shard": shard})

    @Operation
    def checkpoints(
        self,
        *,
        after: int | None = None,
        algorithm: str | None = None,
        limit: int | None = None,
        log: str | None = None,
        shard: str | None = None,
    ) -> Call[tuple[Checkpoint, ...]]:
        """Return checkpoints with more than ``after`` records, by size.

        Without ``after``, return the newest checkpoint of each algorithm.
        """
        query = {"after": after, "algorithm": algorithm, "limit": limit, "log": log, "shard": shard}
        return get("/audit/checkpoints", _checkpoints, query)

    @Operation
    def sign_checkpoint(
        self, *, algorithm: str | None = None, shard: str | None = None
    ) -> Call[Checkpoint]:
        """Sign the log in its present state, with ``Dilithium3`` or ``SLH-DSA-SHA2-128s``.

        Operator only.
        """
        body = {"algorithm": algorithm, "shard": shard}
        return change("/audit/checkpoints", _checkpoint, body)

    @Operation
    def consistency(
        self, *, first: int, second: int, log: str | None = None, shard: str | None = None
    ) -> Call[ConsistencyProof]:
        """Return the consistency proof between two sizes of the log."""
        query = {"first": first, "second": second, "log": log, "shard": shard}
        return get("/audit/consistency", _consistency, query)

    @Operation
    def keys(self, *, log: str | None = None, shard: str | None = None) -> Call[AuditKeys]:
        """Return the keys that verify checkpoints. Store them."""
        return get("/audit/keys", _keys, {"log": log, "shard": shard})

    @Operation
    def note(self, *, log: str | None = None, shard: str | None = None) -> Call[str]:
        """Return the newest checkpoint as a signed note (C2SP), for witnesses to cosign.

        Raises NotFoundError if there is no checkpoint yet.
        """
        return Call(
            method="GET",
            path=API + "/audit/checkpoints/note",
            query={"log": log, "shard": shard},
            read=lambda data: data.text("text"),
            form="text",
        )

    @Operation
    def tlog_proof(
        self, record_id: int, *, log: str | None = None, shard: str | None = None
    ) -> Call[str]:
        """Return a C2SP tlog-proof of a record, for ``pqkeep.audit.verify_proof``.

        Its checkpoint is the newest that covers the record and has cosignatures of witnesses, if
        one exists. Raises NotFoundError until a checkpoint covers the record.
        """
        return Call(
            method="GET",
            path=f"{API}/audit/records/{record_id:d}/tlog-proof",
            query={"log": log, "shard": shard},
            read=lambda data: data.text("text"),
            form="text",
        )

    @Operation
    def witnesses(
        self, *, log: str | None = None, shard: str | None = None
    ) -> Call[tuple[Witness, ...]]:
        """Return the witnesses of the log, with the last checkpoint that each cosigned."""
        return get("/audit/witnesses", _witnesses, {"log": log, "shard": shard})

    @Operation
    def export(
        self,
        path: str | os.PathLike[str],
        *,
        after: int | None = None,
        **filters: Unpack[RecordFilters],
    ) -> Call[int]:
        """Save the records to a file for ``pqkeep audit verify``. Return the number of records.

        With ``after``, the operator gets the records after that id without inclusion proofs; 0
        gives all. A whole log needs no proofs.

        With a filter of ``records``, the file is evidence. It has the matching records, with signed
        statements that no other record matches.

        The file appears when it is complete. Only its owner can read it. The client's timeout does
        not apply. Raises OSError too.
        """
        return Call(
            method="GET",
            path=API + "/audit/export",
            query={"after": after} | _query(filters),
            read=lambda end: end.integer("records"),
            destination=Path(path),
        )


def _query(filters: RecordFilters) -> dict[str, str | int | None]:
    """Return filters as parameters of a request."""
    since, until = filters.get("since"), filters.get("until")
    return {
        "from": None if since is None else since.isoformat(),
        "to": None if until is None else until.isoformat(),
        "operation": filters.get("operation"),
        "keyring": filters.get("keyring"),
        "algorithm": filters.get("algorithm"),
        "key_version": filters.get("key_version"),
        "outcome": filters.get("outcome"),
        "principal": filters.get("principal"),
        "source_address": filters.get("source_address"),
        "request_id": filters.get("request_id"),
        "rule": filters.get("rule"),
        "campaign": filters.get("campaign"),
        "tenant": filters.get("tenant"),
        "page_views": None if filters.get("page_views", True) else "false",
        "log": filters.get("log"),
        "shard": filters.get("shard"),
    }


def _counts(data: Data) -> RecordCounts:
    rows = data.objects("counts")
    return RecordCounts(
        counts=tuple(
            RecordCount(value=row.text("value"), count=row.integer("count")) for row in rows
        ),
        total=data.integer("total"),
        values=data.integer("values"),
        next=data.place_or_none("next"),
    )


def _page(data: Data) -> Page[AuditRecord]:
    return Page(items=tuple(map(_record, data.objects("records"))), next=data.place_or_none("next"))


def _record(data: Data) -> AuditRecord:
    return AuditRecord(
        format=data.integer("format"),
        id=data.integer("id"),
        number=data.integer("number"),
        tenant_id=data.text("tenant_id"),
        operation=data.text("operation"),
        outcome=data.text("outcome"),
        algorithm=data.text_or_none("algorithm"),
        key_version=data.integer_or_none("key_version"),
        principal=data.text("principal"),
        policy=data.text("policy"),
        request_id=data.text("request_id"),
        source_address=data.text("source_address"),
        recorded_at=data.time("recorded_at"),
        event_id=data.text_or_none("event_id"),
        happened_at=data.time_or_none("happened_at"),
        nonce=data.text("nonce"),
        public_key_sha256=data.text_or_none("public_key_sha256"),
        keyring=data.text_or_none("keyring"),
        target=data.text_or_none("target"),
        rule=data.text_or_none("rule"),
        campaign=data.text_or_none("campaign"),
        keyring_revision=data.integer_or_none("keyring_revision"),
    )


def _proof(data: Data) -> InclusionProof:
    return InclusionProof(
        record=_record(data.nested("record")),
        leaf_index=data.integer("leaf_index"),
        size=data.integer("size"),
        path=data.binaries("path"),
        checkpoint=_checkpoint(data.nested("checkpoint")),
    )


def _checkpoints(data: Data) -> tuple[Checkpoint, ...]:
    return tuple(map(_checkpoint, data.objects("checkpoints")))


def _checkpoint(data: Data) -> Checkpoint:
    return Checkpoint(
        log_id=data.text("log_id"),
        size=data.integer("size"),
        root=data.binary("root"),
        at=data.time("at"),
        algorithm=data.text("algorithm"),
        key_version=data.integer("key_version"),
        signature=data.binary("signature"),
        cosignatures=tuple(map(_cosignature, data.objects("cosignatures")))
        if data.has("cosignatures")
        else (),
    )


def _cosignature(data: Data) -> Cosignature:
    return Cosignature(
        witness=data.text("witness"),
        origin=data.text("origin"),
        at=data.time("at"),
        signature=data.binary("signature"),
    )


def _witnesses(data: Data) -> tuple[Witness, ...]:
    return tuple(
        Witness(
            name=witness.text("name"),
            origin=witness.text("origin"),
            size=witness.integer_or_none("size"),
            at=witness.time_or_none("at"),
            problem=witness.text_or_none("problem"),
        )
        for witness in data.objects("witnesses")
    )


def _consistency(data: Data) -> ConsistencyProof:
    return ConsistencyProof(
        first=data.integer("first"), second=data.integer("second"), path=data.binaries("path")
    )


def _keys(data: Data) -> AuditKeys:
    return AuditKeys(
        log_id=data.text("log_id"),
        keys=tuple(
            AuditKey(
                algorithm=key.text("algorithm"),
                key_version=key.integer("key_version"),
                public_key=key.binary("public_key"),
            )
            for key in data.objects("keys")
        ),
        note_key=data.text_or_none("note_key"),
        logs=data.texts_or_none("logs") or (),
    )
