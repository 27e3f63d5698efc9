"""Results for one purpose, version, tenant, algorithm or hash work for no other.

In process, through the real operations.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.sampling import fast_algorithms_first

from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    CURRENT,
    DIGEST_SIZE,
    Algorithm,
    HashAlgorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    AnyResult,
    Decapsulate,
    Decapsulated,
    Decrypt,
    Encapsulate,
    Encapsulated,
    Encrypt,
    Encrypted,
    GenerateKey,
    RotateKey,
    Sign,
    Signed,
    SignHash,
    Unwrap,
    Unwrapped,
    Verified,
    Verify,
    VerifyHash,
    Wrap,
    Wrapped,
)

Outcome = AnyResult | ErrorKind
Execute = Callable[[Sequence[AnyRequest]], list[Outcome]]
Serve = Callable[[Path], AbstractContextManager[Execute]]

KEMS = [a for a in Algorithm if ALGORITHMS[a].kind is Kind.KEM]
WRAPPING = [a for a in KEMS if Operation.WRAP in ALGORITHMS[a].operations]
SIGNATURES = [a for a in Algorithm if ALGORITHMS[a].kind is Kind.SIGNATURE]
SIZES = (16, 24, 32, 48, 64)
ONE, TWO = KeyVersion(1), KeyVersion(2)
CONTEXT = b"pqkeep/v1/sign-hash"
OID_SHA_256 = bytes.fromhex("0609608648016503040201")
DIGEST = bytes(range(64))


@pytest.fixture(scope="module")
def rotated(execute: Execute) -> TenantId:
    """Make a tenant with two versions of every KEM key."""
    tenant = TenantId(uuid4())
    for algorithm in KEMS:
        made = execute(
            [
                GenerateKey(tenant=tenant, algorithm=algorithm, quota=None),
                RotateKey(tenant=tenant, algorithm=algorithm),
            ]
        )
        assert not [kind for kind in made if isinstance(kind, ErrorKind)]
    return tenant


def _ciphertext(
    execute: Execute, tenant: TenantId, algorithm: Algorithm, version: KeyVersion, data: bytes
) -> bytes:
    (made,) = execute(
        [Encrypt(tenant=tenant, algorithm=algorithm, version=version, plaintext=data)]
    )
    assert isinstance(made, Encrypted)
    return made.ciphertext


def _wrapped(
    execute: Execute, tenant: TenantId, algorithm: Algorithm, version: KeyVersion, data: bytes
) -> bytes:
    key = bytearray(data)
    request = Wrap(tenant=tenant, algorithm=algorithm, version=version, symmetric_key=key)
    (made,) = execute([request])
    assert isinstance(made, Wrapped)
    assert key == bytes(len(data)), "the key was not wiped"
    return made.wrapped_key


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("algorithm", WRAPPING)
def test_a_wrapped_key_never_decrypts(
    algorithm: Algorithm, size: int, execute: Execute, tenant: TenantId
) -> None:
    """Decrypt refuses a wrapped key of each size, and unwrap refuses a ciphertext of the key."""
    key = DIGEST[:size]
    wrapped = _wrapped(execute, tenant, algorithm, ONE, key)
    ciphertext = _ciphertext(execute, tenant, algorithm, ONE, key)
    assert len(wrapped) == len(ciphertext)
    assert execute(
        [
            Unwrap(tenant=tenant, algorithm=algorithm, version=ONE, wrapped_key=wrapped),
            Decrypt(tenant=tenant, algorithm=algorithm, version=ONE, ciphertext=wrapped),
            Unwrap(tenant=tenant, algorithm=algorithm, version=ONE, wrapped_key=ciphertext),
        ]
    ) == [
        Unwrapped(symmetric_key=key),
        ErrorKind.DECRYPTION_FAILED,
        ErrorKind.DECRYPTION_FAILED,
    ]


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_blob_opens_under_its_own_version_only(
    algorithm: Algorithm, execute: Execute, rotated: TenantId
) -> None:
    """A ciphertext of the second version does not open under the first."""
    made = _ciphertext(execute, rotated, algorithm, TWO, DIGEST)
    right, wrong = execute(
        [
            Decrypt(tenant=rotated, algorithm=algorithm, version=version, ciphertext=made)
            for version in (TWO, ONE)
        ]
    )
    assert not isinstance(right, ErrorKind)
    assert wrong is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize("algorithm", WRAPPING)
def test_a_wrapped_key_opens_under_its_own_version_only(
    algorithm: Algorithm, execute: Execute, rotated: TenantId
) -> None:
    """A key wrapped with the second version does not unwrap with the first."""
    made = _wrapped(execute, rotated, algorithm, TWO, DIGEST)
    assert execute(
        [
            Unwrap(tenant=rotated, algorithm=algorithm, version=version, wrapped_key=made)
            for version in (TWO, ONE)
        ]
    ) == [Unwrapped(symmetric_key=DIGEST), ErrorKind.DECRYPTION_FAILED]


@pytest.mark.parametrize("algorithm", KEMS)
def test_secrets_are_of_one_version_and_one_tenant(
    algorithm: Algorithm, execute: Execute, rotated: TenantId, tenant: TenantId
) -> None:
    """Only the right key recovers an encapsulated secret. Any other key gives another secret."""
    (made,) = execute([Encapsulate(tenant=rotated, algorithm=algorithm, version=TWO)])
    assert isinstance(made, Encapsulated)
    secrets = [
        response.shared_secret
        for response in execute(
            [
                Decapsulate(
                    tenant=owner,
                    algorithm=algorithm,
                    version=version,
                    kem_ciphertext=made.kem_ciphertext,
                )
                for owner, version in ((rotated, TWO), (rotated, ONE), (tenant, ONE))
            ]
        )
        if isinstance(response, Decapsulated)
    ]
    assert secrets[0] == made.shared_secret
    assert len(set(secrets)) == 3


@pytest.mark.threat("other-tenant")
@pytest.mark.parametrize("algorithm", KEMS)
def test_a_blob_opens_for_its_own_tenant_only(
    algorithm: Algorithm, execute: Execute, rotated: TenantId, tenant: TenantId
) -> None:
    """Another tenant's ciphertext and wrapped key are refused like damaged ones."""
    requests: list[AnyRequest] = [
        Decrypt(
            tenant=rotated,
            algorithm=algorithm,
            version=ONE,
            ciphertext=_ciphertext(execute, tenant, algorithm, ONE, DIGEST),
        )
    ]
    if algorithm in WRAPPING:
        wrapped = _wrapped(execute, tenant, algorithm, ONE, DIGEST)
        requests.append(
            Unwrap(tenant=rotated, algorithm=algorithm, version=ONE, wrapped_key=wrapped)
        )
    assert set(execute(requests)) == {ErrorKind.DECRYPTION_FAILED}


@pytest.mark.parametrize(("made_with", "named"), list(permutations(KEMS, 2)))
def test_another_kems_blob_is_a_mismatch(
    made_with: Algorithm, named: Algorithm, execute: Execute, rotated: TenantId
) -> None:
    """Decrypt returns ALGORITHM_MISMATCH only for another KEM's ciphertext of that version."""
    blobs = [_ciphertext(execute, rotated, made_with, TWO, DIGEST[:size]) for size in (0, 16, 64)]
    blob = blobs[-1]
    damaged = blob[:-1] + bytes((blob[-1] ^ 1,))
    *right, other_version, broken = execute(
        [
            Decrypt(tenant=rotated, algorithm=named, version=version, ciphertext=ciphertext)
            for version, ciphertext in (
                *((TWO, each) for each in blobs),
                (ONE, blob),
                (TWO, damaged),
            )
        ]
    )
    assert set(right) == {ErrorKind.ALGORITHM_MISMATCH}
    assert {other_version, broken} == {ErrorKind.DECRYPTION_FAILED}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("made_with", "named"), list(permutations(WRAPPING, 2)))
def test_a_key_wrapped_with_another_kem_is_a_mismatch(
    made_with: Algorithm,
    named: Algorithm,
    size: int,
    execute: Execute,
    tenant: TenantId,
) -> None:
    """Unwrap returns ALGORITHM_MISMATCH for a key of each size wrapped by another KEM."""
    wrapped = _wrapped(execute, tenant, made_with, ONE, DIGEST[:size])
    request = Unwrap(tenant=tenant, algorithm=named, version=ONE, wrapped_key=wrapped)
    assert execute([request]) == [ErrorKind.ALGORITHM_MISMATCH]


@pytest.mark.parametrize("damaged", [Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024])
def test_another_algorithms_damaged_key_changes_no_answer(
    damaged: Algorithm, serve: Serve, tmp_path: Path
) -> None:
    """A damaged key of another KEM does not change the response to a tampered ciphertext."""
    tenant, database = TenantId(uuid4()), tmp_path / "keys.sqlite3"
    request = Decrypt(
        tenant=tenant, algorithm=Algorithm.X_WING, version=ONE, ciphertext=bytes(1200)
    )
    with serve(database) as execute:
        made = execute(
            [GenerateKey(tenant=tenant, algorithm=algorithm, quota=None) for algorithm in KEMS]
        )
        assert not [kind for kind in made if isinstance(kind, ErrorKind)]
        assert execute([request]) == [ErrorKind.DECRYPTION_FAILED]
    with closing(sqlite3.connect(database)) as connection, connection:
        change = "UPDATE keys SET sealed_seed = zeroblob(length(sealed_seed)) WHERE algorithm = ?"
        assert connection.execute(change, (damaged,)).rowcount == 1
    with serve(database) as execute:
        assert execute([request]) == [ErrorKind.DECRYPTION_FAILED]


def _every_operation(tenant: TenantId, algorithm: Algorithm) -> list[AnyRequest]:
    """Return a request for each operation, valid except for its algorithm."""
    named: dict[str, Any] = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
    data = bytes(64)
    return [
        Encrypt(**named, plaintext=data),
        Decrypt(**named, ciphertext=data),
        Encapsulate(**named),
        Decapsulate(**named, kem_ciphertext=data),
        Wrap(**named, symmetric_key=bytearray(data)),
        Unwrap(**named, wrapped_key=data),
        Sign(**named, message=data),
        Verify(**named, message=data, signature=data),
        _sign_hash(tenant, algorithm, HashAlgorithm.SHA_512),
        _verify_hash(tenant, algorithm, HashAlgorithm.SHA_512, data),
    ]


def _sign_hash(tenant: TenantId, algorithm: Algorithm, used: HashAlgorithm) -> SignHash:
    return SignHash(
        tenant=tenant,
        algorithm=algorithm,
        version=ONE,
        hash_algorithm=used,
        digest=DIGEST[: DIGEST_SIZE[used]],
    )


def _verify_hash(
    tenant: TenantId, algorithm: Algorithm, used: HashAlgorithm, signature: bytes
) -> VerifyHash:
    return VerifyHash(
        tenant=tenant,
        algorithm=algorithm,
        version=ONE,
        hash_algorithm=used,
        digest=DIGEST[: DIGEST_SIZE[used]],
        signature=signature,
    )


def test_an_algorithm_of_another_kind_is_unsupported(execute: Execute, tenant: TenantId) -> None:
    """Each operation refuses algorithms that do not support it: UNSUPPORTED."""
    wrong = [
        request
        for algorithm in CURRENT
        for request in _every_operation(tenant, algorithm)
        if request.operation not in ALGORITHMS[algorithm].operations
    ]
    symmetric = 6 + 2 * 10  # of the cipher, and of two kinds of MACs
    assert len(wrong) == 6 * len(SIGNATURES) + 4 * len(KEMS) + 2 + symmetric
    assert set(execute(wrong)) == {ErrorKind.UNSUPPORTED}


@pytest.fixture(scope="module")
def signatures(execute: Execute, tenant: TenantId) -> dict[Algorithm, bytes]:
    """Sign one digest with each algorithm."""
    requests = [_sign_hash(tenant, algorithm, HashAlgorithm.SHA_256) for algorithm in SIGNATURES]
    made = [response for response in execute(requests) if isinstance(response, Signed)]
    return {a: response.signature for a, response in zip(SIGNATURES, made, strict=True)}


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
def test_signatures_are_for_one_endpoint_and_one_hash(
    algorithm: Algorithm, signatures: dict[Algorithm, bytes], execute: Execute, tenant: TenantId
) -> None:
    """Signatures over messages and over digests never replace each other.

    The message is the exact input of sign-hash, and the digest is also signed as a message.
    """
    digest = DIGEST[:32]
    used = HashAlgorithm.SHA_256
    messages = (digest, OID_SHA_256 + digest)
    hashed = signatures[algorithm]
    signed = execute(
        [
            Sign(tenant=tenant, algorithm=algorithm, version=ONE, message=message)
            for message in messages
        ]
    )
    right: list[AnyRequest] = [_verify_hash(tenant, algorithm, used, hashed)]
    wrong: list[AnyRequest] = [
        Verify(
            tenant=tenant,
            algorithm=algorithm,
            version=ONE,
            message=message,
            signature=hashed,
        )
        for message in (*messages, CONTEXT + OID_SHA_256 + digest)
    ]
    for message, response in zip(messages, signed, strict=True):
        assert isinstance(response, Signed)
        signature = response.signature
        right.append(
            Verify(
                tenant=tenant,
                algorithm=algorithm,
                version=ONE,
                message=message,
                signature=signature,
            )
        )
        wrong.append(_verify_hash(tenant, algorithm, used, signature))
    wrong += [
        _verify_hash(tenant, algorithm, other, hashed)
        for other in HashAlgorithm
        if other is not used
    ]
    assert set(execute(right)) == {Verified()}
    assert set(execute(wrong)) == {ErrorKind.VERIFICATION_FAILED}


@pytest.mark.parametrize("algorithm", SIGNATURES)
def test_the_hash_function_is_bound(
    algorithm: Algorithm,
    signatures: dict[Algorithm, bytes],
    execute: Execute,
    tenant: TenantId,
) -> None:
    """A signature under one hash function is invalid under another one, for the same digest.

    The gateway already refuses such a digest by its size. So this test calls the key service.
    """
    responses = execute(
        [
            VerifyHash(
                tenant=tenant,
                algorithm=algorithm,
                version=ONE,
                hash_algorithm=used,
                digest=DIGEST[:32],
                signature=signatures[algorithm],
            )
            for used in HashAlgorithm
        ]
    )
    assert responses == [Verified(), *[ErrorKind.VERIFICATION_FAILED] * 2]


def test_another_algorithms_signature_does_not_hold(
    signatures: dict[Algorithm, bytes], execute: Execute, tenant: TenantId
) -> None:
    """A signature of each algorithm is refused by each other algorithm's key."""
    responses = execute(
        [
            _verify_hash(tenant, named, HashAlgorithm.SHA_256, signatures[signed_with])
            for signed_with, named in permutations(SIGNATURES, 2)
        ]
    )
    assert responses == [ErrorKind.VERIFICATION_FAILED] * 42
