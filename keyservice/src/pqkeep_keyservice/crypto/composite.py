"""id-MLDSA65-ECDSA-P256-SHA512 (draft-ietf-lamps-pq-composite-sigs): both signatures must be valid.

M' = prefix || label || len(context) || context || SHA-512(message)
signature = ML-DSA-65.Sign(M', context = label) || DER(ECDSA-P256-SHA256(M'))
public key = ML-DSA-65 public key (1952) || 0x04 || X (32) || Y (32)
seed = ML-DSA-65 seed (32) || ECPrivateKey (RFC 5915) without the public key (51)
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha512

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pqkeep_keyservice.crypto.secret import Secret

PREFIX = b"CompositeAlgorithmSignatures2025"
LABEL = b"COMPSIG-MLDSA65-ECDSA-P256-SHA512"
MAX_CONTEXT = 255
SEED_SIZE = 83
_M_SEED = 32
_M_PUBLIC_KEY = 1952
_M_SIGNATURE = 3309
_SCALAR = 32
_DER_HEAD = bytes.fromhex("30310201010420")
_DER_TAIL = bytes.fromhex("a00a06082a8648ce3d030107")
_ECDSA = ec.ECDSA(SHA256())


@dataclass(frozen=True, slots=True, repr=False)
class VerifyingKey:
    """A public key (2017 bytes)."""

    _m: MLDSA65PublicKey
    _ec: ec.EllipticCurvePublicKey

    def verify(self, signature: bytes, message: bytes, context: bytes = b"") -> None:
        """Raise InvalidSignature unless both signatures are valid. Both are always checked."""
        represented = _represent(message, context)
        holds = [
            _holds(self._m.verify, signature[:_M_SIGNATURE], represented, LABEL),
            _holds(self._ec.verify, signature[_M_SIGNATURE:], represented, _ECDSA),
        ]
        if not all(holds):
            raise InvalidSignature


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """An expanded private key."""

    _m: MLDSA65PrivateKey
    _ec: ec.EllipticCurvePrivateKey

    def sign(self, message: bytes, context: bytes = b"") -> bytes:
        """Return a signature (at most 3381 bytes). Raises ValueError on a long context."""
        represented = _represent(message, context)
        return self._m.sign(represented, LABEL) + self._ec.sign(represented, _ECDSA)

    def seed(self) -> Secret:
        """Return the seed (83 bytes)."""
        scalar = self._ec.private_numbers().private_value.to_bytes(_SCALAR, "big")
        return Secret(self._m.private_bytes_raw() + _DER_HEAD + scalar + _DER_TAIL)

    def public_bytes(self) -> bytes:
        """Return the verifying key (2017 bytes)."""
        point = self._ec.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return self._m.public_key().public_bytes_raw() + point


class CompositeMlDsa:
    """The one parameter set."""

    holds_interpreter_lock = False

    def generate(self) -> SigningKey:
        """Generate a key pair. Its two halves have no other use."""
        return SigningKey(MLDSA65PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()))

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a verifying key. Raises ValueError if it is invalid."""
        return VerifyingKey(
            MLDSA65PublicKey.from_public_bytes(data[:_M_PUBLIC_KEY]),
            ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data[_M_PUBLIC_KEY:]),
        )

    def load_seed(self, seed: Secret) -> SigningKey:
        """Expand a seed. Raises ValueError if it is invalid."""
        raw = seed.reveal()
        head, tail = _M_SEED + len(_DER_HEAD), SEED_SIZE - len(_DER_TAIL)
        if len(raw) != SEED_SIZE or raw[_M_SEED:head] != _DER_HEAD or raw[tail:] != _DER_TAIL:
            raise ValueError("not a composite private key")
        scalar = int.from_bytes(raw[head:tail], "big")
        return SigningKey(
            MLDSA65PrivateKey.from_seed_bytes(raw[:_M_SEED]),
            ec.derive_private_key(scalar, ec.SECP256R1()),
        )


COMPOSITE_ML_DSA = CompositeMlDsa()
"""Verifying key 2017 bytes, signature at most 3381."""


def _represent(message: bytes, context: bytes) -> bytes:
    if len(context) > MAX_CONTEXT:
        raise ValueError("the context is longer than 255 bytes")
    return PREFIX + LABEL + bytes((len(context),)) + context + sha512(message).digest()


def _holds(verify: Callable[..., None], *arguments: object) -> bool:
    try:
        verify(*arguments)
    except InvalidSignature:
        return False
    return True
