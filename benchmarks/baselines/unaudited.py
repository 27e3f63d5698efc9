"""The same installation without a durable audit log: the difference is the log's cost.

The product has no switch for the log. This runs the product's own processes. Its audit log reports
each record as durable at once, except records of changed keys.

Run as ``python -m benchmarks.baselines.unaudited dev …``, in place of ``pqkeepd dev …``. Its key
service is ``python -m benchmarks.baselines.unaudited SETTINGS``.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pqkeep_keyservice import process, wiring
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import Change, CommitOutcome
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_server import cli
from pqkeep_server.commands import dev
from pqkeep_server.dev import Dev
from pqkeep_server.initialise import Stores
from pqkeep_server.supervise import Supervisor

MODULE = "benchmarks.baselines.unaudited"


class UnauditedLog(AuditLog):
    """Discards every record without a change of keys."""

    async def commit(
        self, record: NewRecord, change: Change | None = None, epoch: int | None = None
    ) -> CommitOutcome:
        """Commit a change with its record. Report every other record as durable."""
        if change is None:
            return CommitOutcome.DURABLE
        return await super().commit(record, change, epoch)


class UnauditedDev(Dev):
    """Starts this module as the key service."""

    def __init__(
        self,
        directory: Path,
        port: int,
        stores: Stores,
        gateways: int = 1,
        shards: int = 1,
        further: Sequence[str] = (),
    ) -> None:
        """Prepare everything as the product does."""
        super().__init__(directory, port, stores, gateways, shards, further)
        self.supervisor = Supervisor(
            tuple(
                replace(program, module=MODULE)
                if program.module == "pqkeep_keyservice"
                else program
                for program in self.supervisor._programs  # noqa: SLF001 - all but one as they are
            )
        )


def main() -> int:
    """Run pqkeepd dev, or the key service that it starts."""
    if sys.argv[1] == "dev":
        dev.Dev = UnauditedDev  # type: ignore[attr-defined]
        cli.app()
        return 0
    wiring.AuditLog = UnauditedLog  # type: ignore[attr-defined]
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
