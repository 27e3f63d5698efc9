"""JSON Web Signatures (RFC 7515) in compact form, with ML-DSA (RFC 9964).

    signing input = BASE64URL(header) || "." || BASE64URL(payload)
    JWS           = signing input || "." || BASE64URL(Sign(signing input, context = ""))

The header names the algorithm and the key, by its thumbprint; nothing of it is the caller's.
"""

import msgspec

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.public_keys import JWK_ALGORITHM, base64url, thumbprint

_ENCODER = msgspec.json.Encoder(order="sorted")


def protected_header(algorithm: Algorithm, public_key: bytes) -> str:
    """Return the header of what a key signs, in base64url."""
    alg = JWK_ALGORITHM[algorithm]
    return base64url(_ENCODER.encode({"alg": alg, "kid": thumbprint(alg, public_key)}))


def signing_input(header: str, payload: bytes) -> bytes:
    """Return what is signed (RFC 7515, section 5.1)."""
    return f"{header}.{base64url(payload)}".encode("ascii")


def compact(header: str, payload: bytes | None, signature: bytes) -> str:
    """Return the compact form; without the payload where it is None (RFC 7515, appendix F)."""
    return f"{header}.{base64url(payload or b'')}.{base64url(signature)}"
