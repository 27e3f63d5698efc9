"""An envelope's ciphertext opens only with its own header, and never as a plain ciphertext."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Kind
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CiphertextFormat,
    CreateKeyring,
    Decrypt,
    Encrypt,
    GenerateKey,
    KeyService,
    RotateKey,
)

Sql = Callable[..., list[Any]]
KEMS = [a for a, spec in ALGORITHMS.items() if spec.kind in {Kind.KEM, Kind.CIPHER}]
ONE, TWO = KeyVersion(1), KeyVersion(2)
ENVELOPE, CIPHERTEXT = CiphertextFormat.ENVELOPE, CiphertextFormat.CIPHERTEXT
DATA, ROW = b"4111-1111", b"customers/42"
SMALLEST = 28


class Safe:
    """A tenant with two versions of a key of each KEM."""

    def __init__(self, keys: KeyService, tenant: TenantId, attribution: Attribution) -> None:
        self._keys, self._tenant, self._attribution = keys, tenant, attribution

    async def seal(self, algorithm: Algorithm, version: KeyVersion | None, **more: Any) -> bytes:
        """Return an encrypted text."""
        request = Encrypt(
            tenant=self._tenant, algorithm=algorithm, version=version, plaintext=DATA, **more
        )
        return (await self._keys.execute(request, self._attribution)).ciphertext

    async def open(
        self, algorithm: Algorithm, version: KeyVersion, blob: bytes, **more: Any
    ) -> bytes | ErrorKind:
        """Return the decrypted text, or the kind of the refusal."""
        request = Decrypt(
            tenant=self._tenant, algorithm=algorithm, version=version, ciphertext=blob, **more
        )
        try:
            return (await self._keys.execute(request, self._attribution)).plaintext
        except KeyServiceError as refusal:
            return refusal.kind


@pytest.fixture
async def safe(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Safe:
    """Generate the keys."""
    for algorithm in KEMS:
        named: Any = {"tenant": tenant, "algorithm": algorithm}
        await keys.execute(GenerateKey(**named, quota=None), attribution)
        await keys.execute(RotateKey(**named), attribution)
    return Safe(keys, tenant, attribution)


@pytest.mark.parametrize("algorithm", KEMS)
async def test_an_envelope_opens_by_its_header_only(algorithm: Algorithm, safe: Safe) -> None:
    """An envelope opens only with the version and algorithm of its header."""
    blob = await safe.seal(algorithm, None, format=ENVELOPE)
    assert await safe.open(algorithm, TWO, blob, format=ENVELOPE) == DATA
    for other, version in ((algorithm, ONE), *((a, TWO) for a in KEMS if a is not algorithm)):
        failed = await safe.open(other, version, blob, format=ENVELOPE)
        assert failed is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize("algorithm", KEMS)
async def test_envelopes_and_ciphertexts_stay_apart(algorithm: Algorithm, safe: Safe) -> None:
    """A ciphertext does not open inside an envelope, nor an envelope's content outside."""
    for made, read in permutations((ENVELOPE, CIPHERTEXT)):
        blob = await safe.seal(algorithm, TWO, format=made)
        failed = await safe.open(algorithm, TWO, blob, format=read)
        assert failed is ErrorKind.DECRYPTION_FAILED


async def test_an_envelope_is_bound_to_associated_data_too(safe: Safe) -> None:
    """The header precedes the caller's associated data, which is bound as usual."""
    algorithm = Algorithm.ML_KEM_768
    blob = await safe.seal(algorithm, TWO, format=ENVELOPE, associated_data=ROW)
    for data, expected in ((ROW, DATA), (b"", ErrorKind.DECRYPTION_FAILED)):
        opened = await safe.open(algorithm, TWO, blob, format=ENVELOPE, associated_data=data)
        assert opened == expected


async def test_every_byte_of_a_blob_counts(safe: Safe) -> None:
    """A change of any byte of nonce, data or tag, or of sampled KEM bytes, is refused."""
    algorithm = Algorithm.ML_KEM_768
    blob = await safe.seal(algorithm, TWO, format=ENVELOPE)
    size = ALGORITHMS[algorithm].output_size
    assert len(blob) == size + SMALLEST + len(DATA)
    for place in (0, size // 2, *range(size - 1, len(blob))):
        changed = blob[:place] + bytes((blob[place] ^ 1,)) + blob[place + 1 :]
        failed = await safe.open(algorithm, TWO, changed, format=ENVELOPE)
        assert failed is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize("algorithm", [Algorithm.ML_KEM_768, Algorithm.XAES_256_GCM])
async def test_an_envelope_of_one_keyring_opens_in_no_other(
    algorithm: Algorithm,
    safe: Safe,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """The keyring's name is bound: with another keyring's name decryption fails."""
    for keyring in ("payments.cards", "payments.logs"):
        named: Any = {"tenant": tenant, "algorithm": algorithm, "keyring": keyring}
        await keys.execute(CreateKeyring(tenant=tenant, keyring=keyring), attribution)
        await keys.execute(GenerateKey(**named, quota=None), attribution)
    keyrings = ("default", "payments.cards", "payments.logs")
    for made in keyrings:
        blob = await safe.seal(algorithm, ONE if made != "default" else TWO, **_of(made))
        for read in keyrings:
            version = TWO if read == "default" else ONE
            opened = await safe.open(algorithm, version, blob, **_of(read))
            assert opened == (DATA if read == made else ErrorKind.DECRYPTION_FAILED)


def _of(keyring: str) -> dict[str, Any]:
    return {"keyring": keyring, "format": ENVELOPE}


async def test_other_keys_are_tried_where_they_may_be_and_recorded(safe: Safe, sql: Sql) -> None:
    """Only the caller's permitted algorithms are tried, and the record names them."""
    kyber, xwing, other = KEMS[0], Algorithm.X_WING, Algorithm.ML_KEM_1024
    last = "SELECT outcome, target FROM audit_records ORDER BY id DESC LIMIT 1"
    blob = await safe.seal(xwing, TWO)
    mismatch, failure = ErrorKind.ALGORITHM_MISMATCH, ErrorKind.DECRYPTION_FAILED
    for probe, kind, target in (
        ((), failure, None),
        ((other,), failure, "default/ML-KEM-1024/2"),
        ((xwing,), mismatch, "default/X-Wing/2"),
    ):
        assert await safe.open(kyber, TWO, blob, probe=probe) is kind
        assert sql(last) == [(kind, target)]
    assert await safe.open(kyber, TWO, blob) is mismatch
    (recorded,) = sql(last)
    assert "X-Wing" in recorded[1]
    envelope = await safe.seal(xwing, TWO, format=ENVELOPE)
    assert await safe.open(kyber, TWO, envelope, format=ENVELOPE) is failure
    assert sql(last) == [(failure, None)]
