"""SLH-DSA from the pqcrypto package. Only its SLH-DSA modules are used."""

from collections.abc import Mapping
from types import ModuleType

from cryptography.exceptions import InvalidSignature
from pqcrypto.sign import (
    slh_dsa_sha2_128f,
    slh_dsa_sha2_128s,
    slh_dsa_sha2_192s,
    slh_dsa_sha2_256s,
)

from pqkeep_protocol.algorithms import Algorithm

_MODULES: Mapping[Algorithm, ModuleType] = {
    Algorithm.SLH_DSA_SHA2_128S: slh_dsa_sha2_128s,
    Algorithm.SLH_DSA_SHA2_128F: slh_dsa_sha2_128f,
    Algorithm.SLH_DSA_SHA2_192S: slh_dsa_sha2_192s,
    Algorithm.SLH_DSA_SHA2_256S: slh_dsa_sha2_256s,
}


class Pqcrypto:
    """SLH-DSA by the package pqcrypto."""

    def generate(self, algorithm: Algorithm) -> bytes:
        """Return a new private key (4n bytes)."""
        _, private_key = _MODULES[algorithm].keygen()
        return bytes(private_key)

    def sign(
        self, algorithm: Algorithm, private_key: bytes, message: bytes, context: bytes
    ) -> bytes:
        """Return a hedged signature. Raises ValueError on a private key of a wrong size."""
        return bytes(_MODULES[algorithm].sign(private_key, message, context))

    def verify(
        self,
        algorithm: Algorithm,
        public_key: bytes,
        message: bytes,
        context: bytes,
        signature: bytes,
    ) -> None:
        """Raise InvalidSignature unless the signature is valid. Any size is allowed."""
        try:
            _MODULES[algorithm].verify(public_key, message, signature, context)
        except ValueError:  # a wrong size, or the package's own InvalidSignatureError
            raise InvalidSignature from None
