"""/api/v1/audit: the audit log, and the proofs that it is unchanged.

An operator sees all records. Every other caller sees the records of their own tenant. Reading
leaves no record.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

import msgspec

from pqkeep_gateway.access.callers import Permission, may
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.api.audit_data import (
    CHECKPOINT,
    CHECKPOINTS,
    CONSISTENCY,
    COUNTS,
    KEYS,
    PROOF,
    RECORDS,
    WITNESSES,
    AuditKeysData,
    CheckpointData,
    CheckpointsData,
    ConsistencyData,
    CountData,
    CountsData,
    ProofData,
    RecordsData,
    WitnessesData,
    instant,
    record,
    shown,
    shown_keys,
    shown_witness,
)
from pqkeep_gateway.api.audit_export import AuditExport, ExportLimits
from pqkeep_gateway.api.audit_fields import (
    AFTER,
    ALGORITHM,
    BEFORE,
    CAMPAIGN,
    CHECKPOINTS_LIMIT,
    COUNT_BY,
    EXPORTED_AFTER,
    FIRST,
    FROM,
    KEY_VERSION,
    KEYRING,
    LOG,
    OPERATION,
    ORDER,
    OUTCOME,
    PAGE_VIEWS,
    PRINCIPAL,
    RECORD_ID,
    RECORDS_LIMIT,
    REQUEST_ID,
    RULE,
    SECOND,
    SHARD,
    SIGNING,
    SIZE_AFTER,
    SOURCE_ADDRESS,
    TENANT,
    TO,
    VALUES_LIMIT,
    Order,
    after_in,
    before_in,
    merged,
)
from pqkeep_gateway.api.audit_log import AuditLogs
from pqkeep_gateway.api.errors import AUDIT_CODES, UNPROCESSABLE_FIELDS
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
from pqkeep_gateway.http.errors import forbidden, invalid, not_found
from pqkeep_gateway.http.field import Field
from pqkeep_gateway.http.text import base64
from pqkeep_gateway.shards import ShardNotFoundError, Shards
from pqkeep_gateway.storage.tenants import SqlTenants, TenantFilter
from pqkeep_gateway.storage.users import SqlUsers
from pqkeep_protocol.audit import (
    MAX_COUNTED_VALUES,
    CountBy,
    CountRecords,
    GetNote,
    ListAuditKeys,
    ListCheckpoints,
    ListRecords,
    ListWitnesses,
    ProveConsistency,
    ProveRecords,
    SignCheckpoint,
)
from pqkeep_protocol.audit_events import OPERATOR
from pqkeep_protocol.keys import INSTALLATION, TenantId

_FILTERS = (
    *(FROM, TO, OPERATION, KEYRING, ALGORITHM, KEY_VERSION, OUTCOME, PRINCIPAL),
    *(SOURCE_ADDRESS, REQUEST_ID, RULE, CAMPAIGN, TENANT, PAGE_VIEWS),
)


def endpoints(
    shards: Shards, exports: ExportLimits, users: SqlUsers, tenants: SqlTenants
) -> tuple[Endpoint, ...]:
    """Return the endpoints of the audit log."""
    audit = _Audit(shards, exports, users, tenants)
    return (
        _reading(
            "/audit/records",
            "list_audit_records",
            audit.list_records,
            RECORDS,
            *(AFTER, BEFORE, ORDER, *_FILTERS, RECORDS_LIMIT),
        ),
        _reading(
            "/audit/counts",
            "count_audit_records",
            audit.count_records,
            COUNTS,
            *(COUNT_BY, BEFORE, *_FILTERS, VALUES_LIMIT),
        ),
        _reading("/audit/records/{id}/proof", "prove_audit_record", audit.prove, PROOF, RECORD_ID),
        _reading(
            "/audit/checkpoints",
            "list_audit_checkpoints",
            audit.list_checkpoints,
            CHECKPOINTS,
            *(SIZE_AFTER, ALGORITHM, CHECKPOINTS_LIMIT),
        ),
        Endpoint(
            method="POST",
            path="/audit/checkpoints",
            name="sign_audit_checkpoint",
            handler=audit.sign,
            permission=Permission.SIGN_CHECKPOINTS,
            fields=(SIGNING, SHARD),
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
            *(FIRST, SECOND),
        ),
        _reading("/audit/checkpoints/note", "get_audit_note", audit.note, None, content_type=TEXT),
        _reading(
            "/audit/records/{id}/tlog-proof",
            "get_audit_tlog_proof",
            audit.tlog_proof,
            None,
            RECORD_ID,
            content_type=TEXT,
        ),
        _reading("/audit/witnesses", "list_audit_witnesses", audit.list_witnesses, WITNESSES),
        _reading("/audit/keys", "list_audit_keys", audit.list_keys, KEYS),
        _reading(
            "/audit/export",
            "export_audit_log",
            audit.export,
            None,
            *(EXPORTED_AFTER, *_FILTERS),
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
    """Return an endpoint that reads the log."""
    return Endpoint(
        method="GET",
        path=path,
        name=name,
        handler=handler,
        permission=Permission.VIEW_TENANT,
        fields=(*fields, LOG, SHARD),
        field_codes=UNPROCESSABLE_FIELDS,
        example=example,
        codes=AUDIT_CODES,
        errors=(ShardNotFoundError,),
        content_type=content_type,
    )


class _Audit:
    """The handlers."""

    def __init__(
        self, shards: Shards, exports: ExportLimits, users: SqlUsers, tenants: SqlTenants
    ) -> None:
        self._logs = AuditLogs(shards)
        self._exports = exports
        self._users = users
        self._tenants = tenants

    async def list_records(self, call: ApiCall) -> RecordsData:
        """List records, by id or the newest first.

        An empty page can still have a `next`. The records of a tenant that moved between shards are
        in several logs. They are listed by time, and the response has `logs`.
        """
        query = await self._query(call)
        logs = await self._logs.all(call, query.tenant)
        newest_first = call[ORDER] is Order.DESCENDING
        request = msgspec.structs.replace(
            query,
            after=after_in(call[AFTER], 0),
            before=before_in(call[BEFORE], 0),
            newest_first=newest_first,
            limit=call[RECORDS_LIMIT],
        )
        if len(logs) == 1:
            page = await logs[0].ask(request)
            return RecordsData(records=tuple(map(record, page.lines)), next=page.next)
        requests = [
            msgspec.structs.replace(
                request, after=after_in(call[AFTER], log), before=before_in(call[BEFORE], log)
            )
            for log in range(len(logs))
        ]
        pages, ids = await asyncio.gather(
            asyncio.gather(
                *(log.ask(request) for log, request in zip(logs, requests, strict=True))
            ),
            asyncio.gather(*(log.id() for log in logs)),
        )
        begin = [request.before if newest_first else request.after for request in requests]
        found = merged(pages, begin, newest_first=newest_first, limit=request.limit)
        return RecordsData(
            records=found.records, next=found.next, logs=tuple(ids[log] for log in found.logs)
        )

    async def count_records(self, call: ApiCall) -> CountsData:
        """Count records by a value, from the newest on, with the filters of the records.

        At most 10,000 records are read at once. `next` is where the next request goes on.
        """
        query, by, limit = await self._query(call), call[COUNT_BY], call[VALUES_LIMIT]
        logs = await self._logs.all(call, query.tenant)
        pages = await asyncio.gather(
            *(
                log.ask(
                    CountRecords(
                        tenant=query.tenant,
                        query=msgspec.structs.replace(
                            query, before=before_in(call[BEFORE], place), newest_first=True
                        ),
                        by=by,
                        limit=limit if len(logs) == 1 else MAX_COUNTED_VALUES,
                    )
                )
                for place, log in enumerate(logs)
            )
        )
        counted = Counter[str]()
        for page in pages:
            counted.update({row.value: row.count for row in page.counts})
        unit = _SECONDS_OF.get(by)
        values = (
            sorted(counted, key=int, reverse=True)
            if unit
            else sorted(counted, key=lambda value: (-counted[value], value))
        )
        ends = [page.next for page in pages]
        return CountsData(
            counts=tuple(
                CountData(
                    value=instant(int(value) * unit * 1_000_000) if unit else value,
                    count=counted[value],
                )
                for value in values[:limit]
            ),
            total=sum(page.total for page in pages),
            values=max(len(values), *(page.values for page in pages)),
            next=ends[0] if len(ends) == 1 else _places(ends),
        )

    async def _query(self, call: ApiCall) -> ListRecords:
        """Return the query of a request's filters."""
        tenant, principal = await self._named_tenant(call), await self._named_principal(call)
        operations = call[OPERATION]
        return ListRecords(
            tenant=tenant,
            since_us=call[FROM],
            until_us=call[TO],
            operations=() if operations is None else operations,
            keyring=call[KEYRING],
            algorithm=call[ALGORITHM],
            key_version=call[KEY_VERSION],
            outcome=call[OUTCOME],
            principal=principal,
            source_address=call[SOURCE_ADDRESS],
            request_id=call[REQUEST_ID],
            rule=call[RULE],
            campaign=call[CAMPAIGN],
            page_views=call[PAGE_VIEWS],
        )

    async def _named_tenant(self, call: ApiCall) -> TenantId:
        """Return the tenant to list the records of; INSTALLATION: all tenants."""
        named = call[TENANT]
        if named is None:
            return _tenant_of(call)
        if call.principal.tenant is not None:
            raise forbidden("only an operator may send tenant")
        try:
            found = (await self._tenants.get(TenantId(UUID(named)))).id
        except ValueError:
            page = await self._tenants.list(1, only=TenantFilter(exact_name=named))
            found = page.tenants[0].id if page.tenants else INSTALLATION
        except TenantNotFoundError:
            found = INSTALLATION
        if found == INSTALLATION:
            raise not_found("no such tenant", TENANT.name)
        return found

    async def _named_principal(self, call: ApiCall) -> str | None:
        """Return the principal to search for; for an e-mail address, its member's principal."""
        named = call[PRINCIPAL]
        if named is None or "@" not in named or named.startswith(OPERATOR):
            return named
        account = await self._users.find_by_email(named)
        if account is None or call.principal.tenant not in {None, account.user.tenant}:
            raise not_found(
                "no member has this e-mail address; search for a removed member by user:ID",
                PRINCIPAL.name,
            )
        return str(account.user)

    async def prove(self, call: ApiCall) -> ProofData:
        """Prove that a record is in the log of a signed checkpoint."""
        record_id = call[RECORD_ID]
        log = await self._logs.one(call)
        checkpoint = await log.newest()
        if record_id > checkpoint.size:
            raise not_found("no such record, or no checkpoint covers it yet", "id")
        request = ProveRecords(
            tenant=_tenant_of(call), after=record_id - 1, size=checkpoint.size, limit=1
        )
        found = (await log.ask(request)).proofs
        proven = record(found[0].line) if found else None
        if proven is None or proven.id != record_id:
            raise not_found("no such record", "id")
        if checkpoint.size > 1 and not found[0].path:
            raise not_found("the log is damaged and has no proof for this record", "id")
        return ProofData(
            record=proven,
            leaf_index=record_id - 1,
            size=checkpoint.size,
            path=tuple(map(base64, found[0].path)),
            checkpoint=shown(checkpoint),
        )

    async def tlog_proof(self, call: ApiCall) -> Document:
        """Return a C2SP tlog-proof of a record: a file that verifies offline.

        It has the record as extra data, the inclusion proof, and a checkpoint. This is the newest
        checkpoint that covers the record and has cosignatures of witnesses. Without witnesses, it
        has the newest checkpoint. Save it with the extension .tlog-proof.
        """
        record_id, log = call[RECORD_ID], await self._logs.one(call)
        note = (await log.ask(GetNote(tenant=INSTALLATION, covering=record_id))).text
        size = int(note.split("\n", 2)[1])
        if record_id > size:
            raise not_found("no such record, or no checkpoint covers it yet", "id")
        request = ProveRecords(tenant=_tenant_of(call), after=record_id - 1, size=size, limit=1)
        found = (await log.ask(request)).proofs
        if not found or record(found[0].line).id != record_id:
            raise not_found("no such record", "id")
        if size > 1 and not found[0].path:
            raise not_found("the log is damaged and has no proof for this record", "id")
        lines = (
            "c2sp.org/tlog-proof@v1",
            f"extra {base64(found[0].line)}",
            f"index {record_id - 1}",
            *map(base64, found[0].path),
        )
        return Document(TEXT, "".join((*(f"{line}\n" for line in lines), "\n", note)).encode())

    async def list_witnesses(self, call: ApiCall) -> WitnessesData:
        """List the witnesses of the log, and the last checkpoint that each cosigned."""
        log = await self._logs.one(call)
        found = (await log.ask(ListWitnesses(tenant=INSTALLATION))).witnesses
        return WitnessesData(witnesses=tuple(map(shown_witness, found)))

    async def list_checkpoints(self, call: ApiCall) -> CheckpointsData:
        """List checkpoints after a size, or the newest one for each algorithm."""
        request = ListCheckpoints(
            tenant=INSTALLATION,
            after=call[SIZE_AFTER],
            algorithm=call[ALGORITHM],
            limit=call[CHECKPOINTS_LIMIT],
        )
        log = await self._logs.one(call)
        found = (await log.ask(request)).checkpoints
        return CheckpointsData(checkpoints=tuple(map(shown, found)))

    async def sign(self, call: ApiCall) -> CheckpointData:
        """Sign the current state of the log."""
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=call[SIGNING])
        log = await self._logs.one(call)
        return shown((await log.ask(request)).checkpoint)

    async def note(self, call: ApiCall) -> Document:
        """Return the newest checkpoint as a signed note, for witnesses of transparency logs.

        The body is text without the envelope: a C2SP checkpoint, signed with ML-DSA-44. Verify it
        with note_key of /audit/keys.
        """
        log = await self._logs.one(call)
        return Document(TEXT, (await log.ask(GetNote(tenant=INSTALLATION))).text.encode())

    async def prove_consistency(self, call: ApiCall) -> ConsistencyData:
        """Prove that the log at one size is a prefix of the log at a larger size."""
        first, second = call[FIRST], call[SECOND]
        request = ProveConsistency(tenant=INSTALLATION, first=first, second=second)
        log = await self._logs.one(call)
        path = (await log.ask(request)).path
        return ConsistencyData(first=first, second=second, path=tuple(map(base64, path)))

    async def list_keys(self, call: ApiCall) -> AuditKeysData:
        """List the public keys that verify checkpoints."""
        log, logs = await self._logs.one(call), await self._logs.all(call)
        found = shown_keys(await log.ask(ListAuditKeys(tenant=INSTALLATION)))
        if len(logs) == 1:
            return found
        ids = await asyncio.gather(*(log.id() for log in logs))
        return msgspec.structs.replace(found, logs=tuple(ids))

    async def export(self, call: ApiCall) -> JsonLines:
        """Export records with their proofs, up to a new checkpoint, as JSON lines.

        `pqkeep audit verify` reads this format. Records after the checkpoint are not included; a
        line before the end gives their range. If the records are in several logs, one export for
        each log follows the other. With `after`, an operator gets records without proofs. The first
        line then has the subtrees of the Merkle tree up to there. The response uses gzip if the
        client accepts it.

        With a filter, the export is evidence: the matching records with their proofs, and signed
        statements that no other record up to the checkpoint matches.
        """
        query, beyond = await self._query(call), call[EXPORTED_AFTER]
        tenant, logs = query.tenant, await self._logs.all(call, query.tenant)
        is_evidence = query != ListRecords(tenant=tenant)
        if beyond is not None and _tenant_of(call) != INSTALLATION:
            raise forbidden("only an operator may send after, which exports the whole log")
        if beyond is not None and (is_evidence or tenant != INSTALLATION):
            raise invalid("after exports the whole log; leave out the filters", EXPORTED_AFTER.name)
        counted = call.principal.tenant or INSTALLATION
        await self._exports.count(counted)
        chosen = query if is_evidence else None
        exports = [AuditExport(log, tenant, beyond, chosen) for log in logs]
        heads = [await export.head() for export in exports]

        async def chunks() -> AsyncGenerator[bytes, None]:
            with self._exports.run(counted):
                for export, (size, head) in zip(exports, heads, strict=True):
                    yield head
                    async with aclosing(export.after_head(size)) as lines:
                        async for line in lines:
                            yield line

        return JsonLines(f"pqkeep-audit-{heads[-1][0]}.jsonl", chunks())


_SECONDS_OF = {CountBy.HOUR: 3_600, CountBy.DAY: 86_400}


def _places(ends: Sequence[int | None]) -> str | None:
    """Return the place in each of several logs from which on to count; None at the end of all."""
    if all(end is None for end in ends):
        return None
    return ".".join("1" if end is None else str(end) for end in ends)


def _tenant_of(call: ApiCall) -> TenantId:
    """Return the tenant to show the records of; INSTALLATION: all tenants.

    Raises ApiError for an operator who may see only one tenant's records at a time.
    """
    own = call.principal.tenant
    if own is None and not may(call.principal.caller, Permission.VIEW_INSTALLATION):
        raise forbidden("your role does not include the whole log: name a tenant")
    return own or INSTALLATION
