"""/api/v1/audit: the audit log, and what proves that nobody changed it.

The operator sees everybody's records, everybody else those of their tenant. Reading leaves no record.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.export_limits import ExportLimits
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
from pqkeep_gateway.api.audit_pages import after_in, before_in, merged, place_field
from pqkeep_gateway.api.errors import AUDIT_CODES, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.key_fields import keyring_field
from pqkeep_gateway.api.shard_fields import shard_field
from pqkeep_gateway.http.endpoint import (
    JSON,
    JSON_LINES,
    TEXT,
    ApiCall,
    Document,
    Endpoint,
    JsonLines,
    Response,
)
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden, not_found
from pqkeep_gateway.http.field import (
    Field,
    boolean_field,
    choice_field,
    integer_field,
    text_field,
    time_field,
    uuid_field,
)
from pqkeep_gateway.http.text import base64
from pqkeep_gateway.shards import Shards, UnknownShardError
from pqkeep_gateway.tenancy.shards import ShardNotFoundError
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    MAX_PAGE,
    Checkpoint,
    ExportRecords,
    GetNote,
    GetSubtrees,
    ListAuditKeys,
    ListCheckpoints,
    ListRecords,
    Proof,
    Proofs,
    ProveConsistency,
    ProveRecords,
    ProveSuccessions,
    Records,
    SignCheckpoint,
)
from pqkeep_protocol.keys import INSTALLATION, MAX_KEY_VERSION, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, KeyService, Request
from pqkeep_protocol.shards import DEFAULT_SHARD

R = TypeVar("R")

FORMAT = "pqkeep/v1/audit-export"
FORMAT_WITHOUT_PROOFS = "pqkeep/v2/audit-export"
SIGNING = (Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S)
MAX_NUMBER = 2**53 - 1
MAX_TEXT = 32
MAX_PRINCIPAL = 128
MAX_REQUEST_ID = 128
DEFAULT_LIMIT = 100
MAX_CHECKPOINTS = 100
EXPORTED_AT_ONCE = MAX_PAGE
"""Records and proofs that are asked of the key service at a time."""

EXPORTED_WITHOUT_PROOFS = 1_000
"""Records alone, likewise."""

_ATTRIBUTION = Attribution("", "gateway", "")
_ENCODER = msgspec.json.Encoder()


class Order(StrEnum):
    """Of records."""

    ASCENDING = "asc"
    DESCENDING = "desc"


def _number(name: str, description: str, example: int) -> Field[int]:
    return integer_field(name, description, example, at_least=0, at_most=MAX_NUMBER)


def _limit(at_most: int) -> Field[int]:
    default = min(at_most, DEFAULT_LIMIT)
    field = integer_field("limit", "How many at most.", default, at_least=1, at_most=at_most)
    return field.or_default(default)


_AFTER = place_field("after", "Only what comes after this id, or this `next`.", 0).optional()
_BEFORE = place_field("before", "Only what comes before this id, or this `next`.", 100).optional()
_ORDER = choice_field(
    "order", "By id, or the newest first.", tuple(Order), Order.DESCENDING
).or_default(Order.ASCENDING)
_FROM = time_field("from", "Recorded then or later.", "2026-01-31T12:00:00Z").optional()
_TO = time_field("to", "Recorded before then.", "2026-02-01T00:00:00Z").optional()
_OPERATION = text_field("operation", "Only this operation.", "encrypt", at_most=MAX_TEXT).optional()
_OUTCOME = text_field("outcome", "Only this outcome.", "success", at_most=MAX_TEXT).optional()
_PRINCIPAL = text_field(
    "principal",
    "Only what this principal did. An API key's is its version, with its name or without it.",
    "api-key:1",
    at_most=MAX_PRINCIPAL,
).optional()
_REQUEST_ID = text_field(
    "request_id",
    "Only what the request with this id did. Searched for as everything else is: say when it was.",
    "order-4711",
    at_most=MAX_REQUEST_ID,
).optional()
_ALGORITHM = choice_field(
    "algorithm", "Only this algorithm.", tuple(Algorithm), Algorithm.ML_DSA_65
).optional()
_KEYRING = keyring_field("keyring", "Only what concerns this keyring.").optional()
_KEY_VERSION = cast(
    "Field[KeyVersion]",
    integer_field("key_version", "Only this key version.", 1, at_least=1, at_most=MAX_KEY_VERSION),
).optional()
_PAGE_VIEWS = boolean_field(
    "page_views",
    "Whether to list page views too: lists of keys and keyrings that were read with people's"
    " sessions, which succeeded.",
    example=False,
).or_default(default=True)
_RECORDS_LIMIT = _limit(MAX_PAGE)
_RECORD_ID = integer_field(
    "id", "The record's id.", 1, at_least=1, at_most=MAX_NUMBER, too_large="no such record"
)
_SIZE_AFTER = _number(
    "after", "Only checkpoints of more records. Left out: the newest of each algorithm.", 0
).optional()
_CHECKPOINTS_LIMIT = _limit(MAX_CHECKPOINTS)
_SIGNING = choice_field("algorithm", "What to sign with.", SIGNING, SIGNING[0]).or_default(
    SIGNING[0]
)
_FIRST = _number("first", "The smaller size.", 32)
_SECOND = _number("second", "The larger size.", 64)
_EXPORTED_AFTER = _number(
    "after",
    "Of the whole log, and so for the operator alone: records after this id, without proofs.",
    0,
).optional()
_SHARD = shard_field(
    "Whose log is meant, for the operator alone to say: there is one for each shard."
    f" Left out: `{DEFAULT_SHARD}`."
).optional()


_LOG = uuid_field(
    "log",
    "Which log is meant, by its id, where the tenant's records are in several. Left out: all of them"
    " in a list of records and an export, otherwise that of the shard where it is.",
    "0b9f8d5e-3f7c-4a55-9d0e-6f6d1f2f9c11",
).optional()


def endpoints(shards: Shards, exports: ExportLimits) -> tuple[Endpoint, ...]:
    """Return the endpoints of the audit log."""
    audit = _Audit(shards, exports)
    return (
        _reading(
            "/audit/records",
            "list_audit_records",
            audit.list_records,
            RECORDS,
            *(_AFTER, _BEFORE, _ORDER, _FROM, _TO, _OPERATION, _KEYRING, _ALGORITHM, _KEY_VERSION),
            *(_OUTCOME, _PRINCIPAL, _REQUEST_ID, _PAGE_VIEWS, _RECORDS_LIMIT),
        ),
        _reading("/audit/records/{id}/proof", "prove_audit_record", audit.prove, PROOF, _RECORD_ID),
        _reading(
            "/audit/checkpoints",
            "list_audit_checkpoints",
            audit.list_checkpoints,
            CHECKPOINTS,
            *(_SIZE_AFTER, _ALGORITHM, _CHECKPOINTS_LIMIT),
        ),
        Endpoint(
            method="POST",
            path="/audit/checkpoints",
            name="sign_audit_checkpoint",
            handler=audit.sign,
            permission=Permission.SIGN_CHECKPOINTS,
            fields=(_SIGNING, _SHARD),
            field_codes=UNPROCESSABLE_FIELDS,
            example=CHECKPOINT,
            status=201,
            codes=AUDIT_CODES,
            errors=(ShardNotFoundError,),
        ),
        _reading(
            "/audit/consistency",
            "prove_audit_consistency",
            audit.prove_consistency,
            CONSISTENCY,
            *(_FIRST, _SECOND),
        ),
        _reading("/audit/checkpoints/note", "get_audit_note", audit.note, None, content_type=TEXT),
        _reading("/audit/keys", "list_audit_keys", audit.list_keys, KEYS),
        _reading(
            "/audit/export",
            "export_audit_log",
            audit.export,
            None,
            _EXPORTED_AFTER,
            content_type=JSON_LINES,
        ),
    )


def _reading(
    path: str,
    name: str,
    handler: Callable[[ApiCall], Awaitable[Response]],
    example: Data | None,
    *fields: Field[Any],
    content_type: str = JSON,
) -> Endpoint:
    """Return a row that reads the log."""
    return Endpoint(
        method="GET",
        path=path,
        name=name,
        handler=handler,
        permission=Permission.VIEW_TENANT,
        fields=(*fields, _LOG, _SHARD),
        field_codes=UNPROCESSABLE_FIELDS,
        example=example,
        codes=AUDIT_CODES,
        errors=(ShardNotFoundError,),
        content_type=content_type,
    )


class _Audit:
    """The handlers."""

    def __init__(self, shards: Shards, exports: ExportLimits) -> None:
        self._shards = shards
        self._exports = exports

    async def list_records(self, call: ApiCall) -> RecordsData:
        """List records, by id or the newest first.

        A page can be empty and still say from where to go on. Records of a tenant that was moved
        between shards are in several logs, and are listed by time; the answer has ``logs`` then.
        """
        logs = await self._logs(call)
        newest_first = call[_ORDER] is Order.DESCENDING
        request = ListRecords(
            tenant=_tenant_of(call),
            after=after_in(call[_AFTER], 0),
            before=before_in(call[_BEFORE], 0),
            newest_first=newest_first,
            since_us=call[_FROM],
            until_us=call[_TO],
            operation=call[_OPERATION],
            keyring=call[_KEYRING],
            algorithm=call[_ALGORITHM],
            key_version=call[_KEY_VERSION],
            outcome=call[_OUTCOME],
            principal=call[_PRINCIPAL],
            request_id=call[_REQUEST_ID],
            page_views=call[_PAGE_VIEWS],
            limit=call[_RECORDS_LIMIT],
        )
        if len(logs) == 1:
            page = await logs[0].ask(request)
            return RecordsData(records=tuple(map(record, page.lines)), next=page.next)
        requests = [
            msgspec.structs.replace(
                request, after=after_in(call[_AFTER], log), before=before_in(call[_BEFORE], log)
            )
            for log in range(len(logs))
        ]
        pages, ids = await asyncio.gather(
            asyncio.gather(*(log.ask(each) for log, each in zip(logs, requests, strict=True))),
            asyncio.gather(*(log.id() for log in logs)),
        )
        begin = [each.before if newest_first else each.after for each in requests]
        found = merged(pages, begin, newest_first=newest_first, limit=request.limit)
        return RecordsData(
            records=found.records, next=found.next, logs=tuple(ids[log] for log in found.logs)
        )

    async def prove(self, call: ApiCall) -> ProofData:
        """Prove that a record is in the log that a checkpoint signs."""
        record_id = call[_RECORD_ID]
        log = await self._log(call)
        checkpoint = await log.newest()
        if record_id > checkpoint.size:
            raise not_found("no such record in a checkpoint yet", "id")
        request = ProveRecords(
            tenant=_tenant_of(call), after=record_id - 1, size=checkpoint.size, limit=1
        )
        found = (await log.ask(request)).proofs
        proven = record(found[0].line) if found else None
        if proven is None or proven.id != record_id:
            raise not_found("no such record", "id")
        if checkpoint.size > 1 and not found[0].path:
            raise not_found("the log is damaged, and has no proof of it", "id")
        return ProofData(
            record=proven,
            leaf_index=record_id - 1,
            size=checkpoint.size,
            path=tuple(map(base64, found[0].path)),
            checkpoint=shown(checkpoint),
        )

    async def list_checkpoints(self, call: ApiCall) -> CheckpointsData:
        """List checkpoints after a size, or the newest of each algorithm."""
        request = ListCheckpoints(
            tenant=INSTALLATION,
            after=call[_SIZE_AFTER],
            algorithm=call[_ALGORITHM],
            limit=call[_CHECKPOINTS_LIMIT],
        )
        log = await self._log(call)
        found = (await log.ask(request)).checkpoints
        return CheckpointsData(checkpoints=tuple(map(shown, found)))

    async def sign(self, call: ApiCall) -> CheckpointData:
        """Sign what the log is now."""
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=call[_SIGNING])
        log = await self._log(call)
        return shown((await log.ask(request)).checkpoint)

    async def note(self, call: ApiCall) -> Document:
        """Return the newest checkpoint as a signed note, for witnesses of transparency logs.

        Text without the envelope: a C2SP checkpoint, signed with ML-DSA-44. note_key of /audit/keys
        verifies it.
        """
        log = await self._log(call)
        return Document(TEXT, (await log.ask(GetNote(tenant=INSTALLATION))).text.encode())

    async def prove_consistency(self, call: ApiCall) -> ConsistencyData:
        """Prove that the log of one size grew into that of another."""
        first, second = call[_FIRST], call[_SECOND]
        request = ProveConsistency(tenant=INSTALLATION, first=first, second=second)
        log = await self._log(call)
        path = (await log.ask(request)).path
        return ConsistencyData(first=first, second=second, path=tuple(map(base64, path)))

    async def list_keys(self, call: ApiCall) -> AuditKeysData:
        """List the keys that checkpoints are verified with."""
        log, logs = await self._log(call), await self._logs(call)
        found = shown_keys(await log.ask(ListAuditKeys(tenant=INSTALLATION)))
        if len(logs) == 1:
            return found
        ids = await asyncio.gather(*(each.id() for each in logs))
        return msgspec.structs.replace(found, logs=tuple(ids))

    async def export(self, call: ApiCall) -> JsonLines:
        """Export records with their proofs, as JSON lines: everything up to a new checkpoint.

        What ``pqkeep audit verify`` reads. Records that came after the checkpoint are not in it,
        and are named before its end. Where a tenant's records are in several logs there is an export
        of each, one after the other. With ``after``, the operator's records have no proofs: the
        first line has what the tree of all of them is built from. gzip, to who accepts that.
        """
        tenant, logs, beyond = _tenant_of(call), await self._logs(call), call[_EXPORTED_AFTER]
        if beyond is not None and tenant != INSTALLATION:
            raise forbidden("after is for the whole log, which the operator alone exports")
        await self._exports.count(tenant)
        began_us = time.time_ns() // 1000  # every checkpoint that was kept before is looked for
        heads = [await log.head(tenant, beyond, began_us) for log in logs]

        async def chunks() -> AsyncGenerator[bytes, None]:
            for log, (size, head) in zip(logs, heads, strict=True):
                yield head
                yield await log.successions(size)
                count = 0
                pages = log.proven(tenant, size) if beyond is None else log.unproven(beyond, size)
                async with aclosing(pages):
                    async for lines in pages:
                        count += len(lines)
                        yield b"".join(lines)
                newest = await log.ask(ListRecords(tenant=tenant, newest_first=True, limit=1))
                last = record(newest.lines[0]).id if newest.lines else 0
                if last > size:
                    yield _line(type="newer", first=size + 1, last=last)
                yield _line(type="end", records=count)

        async def counted() -> AsyncGenerator[bytes, None]:
            with self._exports.run(tenant):
                async with aclosing(chunks()) as lines:
                    async for each in lines:
                        yield each

        return JsonLines(f"pqkeep-audit-{heads[-1][0]}.jsonl", counted())

    async def _log(self, call: ApiCall) -> "_Log":
        """Return the log that is meant: where the tenant is, if none is named.

        Raises ShardNotFoundError.
        """
        logs, tenant = await self._logs(call), call.principal.tenant
        if len(logs) == 1 or tenant is None:
            return logs[0]
        return _Log(self._shards.of(await self._shards.residence(tenant)))

    async def _logs(self, call: ApiCall) -> Sequence["_Log"]:
        """Return the log that is named, or all that have the tenant's records, the first one first.

        For an operator that of a shard. Raises ShardNotFoundError.
        """
        tenant, shard = call.principal.tenant, call[_SHARD]
        named = call[_LOG]
        if tenant is not None:
            if shard is not None:
                raise forbidden("the operator alone names a shard")
            shards: Sequence[str] = await self._shards.recorded(tenant)
        elif named is not None and shard is None:
            shards = self._shards.names
        else:
            shards = (shard or DEFAULT_SHARD,)
        try:
            logs = [_Log(self._shards.of(each)) for each in shards]
        except UnknownShardError:
            if tenant is not None:
                raise
            raise ShardNotFoundError from None
        if named is None:
            return logs
        for log in logs:
            if await log.id() == str(named):
                return [log]
        raise not_found("no such log", "log")


class _Log:
    """One shard's log."""

    def __init__(self, keys: KeyService) -> None:
        self._keys = keys

    async def id(self) -> str:
        """Return its id."""
        return str((await self.ask(ListAuditKeys(tenant=INSTALLATION))).log_id)

    async def head(self, tenant: TenantId, beyond: int | None, began_us: int) -> tuple[int, bytes]:
        """Have it signed; return its size, and the lines that an export begins with."""
        sign = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
        checkpoint = (await self.ask(sign)).checkpoint
        signing = shown_keys(await self.ask(ListAuditKeys(tenant=INSTALLATION)))
        form: dict[str, Any] = {"format": FORMAT}
        if beyond is not None:
            if beyond > checkpoint.size:
                raise not_found("no such record in a checkpoint yet", "after")
            trees = await self.ask(GetSubtrees(tenant=INSTALLATION, size=beyond))
            subtrees = list(map(base64, trees.hashes))
            form = {"format": FORMAT_WITHOUT_PROOFS, "after": beyond, "subtrees": subtrees}
        return checkpoint.size, _head(form, tenant, checkpoint, signing, began_us)

    async def successions(self, size: int) -> bytes:
        """Return the lines that show which logs the log continues, each with its consistency."""
        proofs = (await self.ask(ProveSuccessions(tenant=INSTALLATION, size=size))).proofs
        lines = []
        for each in proofs:
            first = int(record(each.line).policy.split("-")[1])
            request = ProveConsistency(tenant=INSTALLATION, first=first, second=size)
            path = list(map(base64, (await self.ask(request)).path))
            lines.append(_proof("succession", each))
            lines.append(_line(type="consistency", first=first, second=size, path=path))
        return b"".join(lines)

    async def proven(self, tenant: TenantId, size: int) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of a tenant's records, or everybody's, with their proofs."""
        first = ProveRecords(tenant=tenant, after=0, size=size, limit=EXPORTED_AT_ONCE)

        def following(page: Proofs) -> ProveRecords | None:
            if not page.proofs:
                return None
            return msgspec.structs.replace(first, after=record(page.proofs[-1].line).id)

        async with aclosing(self._pages(first, following)) as pages:
            async for page in pages:
                yield [_proof("record", each) for each in page.proofs]

    async def unproven(self, after: int, size: int) -> AsyncGenerator[list[bytes], None]:
        """Yield the lines of everybody's records after an id, without proofs."""
        if after == size:
            return
        first = ExportRecords(
            tenant=INSTALLATION, after=after, size=size, limit=EXPORTED_WITHOUT_PROOFS
        )

        def following(page: Records) -> ExportRecords | None:
            if page.next is None:
                return None
            return msgspec.structs.replace(first, after=page.next)

        async with aclosing(self._pages(first, following)) as pages:
            async for page in pages:
                yield [b'{"type":"record","record":%b}\n' % line for line in page.lines]

    async def _pages(
        self, first: Request[R], following: Callable[[R], Request[R] | None]
    ) -> AsyncGenerator[R, None]:
        """Yield answers, each of which is asked for while the one before it is used."""
        asked: asyncio.Task[R] | None = asyncio.create_task(self.ask(first))
        try:
            while asked is not None:
                page = await asked
                request = following(page)
                asked = None if request is None else asyncio.create_task(self.ask(request))
                yield page
        finally:
            if asked is not None:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)

    async def ask(self, request: Request[R]) -> R:
        """Ask its key service."""
        return await self._keys.execute(request, _ATTRIBUTION)

    async def newest(self) -> Checkpoint:
        """Return its newest checkpoint."""
        request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=Algorithm.ML_DSA_65)
        found = (await self.ask(request)).checkpoints
        if not found:
            raise not_found("there is no checkpoint yet; ask again in a second")
        return found[0]


def _tenant_of(call: ApiCall) -> TenantId:
    """Return whose records are shown: of INSTALLATION, everybody's."""
    return call.principal.tenant or INSTALLATION


def _head(
    form: Mapping[str, Any],
    tenant: TenantId,
    checkpoint: Checkpoint,
    signing: AuditKeysData,
    began_us: int,
) -> bytes:
    lines = [
        _line(
            type="export",
            **form,
            log_id=signing.log_id,
            tenant_id=None if tenant == INSTALLATION else str(tenant),
            size=checkpoint.size,
            exported_at=instant(began_us),
        ),
        *(_line(type="key", **msgspec.structs.asdict(key)) for key in signing.keys),
        _line(type="checkpoint", **msgspec.structs.asdict(shown(checkpoint))),
    ]
    return b"".join(lines)


def _proof(kind: str, proof: Proof) -> bytes:
    return _line(type=kind, record=Raw(proof.line), proof=list(map(base64, proof.path)))


def _line(**values: Any) -> bytes:
    return _ENCODER.encode(values) + b"\n"
