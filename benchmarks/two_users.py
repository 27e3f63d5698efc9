"""The cost of two users: ``pqkeepd start``, with a user for each process, and ``pqkeepd dev``.

Both use a Python that other users than root can run.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest import SkipTest

from msgspec import Struct
from rich.table import Table
from tests.fixtures.processes import free_port
from tests.fixtures.two_users import initialised, pqkeepd_program

from benchmarks.installation import API, Launcher, ask, installation, prepared, responses, started
from benchmarks.load import Measurement, Target
from pqkeep_server.settings_file import edited


class TwoUsers(Struct, frozen=True):
    """One operation under one user and under two, measured alternately."""

    one: tuple[Measurement, ...]
    two: tuple[Measurement, ...]

    def table(self, table: Table) -> Table:
        """Fill a table with the medians of the CPU, and their ratio."""
        for column in ("gateway", "key service", "whole", "ratio"):
            table.add_column(column, justify="right")
        first = median(each.cpu for each in self.one)
        for name, rounds in (("one user", self.one), ("two users", self.two)):
            whole = median(each.cpu for each in rounds)
            parts = [
                median(each.cpu_front for each in rounds),
                median(each.cpu_back for each in rounds),
            ]
            table.add_row(
                name, *(f"{each:.1f}" for each in (*parts, whole)), f"{whole / first:.2f}"
            )
        return table


@contextmanager
def installations(directory: Path, operation: str) -> Iterator[tuple[Target, Target] | None]:
    """Run both installations. Yield an operation's requests to each, or None if both cannot run."""
    if os.geteuid() != 0:
        yield None
        return
    try:
        launcher = Launcher(pqkeepd_program(), "pqkeep_keyservice")
    except SkipTest:
        yield None
        return
    folder = directory / "two-users"
    folder.mkdir()
    directory.chmod(0o711)
    with (
        installation(directory / "one-user", launcher) as one,
        _two_users(folder, launcher) as two,
    ):
        yield one[operation], two[operation]


@contextmanager
def _two_users(folder: Path, launcher: Launcher) -> Iterator[dict[str, Target]]:
    layout, operator = initialised(folder / "data")
    port, settings = free_port(), layout.gateway_settings
    changed: dict[str, object] = {"port": port, "management_address": "off"}
    settings.write_text(edited(settings.read_text(), changed))
    url = f"http://127.0.0.1:{port}"
    command = [*launcher.command, "start", "--data", str(layout.directory)]
    with started(command, folder / "pqkeepd.log", lambda: responses(url)) as process:
        tenant = ask(
            "POST", f"{url}{API}/tenants", {"name": "one", "plan": "enterprise_plus"}, operator
        )
        made = ask("POST", f"{url}{API}/tenants/{tenant['id']}/api-keys", {}, operator)
        ready = {
            "base_url": url,
            "tenant_id": tenant["id"],
            "operator_key": operator,
            "api_key": made["api_key"],
        }
        yield prepared(folder, process.pid, ready, launcher)
