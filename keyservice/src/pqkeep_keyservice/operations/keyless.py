"""Requests in which no stored key takes part, so there is no record."""

import hashlib
import os
from functools import cache
from importlib.metadata import version

from cryptography.hazmat.backends.openssl import backend

from pqkeep_keyservice.crypto import given_keys
from pqkeep_protocol.algorithms import HashFunction
from pqkeep_protocol.messages import (
    AnyKeylessRequest,
    AnyKeylessResult,
    HashData,
    Hashed,
    Libraries,
    Library,
    ListLibraries,
    RandomBytes,
    SignatureVerified,
    VerifySignature,
)


def respond(request: AnyKeylessRequest) -> AnyKeylessResult:
    """Return the result of a request. Raises KeyServiceError.

    Random bytes are of the operating system.
    """
    if isinstance(request, HashData):
        return Hashed(digest=hashlib.new(_name_of(request.function), request.data).digest())
    if isinstance(request, ListLibraries):
        return _libraries()
    if isinstance(request, VerifySignature):
        given_keys.verify(request.algorithm, request.public_key, request.signature, request.message)
        return SignatureVerified()
    return RandomBytes(data=os.urandom(request.size))


@cache
def _libraries() -> Libraries:
    """Return the packages with cryptography, and the OpenSSL that ``cryptography`` contains."""
    openssl = backend.openssl_version_text().split()[1]
    return Libraries(
        libraries=(
            Library("cryptography", version("cryptography")),
            Library("openssl", openssl),
            Library("pqcrypto", version("pqcrypto")),
        )
    )


def _name_of(function: HashFunction) -> str:
    """Return the name of a hash function in ``hashlib``."""
    family, size = function.lower().rsplit("-", 1)
    return f"sha3_{size}" if family == "sha3" else f"sha{size}"
