"""The lifecycle of keys. Private keys never leave the service."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, change, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.compliance import Rules
from pqkeep.models import Key, KeyUsage, Rotation

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keys(Generic[T_co]):
    """Versions of a tenant's keys, by algorithm."""

    _transport: T_co
    _rules: Rules

    @Operation
    def generate(self, algorithm: str) -> Call[Key]:
        """Make an algorithm's key active. Raises InvalidRequestError if one is already."""
        return change("/kms/keys/generate", _key, {"algorithm": self._rules.key(algorithm)})

    @Operation
    def rotate(self, algorithm: str) -> Call[Rotation]:
        """Retire the active key and make a new one, in one step."""
        return change("/kms/keys/rotate", _rotation, {"algorithm": self._rules.key(algorithm)})

    @Operation
    def retire(self, algorithm: str, *, key_version: int) -> Call[Key]:
        """Allow no new encryption or signature with a key; what it made stays readable."""
        return change(
            "/kms/keys/retire",
            _key,
            {"algorithm": self._rules.key(algorithm), "key_version": key_version},
        )

    @Operation
    def active(self, algorithm: str) -> Call[Key]:
        """Return the active key."""
        return get("/kms/keys/active", _key, {"algorithm": self._rules.key(algorithm)})

    @Operation
    def get(self, algorithm: str, *, key_version: int) -> Call[Key]:
        """Return one version, whatever its status."""
        return get(f"/kms/keys/{key_version:d}", _key, {"algorithm": self._rules.key(algorithm)})

    @Operation
    def usage(self, algorithm: str, *, key_version: int) -> Call[KeyUsage]:
        """Return how often a version was used, and when last: look before you retire it."""
        return get(
            f"/kms/keys/{key_version:d}/usage", _usage, {"algorithm": self._rules.key(algorithm)}
        )

    @Operation
    def list(
        self, *, algorithm: str | None = None, status: str | None = None
    ) -> Call[tuple[Key, ...]]:
        """Return all keys, or those of an algorithm, of a status, or of both."""
        named = None if algorithm is None else self._rules.key(algorithm)
        return get("/kms/keys", _keys, {"algorithm": named, "status": status})


def _keys(data: Data) -> tuple[Key, ...]:
    return tuple(map(_key, data.objects("keys")))


def _key(data: Data) -> Key:
    return Key(
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        status=data.text("status"),
        public_key=data.binary("public_key"),
        created_at=data.time("created_at"),
    )


def _rotation(data: Data) -> Rotation:
    return Rotation(
        public_key=data.binary("public_key"),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        old_key_version=data.integer("old_key_version"),
    )


def _usage(data: Data) -> KeyUsage:
    return KeyUsage(
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        uses=data.integer("uses"),
        last_used_at=data.time_or_none("last_used_at"),
    )
