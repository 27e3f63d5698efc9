"""Evidence of a query: signed statements on bounded parts of the log, which cover it together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

from pqkeep_keyservice.audit import service as audit_service
from pqkeep_keyservice.ledger import search
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import (
    REFUSED,
    AuditKeys,
    FindEvidence,
    FoundEvidence,
    ListAuditKeys,
    ListRecords,
    SignCheckpoint,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

    from pqkeep_protocol.messages import Attribution

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

TENANT = TenantId(UUID(int=7))
CONTEXT = b"pqkeep/v1/audit-statement"
SCANNED = 1_000
MANY = 1_200


@pytest.fixture
async def size(
    service: InProcessService, attribution: Attribution, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Write and sign a log that is too long for a single search."""
    monkeypatch.setattr(search, "MAX_SCANNED", SCANNED)
    usual = NewRecord(TENANT, "p", Operation.ENCRYPT, None, None, "success", "r", "a", "y")
    records = [
        usual._replace(
            principal="q" if n % 300 == 0 else "p",
            outcome="key-not-found" if n % 400 == 0 else "success",
        )
        for n in range(MANY)
    ]
    await service.parts.store.commit([(record, None) for record in records])
    sign = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
    return (await service.execute(sign, attribution)).checkpoint.size


async def parts_of(
    service: InProcessService, attribution: Attribution, query: ListRecords, size: int, limit: int
) -> list[FoundEvidence]:
    """Return all statements on a query."""
    found, after = [], 0
    while after < size:
        request = FindEvidence(
            tenant=query.tenant, query=query, after=after, size=size, limit=limit
        )
        found.append(await service.execute(request, attribution))
        assert found[-1].through > after
        after = found[-1].through
    return found


@pytest.mark.parametrize("seconds", [audit_service.EVIDENCE_SECONDS, 0.0])
async def test_statements_cover_the_log(
    service: InProcessService,
    attribution: Attribution,
    size: int,
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signed statements cover the log without gaps, with every matching record's proof."""
    monkeypatch.setattr(audit_service, "EVIDENCE_SECONDS", seconds)
    keys: AuditKeys = await service.execute(ListAuditKeys(tenant=INSTALLATION), attribution)
    public = {
        key.version: MLDSA65PublicKey.from_public_bytes(key.public_key)
        for key in keys.keys
        if key.algorithm is Algorithm.ML_DSA_65
    }
    for query, ids in (
        (ListRecords(tenant=TENANT, principal="q"), [1, 301, 601, 901]),
        (ListRecords(tenant=TENANT, outcome=REFUSED), [1, 401, 801]),
        (ListRecords(tenant=TENANT, operations=("rotate-key",)), []),
        (ListRecords(tenant=INSTALLATION, outcome=REFUSED), [1, 401, 801]),
    ):
        found, after = [], 0
        for part in await parts_of(service, attribution, query, size, 3):
            public[part.key_version].verify(
                part.signature, b"%b\n%b\n" % (CONTEXT, part.statement), CONTEXT
            )
            stated = json.loads(part.statement)
            text = json.dumps(stated, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            assert text.encode() == part.statement
            assert (stated["after"], stated["through"]) == (after, part.through)
            assert [json.loads(proof.line)["id"] for proof in part.proofs] == stated["ids"]
            assert all(len(proof.path) == len(part.proofs[0].path) for proof in part.proofs[:1])
            found += stated["ids"]
            after = part.through
        assert (found, after) == (ids, size)


async def test_a_statement_is_about_a_checkpoint_of_the_tenant(
    service: InProcessService, attribution: Attribution, size: int
) -> None:
    """A statement needs a signed tree and a query of the tenant's own."""
    query = ListRecords(tenant=TENANT)
    for unsigned in (size - 1, size + 1):
        request = FindEvidence(tenant=TENANT, query=query, after=0, size=unsigned, limit=1)
        with pytest.raises(KeyServiceError) as refused:
            await service.execute(request, attribution)
        assert refused.value.kind is ErrorKind.RECORD_NOT_FOUND
    request = FindEvidence(tenant=TENANT, query=query, after=0, size=size, limit=1)
    for wrong in ({"tenant": INSTALLATION}, {"after": size}):
        with pytest.raises(ValueError, match="the query must be the tenant's"):
            msgspec.structs.replace(request, **wrong)
