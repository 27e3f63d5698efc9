"""What the rows of keyrings say about keys: how old versions become, and whether keys can be made."""

import sqlalchemy as sa

from pqkeep_keyservice.keys.key_versions import NO_LIMITS, AgeLimits, KeyName
from pqkeep_keyservice.storage.schema import KEYRINGS
from pqkeep_protocol.keys import DEFAULT_KEYRING, DestructionState, TenantId


def find_age_limits(connection: sa.Connection, name: KeyName) -> AgeLimits:
    """Return the limits of a key's keyring."""
    limits = sa.select(KEYRINGS.c.rotation_days, KEYRINGS.c.archive_after_days)
    is_same = KEYRINGS.c.tenant_id == name.tenant, KEYRINGS.c.name == name.keyring
    row = connection.execute(limits.where(*is_same)).one_or_none()
    return NO_LIMITS if row is None else AgeLimits(*row)


def is_being_destroyed(connection: sa.Connection, tenant: TenantId) -> bool:
    """Return whether the destruction of a tenant's private keys has begun; also once it is completed."""
    query = sa.select(KEYRINGS.c.revision).where(
        KEYRINGS.c.tenant_id == tenant,
        KEYRINGS.c.name == DEFAULT_KEYRING,
        KEYRINGS.c.destruction.in_((DestructionState.BEGUN, DestructionState.COMPLETED)),
    )
    return connection.execute(query).first() is not None
