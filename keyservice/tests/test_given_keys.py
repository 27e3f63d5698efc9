"""Signatures under public keys that a caller supplies: each algorithm, and refused keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import uuid4

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, mldsa, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pqkeep_keyservice.crypto.given_keys import verify
from pqkeep_keyservice.operations import keyless
from pqkeep_protocol.algorithms import MAX_GIVEN_KEY, MAX_GIVEN_SIGNATURE, GivenKeyAlgorithm
from pqkeep_protocol.codec import TO_KEY_SERVICE, Call, encode
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, SignatureVerified, VerifySignature

MESSAGE = b"authenticator data and a digest"
SHA_256 = hashes.SHA256()
P_256 = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
ED25519 = ed25519.Ed25519PrivateKey.generate()
ML_DSA_44 = mldsa.MLDSA44PrivateKey.generate()
ML_DSA_65 = mldsa.MLDSA65PrivateKey.generate()
ML_DSA_87 = mldsa.MLDSA87PrivateKey.generate()


def _spki(key: object) -> bytes:
    data: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return data


def _raw(signature: bytes) -> bytes:
    r, s = decode_dss_signature(signature)
    return r.to_bytes(32) + s.to_bytes(32)


def _pss(salt: int) -> bytes:
    return RSA.sign(MESSAGE, PSS(MGF1(SHA_256), salt), SHA_256)


Signer = tuple[object, Callable[[], bytes]]
SIGNERS: Mapping[GivenKeyAlgorithm, Signer] = {
    GivenKeyAlgorithm.ES256: (P_256, lambda: P_256.sign(MESSAGE, ec.ECDSA(SHA_256))),
    GivenKeyAlgorithm.RS256: (RSA, lambda: RSA.sign(MESSAGE, PKCS1v15(), SHA_256)),
    GivenKeyAlgorithm.PS256: (RSA, lambda: _pss(32)),
    GivenKeyAlgorithm.EDDSA: (ED25519, lambda: ED25519.sign(MESSAGE)),
    GivenKeyAlgorithm.ML_DSA_44: (ML_DSA_44, lambda: ML_DSA_44.sign(MESSAGE)),
    GivenKeyAlgorithm.ML_DSA_65: (ML_DSA_65, lambda: ML_DSA_65.sign(MESSAGE)),
    GivenKeyAlgorithm.ML_DSA_87: (ML_DSA_87, lambda: ML_DSA_87.sign(MESSAGE)),
}


def _public(algorithm: GivenKeyAlgorithm) -> bytes:
    return _spki(SIGNERS[algorithm][0].public_key())  # type: ignore[attr-defined]


def _refusal(
    algorithm: GivenKeyAlgorithm, key: bytes, signature: bytes, message: bytes = MESSAGE
) -> ErrorKind:
    with pytest.raises(KeyServiceError) as refused:
        verify(algorithm, key, signature, message)
    return refused.value.kind


@pytest.mark.parametrize("algorithm", GivenKeyAlgorithm)
def test_a_signature_is_valid_for_its_message_only(algorithm: GivenKeyAlgorithm) -> None:
    """A signature is accepted; a changed, cut or empty one, or another message, is refused."""
    key, signature = _public(algorithm), SIGNERS[algorithm][1]()
    verify(algorithm, key, signature, MESSAGE)
    changed = bytearray(signature)
    changed[-1] ^= 1
    for wrong in (bytes(changed), signature[:-1], signature + b"\0", b""):
        assert _refusal(algorithm, key, wrong) is ErrorKind.VERIFICATION_FAILED
    other = _refusal(algorithm, key, signature, MESSAGE + b".")
    assert other is ErrorKind.VERIFICATION_FAILED


@pytest.mark.parametrize("algorithm", GivenKeyAlgorithm)
def test_a_key_is_of_the_named_algorithm(algorithm: GivenKeyAlgorithm) -> None:
    """A key of another algorithm, or with bytes cut or added, is no key of the named one."""
    signature = SIGNERS[algorithm][1]()
    key = _public(algorithm)
    keys = {_public(other) for other in GivenKeyAlgorithm} - {key}
    for wrong in (*keys, key[:-1], key + b"\0", b"", b"\x30\x00"):
        assert _refusal(algorithm, wrong, signature) is ErrorKind.INVALID_PUBLIC_KEY


def test_ecdsa_takes_both_forms() -> None:
    """A passkey's signature is in DER, and a token's is r || s."""
    signature = P_256.sign(MESSAGE, ec.ECDSA(SHA_256))
    verify(GivenKeyAlgorithm.ES256, _spki(P_256.public_key()), _raw(signature), MESSAGE)
    zero = _refusal(GivenKeyAlgorithm.ES256, _spki(P_256.public_key()), bytes(64))
    assert zero is ErrorKind.VERIFICATION_FAILED


def test_pss_has_a_salt_of_32_bytes() -> None:
    """PS256 fixes the size of the salt: another one is refused."""
    key = _spki(RSA.public_key())
    assert _refusal(GivenKeyAlgorithm.PS256, key, _pss(20)) is ErrorKind.VERIFICATION_FAILED


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        (GivenKeyAlgorithm.ES256, ec.generate_private_key(ec.SECP384R1()).public_key()),
        (GivenKeyAlgorithm.EDDSA, ed448.Ed448PrivateKey.generate().public_key()),
        (GivenKeyAlgorithm.RS256, rsa.generate_private_key(65537, 1024).public_key()),  # noqa: S505
        (GivenKeyAlgorithm.RS256, rsa.RSAPublicNumbers((1 << 65) + 1, 2**2047 + 1).public_key()),
    ],
    ids=["P-384", "Ed448", "RSA-1024", "RSA with a large exponent"],
)
def test_weak_and_slow_keys_are_refused(algorithm: GivenKeyAlgorithm, key: object) -> None:
    """A curve that the algorithm does not name, a short RSA key and a large exponent are refused."""
    assert _refusal(algorithm, _spki(key), bytes(64)) is ErrorKind.INVALID_PUBLIC_KEY


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("y", [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18])
def test_keys_of_small_order_are_refused(y: int, sign: int) -> None:
    """A key of Ed25519 under which one signature fits any message is refused."""
    raw = bytearray(y.to_bytes(32, "little"))
    raw[31] |= sign
    header = bytes.fromhex("302a300506032b6570032100")
    assert (
        _refusal(GivenKeyAlgorithm.EDDSA, header + raw, b"\x01" + bytes(63))
        is ErrorKind.INVALID_PUBLIC_KEY
    )


def test_the_frame_is_answered_without_a_stored_key() -> None:
    """The frame gives the result, and carries the two refusals."""
    request = VerifySignature(
        tenant=TenantId(uuid4()),
        algorithm=GivenKeyAlgorithm.EDDSA,
        public_key=_spki(ED25519.public_key()),
        message=MESSAGE,
        signature=ED25519.sign(MESSAGE),
    )
    assert isinstance(keyless.respond(request), SignatureVerified)
    with pytest.raises(KeyServiceError):
        keyless.respond(msgspec.structs.replace(request, message=b""))


@pytest.mark.parametrize(
    ("field", "size"), [("public_key", MAX_GIVEN_KEY), ("signature", MAX_GIVEN_SIGNATURE)]
)
def test_sizes_are_bounded_before_the_library(field: str, size: int) -> None:
    """A frame with a larger key or signature is no frame; so is one with an unknown algorithm."""
    request = VerifySignature(
        tenant=TenantId(uuid4()),
        algorithm=GivenKeyAlgorithm.EDDSA,
        public_key=b"",
        message=b"",
        signature=b"",
    )
    for name, value in ((field, bytes(size + 1)), ("algorithm", "ES384"), ("algorithm", "none")):
        changed = msgspec.structs.replace(request, **{name: value})
        frame = encode(Call(1, 1000, Attribution("", "", ""), changed))
        with pytest.raises(msgspec.ValidationError):
            TO_KEY_SERVICE.decode(frame[4:])
