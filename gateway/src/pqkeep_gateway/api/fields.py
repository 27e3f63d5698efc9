"""Reading fields out of a body or a query, each failure with the code its operation gives it."""

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TypeVar

import pybase64
from msgspec import Struct

from pqkeep_gateway.http.errors import MALFORMED, TOO_LARGE, ApiError, Code
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    BOX_OVERHEAD,
    DIGEST_SIZE,
    SYMMETRIC_KEY_SIZES,
    Algorithm,
    HashAlgorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyStatus, KeyVersion
from pqkeep_protocol.messages import RedactedRepr

MAX_PLAINTEXT = MAX_MESSAGE = 1_048_576
MAX_SIGNATURE = 65_536
MAX_CIPHERTEXT = MAX_PLAINTEXT + 4096
"""Bytes of a blob to decrypt: the largest plaintext and more than any algorithm adds to it."""
MAX_KEM_CIPHERTEXT = 4096
MAX_WRAPPED_KEY = 8192

SHORTEST_WRAPPED_KEY = (
    min(spec.output_size for spec in ALGORITHMS.values() if Operation.WRAP in spec.operations)
    + BOX_OVERHEAD
    + min(SYMMETRIC_KEY_SIZES)
)

KEMS = tuple(a for a, spec in ALGORITHMS.items() if spec.kind is Kind.KEM)

E = TypeVar("E", bound=StrEnum)

MODES = ("standard", "deterministic")


class Fields(RedactedRepr, Struct, frozen=True):
    """The fields of one request for one operation."""

    operation: Operation
    values: Mapping[str, object]

    def binary(self, name: str, *, at_most: int) -> bytes:
        """Return a required field's bytes, from standard base64 with padding."""
        data = _from_base64(self.values.get(name))
        if data is None:
            raise self.malformed(name, "must be base64")
        if len(data) > at_most:
            raise ApiError(TOO_LARGE[self.operation], f"{name} exceeds {at_most} bytes", name)
        return data

    def kem_ciphertext(self, algorithm: Algorithm) -> bytes:
        """Return ``kem_ciphertext``, which has one size for each algorithm."""
        data = self.binary("kem_ciphertext", at_most=MAX_KEM_CIPHERTEXT)
        if len(data) == ALGORITHMS[algorithm].output_size:
            return data
        if any(len(data) == ALGORITHMS[other].output_size for other in KEMS):
            raise ApiError(Code.INVALID_001, "kem_ciphertext is another algorithm's", "algorithm")
        raise self.malformed("kem_ciphertext", "does not have the algorithm's size")

    def symmetric_key(self) -> bytearray:
        """Return ``symmetric_key``; whoever gets it wipes it."""
        value = self.values.get("symmetric_key")
        if isinstance(value, str):
            with suppress(ValueError):
                data = pybase64.b64decode_as_bytearray(value, validate=True)
                if len(data) in SYMMETRIC_KEY_SIZES:
                    return data
        sizes = ", ".join(str(size) for size in sorted(SYMMETRIC_KEY_SIZES))
        raise self.malformed("symmetric_key", f"must be base64 of {sizes} bytes")

    def wrapped_key(self) -> bytes:
        """Return ``wrapped_key``, at least as long as the shortest of any algorithm."""
        data = self.binary("wrapped_key", at_most=MAX_WRAPPED_KEY)
        if len(data) < SHORTEST_WRAPPED_KEY:
            raise self.malformed("wrapped_key", "is too short")
        return data

    def digest(self) -> tuple[HashAlgorithm, bytes]:
        """Return ``hash_algorithm`` and ``hash``, which has its size."""
        algorithm = member(HashAlgorithm, self.values.get("hash_algorithm"))
        if algorithm is None:
            message = "hash_algorithm must be one of " + ", ".join(DIGEST_SIZE)
            raise ApiError(Code.SIG_010, message, "hash_algorithm")
        data = _from_base64(self.values.get("hash"))
        if data is None:
            raise self.malformed("hash", "must be base64")
        if len(data) != DIGEST_SIZE[algorithm]:
            message = f"hash must be {DIGEST_SIZE[algorithm]} bytes for {algorithm}"
            raise ApiError(Code.SIG_011, message, "hash")
        return algorithm, data

    def version(self) -> KeyVersion:
        """Return the required ``key_version``."""
        version = self.optional_version()
        if version is None:
            raise self.malformed("key_version", "is required")
        return version

    def optional_version(self) -> KeyVersion | None:
        """Return ``key_version``, if it is there."""
        value = self.values.get("key_version")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.malformed("key_version", "must be a positive integer")
        return _existing(value)

    def version_in_path(self) -> KeyVersion:
        """Return ``key_version`` from the path, where it is text."""
        value = str(self.values.get("key_version"))
        if not (value.isascii() and value.isdigit()) or int(value[:20]) < 1:
            raise self.malformed("key_version", "must be a positive integer")
        return _existing(int(value[:20]))

    def algorithm(self, default: Algorithm | None) -> Algorithm:
        """Return ``algorithm``; it is required where there is no default."""
        value = self.values.get("algorithm")
        algorithm = default if value is None else member(Algorithm, value)
        if algorithm is not None and self.operation in ALGORITHMS[algorithm].operations:
            return algorithm
        usable = [a for a, spec in ALGORITHMS.items() if self.operation in spec.operations]
        message = "algorithm must be one of " + ", ".join(usable)
        raise ApiError(Code.INVALID_001, message, "algorithm")

    def optional_algorithm(self) -> Algorithm | None:
        """Return ``algorithm``, if it is there."""
        return None if self.values.get("algorithm") is None else self.algorithm(None)

    def optional_status(self) -> KeyStatus | None:
        """Return ``status``, if it is there."""
        value = self.values.get("status")
        if value is None:
            return None
        status = member(KeyStatus, value)
        if status is None:
            raise self.malformed("status", "must be active, retired or archived")
        return status

    def check_mode_and_salt(self) -> None:
        """Check two fields that are accepted and change nothing."""
        mode, salt = self.values.get("mode"), self.values.get("salt")
        if mode is not None and mode not in MODES:
            raise ApiError(Code.KEM_007, "mode must be standard or deterministic", "mode")
        if mode == "deterministic" and salt is None:
            raise ApiError(Code.INVALID_001, "salt is required in deterministic mode", "salt")
        if salt is not None and _from_base64(salt) is None:
            raise ApiError(Code.INVALID_002, "salt must be base64", "salt")

    def malformed(self, name: str, problem: str) -> ApiError:
        """Return what to say of a bad field."""
        return ApiError(MALFORMED[self.operation], f"{name} {problem}", name)


def member(kind: type[E], value: object) -> E | None:
    """Return the member of an enumeration that a client names, whatever it sent."""
    return next((each for each in kind if each.value == value), None)


def _from_base64(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return pybase64.b64decode(value, validate=True)
    except ValueError:
        return None


def _existing(version: int) -> KeyVersion:
    if version > MAX_KEY_VERSION:
        raise ApiError(Code.NOT_FOUND_001, "no such key", "key_version")
    return KeyVersion(version)
