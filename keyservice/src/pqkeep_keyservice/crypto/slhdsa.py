"""SLH-DSA (FIPS 205), SHA2 sets, by one of two implementations.

A stored private key is SK.seed || SK.prf || PK.seed || PK.root, four times n bytes; its second
half is the public key. Every call holds the interpreter lock, signing for up to half a second, so
these functions run in worker processes; see ``live/slhdsa_process``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidSignature

from pqkeep_protocol.algorithms import Algorithm


@dataclass(frozen=True, slots=True)
class Sizes:
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


SETS: Mapping[Algorithm, Sizes] = {
    Algorithm.SLH_DSA_SHA2_128S: Sizes(16, 7856),
    Algorithm.SLH_DSA_SHA2_128F: Sizes(16, 17088),
    Algorithm.SLH_DSA_SHA2_192S: Sizes(24, 16224),
    Algorithm.SLH_DSA_SHA2_256S: Sizes(32, 29792),
}
"""FIPS 205, table 2."""


class Implementation(Protocol):
    """A library's SLH-DSA. Keys and signatures are in the standard's encoding."""

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
        """Raise InvalidSignature unless it holds (FIPS 205, algorithm 24)."""
        ...


def sign_checked(
    implementation: Implementation,
    algorithm: Algorithm,
    private_key: bytes,
    message: bytes,
    context: bytes,
) -> bytes:
    """Sign, and verify before the signature is released.

    A hash-based signature made under a fault can give the key away. Raises InvalidSignature.
    """
    signature = implementation.sign(algorithm, private_key, message, context)
    public_key = private_key[SETS[algorithm].public_key :]
    if len(signature) != SETS[algorithm].signature:
        raise InvalidSignature
    implementation.verify(algorithm, public_key, message, context, signature)
    return signature
