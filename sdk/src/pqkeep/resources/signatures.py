"""Signatures over messages, hashes and files."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pqkeep._call import Call, post
from pqkeep._data import Data
from pqkeep._operation import Operation, file_operation
from pqkeep.algorithms import HashAlgorithm
from pqkeep.compliance import Rules
from pqkeep.errors import HashAlgorithmError
from pqkeep.models import HashSignature, Signature
from pqkeep.resources._binary import encoded

T_co = TypeVar("T_co", covariant=True)

_HASHES: Mapping[str, str] = {
    HashAlgorithm.SHA_256: "sha256",
    HashAlgorithm.SHA_384: "sha384",
    HashAlgorithm.SHA_512: "sha512",
}
"""What hashlib calls them."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Signatures(Generic[T_co]):
    """Operations with keys that sign."""

    _transport: T_co
    _rules: Rules

    @Operation
    def sign(
        self, message: bytes, *, algorithm: str | None = None, key_version: int | None = None
    ) -> Call[Signature]:
        """Sign at most 1,048,576 bytes. A named version must be the active one."""
        return post(
            "/signature/sign",
            _signature,
            {
                "message": encoded(message),
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
            },
        )

    @Operation
    def verify(
        self, message: bytes, signature: bytes, *, key_version: int, algorithm: str | None = None
    ) -> Call[bool]:
        """Return whether the signature is this key's for this message. Mind the answer."""
        return post(
            "/signature/verify",
            _is_valid,
            {
                "message": encoded(message),
                "signature": encoded(signature),
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
            },
        )

    @Operation
    def sign_hash(
        self,
        digest: bytes,
        *,
        hash_algorithm: str,
        algorithm: str | None = None,
        key_version: int | None = None,
    ) -> Call[HashSignature]:
        """Sign a hash: ``SHA-256``, ``SHA-384`` or ``SHA-512``, of 32, 48 or 64 bytes."""
        return _sign_hash(self._rules, digest, hash_algorithm, algorithm, key_version)

    @Operation
    def verify_hash(
        self,
        digest: bytes,
        signature: bytes,
        *,
        hash_algorithm: str,
        key_version: int,
        algorithm: str | None = None,
    ) -> Call[bool]:
        """Return whether the signature is this key's for this hash. Mind the answer."""
        return _verify_hash(self._rules, digest, signature, hash_algorithm, algorithm, key_version)

    @file_operation
    def sign_file(
        self,
        path: str | os.PathLike[str],
        *,
        hash_algorithm: str = HashAlgorithm.SHA_512,
        algorithm: str | None = None,
        key_version: int | None = None,
    ) -> Call[HashSignature]:
        """Hash a file of any size here, and sign the hash. Raises OSError too."""
        digest = _digest(path, self._rules.hash(hash_algorithm))
        return _sign_hash(self._rules, digest, hash_algorithm, algorithm, key_version)

    @file_operation
    def verify_file(
        self,
        path: str | os.PathLike[str],
        signature: bytes,
        *,
        key_version: int,
        hash_algorithm: str = HashAlgorithm.SHA_512,
        algorithm: str | None = None,
    ) -> Call[bool]:
        """Return whether the signature is this key's for this file. Raises OSError too."""
        digest = _digest(path, self._rules.hash(hash_algorithm))
        return _verify_hash(self._rules, digest, signature, hash_algorithm, algorithm, key_version)


def _sign_hash(
    rules: Rules,
    digest: bytes,
    hash_algorithm: str,
    algorithm: str | None,
    key_version: int | None,
) -> Call[HashSignature]:
    return post(
        "/signature/sign-hash",
        _hash_signature,
        {
            "hash": encoded(digest),
            "hash_algorithm": rules.hash(hash_algorithm),
            "key_version": key_version,
            "algorithm": rules.signature(algorithm),
        },
    )


def _verify_hash(
    rules: Rules,
    digest: bytes,
    signature: bytes,
    hash_algorithm: str,
    algorithm: str | None,
    key_version: int,
) -> Call[bool]:
    return post(
        "/signature/verify-hash",
        _is_valid,
        {
            "hash": encoded(digest),
            "hash_algorithm": rules.hash(hash_algorithm),
            "signature": encoded(signature),
            "key_version": key_version,
            "algorithm": rules.signature(algorithm),
        },
    )


def _digest(path: str | os.PathLike[str], hash_algorithm: str) -> bytes:
    if hash_algorithm not in _HASHES:
        raise HashAlgorithmError("files are hashed with " + ", ".join(_HASHES))
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, _HASHES[hash_algorithm]).digest()


def _signature(data: Data) -> Signature:
    return Signature(
        signature=data.binary("signature"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _hash_signature(data: Data) -> HashSignature:
    return HashSignature(
        signature=data.binary("signature"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        hash_algorithm=data.text("hash_algorithm"),
    )


def _is_valid(data: Data) -> bool:
    return data.flag("valid")
