"""Pairwise consistency: that the halves of a new key pair belong together, shown by using them.

It is what FIPS 140-3 implementation guidance 10.3.A asks for after a key pair is generated.
"""

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto.kem import DecapsulationKey, Kem
from pqkeep_keyservice.crypto.signature import SignatureScheme, SigningKey

MESSAGE = b"pqkeep pairwise consistency"
CONTEXT = b"pqkeep/v1/pairwise"


def is_kem_pair(kem: Kem, private: DecapsulationKey, public_key: bytes) -> bool:
    """Return whether a private key decapsulates what is encapsulated to a public key."""
    secret, ciphertext = kem.load_public(public_key).encapsulate()
    return private.decapsulate(ciphertext) == secret


def is_signature_pair(scheme: SignatureScheme, private: SigningKey, public_key: bytes) -> bool:
    """Return whether a signature by a private key verifies under a public key."""
    try:
        signature = private.sign(MESSAGE, CONTEXT)
        scheme.load_public(public_key).verify(signature, MESSAGE, CONTEXT)
    except InvalidSignature:
        return False
    return True
