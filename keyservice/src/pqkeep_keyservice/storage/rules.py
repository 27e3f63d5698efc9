"""Rows of tenants' rules: one for each tenant. A change is a compare-and-swap on the revision."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa

from pqkeep_keyservice.keys.changes import CommitOutcome, RulesChange
from pqkeep_keyservice.keys.key_mac import require_authentic_rules, rules_mac
from pqkeep_keyservice.keys.rules import RuleSet, Unusable
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer
from pqkeep_keyservice.ledger.search import newest_rules_revisions
from pqkeep_keyservice.storage.schema import TENANT_RULES
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.rules import rules_of
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)


def find_rules(connection: sa.Connection, sealer: Sealer, tenant: TenantId) -> RuleSet:
    """Return a tenant's rules, empty if there are none.

    Raises DamagedKeyError if the row does not match its MAC, or is older than the last change in
    the audit log.
    """
    row = connection.execute(sa.select(TENANT_RULES).where(_is(tenant))).one_or_none()
    recorded = newest_rules_revisions(connection, tenant).get(str(tenant), 0)
    return _newest(sealer, tenant, row, recorded)


def find_all_rules(connection: sa.Connection, sealer: Sealer) -> dict[TenantId, RuleSet | Unusable]:
    """Return the rules of all tenants that have any. Log which tenants' rules are damaged."""
    recorded = newest_rules_revisions(connection)
    rows: Mapping[TenantId, sa.Row[Any]] = {
        row.tenant_id: row for row in connection.execute(sa.select(TENANT_RULES))
    }
    found: dict[TenantId, RuleSet | Unusable] = {}
    for tenant in sorted({*rows, *(TenantId(UUID(text)) for text in recorded)}):
        try:
            rules = _newest(sealer, tenant, rows.get(tenant), recorded.get(str(tenant), 0))
        except DamagedKeyError as damage:
            _LOG.error(
                "a tenant's rules are damaged: its new data is refused",
                tenant=str(tenant),
                damage=str(damage),
            )
            found[tenant] = Unusable.DAMAGED
        else:
            if rules.rules:
                found[tenant] = rules
    return found


def stored_revision(connection: sa.Connection, tenant: TenantId) -> int:
    """Return the higher of the stored and the recorded revision of a tenant's rules, damaged or not."""
    stored = connection.execute(sa.select(TENANT_RULES.c.revision).where(_is(tenant))).scalar()
    return max(stored or 0, newest_rules_revisions(connection, tenant).get(str(tenant), 0))


def replace_rules(connection: sa.Connection, sealer: Sealer, change: RulesChange) -> CommitOutcome:
    """Swap in the new rules if the old ones are still current."""
    new = change.new
    stored = connection.execute(sa.select(TENANT_RULES.c.revision).where(_is(new.tenant))).scalar()
    if change.replaces_damaged:
        connection.execute(sa.delete(TENANT_RULES).where(_is(new.tenant)))
    elif (stored or 0) != new.revision - 1:
        return CommitOutcome.STALE
    if stored is None or change.replaces_damaged:
        insert_rules(connection, sealer, new)
        return CommitOutcome.DURABLE
    swap = sa.update(TENANT_RULES).where(_is(new.tenant), TENANT_RULES.c.revision == stored)
    changed = connection.execute(swap.values(_values(sealer, new))).rowcount
    return CommitOutcome.DURABLE if changed else CommitOutcome.STALE


def insert_rules(connection: sa.Connection, sealer: Sealer, rules: RuleSet) -> None:
    """Add a tenant's rules with their revision."""
    row = {"tenant_id": rules.tenant, **_values(sealer, rules)}
    connection.execute(sa.insert(TENANT_RULES), row)


def _values(sealer: Sealer, rules: RuleSet) -> dict[str, object]:
    mac = rules_mac(sealer, rules)
    return {"revision": rules.revision, "rules": rules.text.decode(), "mac": mac}


def _is(tenant: TenantId) -> sa.ColumnElement[bool]:
    return TENANT_RULES.c.tenant_id == tenant


def _newest(sealer: Sealer, tenant: TenantId, row: sa.Row[Any] | None, recorded: int) -> RuleSet:
    rules = RuleSet(tenant) if row is None else _authentic(sealer, tenant, row)
    if rules.revision < recorded:
        raise DamagedKeyError("the rules are older than their last change in the audit log")
    return rules


def _authentic(sealer: Sealer, tenant: TenantId, row: sa.Row[Any]) -> RuleSet:
    try:
        rules = RuleSet(tenant, rules_of(row.rules), row.revision)
        require_authentic_rules(sealer, rules, row.mac)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, msgspec.MsgspecError):
        raise DamagedKeyError("the rules have values that pqkeep never stores") from None
    return rules
