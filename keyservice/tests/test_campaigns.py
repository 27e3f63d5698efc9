"""What the key service has of a campaign always equals a count of the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import GetMigration, KeyVersionSet, SignCheckpoint
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    Decrypt,
    DisableKey,
    Encrypt,
    GenerateKey,
    Item,
    ReEncrypt,
    RotateKey,
    Target,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

Sql = Callable[..., list[Any]]
KEM, NEW = Algorithm.ML_KEM_768, Algorithm.X_WING
OLD = KeyVersionSet(DEFAULT_KEYRING, KEM)
COUNT = """
SELECT key_version, target, count(*), min(recorded_at_us), max(recorded_at_us)
FROM audit_records WHERE tenant_id = ? AND campaign = ? AND outcome = 'success'
AND operation = 're-encrypt' AND target IS NOT NULL GROUP BY key_version, target ORDER BY 1, 2
"""


class Mover:
    """A tenant with two versions of an old key, and a new key."""

    def __init__(self, service: InProcessService, sql: Sql) -> None:
        self.service, self._sql = service, sql
        self.tenant = TenantId(uuid4())
        self.key: dict[str, Any] = {"tenant": self.tenant, "algorithm": KEM}
        self.blobs: list[bytes] = []

    async def ask(self, request: Any, principal: str = "mover") -> Any:
        """Return a result, or the kind of a refusal."""
        try:
            return await self.service.execute(request, Attribution("r", principal, "a", "y"))
        except KeyServiceError as refusal:
            return refusal.kind

    async def prepare(self) -> None:
        """Make the keys, and a ciphertext of each old version."""
        await self.ask(GenerateKey(**self.key, quota=None))
        encrypt = Encrypt(**self.key, version=None, plaintext=b"text")
        self.blobs.append((await self.ask(encrypt)).ciphertext)
        await self.ask(RotateKey(**self.key))
        self.blobs.append((await self.ask(encrypt)).ciphertext)
        await self.ask(GenerateKey(tenant=self.tenant, algorithm=NEW, quota=None))

    def move(self, version: int, campaign: str | None = "cards", to: Algorithm = NEW) -> ReEncrypt:
        """Return the request for a re-encryption of a version's ciphertext."""
        return ReEncrypt(
            **self.key,
            version=KeyVersion(version),
            ciphertext=self.blobs[version - 1],
            is_wrapped_key=False,
            target=Target(to),
            campaign=campaign,
        )

    async def migration(self, campaign: str = "cards", **more: Any) -> Any:
        """Return what the key service has of a campaign."""
        sources = more.pop("sources", (OLD,))
        return await self.ask(
            GetMigration(tenant=self.tenant, campaign=campaign, sources=sources, **more)
        )

    async def agree(self) -> int:
        """Check that the counted moves equal those in the log. Return their number."""
        moved = (await self.migration()).moved
        expected = self._sql(COUNT, str(self.tenant), "cards")
        assert [
            (
                each.version,
                f"{each.target_keyring}/{each.target_algorithm}/{each.target_version}",
                each.count,
                each.first_us,
                each.last_us,
            )
            for each in moved
        ] == [tuple(row) for row in expected]
        return sum(each.count for each in moved)

    async def sign(self) -> None:
        """Make a checkpoint."""
        await self.ask(SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65))


@pytest.fixture
async def mover(service: InProcessService, sql: Sql) -> Mover:
    """Return a prepared tenant."""
    mover = Mover(service, sql)
    await mover.prepare()
    return mover


async def test_moves_are_the_log_s_count(mover: Mover) -> None:
    """The counted moves equal the log's, before and after a checkpoint, alone and in a batch."""
    assert await mover.agree() == 0
    for expected in (4, 8):
        for version in (1, 2):
            await mover.ask(mover.move(version))
        items = [mover.move(1), mover.move(2), mover.move(1, None), mover.move(2, "other")]
        await mover.ask(Batch(tenant=mover.tenant, items=tuple(map(Item, items))))
        assert await mover.agree() == expected
        await mover.sign()
        assert await mover.agree() == expected


async def test_what_did_not_move_is_not_counted(mover: Mover) -> None:
    """A refused re-encryption does not count.

    A repeated one for moved data does not count either.
    """
    await mover.ask(mover.move(1, to=Algorithm.ML_KEM_1024))  # there is no such key
    assert not (await mover.ask(mover.move(2, to=KEM))).moved
    assert await mover.agree() == 0
    assert (await mover.ask(mover.move(1, to=KEM))).moved
    assert await mover.agree() == 1


async def test_the_newest_use_of_a_source_is_found(mover: Mover, sql: Sql) -> None:
    """Only the named versions count, before and after a checkpoint."""
    first = KeyVersionSet(DEFAULT_KEYRING, KEM, below=KeyVersion(2))
    second = KeyVersionSet(DEFAULT_KEYRING, KEM, (KeyVersion(2),))
    read = Decrypt(**mover.key, version=KeyVersion(1), ciphertext=mover.blobs[0])
    for _ in range(2):
        await mover.ask(read)
        (newest,) = sql("SELECT max(recorded_at_us) FROM audit_records")[0]
        assert (await mover.migration(sources=(first,))).last_used_us == newest
        assert (await mover.migration(sources=(second,))).last_used_us < newest
        await mover.sign()
    unused = KeyVersionSet(DEFAULT_KEYRING, KEM, (KeyVersion(9),))
    assert (await mover.migration(sources=(unused,))).last_used_us is None


async def test_refused_uses_name_their_principals(mover: Mover) -> None:
    """During a canary, each refused use of a disabled version counts for its principal."""
    read = Decrypt(**mover.key, version=KeyVersion(1), ciphertext=mover.blobs[0])
    write = Encrypt(**mover.key, version=None, plaintext=b"text")
    await mover.ask(Decrypt(**mover.key, version=KeyVersion(9), ciphertext=b""), "early")
    begun = datetime.now(UTC)
    for version in (1, 2):
        await mover.ask(
            DisableKey(**mover.key, version=KeyVersion(version), until=begun + timedelta(days=1))
        )
    for principal in ("api-key:1/old", "api-key:1/old", "api-key:2"):
        await mover.ask(read, principal)
    await mover.ask(write, "api-key:3")
    await mover.ask(Encrypt(tenant=mover.tenant, algorithm=NEW, version=None, plaintext=b"x"))
    since_us = int(begun.timestamp() * 1_000_000)
    window: dict[str, Any] = {"since_us": since_us, "until_us": since_us + 60_000_000}
    found = await mover.migration(refused=(OLD,), **window)
    assert found.is_whole
    assert Counter({(each.principal, each.version): each.count for each in found.refused}) == {
        ("api-key:1/old", 1): 2,
        ("api-key:2", 1): 1,
        ("api-key:3", None): 1,
    }
    later: dict[str, Any] = {"since_us": since_us + 60_000_000, "until_us": since_us + 61_000_000}
    assert (await mover.migration(refused=(OLD,), **later)).refused == ()
    other = Mover(mover.service, mover._sql)
    assert (await other.migration(refused=(OLD,), **window)).refused == ()
