"""A shard in a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.database import Server
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.installation import Installation


@dataclass
class Shard:
    """A database server, its key services, the committed rows and the faults."""

    server: Server
    history: History
    installation: Installation
    faults: Faults
