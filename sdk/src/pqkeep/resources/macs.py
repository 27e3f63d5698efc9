"""Message authentication codes, by keys that stay in the service."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, post
from pqkeep._data import Data, encoded
from pqkeep._many import Many
from pqkeep._operation import Operation
from pqkeep.compliance import Rules
from pqkeep.models import Mac

T_co = TypeVar("T_co", covariant=True)


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
