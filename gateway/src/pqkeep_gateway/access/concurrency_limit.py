"""Limits for concurrent work of one kind in a gateway: per tenant, and in total."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.keys import TenantId


class ConcurrencyLimit:
    """Counts running work."""

    def __init__(self, of_a_tenant: int, in_all: int) -> None:
        self._of_a_tenant = of_a_tenant
        self._in_all = in_all
        self._running: Counter[TenantId] = Counter()

    def __len__(self) -> int:
        return self._running.total()

    @contextmanager
    def run(self, tenant: TenantId) -> Iterator[None]:
        """Count one more while a block runs. Raises OverloadedError."""
        if self._running[tenant] >= self._of_a_tenant or len(self) >= self._in_all:
            raise OverloadedError
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            self._running += Counter()  # drops tenants at zero
