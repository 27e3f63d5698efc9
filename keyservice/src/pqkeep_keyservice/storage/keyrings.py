"""Rows of keyrings. A change is a compare-and-swap on the keyring's revision."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import CommitOutcome, KeyringChange
from pqkeep_keyservice.keys.key_mac import (
    keyring_mac,
    labels_text,
    purposes_text,
    require_authentic_keyring,
)
from pqkeep_keyservice.keys.key_versions import microseconds
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId, default_keyring
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger.search import newest_keyring_revisions
from pqkeep_keyservice.storage.key_versions import loaded_time, set_due, stored_time
from pqkeep_keyservice.storage.schema import KEYRINGS
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    INSTALLATION,
    Destruction,
    DestructionState,
    TenantId,
)

_IS_OPEN = KEYRINGS.c.destruction.in_((DestructionState.SCHEDULED, DestructionState.BEGUN))
_INFO = msgspec.json.Decoder(dict[str, str])
_OLDER = "the keyring is older than the audit log says"


def find_keyring(connection: sa.Connection, sealer: Sealer, name: KeyringId) -> Keyring | None:
    """Return a keyring, if there is one.

    Raises DamagedKeyError if its row is not the one that was stored, or is the one that was stored
    before the last change that the audit log has.
    """
    row = connection.execute(sa.select(KEYRINGS).where(_is(name))).one_or_none()
    recorded = newest_keyring_revisions(connection, name.tenant, name.keyring)
    found = None if row is None else _authentic(sealer, row)
    if (found.revision if found else 0) < recorded.get(name.keyring, 0):
        raise DamagedKeyError(_OLDER)
    if found is None and name.keyring == DEFAULT_KEYRING:
        return default_keyring(name.tenant)
    return found


def list_keyrings(connection: sa.Connection, sealer: Sealer, tenant: TenantId) -> list[Keyring]:
    """Return all keyrings of a tenant, by name. Raises DamagedKeyError, as ``find_keyring`` does."""
    rows = connection.execute(sa.select(KEYRINGS).where(KEYRINGS.c.tenant_id == tenant))
    found = {keyring.info.name: keyring for keyring in (_authentic(sealer, row) for row in rows)}
    for name, revision in newest_keyring_revisions(connection, tenant).items():
        if name not in found or found[name].revision < revision:
            raise DamagedKeyError(_OLDER)
    found.setdefault(DEFAULT_KEYRING, default_keyring(tenant))
    return [found[name] for name in sorted(found)]


def every_keyring(connection: sa.Connection) -> list[KeyringId]:
    """Return the names of all keyrings that are stored."""
    name = KEYRINGS.c.tenant_id, KEYRINGS.c.name
    return [KeyringId(*row) for row in connection.execute(sa.select(*name).order_by(*name))]


def list_due_destructions(
    connection: sa.Connection, now: datetime, after: TenantId | None, limit: int
) -> list[TenantId]:
    """Return tenants whose private keys are to be destroyed now, in order, behind one of them."""
    is_due = KEYRINGS.c.destruction_at_us <= microseconds(now)
    return _tenants(connection, (is_due, _IS_OPEN), after, limit)


def list_destructions(
    connection: sa.Connection, tenant: TenantId, after: TenantId | None, limit: int | None
) -> list[TenantId]:
    """Return tenants whose private keys are to be destroyed, in order, behind one of them.

    Of one tenant: this tenant, also if they were. INSTALLATION is all tenants.
    """
    if tenant == INSTALLATION:
        return _tenants(
            connection, (KEYRINGS.c.destruction_at_us.is_not(None), _IS_OPEN), after, limit
        )
    is_its = KEYRINGS.c.tenant_id == tenant, KEYRINGS.c.destruction.is_not(None)
    return _tenants(connection, is_its, after, limit)


def every_destruction(connection: sa.Connection) -> list[TenantId]:
    """Return all tenants whose private keys are to be destroyed."""
    return list_destructions(connection, INSTALLATION, None, None)


def _tenants(
    connection: sa.Connection,
    conditions: Iterable[sa.ColumnElement[bool]],
    after: TenantId | None,
    limit: int | None,
) -> list[TenantId]:
    tenant = KEYRINGS.c.tenant_id
    query = sa.select(tenant).where(*conditions, KEYRINGS.c.name == DEFAULT_KEYRING)
    if after is not None:
        query = query.where(tenant > after)
    return list(map(TenantId, connection.execute(query.order_by(tenant).limit(limit)).scalars()))


def replace_keyring(
    connection: sa.Connection, sealer: Sealer, change: KeyringChange
) -> CommitOutcome:
    """Swap the new keyring in if the old one is still the current one."""
    outcome = _replace(connection, sealer, change)
    if outcome is CommitOutcome.DURABLE:
        set_due(connection, change.new.tenant, change.new.info.name)
    return outcome


def insert_keyring(connection: sa.Connection, sealer: Sealer, keyring: Keyring) -> None:
    """Add a keyring with its revision, where there is none."""
    name = {"tenant_id": keyring.tenant, "name": keyring.info.name}
    connection.execute(sa.insert(KEYRINGS), {**name, **_values(sealer, keyring)})


def _values(sealer: Sealer, keyring: Keyring) -> dict[str, object]:
    return {
        "revision": keyring.revision,
        "description": keyring.info.description,
        "labels": labels_text(keyring),
        "purposes": purposes_text(keyring),
        "rotation_days": keyring.info.rotation_days,
        "archive_after_days": keyring.info.archive_after_days,
        "created_at_us": stored_time(keyring.info.created_at),
        "destruction": keyring.destruction and keyring.destruction.state,
        "destruction_at_us": keyring.destruction and stored_time(keyring.destruction.at),
        "mac": keyring_mac(sealer, keyring),
    }


def _replace(connection: sa.Connection, sealer: Sealer, change: KeyringChange) -> CommitOutcome:
    new = change.new
    before = new.revision - 1
    values = _values(sealer, new)
    current = connection.execute(sa.select(KEYRINGS.c.revision).where(_is(new.name))).scalar()
    if (current or 0) != before:
        return CommitOutcome.STALE
    if current is not None:
        swap = sa.update(KEYRINGS).where(_is(new.name), KEYRINGS.c.revision == before)
        swapped = connection.execute(swap.values(values)).rowcount
        return CommitOutcome.DURABLE if swapped else CommitOutcome.STALE
    if change.quota is not None and _count(connection, new.tenant) >= change.quota:
        return CommitOutcome.QUOTA_REACHED
    insert_keyring(connection, sealer, new)
    return CommitOutcome.DURABLE


def _count(connection: sa.Connection, tenant: TenantId) -> int:
    """Return how many keyrings a tenant has, the default one among them."""
    others = sa.and_(KEYRINGS.c.tenant_id == tenant, KEYRINGS.c.name != DEFAULT_KEYRING)
    return 1 + connection.execute(sa.select(sa.func.count()).where(others)).scalar_one()


def _is(name: KeyringId) -> sa.ColumnElement[bool]:
    return sa.and_(KEYRINGS.c.tenant_id == name.tenant, KEYRINGS.c.name == name.keyring)


def _destruction(row: sa.Row[Any]) -> Destruction | None:
    at = loaded_time(row.destruction_at_us)
    if row.destruction is None and at is None:
        return None
    if at is None:
        raise ValueError("a destruction without a time")
    return Destruction(DestructionState(row.destruction), at)


def _authentic(sealer: Sealer, row: sa.Row[Any]) -> Keyring:
    try:
        info = msgspec.convert(
            (
                row.name,
                row.description,
                _INFO.decode(row.labels),
                tuple(row.purposes.split(",")),
                row.rotation_days,
                row.archive_after_days,
                loaded_time(row.created_at_us),
            ),
            KeyringInfo,
        )
        keyring = Keyring(TenantId(row.tenant_id), info, row.revision, _destruction(row))
        require_authentic_keyring(sealer, keyring, row.mac)
    except (TypeError, ValueError, OverflowError, AttributeError, msgspec.MsgspecError):
        raise DamagedKeyError("the keyring has values that were never stored") from None
    return keyring
