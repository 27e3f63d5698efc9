"""The cost of TLS: an operation with and without it, over kept and over new connections.

Two more gateways serve the measured installation: one with TLS, one without.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from msgspec import Struct
from rich.table import Table
from tests.fixtures.certificate import Certificate, new_certificate
from tests.fixtures.processes import free_port

from benchmarks.installation import responses, started
from benchmarks.load import Measurement, Target
from pqkeep_server.settings_file import edited

HOST = "127.0.0.1"


class TlsCost(Struct, frozen=True):
    """One operation without TLS and with it, measured alternately."""

    kept: tuple[tuple[Measurement, Measurement], ...]
    """Over kept connections: without TLS, with TLS."""
    new: tuple[tuple[Measurement, Measurement], ...]
    """Over a new connection for each request."""

    def table(self, table: Table) -> Table:
        """Fill a table with the medians of the gateway's CPU, and of the requests per second."""
        for column in ("gateway", "with TLS", "difference", "requests/s", "with TLS"):
            table.add_column(column, justify="right")
        for name, rounds in (("kept connections", self.kept), ("a new one each", self.new)):
            plain, secured = (median(each[at].cpu_front for each in rounds) for at in (0, 1))
            speed = [median(each[at].requests_per_second for each in rounds) for at in (0, 1)]
            table.add_row(
                name,
                *(f"{value:.1f}" for value in (plain, secured, secured - plain)),
                *(f"{value:,.0f}" for value in speed),
            )
        return table


@contextmanager
def gateways(directory: Path, target: Target) -> Iterator[tuple[Target, Target]]:
    """Run a gateway without TLS and one with it; yield an operation's requests to each.

    The load's address is a trusted proxy's: its new connections are not limited.
    """
    certificate = new_certificate(directory)
    with ExitStack() as stack:
        plain = stack.enter_context(_gateway(directory, "plain", None))
        secured = stack.enter_context(_gateway(directory, "tls", certificate))
        path = urlsplit(target.url).path
        yield (
            replace(target, url=f"http://{HOST}:{plain[0]}{path}", front=plain[1]),
            replace(target, url=f"https://{HOST}:{secured[0]}{path}", front=secured[1]),
        )


@contextmanager
def _gateway(
    directory: Path, name: str, certificate: Certificate | None
) -> Iterator[tuple[int, int]]:
    """Run a gateway of the installation; yield its port and its process id."""
    settings = directory / "data" / "gateway"
    own, port = settings / f"{name}.toml", free_port()
    changed: dict[str, object] = {
        "port": port,
        "management_address": "off",
        "trusted_proxies": [f"{HOST}/32"],
    }
    tls = None
    if certificate is not None:
        tls = certificate.client()
        changed |= {"tls_certificate": str(certificate.path), "tls_key": str(certificate.key)}
    own.write_text(edited((settings / "settings.toml").read_text(), changed))
    command = [sys.executable, "-P", "-m", "pqkeep_gateway", str(own)]
    url = f"{'http' if tls is None else 'https'}://{HOST}:{port}"
    with started(command, directory / f"{name}.log", lambda: responses(url, tls)) as process:
        yield port, process.pid
