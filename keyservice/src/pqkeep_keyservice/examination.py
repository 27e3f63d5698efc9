"""Examines a whole keys database: unseals every private key, and hashes every record."""

from dataclasses import dataclass

import sqlalchemy as sa
from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.audit.checkpoint_signer import CONTEXT, signed_text
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.rules import Unusable
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger.checkpoints import all_checkpoints
from pqkeep_keyservice.ledger.merkle import Frontier, leaf_hash
from pqkeep_keyservice.ledger.search import record_texts
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.worker_processes import WorkerSettings, schemes_of
from pqkeep_keyservice.storage.key_versions import find_generation, find_key_versions, list_keys
from pqkeep_keyservice.storage.keyrings import every_keyring, find_keyring
from pqkeep_keyservice.storage.rules import find_all_rules
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.startup.settings import ConfigError


@dataclass(frozen=True, slots=True)
class Examined:
    """The numbers of verified items."""

    keys: int
    records: int
    checkpoints: int


def examine(connection: sa.Connection, sealer: Sealer) -> Examined:
    """Unseal every private key, hash every record, and verify every checkpoint.

    Raises ConfigError, which names the first damaged item.
    """
    material = KeyMaterial(sealer, schemes_of(WorkerSettings("pqcrypto", None)))
    keys = _examine_keys(connection, sealer, material)
    frontier, count = Frontier(), 0
    for checkpoint in all_checkpoints(connection):
        texts = record_texts(connection, frontier.size, checkpoint.size)
        frontier, _ = frontier.with_leaves(map(leaf_hash, texts))
        is_same = (frontier.size, frontier.root()) == (checkpoint.size, checkpoint.root)
        if not is_same or not _is_signed(connection, sealer, material, checkpoint):
            raise ConfigError(
                f"the audit log is damaged: its first {checkpoint.size} records are not the signed "
                "ones; see docs/audit.md"
            )
        count += 1
    return Examined(keys, frontier.size, count)


def _examine_keys(connection: sa.Connection, sealer: Sealer, material: KeyMaterial) -> int:
    generation, count = find_generation(connection), 0
    for name in list_keys(connection):
        try:
            versions = find_key_versions(connection, sealer, name, generation)
            for entry in versions.entries:
                material.authenticate(name.tenant, entry)
        except DamagedKeyError:
            raise ConfigError(
                f"a key of tenant {name.tenant} for {name.algorithm} is damaged"
            ) from None
        count += len(versions.entries)
    for keyring in every_keyring(connection):
        try:
            find_keyring(connection, sealer, keyring)
        except DamagedKeyError:
            raise ConfigError(f"a keyring of tenant {keyring.tenant} is damaged") from None
    for tenant, rules in find_all_rules(connection, sealer).items():
        if isinstance(rules, Unusable):
            raise ConfigError(f"the rules of tenant {tenant} are damaged")
    return count


def _is_signed(
    connection: sa.Connection, sealer: Sealer, material: KeyMaterial, checkpoint: Checkpoint
) -> bool:
    versions = find_key_versions(connection, sealer, KeyName(INSTALLATION, checkpoint.algorithm), 0)
    text = signed_text(checkpoint.log_id, checkpoint.size, checkpoint.root, checkpoint.at_us)
    try:
        key = material.verifying_key(INSTALLATION, versions.entry(checkpoint.key_version))
        key.verify(checkpoint.signature, text, CONTEXT)
    except (DamagedKeyError, InvalidSignature, KeyServiceError):
        return False
    return True
