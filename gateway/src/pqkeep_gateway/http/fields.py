"""Reading fields out of a body or a query, each failure with the code its operation gives it."""

from collections.abc import Mapping
from dataclasses import dataclass

import pybase64

from pqkeep_gateway.http.errors import MALFORMED, TOO_LARGE, ApiError, Code
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.keys import MAX_KEY_VERSION, KeyStatus, KeyVersion

MAX_PLAINTEXT = MAX_MESSAGE = 1_048_576
MAX_SIGNATURE = 65_536
MAX_CIPHERTEXT = MAX_PLAINTEXT + 4096
"""Bytes of a blob to decrypt: the largest plaintext and more than any algorithm adds to it."""
MAX_KEM_CIPHERTEXT = 4096

_MODES = ("standard", "deterministic")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one request for one operation."""

    operation: Operation
    values: Mapping[str, object]

    def binary(self, name: str, *, at_most: int) -> bytes:
        """Return a required field's bytes, from standard base64 with padding."""
        data = _from_base64(self.values.get(name))
        if data is None:
            raise self._malformed(name, "must be base64")
        if len(data) > at_most:
            raise ApiError(TOO_LARGE[self.operation], f"{name} exceeds {at_most} bytes", name)
        return data

    def version(self) -> KeyVersion:
        """Return the required ``key_version``."""
        version = self.optional_version()
        if version is None:
            raise self._malformed("key_version", "is required")
        return version

    def optional_version(self) -> KeyVersion | None:
        """Return ``key_version``, if it is there."""
        value = self.values.get("key_version")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._malformed("key_version", "must be a positive integer")
        return _existing(value)

    def version_in_path(self) -> KeyVersion:
        """Return ``key_version`` from the path, where it is text."""
        value = str(self.values.get("key_version"))
        if not (value.isascii() and value.isdigit()) or int(value[:20]) < 1:
            raise self._malformed("key_version", "must be a positive integer")
        return _existing(int(value[:20]))

    def algorithm(self, default: Algorithm | None) -> Algorithm:
        """Return ``algorithm``; it is required where there is no default."""
        value = self.values.get("algorithm", default)
        for algorithm, spec in ALGORITHMS.items():
            if value == algorithm.value:
                if self.operation in spec.operations:
                    return algorithm
                break
        usable = [a for a, spec in ALGORITHMS.items() if self.operation in spec.operations]
        message = "algorithm must be one of " + ", ".join(usable)
        raise ApiError(Code.INVALID_001, message, "algorithm")

    def optional_algorithm(self) -> Algorithm | None:
        """Return ``algorithm``, if it is there."""
        return self.algorithm(None) if "algorithm" in self.values else None

    def optional_status(self) -> KeyStatus | None:
        """Return ``status``, if it is there."""
        value = self.values.get("status")
        if value is None:
            return None
        for status in KeyStatus:
            if value == status.value:
                return status
        raise self._malformed("status", "must be active, retired or archived")

    def check_mode_and_salt(self) -> None:
        """Check two fields that are accepted and change nothing."""
        mode, salt = self.values.get("mode", "standard"), self.values.get("salt")
        if mode not in _MODES:
            raise ApiError(Code.KEM_007, "mode must be standard or deterministic", "mode")
        if mode == "deterministic" and salt is None:
            raise ApiError(Code.INVALID_001, "salt is required in deterministic mode", "salt")
        if salt is not None and _from_base64(salt) is None:
            raise ApiError(Code.INVALID_002, "salt must be base64", "salt")

    def _malformed(self, name: str, problem: str) -> ApiError:
        return ApiError(MALFORMED[self.operation], f"{name} {problem}", name)


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
