"""A tenant's keys on their way between shards: out of this one's seal into a bundle's, and back.

Each private key is in memory in the open for as long as it takes to seal it again.
"""

from collections.abc import Iterable

from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.keys.tenant_bundle import BundleSeal, MovedKey, MovedVersion
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.keys import KeyVersion


def leaving_keys(
    material: KeyMaterial, seal: BundleSeal, keys: Iterable[KeyVersions]
) -> tuple[MovedKey, ...]:
    """Return keys as a bundle has them. Raises DamagedKeyError."""

    def version(entry: KeyEntry) -> MovedVersion:
        seed = None
        if entry.sealed is not None:
            seed = seal.seal_seed(material.unseal(seal.move.tenant, entry), entry.info)
        return MovedVersion(
            entry.info, seed, entry.idempotency, entry.disabled_from, entry.retired_at
        )

    return tuple(
        MovedKey(each.keyring, each.algorithm, each.revision, tuple(map(version, each.entries)))
        for each in keys
    )


def arriving_keys(
    material: KeyMaterial, seal: BundleSeal, keys: Iterable[MovedKey], generation: int
) -> tuple[KeyVersions, ...]:
    """Return a bundle's keys as a database of this generation has them. Raises InvalidBundleError."""
    tenant = seal.move.tenant

    def entry(name: KeyName, moved: MovedVersion) -> KeyEntry:
        sealed = None
        if moved.seed is not None:
            seed = seal.open_seed(moved.seed, moved.info)
            sealed = material.seal(
                seed, name, KeyVersion(moved.info.version), moved.info.public_key
            )
        return KeyEntry(
            moved.info, sealed, moved.idempotency, moved.disabled_from, moved.retired_at
        )

    def key(moved: MovedKey) -> KeyVersions:
        name = KeyName(tenant, moved.algorithm, moved.keyring)
        entries = tuple(entry(name, each) for each in moved.versions)
        return KeyVersions(
            tenant, moved.algorithm, entries, moved.revision, generation, moved.keyring
        )

    return tuple(map(key, keys))
