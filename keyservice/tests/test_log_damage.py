"""A key service refuses a log that differs from the signed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.audit import ProveConsistency, ProveRecords, SignCheckpoint
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import Location, Serving

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

RECORDS = 700
SIGNED = RECORDS + 1
"""One more: of the key that is made to sign."""


async def write_log(serving: Serving, attribution: Attribution, tenant: TenantId) -> None:
    """Write and sign a log, and stop."""
    row = NewRecord(
        tenant, "p", Operation.ENCRYPT, Algorithm.ML_KEM_768, 1, "success", "r", "a", "y"
    )
    async with serving() as service:
        await service.parts.store.commit([(row, None)] * RECORDS)
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
        signed = await service.execute(request, attribution)
        assert signed.checkpoint.size == SIGNED


DAMAGES = {
    "a record of the last tile is edited": "UPDATE audit_records SET outcome = 'x' WHERE id = 600",
    "the last record is edited": "UPDATE audit_records SET principal = 'x' WHERE id = 701",
    "a nonce is changed": "UPDATE audit_records SET nonce = (SELECT nonce FROM audit_records"
    " WHERE id = 1) WHERE id = 690",
    "a tile is edited": "UPDATE audit_tiles SET hash = (SELECT hash FROM audit_tiles"
    " WHERE position = 1) WHERE position = 0",
    "a tile is gone": "DELETE FROM audit_tiles WHERE position = 1",
    "the last record is gone": "DELETE FROM audit_records WHERE id = 701",
    "the end is gone": "DELETE FROM audit_records WHERE id > 512",
    "a record of the last tile is gone": "DELETE FROM audit_records WHERE id = 600",
    "everything is gone": "DELETE FROM audit_records",
    "the checkpoint is larger than the log": "UPDATE audit_checkpoints SET size = size + 1",
    "the checkpoint has another root": "UPDATE audit_checkpoints SET root = signature",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_changed_log_is_refused(
    damage: str, serving: Serving, location: Location, attribution: Attribution, tenant: TenantId
) -> None:
    """A change below the newest checkpoint that a start can detect is refused with its reason."""
    await write_log(serving, attribution, tenant)
    location.sql(damage)
    with pytest.raises(ConfigError, match=r"audit log is damaged.*first 70[12] records"):
        async with serving():
            pass


async def test_a_log_that_grew_is_accepted(
    serving: Serving, attribution: Attribution, tenant: TenantId
) -> None:
    """Records after the newest checkpoint do not stop a start."""
    await write_log(serving, attribution, tenant)
    async with serving() as service:
        row = NewRecord(tenant, "p", Operation.ENCRYPT, None, None, "success", "r", "a", "y")
        await service.parts.store.commit([(row, None)] * 300)
    async with serving() as service:
        assert service.parts.store.size == SIGNED + 300


@pytest.mark.parametrize(
    "request_of_more",
    [
        ProveRecords(tenant=INSTALLATION, after=0, size=SIGNED + 1, limit=1),
        ProveConsistency(tenant=INSTALLATION, first=1, second=SIGNED + 1),
        ProveConsistency(tenant=INSTALLATION, first=5, second=4),
        ProveConsistency(tenant=INSTALLATION, first=SIGNED + 1, second=SIGNED + 2),
    ],
    ids=["a record", "consistency", "backwards", "both"],
)
async def test_nothing_is_proved_of_a_tree_that_is_not_there(
    request_of_more: ProveRecords | ProveConsistency,
    serving: Serving,
    attribution: Attribution,
    tenant: TenantId,
) -> None:
    """A tree larger than the log, or two sizes in the wrong order, are not found."""
    await write_log(serving, attribution, tenant)
    async with serving() as service:
        with pytest.raises(KeyServiceError) as refused:
            await service.execute(request_of_more, attribution)
    assert refused.value.kind is ErrorKind.RECORD_NOT_FOUND
