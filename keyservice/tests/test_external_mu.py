"""A signature over a mu is a signature over its message, for every verifier."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256, shake_256
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey, MLDSA87PublicKey
from pqcrypto.sign import ml_dsa_65, ml_dsa_87

from pqkeep_keyservice.operations.signing import HASH_CONTEXT, represent_digest
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Kind, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    GenerateKey,
    KeyService,
    RetireKey,
    Sign,
    SignMu,
    Verify,
    VerifyHash,
    VerifyMu,
)

ONE = KeyVersion(1)
PUBLIC: dict[Algorithm, Callable[[bytes], Any]] = {
    Algorithm.ML_DSA_65: MLDSA65PublicKey.from_public_bytes,
    Algorithm.ML_DSA_87: MLDSA87PublicKey.from_public_bytes,
}
INDEPENDENT: dict[Algorithm, Any] = {
    Algorithm.ML_DSA_65: ml_dsa_65,
    Algorithm.ML_DSA_87: ml_dsa_87,
}
OTHERS = [a for a, spec in ALGORITHMS.items() if a not in PUBLIC and spec.kind is Kind.SIGNATURE]
MESSAGE, CONTEXT = b"pay Bob 10 EUR", b"invoices"


def mu_of(public_key: bytes, message: bytes, context: bytes = b"") -> bytes:
    """Return a message's mu (FIPS 204, algorithms 2 and 7)."""
    key_hash = shake_256(public_key).digest(64)
    with_context = b"\0" + bytes((len(context),)) + context + message
    return shake_256(key_hash + with_context).digest(64)


async def generate(
    keys: KeyService, tenant: TenantId, algorithm: Algorithm, attribution: Attribution
) -> bytes:
    """Return a new key's public half."""
    request = GenerateKey(tenant=tenant, algorithm=algorithm, quota=None)
    return (await keys.execute(request, attribution)).key.public_key


@pytest.mark.parametrize("context", [b"", CONTEXT])
@pytest.mark.parametrize("algorithm", PUBLIC)
async def test_any_verifier_takes_it(
    *,
    algorithm: Algorithm,
    context: bytes,
    keys: KeyService,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """A mu's signature verifies as pure ML-DSA here and elsewhere, and the reverse holds."""
    public_key = await generate(keys, tenant, algorithm, attribution)
    named: Any = {"tenant": tenant, "algorithm": algorithm}
    mu = mu_of(public_key, MESSAGE, context)
    signed = await keys.execute(SignMu(**named, version=None, mu=mu), attribution)
    assert signed.version == ONE
    PUBLIC[algorithm](public_key).verify(signed.signature, MESSAGE, context)
    INDEPENDENT[algorithm].verify(public_key, MESSAGE, signed.signature, context)
    plain: Any = {**named, "version": ONE, "message": MESSAGE, "context": context}
    await keys.execute(Verify(**plain, signature=signed.signature), attribution)
    over_message = await keys.execute(Sign(**plain), attribution)
    for signature in (signed.signature, over_message.signature):
        await keys.execute(VerifyMu(**named, version=ONE, mu=mu, signature=signature), attribution)


@pytest.mark.parametrize("algorithm", PUBLIC)
async def test_another_mu_or_signature_does_not_hold(
    algorithm: Algorithm, keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """The mu of another message, context or key, or a changed signature, does not verify."""
    public_key = await generate(keys, tenant, algorithm, attribution)
    named: Any = {"tenant": tenant, "algorithm": algorithm}
    mu = mu_of(public_key, MESSAGE, CONTEXT)
    signed = await keys.execute(SignMu(**named, version=ONE, mu=mu), attribution)
    with pytest.raises(InvalidSignature):
        PUBLIC[algorithm](public_key).verify(signed.signature, MESSAGE)
    good = signed.signature
    wrong = [
        (mu_of(public_key, MESSAGE), good),
        (mu_of(public_key, MESSAGE + b"0", CONTEXT), good),
        (mu_of(os.urandom(len(public_key)), MESSAGE, CONTEXT), good),
        (mu, good[:-1] + bytes((good[-1] ^ 1,))),
        (mu, good[:-1]),
        (mu, good + b"\0"),
        (mu, b""),
    ]
    for other, signature in wrong:
        with pytest.raises(KeyServiceError) as refused:
            await keys.execute(
                VerifyMu(**named, version=ONE, mu=other, signature=signature), attribution
            )
        assert refused.value.kind is ErrorKind.VERIFICATION_FAILED


@pytest.mark.parametrize("algorithm", OTHERS)
async def test_only_ml_dsa_has_a_mu(
    algorithm: Algorithm, keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """No other algorithm accepts a mu, with or without a key."""
    assert not ALGORITHMS[algorithm].operations & {Operation.SIGN_MU, Operation.VERIFY_MU}
    named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE, "mu": bytes(64)}
    for request in (SignMu(**named), VerifyMu(**named, signature=b"")):
        with pytest.raises(KeyServiceError) as refused:
            await keys.execute(request, attribution)
        assert refused.value.kind is ErrorKind.UNSUPPORTED


async def test_a_retired_key_verifies_and_does_not_sign(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """The status rules equal those of sign and verify."""
    algorithm = Algorithm.ML_DSA_65
    public_key = await generate(keys, tenant, algorithm, attribution)
    named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
    mu = mu_of(public_key, MESSAGE)
    signed = await keys.execute(SignMu(**named, mu=mu), attribution)
    await keys.execute(RetireKey(**named), attribution)
    await keys.execute(VerifyMu(**named, mu=mu, signature=signed.signature), attribution)
    with pytest.raises(KeyServiceError) as refused:
        await keys.execute(SignMu(**named, mu=mu), attribution)
    assert refused.value.kind is ErrorKind.KEY_NOT_FOUND


async def test_a_mu_hides_what_it_stands_for(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """As documented, a mu can stand for any message, including a digest of sign-hash."""
    algorithm = Algorithm.ML_DSA_65
    public_key = await generate(keys, tenant, algorithm, attribution)
    named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
    digest = sha256(MESSAGE).digest()
    represented = represent_digest(HashAlgorithm.SHA_256, digest)
    mu = mu_of(public_key, represented, HASH_CONTEXT)
    signed = await keys.execute(SignMu(**named, mu=mu), attribution)
    hashed: Any = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": digest}
    await keys.execute(VerifyHash(**named, **hashed, signature=signed.signature), attribution)
