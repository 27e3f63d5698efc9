"""How old the versions of a keyring's keys become, as the keyring's row says."""

import sqlalchemy as sa

from pqkeep_keyservice.keys.key_versions import NO_LIMITS, AgeLimits, KeyName
from pqkeep_keyservice.storage.schema import KEYRINGS


def find_age_limits(connection: sa.Connection, name: KeyName) -> AgeLimits:
    """Return the limits of a key's keyring."""
    limits = sa.select(KEYRINGS.c.rotation_days, KEYRINGS.c.archive_after_days)
    is_same = KEYRINGS.c.tenant_id == name.tenant, KEYRINGS.c.name == name.keyring
    row = connection.execute(limits.where(*is_same)).one_or_none()
    return NO_LIMITS if row is None else AgeLimits(*row)
