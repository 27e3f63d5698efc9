"""The Python client of pqkeep, the post-quantum cryptography service.

    from pqkeep import Client

    with Client(base_url, api_key) as client:
        client.keys.generate("Kyber768")
        sealed = client.kem.encrypt(b"a secret")
        opened = client.kem.decrypt(sealed.ciphertext, key_version=sealed.key_version)

It knows the service's HTTP API and nothing else. Bytes go in and come out; algorithms are named
as the API names them. Every failure is a PqkeepError.

Not here yet: retries (an error's ``retry_after`` says when one makes sense) and an asynchronous
client.
"""

from pqkeep.client import Client
from pqkeep.errors import (
    AuthenticationError,
    ConflictError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PqkeepError,
    RateLimitError,
    ServiceUnavailableError,
)
from pqkeep.models import Ciphertext, Encapsulation, Key, Rotation, Signature

__all__ = [
    "AuthenticationError",
    "Ciphertext",
    "Client",
    "ConflictError",
    "Encapsulation",
    "InternalError",
    "InvalidRequestError",
    "Key",
    "NotFoundError",
    "PermissionDeniedError",
    "PqkeepError",
    "RateLimitError",
    "Rotation",
    "ServiceUnavailableError",
    "Signature",
]
