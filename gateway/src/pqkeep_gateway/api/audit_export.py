"""The lines of an export: a log up to a checkpoint, and the data that verify its records.

How many exports may begin and run has limits, because the cost of an export grows with its length,
but it counts as one request of the rate limit.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from pqkeep_gateway.access.admission import RateLimitedError
from pqkeep_gateway.access.rate_limit import HOUR, ConcurrencyLimit, Limit, RateLimiter
from pqkeep_gateway.api.audit_data import AuditKeysData, record, shown, shown_keys
from pqkeep_gateway.api.audit_log import AuditLog
from pqkeep_gateway.http.errors import not_found
from pqkeep_gateway.http.text import base64
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    MAX_PAGE,
    Checkpoint,
    ExportRecords,
    FindEvidence,
    FoundEvidence,
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
from pqkeep_protocol.keys import INSTALLATION, TenantId

EXPORTS = Limit(120, HOUR)
"""The limit of exports for each tenant, and for the operator."""
MAX_AT_ONCE = 2
"""Concurrent exports of one tenant or of the operator, in one gateway."""
MAX_RUNNING = 64
"""Concurrent exports in total, in one gateway."""


class ExportLimits:
    """Counts the exports of one gateway."""

    def __init__(self, rate_limiter: RateLimiter) -> None:
        self._rate_limiter = rate_limiter
        self._running = ConcurrencyLimit(MAX_AT_ONCE, MAX_RUNNING)

    async def count(self, tenant: TenantId) -> None:
        """Count a requested export. Raises RateLimitedError."""
        wait = await self._rate_limiter.enter(f"exports of {tenant}", EXPORTS)
        if wait is not None:
            raise RateLimitedError(EXPORTS, wait)

    def run(self, tenant: TenantId) -> AbstractContextManager[None]:
        """Count an export while it runs. Raises OverloadedError."""
        return self._running.run(tenant)


FORMAT = "pqkeep/v1/audit-export"
FORMAT_WITHOUT_PROOFS = "pqkeep/v2/audit-export"
FORMAT_OF_EVIDENCE = "pqkeep/v1/audit-evidence"
EXPORTED_AT_ONCE = MAX_PAGE
"""Records with proofs in one request to the key service."""

EXPORTED_WITHOUT_PROOFS = 1_000
"""Records without proofs in one request to the key service."""

_ENCODER = msgspec.json.Encoder()


class AuditExport:
    """The records of one tenant, or of all tenants, in one log up to a signed checkpoint.

    With ``beyond``: the records of all tenants after that id, without proofs. With ``query``: its
    records, with the key service's signed statements that no other record matches.
    """

    def __init__(
        self, log: AuditLog, tenant: TenantId, beyond: int | None, query: ListRecords | None = None
    ) -> None:
        self._log = log
        self._tenant = tenant
        self._beyond = beyond
        self._query = query
        self._cosigned: Sequence[Checkpoint] = ()
        """The newest checkpoints of witnesses, after ``head``."""

    async def head(self) -> tuple[int, bytes]:
        """Sign the log; return its size and the first lines of the export.

        The time of the signature is that of the export.
        """
        sign = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65, now=True)
        checkpoint = (await self._log.ask(sign)).checkpoint
        signing = shown_keys(await self._log.ask(ListAuditKeys(tenant=INSTALLATION)))
        witnessed = ListCheckpoints(tenant=INSTALLATION, after=None, cosigned=True)
        self._cosigned = [
            cosigned
            for cosigned in (await self._log.ask(witnessed)).checkpoints
            if cosigned.size <= checkpoint.size
        ]
        form: dict[str, Any] = {"format": FORMAT if self._query is None else FORMAT_OF_EVIDENCE}
        if self._beyond is not None:
            if self._beyond > checkpoint.size:
                raise not_found("no such record, or no checkpoint covers it yet", "after")
            trees = await self._log.ask(GetSubtrees(tenant=INSTALLATION, size=self._beyond))
            subtrees = list(map(base64, trees.hashes))
            form = {"format": FORMAT_WITHOUT_PROOFS, "after": self._beyond, "subtrees": subtrees}
        return checkpoint.size, _head(form, self._tenant, checkpoint, signing)

    async def after_head(self, size: int) -> AsyncGenerator[bytes, None]:
        """Yield the remaining lines, in chunks."""
        yield await self._cosigned_checkpoints(size)
        yield await self._successions(size)
        count = 0
        async with aclosing(self._records(size)) as pages:
            async for page in pages:
                count += len(page.records)
                yield b"".join((page.statement, *page.records))
        request = ListRecords(tenant=self._tenant, newest_first=True, limit=1)
        newest = await self._log.ask(request)
        last = record(newest.lines[0]).id if newest.lines else 0
        if last > size:
            yield _line(type="newer", first=size + 1, last=last)
        yield _line(type="end", records=count)

    async def _cosigned_checkpoints(self, size: int) -> bytes:
        """Return the newest checkpoints of the witnesses with their consistency proofs."""
        lines = []
        for cosigned in self._cosigned:
            lines.append(_line(type="checkpoint", **msgspec.to_builtins(shown(cosigned))))
            if cosigned.size < size:
                lines.append(await self._consistency(cosigned.size, size))
        return b"".join(lines)

    async def _consistency(self, first: int, second: int) -> bytes:
        request = ProveConsistency(tenant=INSTALLATION, first=first, second=second)
        path = list(map(base64, (await self._log.ask(request)).path))
        return _line(type="consistency", first=first, second=second, path=path)

    async def _successions(self, size: int) -> bytes:
        """Return the succession records of the log with their consistency proofs."""
        proofs = (await self._log.ask(ProveSuccessions(tenant=INSTALLATION, size=size))).proofs
        lines = []
        for proof in proofs:
            first = int(record(proof.line).policy.split("-")[1])
            lines.append(_proof("succession", proof))
            lines.append(await self._consistency(first, size))
        return b"".join(lines)

    def _records(self, size: int) -> AsyncGenerator["_Lines", None]:
        if self._query is not None:
            return self._found(self._query, size)
        return self._proven(size) if self._beyond is None else self._unproven(self._beyond, size)

    async def _found(self, query: ListRecords, size: int) -> AsyncGenerator["_Lines", None]:
        """Yield statements on the records that match a query, each with its records."""
        if not size:
            return
        first = FindEvidence(
            tenant=self._tenant, query=query, after=0, size=size, limit=EXPORTED_AT_ONCE
        )

        def following(page: FoundEvidence) -> FindEvidence | None:
            if page.through >= size:
                return None
            return msgspec.structs.replace(first, after=page.through)

        async with aclosing(self._log.pages(first, following)) as pages:
            async for page in pages:
                statement = _line(
                    type="statement",
                    statement=Raw(page.statement),
                    algorithm=Algorithm.ML_DSA_65,
                    key_version=page.key_version,
                    signature=base64(page.signature),
                )
                yield _Lines([_proof("record", proof) for proof in page.proofs], statement)

    async def _proven(self, size: int) -> AsyncGenerator["_Lines", None]:
        """Yield the lines of records with their proofs."""
        first = ProveRecords(tenant=self._tenant, after=0, size=size, limit=EXPORTED_AT_ONCE)

        def following(page: Proofs) -> ProveRecords | None:
            if not page.proofs:
                return None
            return msgspec.structs.replace(first, after=record(page.proofs[-1].line).id)

        async with aclosing(self._log.pages(first, following)) as pages:
            async for page in pages:
                yield _Lines([_proof("record", proof) for proof in page.proofs])

    async def _unproven(self, after: int, size: int) -> AsyncGenerator["_Lines", None]:
        """Yield the lines of all records after an id, without proofs."""
        if after == size:
            return
        first = ExportRecords(
            tenant=INSTALLATION, after=after, size=size, limit=EXPORTED_WITHOUT_PROOFS
        )

        def following(page: Records) -> ExportRecords | None:
            if page.next is None:
                return None
            return msgspec.structs.replace(first, after=page.next)

        async with aclosing(self._log.pages(first, following)) as pages:
            async for page in pages:
                yield _Lines([b'{"type":"record","record":%b}\n' % line for line in page.lines])


class _Lines(NamedTuple):
    """The lines of a page."""

    records: Sequence[bytes]
    statement: bytes = b""
    """The line before the records."""


def _head(
    form: Mapping[str, Any],
    tenant: TenantId,
    checkpoint: Checkpoint,
    signing: AuditKeysData,
) -> bytes:
    lines = [
        _line(
            type="export",
            **form,
            log_id=signing.log_id,
            tenant_id=None if tenant == INSTALLATION else str(tenant),
            size=checkpoint.size,
        ),
        *(_line(type="key", **msgspec.structs.asdict(key)) for key in signing.keys),
        _line(type="checkpoint", **msgspec.to_builtins(shown(checkpoint))),
    ]
    return b"".join(lines)


def _proof(kind: str, proof: Proof) -> bytes:
    # msgspec writes bytes as base64
    return _line(type=kind, record=Raw(proof.line), proof=proof.path)


def _line(**values: Any) -> bytes:
    return _ENCODER.encode(values) + b"\n"
