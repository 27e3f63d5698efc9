"""Derived keys: a context of each use derives its key, and is bound to the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keyservice.tests.test_keyrings import CARDS
from keyservice.tests.test_symmetric_keys import Caller, loaded

from pqkeep_keyservice.crypto.dem import bound_context, key_info
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Kind
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import ALL_PURPOSES, DERIVED_PURPOSES, KeyPurpose
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CiphertextFormat,
    ComputeMac,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    GenerateKey,
    GetKeyring,
    KeyService,
    ReEncrypt,
    Sign,
    Target,
    UpdateKeyring,
    Wrap,
)

Sql = Callable[..., list[Any]]
XAES, KEM = Algorithm.XAES_256_GCM, Algorithm.ML_KEM_768
ENCRYPTING = [a for a, spec in ALGORITHMS.items() if spec.kind in {Kind.KEM, Kind.CIPHER}]
ONE = KeyVersion(1)
TEXT = b"a canary in a mine, 32 bytes lon"
OURS, THEIRS = b"customers/42", b"customers/43"
both_databases = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


class Derived(Caller):
    """A caller of one tenant with the keyring CARDS of derived keys."""

    async def prepare(self, *algorithms: Algorithm) -> None:
        """Create the keyring, and a key of each algorithm in it and in the default keyring."""
        await self.ask(
            CreateKeyring(
                tenant=self.tenant, keyring=CARDS, purposes=DERIVED_PURPOSES, derived=True
            )
        )
        for algorithm in algorithms:
            for keyring in (CARDS, "default"):
                await self.ask(GenerateKey(**self.of(algorithm, keyring), quota=None))

    def of(self, algorithm: Algorithm = XAES, keyring: str = CARDS, **more: Any) -> Any:
        """Return the fields of a request."""
        return self.named(algorithm, keyring=keyring, **more)


@pytest.fixture
def caller(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Derived:
    """Return a caller of one tenant."""
    return Derived(keys, tenant, attribution)


@both_databases
@pytest.mark.parametrize("algorithm", ENCRYPTING)
@pytest.mark.parametrize("form", CiphertextFormat)
@pytest.mark.threat("other-tenant")
async def test_a_ciphertext_opens_only_with_its_context(
    algorithm: Algorithm,
    form: CiphertextFormat,
    caller: Derived,
    restarted: Callable[[], KeyService],
    attribution: Attribution,
) -> None:
    """With another context or other associated data, or with both exchanged, nothing opens."""
    await caller.prepare(algorithm)
    bound: Any = {"associated_data": b"iban", "context": OURS, "format": form}
    encrypt = Encrypt(**caller.of(algorithm, version=None, plaintext=TEXT), **bound)
    sealed = (await caller.ask(encrypt)).ciphertext
    later = Derived(restarted(), caller.tenant, attribution)
    decrypt = Decrypt(**caller.of(algorithm, version=ONE, ciphertext=sealed), **bound)
    assert (await later.ask(decrypt)).plaintext == TEXT
    for wrong in (
        {"context": THEIRS},
        {"associated_data": b""},
        {"context": b"iban", "associated_data": OURS},
        {"context": OURS + b"iban", "associated_data": b""},
        {"context": OURS[:-1]},
    ):
        refused = msgspec.structs.replace(decrypt, **wrong)
        assert await later.refusal(refused) is ErrorKind.DECRYPTION_FAILED
    without = msgspec.structs.replace(decrypt, context=b"")
    assert await later.refusal(without) is ErrorKind.CONTEXT_REQUIRED
    stranger = Derived(later.keys, TenantId(uuid4()), attribution)
    await stranger.prepare(algorithm)
    foreign = msgspec.structs.replace(decrypt, tenant=stranger.tenant)
    assert await stranger.refusal(foreign) is ErrorKind.DECRYPTION_FAILED


@both_databases
@pytest.mark.parametrize("algorithm", ENCRYPTING)
async def test_the_keyring_decides_about_the_context(
    algorithm: Algorithm, caller: Derived, attribution: Attribution
) -> None:
    """Derived keys require a context, and other keys refuse one."""
    await caller.prepare(algorithm)
    target: Any = Target(algorithm, CARDS, context=OURS)
    for keyring, context, refusal in (
        (CARDS, b"", ErrorKind.CONTEXT_REQUIRED),
        ("default", OURS, ErrorKind.CONTEXT_REFUSED),
    ):
        of = caller.of(algorithm, keyring, context=context)
        form: Any = {"format": CiphertextFormat.CIPHERTEXT}
        for request in (
            Encrypt(**of, version=None, plaintext=TEXT),
            Decrypt(**of, version=ONE, ciphertext=bytes(2000)),
            GenerateDataKey(**of, version=None, size=32, plaintext=True, **form),
            ReEncrypt(
                **of, version=ONE, ciphertext=bytes(2000), is_wrapped_key=False, target=target
            ),
        ):
            assert await caller.refusal(request) is refusal
    plain = Encrypt(**caller.of(algorithm, "default", version=None, plaintext=TEXT))
    blob = (await caller.ask(plain)).ciphertext
    for keyring, context, refusal in (
        (CARDS, b"", ErrorKind.CONTEXT_REQUIRED),
        ("default", OURS, ErrorKind.CONTEXT_REFUSED),
    ):
        move = ReEncrypt(
            **caller.of(algorithm, "default", version=ONE, ciphertext=blob),
            is_wrapped_key=False,
            target=Target(algorithm, keyring, context=context),
        )
        assert await caller.refusal(move) is refusal


@both_databases
async def test_data_moves_into_and_out_of_derived_keys(caller: Derived) -> None:
    """Re-encryption reads with one context and writes with another, or with none."""
    await caller.prepare(XAES, KEM)
    encrypt = Encrypt(**caller.of(XAES, "default", version=None, plaintext=TEXT))
    blob = (await caller.ask(encrypt)).ciphertext
    source, context = "default", b""
    for algorithm, keyring, next_context in (
        (XAES, CARDS, OURS),
        (XAES, CARDS, THEIRS),
        (XAES, "default", b""),
    ):
        move = ReEncrypt(
            **caller.of(algorithm, source, version=ONE, ciphertext=blob, context=context),
            is_wrapped_key=False,
            target=Target(algorithm, keyring, context=next_context),
        )
        blob = (await caller.ask(move)).ciphertext
        source, context = keyring, next_context
        decrypt = Decrypt(**caller.of(XAES, source, version=ONE, ciphertext=blob, context=context))
        assert (await caller.ask(decrypt)).plaintext == TEXT


@both_databases
async def test_a_data_key_opens_with_its_context(caller: Derived) -> None:
    """A data key of derived keys is a ciphertext, which its context opens."""
    await caller.prepare(XAES)
    made = await caller.ask(
        GenerateDataKey(
            **caller.of(version=None, context=OURS),
            size=32,
            plaintext=True,
            format=CiphertextFormat.CIPHERTEXT,
        )
    )
    decrypt = Decrypt(**caller.of(version=ONE, ciphertext=made.encrypted, context=OURS))
    assert (await caller.ask(decrypt)).plaintext == made.plaintext
    wraps = GenerateDataKey(**caller.of(version=None), size=32, plaintext=True)
    assert await caller.refusal(wraps) is ErrorKind.PURPOSE_DENIED
    with pytest.raises(ValueError, match="no context"):
        GenerateDataKey(**caller.of(version=None, context=OURS), size=32, plaintext=True)


@both_databases
@pytest.mark.threat("keys-database-writer")
async def test_derived_keys_do_nothing_else(
    caller: Derived, sql: Sql, restarted: Any, attribution: Attribution
) -> None:
    """A derived key always has the same two purposes, and a changed row is refused."""
    await caller.prepare(XAES, KEM)
    of = caller.of
    for request in (
        Wrap(**of(version=ONE), symmetric_key=bytearray(32)),
        Encapsulate(**of(KEM, version=ONE)),
        Decapsulate(**of(KEM, version=ONE, kem_ciphertext=bytes(1088))),
        Sign(**of(Algorithm.ML_DSA_65, version=None, message=TEXT)),
        ComputeMac(**of(Algorithm.HMAC_SHA_256, version=None, message=TEXT)),
    ):
        assert await caller.refusal(request) is ErrorKind.PURPOSE_DENIED
    for algorithm in (Algorithm.ML_DSA_65, Algorithm.HMAC_SHA_256):
        new = GenerateKey(**of(algorithm), quota=None)
        assert await caller.refusal(new) is ErrorKind.NO_PURPOSE
    named: Any = {"tenant": caller.tenant, "keyring": CARDS}
    for purposes in (ALL_PURPOSES, (KeyPurpose.ENCRYPT, KeyPurpose.SIGN)):
        change = UpdateKeyring(**named, purposes=purposes)
        assert await caller.refusal(change) is ErrorKind.PURPOSE_DENIED
        with pytest.raises(ValueError, match="derived"):
            CreateKeyring(**named, purposes=purposes, derived=True)
    await caller.ask(UpdateKeyring(**named, purposes=(KeyPurpose.DECRYPT,)))
    assert (await caller.ask(GetKeyring(**named))).keyring.derived
    sql("UPDATE keyrings SET derived = FALSE")
    later = Derived(restarted(), caller.tenant, attribution)
    assert await later.refusal(GetKeyring(**named)) is ErrorKind.UNAVAILABLE


async def test_a_supplied_key_of_derived_keys_is_refused(caller: Derived) -> None:
    """A derived key's public key is refused: data encrypted without a context could not be read."""
    await caller.prepare(KEM)
    key = (await caller.ask(GenerateKey(**caller.of(Algorithm.X_WING), quota=None))).key
    request = Encrypt(
        **caller.of(Algorithm.X_WING, "default", version=None, plaintext=TEXT),
        public_key=key.public_key,
    )
    assert await caller.refusal(request) is ErrorKind.CONTEXT_REQUIRED
    with pytest.raises(ValueError, match="no context"):
        msgspec.structs.replace(request, context=OURS)


def test_keys_of_contexts_are_not_kept() -> None:
    """A derived key of a context is not in memory after its use."""
    key = loaded(XAES)
    for context in (b"one", b"two"):
        sealed = key.encrypt(TEXT, info=context, associated_data=b"", is_kept=False)
        assert key.decrypt(sealed, info=context, associated_data=b"", is_kept=False) == TEXT
    assert not key._ciphers


names = st.sampled_from(["default", "cards", "pqkeep/v1"])


@settings(max_examples=300, deadline=None)
@given(
    first=st.tuples(st.binary(max_size=20), names),
    second=st.tuples(st.binary(max_size=20), names),
)
def test_the_derivation_is_unambiguous(first: tuple[bytes, str], second: tuple[bytes, str]) -> None:
    """Different contexts or keyrings have different derivations; so has no context."""
    tenant = TenantId(uuid4())

    def info(context: bytes, keyring: str) -> bytes:
        return key_info(b"encrypt", tenant, XAES, ONE, keyring, context)

    assert (info(*first) == info(*second)) is (first == second)


@settings(max_examples=300, deadline=None)
@given(
    first=st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=8)),
    second=st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=8)),
)
def test_the_associated_data_is_unambiguous(
    first: tuple[bytes, bytes], second: tuple[bytes, bytes]
) -> None:
    """Two pairs of a context and associated data are bound alike only if they are equal."""
    assert (bound_context(*first) == bound_context(*second)) is (first == second)
    assert bound_context(b"", first[1]) == first[1]
