"""Hashes and random bytes of the service. No key takes part."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, post
from pqkeep._data import encoded
from pqkeep._operation import Operation

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tools(Generic[T_co]):
    """Operations without a key."""

    _transport: T_co

    @Operation
    def hash(self, data: bytes, *, hash_algorithm: str | None = None) -> Call[bytes]:
        """Return the digest of at most 1,048,576 bytes.

        ``hash_algorithm`` is ``SHA-256`` (the default), ``SHA-224``, ``SHA-384`` or ``SHA-512``.
        For SHA-3 it is for example ``SHA3-256``.
        """
        return post(
            "/tools/hash",
            lambda response: response.binary("hash"),
            {"data": encoded(data), "hash_algorithm": hash_algorithm},
        )

    @Operation
    def random(self, *, size: int | None = None) -> Call[bytes]:
        """Return random bytes of the key service: 32, or ``size``, at most 131,072."""
        return post("/tools/random", lambda response: response.binary("random"), {"size": size})
