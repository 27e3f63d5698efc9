"""The import keys that were given out: in memory, each for one private key and ten minutes.

They are nowhere else. After a restart there are none, and whoever held one asks for another.
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
"""One more drops the tenant's oldest."""
CAPACITY = 4_096
"""Of all tenants together; one more drops the oldest of a tenant that has the most, so that no
tenant keeps another from getting one."""


class ImportKeyName(NamedTuple):
    """An import key belongs to who asked for it."""

    tenant: TenantId
    id: UUID


@dataclass(frozen=True, slots=True)
class _Issued:
    key: ImportKey
    target: KeyName
    expires: float


class ImportKeys:
    """Gives out import keys, and takes each back once. Times are the event loop's."""

    def __init__(self) -> None:
        self._issued: OrderedDict[ImportKeyName, _Issued] = OrderedDict()
        """The oldest first, which is the order in which they end."""

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, target: KeyName, now: float) -> tuple[UUID, bytes, bytes]:
        """Return the id of a new import key for one key, its public key, and the info."""
        self._expire(now)
        own = [name for name in self._issued if name.tenant == target.tenant]
        for name in own[: max(0, len(own) + 1 - PER_TENANT)]:
            self._issued.pop(name).key.wipe()
        if len(self._issued) >= CAPACITY:
            (largest, _), *_ = Counter(each.tenant for each in self._issued).most_common(1)
            self._issued.pop(
                next(each for each in self._issued if each.tenant == largest)
            ).key.wipe()
        name, key = ImportKeyName(target.tenant, uuid4()), ImportKey()
        self._issued[name] = _Issued(key, target, now + LIFETIME_SECONDS)
        return name.id, key.public_key, import_info(name.id, target.algorithm, target.keyring)

    def claim(self, import_key_id: UUID, target: KeyName, now: float) -> ImportKey:
        """Return an import key that was given out for this key; never again.

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
