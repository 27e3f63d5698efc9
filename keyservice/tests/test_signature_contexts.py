"""A signature is valid only with its context, and never replaces one of sign-hash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import SLOW_ALGORITHMS, fast_algorithms_first

from pqkeep_keyservice.audit import checkpoint_signer
from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.operations.signing import HASH_CONTEXT, represent_digest
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    MAX_CONTEXT,
    RESERVED_CONTEXT,
    Algorithm,
    HashAlgorithm,
    Kind,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    GenerateKey,
    KeyService,
    Sign,
    SignHash,
    Verify,
    VerifyHash,
)

SIGNATURES = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.SIGNATURE]
ONE = KeyVersion(1)
MESSAGE = b"pay Bob 10 EUR"
CONTEXTS = (b"", b"invoices", b"invoices\0", bytes(MAX_CONTEXT))

Holds = Callable[[AnyRequest], Awaitable[bool]]


@pytest.fixture
def holds(keys: KeyService, attribution: Attribution) -> Holds:
    """Return a function that tells whether a signature verifies."""

    async def verify(request: Any) -> bool:
        try:
            await keys.execute(request, attribution)
        except KeyServiceError as refusal:
            assert refusal.kind is ErrorKind.VERIFICATION_FAILED  # noqa: PT017 - or it is raised
            return False
        return True

    return verify


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
async def test_a_signature_holds_with_its_own_context_only(
    algorithm: Algorithm,
    keys: KeyService,
    holds: Holds,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """A signature is invalid without its context, with a longer context, and for a digest."""
    named: Any = {"tenant": tenant, "algorithm": algorithm}
    await keys.execute(GenerateKey(**named, quota=None), attribution)
    contexts = CONTEXTS[:2] if algorithm in SLOW_ALGORITHMS else CONTEXTS
    for context in contexts:
        sign = Sign(**named, version=ONE, message=MESSAGE, context=context)
        signature = (await keys.execute(sign, attribution)).signature
        for other in CONTEXTS:
            verify = Verify(
                **named, version=ONE, message=MESSAGE, signature=signature, context=other
            )
            assert await holds(verify) is (other == context)


@pytest.mark.parametrize("algorithm", [Algorithm.ML_DSA_65, Algorithm.COMPOSITE_ML_DSA])
async def test_no_context_makes_a_signature_over_a_digest(
    algorithm: Algorithm,
    keys: KeyService,
    holds: Holds,
    tenant: TenantId,
    attribution: Attribution,
) -> None:
    """The input of sign-hash, signed as a message with any context, is invalid for verify-hash."""
    named: Any = {"tenant": tenant, "algorithm": algorithm}
    await keys.execute(GenerateKey(**named, quota=None), attribution)
    digest = sha256(MESSAGE).digest()
    hashed: Any = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": digest}
    represented = represent_digest(HashAlgorithm.SHA_256, digest)
    for context in (b"", b"pqkeep", HASH_CONTEXT[1:], b" " + HASH_CONTEXT):
        sign = Sign(**named, version=ONE, message=represented, context=context)
        signature = (await keys.execute(sign, attribution)).signature
        assert not await holds(VerifyHash(**named, version=ONE, **hashed, signature=signature))
    over_hash = await keys.execute(SignHash(**named, version=ONE, **hashed), attribution)
    verify = Verify(
        **named, version=ONE, message=represented, signature=over_hash.signature, context=b"pqkeep"
    )
    assert not await holds(verify)


@given(behind=st.binary(max_size=MAX_CONTEXT - len(RESERVED_CONTEXT)))
def test_a_reserved_context_cannot_even_be_asked_for(behind: bytes) -> None:
    """A frame with a reserved context is invalid, for signing and verifying."""
    context = RESERVED_CONTEXT + behind
    for kind, more in ((Sign, []), (Verify, [b""])):
        tag: Any = kind.__struct_config__.tag
        tenant = TenantId(msgspec.convert("00000000-0000-0000-0000-000000000001", TenantId))
        plain = msgspec.to_builtins(
            kind(
                tenant=tenant,
                algorithm=Algorithm.ML_DSA_65,
                version=ONE,
                message=b"",
                **cast("dict[str, Any]", {"signature": b""} if more else {}),
            )
        )
        assert plain[0] == tag
        encoded = msgspec.msgpack.encode([*plain[:-1], context])
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(encoded, type=kind)


@pytest.mark.parametrize(
    "context",
    [HASH_CONTEXT, selftest.PAIR_CONTEXT, selftest.CONTEXT, checkpoint_signer.CONTEXT],
)
def test_every_context_of_ours_is_reserved(context: bytes) -> None:
    """Every context that pqkeep itself signs with is reserved, so no caller can use it."""
    assert context.startswith(RESERVED_CONTEXT)
