"""The rules of all tenants in memory, read when the key service becomes active.

Before that, and after a change with an unknown outcome, an operation first reads its tenant's
rules. So an operation never runs under outdated rules.
"""

from collections.abc import Callable

from pqkeep_keyservice.keys.rules import RuleSet, Unusable
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.storage.rules import stored_revision
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.rules import Rule


class RuleCache:
    """The current rules. During an epoch, only this process changes them."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._writer = store.writer
        # By integer: the hash and comparison of a UUID are Python functions.
        self._known: dict[int, RuleSet | Unusable] = {}
        self.known: Callable[[int], RuleSet | Unusable | None] = self._unread
        """Returns a tenant's rules; None if it has none."""
        self._changes = 0
        self._writer.on_change(self._forget)

    async def load(self) -> None:
        """Read the rules of all tenants. Raises DatabaseUnavailableError."""
        changes = None
        while changes != self._changes:  # a rule may have changed since the read
            changes, epoch = self._changes, self._writer.epoch
            found = await self._store.find_all_rules()
        if epoch == self._writer.epoch:
            self._known = {tenant.int: rules for tenant, rules in found.items()}
            self.known = self._known.get

    async def get(self, tenant: TenantId) -> RuleSet:
        """Return a tenant's rules, empty if it has none.

        Raises DamagedKeyError and DatabaseUnavailableError.
        """
        known = self.known(tenant.int)
        if isinstance(known, RuleSet):
            return known
        if known is None:
            return await self._store.find_rules(tenant)
        changes = self._changes
        try:
            rules = await self._store.find_rules(tenant)
        except DamagedKeyError:
            if changes == self._changes:
                self._known[tenant.int] = Unusable.DAMAGED
            raise
        if changes == self._changes:
            self._known[tenant.int] = rules
        return rules

    async def list(self, tenant: TenantId) -> tuple[Rule, ...]:
        """Return a tenant's rules. Raises the errors of ``get``."""
        return () if self.known(tenant.int) is None else (await self.get(tenant)).rules

    async def get_or_discard(self, tenant: TenantId) -> tuple[RuleSet, bool]:
        """Return a tenant's rules, and whether they are damaged.

        Damaged rules are returned as empty, with their last revision.
        """
        try:
            return await self.get(tenant), False
        except DamagedKeyError:
            revision = await self._store.database.read(stored_revision, tenant)
            return RuleSet(tenant, (), revision), True

    def update(self, rules: RuleSet, epoch: int) -> None:
        """Take changed rules."""
        self._changes += 1
        if epoch == self._writer.epoch:
            self._known[rules.tenant.int] = rules

    def invalidate(self, tenant: TenantId) -> None:
        """Have a tenant's rules read before their next use."""
        self._changes += 1
        self._known[tenant.int] = Unusable.NOT_LOADED

    def _unread(self, tenant: int) -> RuleSet | Unusable:
        return self._known.get(tenant, Unusable.NOT_LOADED)

    def _forget(self) -> None:
        self._changes += 1
        self._known = {}
        self.known = self._unread
