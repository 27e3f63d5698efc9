"""/api/v1/audit: the audit log, and what proves that nobody changed it.

An API key sees its own tenant's records, the operator everybody's. Reading leaves no record.
"""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from pqkeep_gateway.access.principals import OperatorPrincipal, TenantPrincipal
from pqkeep_gateway.access.roles import Permission
from pqkeep_gateway.api.audit_data import (
    CHECKPOINT,
    CHECKPOINTS,
    CONSISTENCY,
    KEYS,
    PROOF,
    RECORDS,
    AuditKeysData,
    CheckpointData,
    CheckpointsData,
    ConsistencyData,
    ProofData,
    RecordsData,
    instant,
    record,
    shown,
    shown_keys,
)
from pqkeep_gateway.api.parameters import KEY_VERSION
from pqkeep_gateway.api.query import MAX_NUMBER, MAX_TEXT, Query
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, JsonLines
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import KEY_SERVICE_AWAY, ApiError, Code, error_of
from pqkeep_gateway.http.text import base64
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    MAX_PAGE,
    Checkpoint,
    ListAuditKeys,
    ListCheckpoints,
    ListRecords,
    ProveConsistency,
    ProveRecords,
    SignCheckpoint,
)
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, KeyService, Request

R = TypeVar("R")

FORMAT = "pqkeep/v1/audit-export"
SIGNING = (Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S)
ORDERS = ("asc", "desc")
NATURAL = {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER}
DEFAULT_LIMIT = 100
MAX_CHECKPOINTS = 100
EXPORTED_AT_ONCE = 200
"""Records and proofs that are asked of the key service at a time."""

_ATTRIBUTION = Attribution("", "gateway", "", "")
_ENCODER = msgspec.json.Encoder()


def endpoints(keys: KeyService) -> tuple[Endpoint, ...]:
    """Return the endpoints of the audit log."""
    audit = _Audit(keys)
    return (
        Endpoint(
            "GET",
            "/audit/records",
            audit.list_records,
            permission=Permission.VIEW,
            about=_ABOUT_RECORDS,
        ),
        Endpoint(
            "GET",
            "/audit/records/{id}/proof",
            audit.prove,
            permission=Permission.VIEW,
            about=_ABOUT_PROOF,
        ),
        Endpoint(
            "GET",
            "/audit/checkpoints",
            audit.list_checkpoints,
            permission=Permission.VIEW,
            about=_ABOUT_CHECKPOINTS,
        ),
        Endpoint("POST", "/audit/checkpoints", audit.sign, 201, takes_body=True, about=_ABOUT_SIGN),
        Endpoint(
            "GET",
            "/audit/consistency",
            audit.prove_consistency,
            permission=Permission.VIEW,
            about=_ABOUT_CONSISTENCY,
        ),
        Endpoint(
            "GET", "/audit/keys", audit.list_keys, permission=Permission.VIEW, about=_ABOUT_KEYS
        ),
        Endpoint(
            "GET", "/audit/export", audit.export, permission=Permission.VIEW, about=_ABOUT_EXPORT
        ),
    )


class _Audit:
    """What the endpoints do."""

    def __init__(self, keys: KeyService) -> None:
        self._keys = keys

    async def list_records(self, call: ApiCall) -> RecordsData:
        """List records, by id or the newest first.

        A page can be empty and still say from where to go on.
        """
        query = Query(call.query)
        order = query.choice("order", ORDERS) or "asc"
        request = ListRecords(
            tenant=_whose(call),
            after=query.number("after"),
            before=query.number("before"),
            newest_first=order == "desc",
            since_us=query.microseconds("from"),
            until_us=query.microseconds("to"),
            operation=query.text("operation"),
            algorithm=query.algorithm(),
            key_version=query.version(),
            outcome=query.text("outcome"),
            limit=query.number("limit", at_least=1, at_most=MAX_PAGE) or DEFAULT_LIMIT,
        )
        page = await self._ask(request)
        return RecordsData(records=tuple(map(record, page.lines)), next=page.next)

    async def prove(self, call: ApiCall) -> ProofData:
        """Prove that a record is in the log that a checkpoint signs."""
        record_id = Query(call.path).number("id", at_least=1)
        checkpoint = await self._newest()
        if record_id is None or record_id > checkpoint.size:
            raise ApiError(Code.NOT_FOUND_001, "no such record in a checkpoint yet", "id")
        request = ProveRecords(
            tenant=_whose(call), after=record_id - 1, size=checkpoint.size, limit=1
        )
        found = (await self._ask(request)).proofs
        proven = record(found[0].line) if found else None
        if proven is None or proven.id != record_id:
            raise ApiError(Code.NOT_FOUND_001, "no such record", "id")
        if checkpoint.size > 1 and not found[0].path:
            raise ApiError(Code.NOT_FOUND_001, "the log is damaged, and has no proof of it", "id")
        return ProofData(
            record=proven,
            leaf_index=record_id - 1,
            size=checkpoint.size,
            path=tuple(map(base64, found[0].path)),
            checkpoint=shown(checkpoint),
        )

    async def list_checkpoints(self, call: ApiCall) -> CheckpointsData:
        """List checkpoints after a size, or the newest of each algorithm."""
        query = Query(call.query)
        request = ListCheckpoints(
            tenant=INSTALLATION,
            after=query.number("after"),
            algorithm=query.algorithm(),
            limit=query.number("limit", at_least=1, at_most=MAX_CHECKPOINTS) or MAX_CHECKPOINTS,
        )
        found = (await self._ask(request)).checkpoints
        return CheckpointsData(checkpoints=tuple(map(shown, found)))

    async def sign(self, call: ApiCall) -> CheckpointData:
        """Sign what the log is now."""
        if not isinstance(call.principal, OperatorPrincipal):
            raise ApiError(Code.FORBIDDEN_001, "only the operator has checkpoints signed")
        algorithm = Query(call.body).choice("algorithm", SIGNING) or Algorithm.ML_DSA_65
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm(algorithm))
        return shown((await self._ask(request)).checkpoint)

    async def prove_consistency(self, call: ApiCall) -> ConsistencyData:
        """Prove that the log of one size grew into that of another."""
        query = Query(call.query)
        first, second = query.number("first"), query.number("second")
        if first is None or second is None:
            missing = "first" if first is None else "second"
            raise ApiError(Code.UNPROCESSABLE, f"{missing} is required", missing)
        request = ProveConsistency(tenant=INSTALLATION, first=first, second=second)
        path = (await self._ask(request)).path
        return ConsistencyData(first=first, second=second, path=tuple(map(base64, path)))

    async def list_keys(self, call: ApiCall) -> AuditKeysData:
        """List the keys that checkpoints are verified with."""
        return shown_keys(await self._ask(ListAuditKeys(tenant=INSTALLATION)))

    async def export(self, call: ApiCall) -> JsonLines:
        """Export records with their proofs, as JSON lines: everything up to the newest checkpoint.

        What ``pqkeep audit verify`` reads.
        """
        began_us = time.time_ns() // 1000  # every checkpoint that was kept before is looked for
        checkpoint = await self._newest()
        signing = shown_keys(await self._ask(ListAuditKeys(tenant=INSTALLATION)))

        async def chunks() -> AsyncIterator[bytes]:
            yield _head(_whose(call), checkpoint, signing, began_us)
            after, count = 0, 0
            while True:
                request = ProveRecords(
                    tenant=_whose(call),
                    after=after,
                    size=checkpoint.size,
                    limit=EXPORTED_AT_ONCE,
                )
                proofs = (await self._ask(request)).proofs
                if not proofs:
                    break
                count += len(proofs)
                after = record(proofs[-1].line).id
                yield b"".join(
                    _line(type="record", record=Raw(each.line), proof=list(map(base64, each.path)))
                    for each in proofs
                )
            yield _line(type="end", records=count)

        return JsonLines(f"pqkeep-audit-{checkpoint.size}.jsonl", chunks())

    async def _ask(self, request: Request[R]) -> R:
        try:
            return await self._keys.execute(request, _ATTRIBUTION)
        except KeyServiceError as refusal:
            raise error_of(refusal.kind) from None

    async def _newest(self) -> Checkpoint:
        request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=Algorithm.ML_DSA_65)
        found = (await self._ask(request)).checkpoints
        if not found:
            raise ApiError(Code.NOT_FOUND_001, "there is no checkpoint yet; ask again in a second")
        return found[0]


def _whose(call: ApiCall) -> TenantId:
    principal = call.principal
    return principal.tenant if isinstance(principal, TenantPrincipal) else INSTALLATION


def _head(tenant: TenantId, checkpoint: Checkpoint, signing: AuditKeysData, began_us: int) -> bytes:
    lines = [
        _line(
            type="export",
            format=FORMAT,
            log_id=signing.log_id,
            tenant_id=None if tenant == INSTALLATION else str(tenant),
            size=checkpoint.size,
            exported_at=instant(began_us),
        ),
        *(_line(type="key", **msgspec.structs.asdict(key)) for key in signing.keys),
        _line(type="checkpoint", **msgspec.structs.asdict(shown(checkpoint))),
    ]
    return b"".join(lines)


def _line(**values: Any) -> bytes:
    return _ENCODER.encode(values) + b"\n"


_AFTER = Parameter("after", "Only what comes after this id.", NATURAL, 0, required=False)
_SIZE_AFTER = Parameter(
    "after",
    "Only checkpoints of more records. Left out: the newest of each algorithm.",
    NATURAL,
    0,
    required=False,
)
_ALGORITHM = Parameter(
    "algorithm",
    "Only this algorithm.",
    {"type": "string", "enum": list(Algorithm)},
    Algorithm.ML_DSA_65,
    required=False,
)
_SIGNING = Parameter(
    "algorithm",
    "What to sign with.",
    {"type": "string", "enum": list(SIGNING), "default": SIGNING[0]},
    SIGNING[0],
    required=False,
)


def _filter(
    name: str, description: str, schema: Mapping[str, object], example: object
) -> Parameter:
    return Parameter(name, description, schema, example, required=False)


def _limit(at_most: int) -> Parameter:
    schema = {"type": "integer", "minimum": 1, "maximum": at_most}
    return _filter("limit", "How many at most.", schema, min(at_most, DEFAULT_LIMIT))


def _about(
    name: str, example: Data | None, *parameters: Parameter, caller: Caller = Caller.EITHER
) -> About:
    return About(
        name=name,
        caller=caller,
        example=example,
        parameters=parameters,
        codes=KEY_SERVICE_AWAY | {Code.UNPROCESSABLE, Code.NOT_FOUND_001},
        makes_lines=example is None,
    )


_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}
_TIME = {"type": "string", "format": "date-time"}
_ABOUT_RECORDS = _about(
    "list_audit_records",
    RECORDS,
    _AFTER,
    _filter("before", "Only what comes before this id.", NATURAL, 100),
    _filter("order", "By id, or the newest first.", {"type": "string", "enum": ORDERS}, "desc"),
    _filter("from", "Recorded then or later.", _TIME, "2026-01-31T12:00:00Z"),
    _filter("to", "Recorded before then.", _TIME, "2026-02-01T00:00:00Z"),
    _filter("operation", "Only this operation.", _TEXT, "encrypt"),
    _ALGORITHM,
    _filter("key_version", "Only this key version.", KEY_VERSION.schema, 1),
    _filter("outcome", "Only this outcome.", _TEXT, "success"),
    _limit(MAX_PAGE),
)
_ABOUT_PROOF = _about(
    "prove_audit_record",
    PROOF,
    Parameter(
        "id", "The record's id.", {"type": "integer", "minimum": 1}, 1, codes=(Code.NOT_FOUND_001,)
    ),
)
_ABOUT_CHECKPOINTS = _about(
    "list_audit_checkpoints", CHECKPOINTS, _SIZE_AFTER, _ALGORITHM, _limit(MAX_CHECKPOINTS)
)
_ABOUT_SIGN = _about("sign_audit_checkpoint", CHECKPOINT, _SIGNING, caller=Caller.OPERATOR)
_ABOUT_CONSISTENCY = _about(
    "prove_audit_consistency",
    CONSISTENCY,
    Parameter("first", "The smaller size.", NATURAL, 32, codes=(Code.NOT_FOUND_001,)),
    Parameter("second", "The larger size.", NATURAL, 64, codes=(Code.NOT_FOUND_001,)),
)
_ABOUT_KEYS = _about("list_audit_keys", KEYS)
_ABOUT_EXPORT = _about("export_audit_log", None)
