"""What is signed when the caller sends a digest instead of a message.

    signature = Sign(OID(hash function) || digest, context = "pqkeep/v1/sign-hash")

It is an ordinary ("pure") signature for all seven algorithms. The OID binds the hash function, and
the context makes sure that such a signature never verifies as one over a message.
"""

from collections.abc import Mapping

from pqkeep_protocol.algorithms import HashAlgorithm

CONTEXT = b"pqkeep/v1/sign-hash"

OID: Mapping[HashAlgorithm, bytes] = {
    HashAlgorithm.SHA_256: bytes.fromhex("0609608648016503040201"),
    HashAlgorithm.SHA_384: bytes.fromhex("0609608648016503040202"),
    HashAlgorithm.SHA_512: bytes.fromhex("0609608648016503040203"),
}
"""DER of the object identifiers in NIST's hashAlgs arc (FIPS 204, section 5.4.1)."""


def represent(hash_algorithm: HashAlgorithm, digest: bytes) -> bytes:
    """Return what is signed for a digest."""
    return OID[hash_algorithm] + digest
