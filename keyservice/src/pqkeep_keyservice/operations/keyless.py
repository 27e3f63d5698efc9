"""hash and generate-random: operations without a key, and therefore without a record."""

import hashlib
import os

from pqkeep_protocol.algorithms import HashFunction
from pqkeep_protocol.messages import (
    AnyKeylessRequest,
    AnyKeylessResult,
    HashData,
    Hashed,
    RandomBytes,
)


def respond(request: AnyKeylessRequest) -> AnyKeylessResult:
    """Return the digest, or the random bytes of the operating system."""
    if isinstance(request, HashData):
        return Hashed(digest=hashlib.new(_name_of(request.function), request.data).digest())
    return RandomBytes(data=os.urandom(request.size))


def _name_of(function: HashFunction) -> str:
    """Return the name of a hash function in ``hashlib``."""
    family, size = function.lower().rsplit("-", 1)
    return f"sha3_{size}" if family == "sha3" else f"sha{size}"
