"""Data of one keyring's key cannot be used with another keyring's key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from keyservice.tests.conftest import OneTenant
from msgspec import structs
from tests.sampling import fast_algorithms_first

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.audit import GetUsage, ListRecords, ListUsage
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    KeyPosition,
    KeyService,
    ListKeys,
    RotateKey,
    Sign,
    SignHash,
    Unwrap,
    Verify,
    VerifyHash,
    Wrap,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import Sql

V1 = KeyVersion(1)
CARDS, LOGS = "payments.cards", "payments.logs"
TEXT, DIGEST = b"attack at dawn", bytes(32)
KEMS = [
    algorithm for algorithm in Algorithm if Operation.DECRYPT in ALGORITHMS[algorithm].operations
]
ENCAPSULATING = [
    algorithm for algorithm in KEMS if Operation.DECAPSULATE in ALGORITHMS[algorithm].operations
]
WRAPPING = [
    algorithm for algorithm in Algorithm if Operation.WRAP in ALGORITHMS[algorithm].operations
]
SIGNING = [
    algorithm for algorithm in Algorithm if Operation.SIGN in ALGORITHMS[algorithm].operations
]


class Caller(OneTenant):
    """A caller with one tenant, and its requests."""

    async def create(self, keyring: KeyringName, **settings: Any) -> KeyringInfo:
        made = await self.ask(CreateKeyring(tenant=self.tenant, keyring=keyring, **settings))
        return made.keyring

    async def generate(self, algorithm: Algorithm, *keyrings: KeyringName) -> None:
        for keyring in keyrings:
            await self.ask(
                GenerateKey(tenant=self.tenant, keyring=keyring, algorithm=algorithm, quota=None)
            )


@pytest.fixture
async def caller(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Caller:
    """Return a caller with two keyrings beside the default one."""
    caller = Caller(keys, tenant, attribution)
    for keyring in (CARDS, LOGS):
        await caller.create(keyring)
    return caller


@pytest.mark.parametrize("algorithm", KEMS)
async def test_a_blob_opens_in_its_own_keyring_only(algorithm: Algorithm, caller: Caller) -> None:
    """Under another keyring's key of the same version, decryption fails."""
    await caller.generate(algorithm, DEFAULT_KEYRING, CARDS, LOGS)
    here: dict[str, Any] = {"tenant": caller.tenant, "algorithm": algorithm, "keyring": CARDS}
    blob = (await caller.ask(Encrypt(**here, version=None, plaintext=TEXT))).ciphertext
    opening = Decrypt(**here, version=V1, ciphertext=blob)
    assert (await caller.ask(opening)).plaintext == TEXT
    for other in (DEFAULT_KEYRING, LOGS):
        elsewhere = structs.replace(opening, keyring=other)
        assert await caller.refusal(elsewhere) is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize("algorithm", WRAPPING)
async def test_a_wrapped_key_opens_in_its_own_keyring_only(
    algorithm: Algorithm, caller: Caller
) -> None:
    """Under another keyring's key of the same version, unwrapping fails."""
    await caller.generate(algorithm, DEFAULT_KEYRING, CARDS, LOGS)
    here: dict[str, Any] = {
        "tenant": caller.tenant,
        "algorithm": algorithm,
        "keyring": CARDS,
        "version": V1,
    }
    wrapped = (await caller.ask(Wrap(**here, symmetric_key=bytearray(DIGEST)))).wrapped_key
    opening = Unwrap(**here, wrapped_key=wrapped)
    assert (await caller.ask(opening)).symmetric_key == DIGEST
    for other in (DEFAULT_KEYRING, LOGS):
        elsewhere = structs.replace(opening, keyring=other)
        assert await caller.refusal(elsewhere) is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize("algorithm", ENCAPSULATING)
async def test_a_shared_secret_is_of_its_own_keyring_only(
    algorithm: Algorithm, caller: Caller
) -> None:
    """Keys of two keyrings with the same version give different secrets (FIPS 203)."""
    await caller.generate(algorithm, DEFAULT_KEYRING, CARDS, LOGS)
    here: dict[str, Any] = {
        "tenant": caller.tenant,
        "algorithm": algorithm,
        "keyring": CARDS,
        "version": V1,
    }
    made = await caller.ask(Encapsulate(**here))
    opening = Decapsulate(**here, kem_ciphertext=made.kem_ciphertext)
    assert (await caller.ask(opening)).shared_secret == made.shared_secret
    for other in (DEFAULT_KEYRING, LOGS):
        elsewhere = await caller.ask(structs.replace(opening, keyring=other))
        assert elsewhere.shared_secret != made.shared_secret


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNING))
async def test_a_signature_verifies_in_its_own_keyring_only(
    algorithm: Algorithm, caller: Caller
) -> None:
    """Under another keyring's key of the same version, no signature verifies."""
    await caller.generate(algorithm, DEFAULT_KEYRING, CARDS, LOGS)
    here: dict[str, Any] = {
        "tenant": caller.tenant,
        "algorithm": algorithm,
        "keyring": CARDS,
        "version": V1,
    }
    digest: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": DIGEST}
    signed = await caller.ask(Sign(**here, message=TEXT))
    over_digest = await caller.ask(SignHash(**here, **digest))
    for verifying in (
        Verify(**here, message=TEXT, signature=signed.signature),
        VerifyHash(**here, **digest, signature=over_digest.signature),
    ):
        await caller.ask(verifying)
        for other in (DEFAULT_KEYRING, LOGS):
            elsewhere = structs.replace(verifying, keyring=other)
            assert await caller.refusal(elsewhere) is ErrorKind.VERIFICATION_FAILED


MOVED: dict[str, Callable[[Sql], object]] = {
    "both tables": lambda sql: (
        sql("DELETE FROM keys WHERE keyring = ?", LOGS),
        sql("DELETE FROM key_revisions WHERE keyring = ?", LOGS),
        sql("PRAGMA foreign_keys = OFF"),
        sql("UPDATE key_revisions SET keyring = ? WHERE keyring = ?", LOGS, CARDS),
        sql("UPDATE keys SET keyring = ? WHERE keyring = ?", LOGS, CARDS),
    ),
    "the seed and the public key": lambda sql: sql(
        "UPDATE keys SET (sealed_seed, public_key) = (SELECT sealed_seed, public_key FROM keys"
        " WHERE keyring = ?) WHERE keyring = ?",
        CARDS,
        LOGS,
    ),
}


@pytest.mark.parametrize("algorithm", [Algorithm.ML_KEM_768, Algorithm.XAES_256_GCM])
@pytest.mark.parametrize("move", MOVED.values(), ids=list(MOVED))
async def test_a_key_moved_to_another_keyring_is_not_used(
    *,
    move: Callable[[Sql], object],
    algorithm: Algorithm,
    caller: Caller,
    restarted: Callable[[], KeyService],
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A key's row that is moved to another keyring in the database is refused."""
    await caller.generate(algorithm, CARDS, LOGS)
    move(sql)
    again = Caller(restarted(), caller.tenant, attribution)
    request = GetActiveKey(tenant=caller.tenant, keyring=LOGS, algorithm=algorithm)
    assert await again.refusal(request) is ErrorKind.UNAVAILABLE


async def test_versions_and_lists_are_each_keyring_s_own(caller: Caller) -> None:
    """Each keyring counts from 1. A list has one keyring's keys, or all in order."""
    kem = Algorithm.ML_KEM_768
    await caller.generate(kem, DEFAULT_KEYRING, CARDS)
    rotated = await caller.ask(RotateKey(tenant=caller.tenant, keyring=CARDS, algorithm=kem))
    assert (rotated.key.version, rotated.key.keyring) == (2, CARDS)
    listing = ListKeys(tenant=caller.tenant, algorithm=None, status=None)

    async def listed(**more: Any) -> list[tuple[str, int]]:
        found = await caller.ask(structs.replace(listing, **more))
        return [(key.keyring, key.version) for key in found.keys]

    assert await listed() == [(DEFAULT_KEYRING, 1)]
    assert await listed(keyring=CARDS) == [(CARDS, 1), (CARDS, 2)]
    assert await listed(keyring=LOGS) == []
    everything = [(DEFAULT_KEYRING, 1), (CARDS, 1), (CARDS, 2)]
    assert await listed(all_keyrings=True) == everything
    paged, after = [], None
    while page := await listed(all_keyrings=True, after=after, limit=1):
        paged += page
        after = KeyPosition(kem, KeyVersion(page[0][1]), page[0][0])
    assert paged == everything


async def test_the_quota_counts_over_all_keyrings(caller: Caller) -> None:
    """Active keys of all keyrings count towards the quota."""
    kem = Algorithm.ML_KEM_768
    await caller.generate(kem, DEFAULT_KEYRING, CARDS)
    more = GenerateKey(tenant=caller.tenant, keyring=LOGS, algorithm=kem, quota=2)
    assert await caller.refusal(more) is ErrorKind.KEY_QUOTA_REACHED
    await caller.ask(structs.replace(more, quota=3))


async def test_records_and_uses_say_which_keyring(caller: Caller) -> None:
    """A record names its keyring, is found by the keyring, and counts as a use of its key."""
    kem = Algorithm.ML_KEM_768
    await caller.generate(kem, DEFAULT_KEYRING, CARDS)
    use = Encrypt(tenant=caller.tenant, keyring=CARDS, algorithm=kem, version=None, plaintext=TEXT)
    await caller.ask(use)
    found = await caller.ask(ListRecords(tenant=caller.tenant, keyring=CARDS))
    assert len(found.lines) == 3
    assert all(b'"keyring":"payments.cards"' in line for line in found.lines)
    for keyring, uses in ((CARDS, 1), (DEFAULT_KEYRING, 0)):
        usage = GetUsage(tenant=caller.tenant, keyring=keyring, algorithm=kem, version=V1)
        assert (await caller.ask(usage)).uses == uses
        listed = await caller.ask(ListUsage(tenant=caller.tenant, keyring=keyring, algorithm=None))
        assert listed.total == uses
