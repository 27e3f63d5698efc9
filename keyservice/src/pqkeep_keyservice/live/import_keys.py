"""Issued import keys. Each is in memory only, for one private key and ten minutes.

A restart drops all import keys. Their holders then request new ones.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID, uuid4

from pqkeep_keyservice.crypto.key_wrapping import ImportKey, import_info
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import IMPORT_KEY_SECONDS

LIFETIME_SECONDS = float(IMPORT_KEY_SECONDS)
PER_TENANT = 16
"""Import keys of one tenant. One more drops the tenant's oldest."""
CAPACITY = 4_096
"""Import keys of all tenants. One more drops the oldest import key of the tenant with the most, so
that no tenant blocks the others."""


class ImportKeyName(NamedTuple):
    """The id of an import key, which belongs to its tenant."""

    tenant: TenantId
    id: UUID


@dataclass(frozen=True, slots=True)
class _Issued:
    key: ImportKey
    target: KeyName
    expires: float


class ImportKeys:
    """Issues import keys, and accepts each once. Times are the event loop's."""

    def __init__(self) -> None:
        self._issued: OrderedDict[ImportKeyName, _Issued] = OrderedDict()
        """By age: the oldest first. It also expires first."""

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, target: KeyName, now: float) -> tuple[UUID, bytes, bytes]:
        """Issue an import key for one key. Return its id, its public key and the HPKE info."""
        self._expire(now)
        own = [name for name in self._issued if name.tenant == target.tenant]
        for name in own[: max(0, len(own) + 1 - PER_TENANT)]:
            self._issued.pop(name).key.wipe()
        if len(self._issued) >= CAPACITY:
            (largest, _), *_ = Counter(name.tenant for name in self._issued).most_common(1)
            oldest = next(name for name in self._issued if name.tenant == largest)
            self._issued.pop(oldest).key.wipe()
        name, key = ImportKeyName(target.tenant, uuid4()), ImportKey()
        self._issued[name] = _Issued(key, target, now + LIFETIME_SECONDS)
        return name.id, key.public_key, import_info(name.id, target.algorithm, target.keyring)

    def claim(self, import_key_id: UUID, target: KeyName, now: float) -> ImportKey:
        """Remove and return an import key that was issued for this key.

        Raises IMPORT_KEY_NOT_FOUND.
        """
        self._expire(now)
        issued = self._issued.get(ImportKeyName(target.tenant, import_key_id))
        if issued is None or issued.target != target:
            raise KeyServiceError(ErrorKind.IMPORT_KEY_NOT_FOUND)
        del self._issued[ImportKeyName(target.tenant, import_key_id)]
        return issued.key

    def _expire(self, now: float) -> None:
        while self._issued:
            name, oldest = next(iter(self._issued.items()))
            if oldest.expires > now:
                return
            self._issued.pop(name).key.wipe()
