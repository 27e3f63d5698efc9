"""Signatures over messages, hashes and files, and MACs."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pqkeep._call import Call, post
from pqkeep._data import Data, encoded, encoded_key_or_none, encoded_or_none
from pqkeep._many import Many
from pqkeep._operation import Operation, file_operation
from pqkeep.algorithms import HashAlgorithm
from pqkeep.compliance import Rules
from pqkeep.errors import HashAlgorithmError
from pqkeep.models import HashSignature, Jws, Mac, Signature

T_co = TypeVar("T_co", covariant=True)

_HASHES: Mapping[str, str] = {
    HashAlgorithm.SHA_256: "sha256",
    HashAlgorithm.SHA_384: "sha384",
    HashAlgorithm.SHA_512: "sha512",
}
"""The names of the hash functions in hashlib."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Signatures(Generic[T_co]):
    """Operations with signature keys."""

    _transport: T_co
    _rules: Rules

    @Operation
    def sign(
        self,
        message: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
        context: bytes | None = None,
    ) -> Call[Signature]:
        """Sign at most 1,048,576 bytes. A named version must be the active one.

        Verification needs the same ``context`` (at most 255 bytes; FIPS 204 and 205).
        """
        return post(
            "/signature/sign",
            _signature,
            {
                "message": encoded(message),
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
                "keyring": keyring,
                "context": encoded_or_none(context),
            },
        )

    @Operation
    def verify(
        self,
        message: bytes,
        signature: bytes,
        *,
        key_version: int | None = None,
        algorithm: str | None = None,
        keyring: str | None = None,
        context: bytes | None = None,
        public_key: bytes | str | None = None,
    ) -> Call[bool]:
        """Return True if the signature is valid for this key and message. Check the result.

        The key is one of your versions, or any ``public_key`` (bytes, or PEM text).
        """
        return post(
            "/signature/verify",
            _is_valid,
            {
                "message": encoded(message),
                "signature": encoded(signature),
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
                "keyring": keyring,
                "context": encoded_or_none(context),
                "public_key": encoded_key_or_none(public_key),
            },
        )

    @Operation
    def sign_hash(
        self,
        digest: bytes,
        *,
        hash_algorithm: str,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
    ) -> Call[HashSignature]:
        """Sign a hash of 32, 48 or 64 bytes: ``SHA-256``, ``SHA-384`` or ``SHA-512``."""
        return _sign_hash(self._rules, keyring, digest, hash_algorithm, algorithm, key_version)

    @Operation
    def verify_hash(
        self,
        digest: bytes,
        signature: bytes,
        *,
        hash_algorithm: str,
        key_version: int | None = None,
        algorithm: str | None = None,
        keyring: str | None = None,
        public_key: bytes | str | None = None,
    ) -> Call[bool]:
        """Return True if the signature is valid for this key and hash. Check the result.

        The key is one of your versions, or any ``public_key`` (bytes, or PEM text).
        """
        return _verify_hash(
            self._rules,
            keyring,
            digest,
            signature,
            hash_algorithm,
            algorithm,
            key_version,
            public_key,
        )

    @Operation
    def sign_jws(
        self,
        payload: bytes,
        *,
        detached: bool = False,
        typ: str | None = None,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
    ) -> Call[Jws]:
        """Sign at most 1,048,576 bytes as a JWS, with ``Dilithium3`` or ``ML-DSA-87``.

        A detached payload is not part of the JWS. The keys of ``keys.jwks()`` verify it. ``typ`` is
        the header's media type, such as ``JWT``: with one for each kind of statement, a reader can
        refuse the other kinds.
        """
        return post(
            "/signature/jws",
            _jws,
            {
                "payload": encoded(payload),
                "detached": detached or None,
                "typ": typ,
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
                "keyring": keyring,
            },
        )

    @Operation
    def sign_mu(
        self,
        mu: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
    ) -> Call[Signature]:
        """Sign a message by its mu (64 bytes; FIPS 204, algorithm 7). Only ML-DSA supports this."""
        return post(
            "/signature/sign-mu",
            _signature,
            {
                "mu": encoded(mu),
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
                "keyring": keyring,
            },
        )

    @Operation
    def verify_mu(
        self,
        mu: bytes,
        signature: bytes,
        *,
        key_version: int | None = None,
        algorithm: str | None = None,
        keyring: str | None = None,
        public_key: bytes | str | None = None,
    ) -> Call[bool]:
        """Return True if the signature is valid for this key and mu. Check the result.

        The key is one of your versions, or any ``public_key`` (bytes, or PEM text).
        """
        return post(
            "/signature/verify-mu",
            _is_valid,
            {
                "mu": encoded(mu),
                "signature": encoded(signature),
                "key_version": key_version,
                "algorithm": self._rules.signature(algorithm),
                "keyring": keyring,
                "public_key": encoded_key_or_none(public_key),
            },
        )

    @file_operation
    def sign_file(
        self,
        path: str | os.PathLike[str],
        *,
        hash_algorithm: str = HashAlgorithm.SHA_512,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
    ) -> Call[HashSignature]:
        """Hash a file of any size on this machine, and sign the hash. Raises OSError too."""
        digest = _digest(path, self._rules.hash(hash_algorithm))
        return _sign_hash(self._rules, keyring, digest, hash_algorithm, algorithm, key_version)

    @file_operation
    def verify_file(
        self,
        path: str | os.PathLike[str],
        signature: bytes,
        *,
        key_version: int,
        hash_algorithm: str = HashAlgorithm.SHA_512,
        algorithm: str | None = None,
        keyring: str | None = None,
    ) -> Call[bool]:
        """Return True if the signature is valid for this key and file. Raises OSError too."""
        digest = _digest(path, self._rules.hash(hash_algorithm))
        return _verify_hash(
            self._rules, keyring, digest, signature, hash_algorithm, algorithm, key_version
        )

    sign_many = Many(sign)
    verify_many = Many(verify)
    sign_hash_many = Many(sign_hash)
    verify_hash_many = Many(verify_hash)
    sign_mu_many = Many(sign_mu)
    verify_mu_many = Many(verify_mu)


def _sign_hash(
    rules: Rules,
    keyring: str | None,
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
            "keyring": keyring,
        },
    )


def _verify_hash(
    rules: Rules,
    keyring: str | None,
    digest: bytes,
    signature: bytes,
    hash_algorithm: str,
    algorithm: str | None,
    key_version: int | None,
    public_key: bytes | str | None = None,
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
            "keyring": keyring,
            "public_key": encoded_key_or_none(public_key),
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


def _jws(data: Data) -> Jws:
    return Jws(
        jws=data.text("jws"),
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Macs(Generic[T_co]):
    """Operations with MAC keys."""

    _transport: T_co
    _rules: Rules

    @Operation
    def compute(
        self,
        message: bytes,
        *,
        algorithm: str | None = None,
        keyring: str | None = None,
        key_version: int | None = None,
    ) -> Call[Mac]:
        """Compute the MAC of at most 1,048,576 bytes. A named version must be the active one."""
        return post(
            "/mac/compute",
            _mac,
            {
                "message": encoded(message),
                "key_version": key_version,
                "algorithm": self._rules.mac(algorithm),
                "keyring": keyring,
            },
        )

    @Operation
    def verify(
        self,
        message: bytes,
        mac: bytes,
        *,
        key_version: int,
        algorithm: str | None = None,
        keyring: str | None = None,
    ) -> Call[bool]:
        """Return True if the MAC is valid for this key and message. Check the result."""
        return post(
            "/mac/verify",
            lambda data: data.flag("valid"),
            {
                "message": encoded(message),
                "mac": encoded(mac),
                "key_version": key_version,
                "algorithm": self._rules.mac(algorithm),
                "keyring": keyring,
            },
        )

    compute_many = Many(compute)
    verify_many = Many(verify)


def _mac(data: Data) -> Mac:
    return Mac(
        mac=data.binary("mac"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )
