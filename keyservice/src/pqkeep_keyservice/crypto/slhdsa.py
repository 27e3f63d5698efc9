"""SLH-DSA (FIPS 205), SHA2 parameter sets, from one of two implementations.

A stored private key is SK.seed || SK.prf || PK.seed || PK.root, four times n bytes; its second half
is the public key. The pqcrypto package holds the interpreter lock while it signs, for up to half a
second. OpenSSL releases it. Both run in worker processes: OpenSSL too, because the workers limit
its processor time and let tenants take turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """One parameter set: n, and the signature's size, in bytes."""

    n: int
    signature: int

    @property
    def public_key(self) -> int:
        """Bytes in a verifying key."""
        return 2 * self.n

    @property
    def private_key(self) -> int:
        """Bytes in a stored private key."""
        return 4 * self.n


PARAMETER_SETS: Mapping[Algorithm, ParameterSet] = {
    Algorithm.SLH_DSA_SHA2_128S: ParameterSet(16, 7856),
    Algorithm.SLH_DSA_SHA2_128F: ParameterSet(16, 17088),
    Algorithm.SLH_DSA_SHA2_192S: ParameterSet(24, 16224),
    Algorithm.SLH_DSA_SHA2_256S: ParameterSet(32, 29792),
}
"""FIPS 205, table 2."""


class Implementation(Protocol):
    """A library's SLH-DSA. Keys and signatures use the standard's encoding."""

    def generate(self, algorithm: Algorithm) -> bytes:
        """Return a new private key (4n bytes)."""
        ...

    def sign(
        self, algorithm: Algorithm, private_key: bytes, message: bytes, context: bytes
    ) -> bytes:
        """Return a hedged signature (FIPS 205, algorithm 22)."""
        ...

    def verify(
        self,
        algorithm: Algorithm,
        public_key: bytes,
        message: bytes,
        context: bytes,
        signature: bytes,
    ) -> None:
        """Raise InvalidSignature unless the signature is valid (FIPS 205, algorithm 24)."""
        ...


def sign_checked(
    implementation: Implementation,
    algorithm: Algorithm,
    private_key: bytes,
    message: bytes,
    context: bytes,
) -> bytes:
    """Return a signature that has been verified. Raises InvalidSignature.

    A hash-based signature computed under a fault can reveal the key, so it must not be released.
    """
    signature = implementation.sign(algorithm, private_key, message, context)
    public_key = private_key[PARAMETER_SETS[algorithm].public_key :]
    if len(signature) != PARAMETER_SETS[algorithm].signature:
        raise InvalidSignature
    implementation.verify(algorithm, public_key, message, context, signature)
    return signature


@dataclass(frozen=True, slots=True, repr=False)
class VerifyingKey:
    """A public key (2n bytes)."""

    _implementation: Implementation
    _algorithm: Algorithm
    _data: bytes

    def verify(self, signature: bytes, message: bytes, context: bytes = b"") -> None:
        """Raise InvalidSignature unless the signature is valid. Any size is allowed."""
        self._implementation.verify(self._algorithm, self._data, message, context, signature)


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """A private key (4n bytes)."""

    _implementation: Implementation
    _algorithm: Algorithm
    _data: bytes

    def sign(self, message: bytes, context: bytes = b"") -> bytes:
        """Return a verified signature. Raises InvalidSignature."""
        return sign_checked(self._implementation, self._algorithm, self._data, message, context)

    def seed(self) -> Secret:
        """Return the private key (4n bytes). SLH-DSA has no shorter form."""
        return Secret(self._data)

    def public_bytes(self) -> bytes:
        """Return the verifying key (2n bytes)."""
        return self._data[PARAMETER_SETS[self._algorithm].public_key :]


@dataclass(frozen=True, slots=True)
class SlhDsa:
    """One parameter set of one implementation."""

    _implementation: Implementation
    _algorithm: Algorithm

    holds_interpreter_lock = True

    def generate(self) -> SigningKey:
        private_key = self._implementation.generate(self._algorithm)
        return SigningKey(self._implementation, self._algorithm, private_key)

    def load_public(self, data: bytes) -> VerifyingKey:
        """Load a verifying key (2n bytes). Raises ValueError on another size."""
        if len(data) != PARAMETER_SETS[self._algorithm].public_key:
            raise ValueError("not an SLH-DSA verifying key")
        return VerifyingKey(self._implementation, self._algorithm, data)

    def load_seed(self, seed: Secret) -> SigningKey:
        """Load a stored private key (4n bytes). Raises ValueError on another size."""
        if len(seed) != PARAMETER_SETS[self._algorithm].private_key:
            raise ValueError("not an SLH-DSA private key")
        return SigningKey(self._implementation, self._algorithm, bytes(seed.reveal()))
