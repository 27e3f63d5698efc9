"""After a restore the log continues with a new id and key, and names its predecessor."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey

from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.ledger.merkle import leaf_hash
from pqkeep_keyservice.ledger.records import Row, record_text
from pqkeep_keyservice.storage.database import Database
from pqkeep_keyservice.succession import continue_log, succession_record
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    Checkpoint,
    ListAuditKeys,
    ListCheckpoints,
    ProveSuccessions,
    SignCheckpoint,
)
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, Decrypt, Encrypt, GenerateKey, RotateKey
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Location, Serving

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

ML_DSA, SLH_DSA = Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S
KEM = Algorithm.ML_KEM_768
VECTORS = Path(__file__).parents[2] / "tests" / "vectors" / "audit-succession.json"


async def signed(
    service: InProcessService, attribution: Attribution, algorithm: Algorithm = ML_DSA
) -> Checkpoint:
    """Sign the log's current root."""
    request = SignCheckpoint(tenant=INSTALLATION, algorithm=algorithm)
    return (await service.execute(request, attribution)).checkpoint


async def restored(location: Location, sealer: Sealer) -> UUID:
    """Do a restore's steps on a filled database."""
    database: Database = await location.open()
    try:
        return await database.write(continue_log, sealer)
    finally:
        await database.close()


@BOTH
@pytest.mark.timeout(300)  # SLH-DSA in worker processes, before and after
async def test_a_log_is_continued(
    serving: Serving,
    location: Location,
    sealer: Sealer,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """The first record names the old log's last checkpoint, and a new key signs the new log.

    Earlier keys still work, and no version number is used again.
    """
    async with serving() as service:
        await service.execute(GenerateKey(tenant=tenant, algorithm=KEM, quota=None), attribution)
        await service.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
        sealed = await service.execute(
            Encrypt(tenant=tenant, algorithm=KEM, version=None, plaintext=b"before"), attribution
        )
        await signed(service, attribution, SLH_DSA)
        last = await signed(service, attribution)
        await service.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
        inherited = service.parts.store.size
    log = await restored(location, sealer)
    async with serving() as service:
        checkpoint = await signed(service, attribution)
        assert checkpoint.size > inherited
        assert (checkpoint.log_id, checkpoint.key_version) == (log, 1_000_001)
        assert log != last.log_id
        request = ProveSuccessions(tenant=INSTALLATION, size=checkpoint.size)
        (proof,) = (await service.execute(request, attribution)).proofs
        record = json.loads(proof.line)
        assert (record["operation"], record["id"]) == ("continue-log", inherited + 1)
        assert (record["request_id"], record["key_version"]) == (str(last.log_id), 1_000_001)
        assert record["policy"] == f"checkpoint-{last.size}-{last.root.hex()}"
        kept = await service.execute(
            ListCheckpoints(tenant=INSTALLATION, after=last.size - 1), attribution
        )
        assert kept.checkpoints[0] == last
        assert {checkpoint.log_id for checkpoint in kept.checkpoints[1:]} == {log}
        daily = await signed(service, attribution, SLH_DSA)
        assert (daily.log_id, daily.key_version) == (log, 1_000_001)
        rotated = await service.execute(RotateKey(tenant=tenant, algorithm=KEM), attribution)
        assert (rotated.old_version, rotated.key.version) == (3, 1_000_001)
        other = GenerateKey(tenant=tenant, algorithm=Algorithm.X_WING, quota=None)
        assert (await service.execute(other, attribution)).key.version == 1_000_001
        opened = Decrypt(
            tenant=tenant, algorithm=KEM, version=KeyVersion(2), ciphertext=sealed.ciphertext
        )
        assert (await service.execute(opened, attribution)).plaintext == b"before"


@BOTH
async def test_a_log_is_continued_twice(
    serving: Serving, location: Location, sealer: Sealer, attribution: Attribution
) -> None:
    """Each restore has its own log id, key and record.

    Without a checkpoint the record names no checkpoint.
    """
    async with serving():
        pass
    logs = [await restored(location, sealer) for _ in range(2)]
    async with serving() as service:
        checkpoint = await signed(service, attribution)
        assert (checkpoint.log_id, checkpoint.key_version) == (logs[1], 2_000_001)
        request = ProveSuccessions(tenant=INSTALLATION, size=checkpoint.size)
        proofs = (await service.execute(request, attribution)).proofs
        named = [json.loads(proof.line) for proof in proofs]
        assert named[0]["policy"] == f"checkpoint-0-{sha256().hexdigest()}"
        assert named[1]["request_id"] == str(logs[0])
        keys = (await service.execute(ListAuditKeys(tenant=INSTALLATION), attribution)).keys
        assert [key.version for key in keys if key.algorithm is ML_DSA] == [1_000_001, 2_000_001]
        for key in keys:
            MLDSA65PublicKey.from_public_bytes(key.public_key)


@BOTH
async def test_another_log_id_is_refused(
    serving: Serving, location: Location, attribution: Attribution
) -> None:
    """A start refuses a log whose newest checkpoint has another id."""
    async with serving() as service:
        await signed(service, attribution)
    location.sql("UPDATE audit_log SET log_id = ?", str(UUID(int=1)))
    async with serving() as service:
        with pytest.raises(ConfigError, match="its newest checkpoint is from another log"):
            await service.parts.checkpoint_signer.check()


def test_the_succession_record_of_the_vector() -> None:
    """The record has the vector's text and leaf."""
    vector: dict[str, Any] = json.loads(VECTORS.read_text())
    last = Checkpoint(
        log_id=UUID(vector["log_id"]),
        size=vector["size"],
        root=bytes.fromhex(vector["root"]),
        at_us=0,
        algorithm=ML_DSA,
        key_version=KeyVersion(1),
        signature=b"",
    )
    record = succession_record(last.log_id, last, KeyVersion(vector["first_version"]))
    row = Row(1213, 1, str(record.tenant), 40, 1_795_000_000_000_000, bytes(range(16)), *record[1:])
    text = record_text(row)
    assert text.decode() == vector["text"]
    assert leaf_hash(text).hex() == vector["leaf"]
