"""A keyring as a value: what a tenant says about it, and what its keys may be used for."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from msgspec import structs

from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyPurpose, KeyringInfo
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, TenantId
from pqkeep_protocol.messages import UpdateKeyring


class KeyringId(NamedTuple):
    """Which keyring of which tenant."""

    tenant: TenantId
    keyring: KeyringName


@dataclass(frozen=True, slots=True)
class Keyring:
    """A keyring's settings."""

    tenant: TenantId
    info: KeyringInfo
    revision: int = 1
    """Counts the changes. 0: the default keyring, as every tenant has it, which is not stored."""

    @property
    def name(self) -> KeyringId:
        """Which keyring it is."""
        return KeyringId(self.tenant, self.info.name)

    def require(self, purpose: KeyPurpose | None) -> None:
        """Raise PURPOSE_DENIED if its keys are not for this; None is no use of a key."""
        if purpose is not None and purpose not in self.info.purposes:
            raise KeyServiceError(ErrorKind.PURPOSE_DENIED)

    def with_changes(self, request: UpdateKeyring) -> "Keyring":
        """Return the next revision, in which what is not None is changed."""
        asked = structs.asdict(request)
        changes = {
            name: asked[name]
            for name in KeyringInfo.__struct_fields__
            if asked.get(name) is not None
        }
        return replace(self, info=structs.replace(self.info, **changes), revision=self.revision + 1)

    def with_new_mac(self) -> "Keyring":
        """Return the next revision, in which nothing is changed."""
        return replace(self, revision=self.revision + 1)


def default_keyring(tenant: TenantId) -> Keyring:
    """Return the keyring that every tenant has, as it is until somebody changes it."""
    return Keyring(tenant, KeyringInfo(DEFAULT_KEYRING), revision=0)
