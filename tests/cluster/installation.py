"""Three gateways, two shards with two key services each, PostgreSQL and Valkey: real processes.

They use mutual TLS over TCP, and each connection between two of them passes a relay. The gateways
have their own sockets on one port. This program keeps them open and passes them on, as ``pqkeepd
start`` does. It restarts a gateway that has ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psycopg
from tests.cluster.relay import Relay, Relays
from tests.fixtures import processes, unprivileged
from tests.fixtures.installation import CHEAP_PASSWORDS
from tests.fixtures.postgresql import (
    ACCOUNTS_ROLE,
    KEYS_ROLE,
    PostgresServer,
    new_databases,
    running_postgresql,
)
from tests.fixtures.processes import HOST
from tests.fixtures.redis import command_of
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.link import Role
from pqkeep_server.gateways import Listeners, listening
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.link_certificates import issue
from pqkeep_server.settings_file import edited
from pqkeep_server.valkey import find_program

GATEWAYS = 3
SHARDS = ("default", "b")
KEY_SERVICES = 2
"""Of each shard."""
POLL_SECONDS = 0.02
OWN = {"certificate": "certificate.pem", "key": "key.pem", "ca": "ca.pem"}
SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = %s AND application_name = 'pqkeep key service'
"""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(POLL_SECONDS)


@dataclass
class Part:
    """A process that can be killed, paused and started again."""

    name: str
    command: Sequence[str | Path]
    output: Path
    pass_fds: Sequence[int] = ()
    is_unprivileged: bool = False
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it."""
        if self.is_unprivileged:
            self.process = unprivileged.start(self.command, self.output)
        else:
            self.process = processes.start(self.command, self.output, pass_fds=self.pass_fds)

    def kill(self) -> None:
        """End it by SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def stop(self) -> None:
        """End it, if it runs."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            processes.stop(self.process)


@dataclass
class KeyService:
    """A key service, and the relays to and from it."""

    part: Part
    link: Relay
    """From the gateways."""
    database: Relay
    """To PostgreSQL."""

    port: int


@dataclass
class Gateway:
    """A gateway, and the relays from it."""

    part: Part
    management: str
    database: Relay
    windows: Relay
    """To Valkey."""

    def is_ready(self) -> bool:
        """Return True if it is ready with no part degraded."""
        with suppress(httpx2.HTTPError):
            response = httpx2.get(f"{self.management}/readyz", trust_env=False, timeout=5)
            return response.status_code == 200 and response.json()["degraded"] == []
        return False


@dataclass
class Cluster:
    """The whole installation."""

    operator_key: str
    relays: Relays
    postgresql: PostgresServer
    stores: Mapping[str, str]
    """Each shard's database."""
    accounts: str
    valkey: Part
    key_services: Mapping[str, Sequence[KeyService]]
    gateways: Sequence[Gateway]
    base_url: str

    def serving(self, shard: str) -> KeyService:
        """Return the key service with a shard's newest fencing token."""
        with psycopg.connect(self.stores[shard]) as connection:
            found = connection.execute("SELECT holder FROM service_epoch").fetchone()
        assert found is not None
        pid = int(str(found[0]).rpartition(" ")[2])
        return next(each for each in self.key_services[shard] if each.part.pid == pid)

    def standby(self, shard: str) -> KeyService:
        """Return the other key service of a shard."""
        serving = self.serving(shard)
        return next(each for each in self.key_services[shard] if each is not serving)

    def until_whole(self) -> None:
        """Wait until every gateway is ready, and every shard has a waiting standby."""
        for gateway in self.gateways:
            until(gateway.is_ready, f"{gateway.part.name} is not ready")
        for shard, services in self.key_services.items():
            until(
                lambda: all(processes.is_listening(each.port) for each in services),  # noqa: B023
                f"a key service of {shard} does not listen",
            )
            name = self.stores[shard].rpartition("/")[2]
            until(
                lambda: self.postgresql.sql(SESSIONS, name)[0][0] >= KEY_SERVICES,  # noqa: B023
                f"nobody stands by for {shard}",
            )

    def parts(self) -> Iterator[Part]:
        """Return all processes except PostgreSQL's, in the order of their start."""
        yield self.valkey
        for each in self.key_services.values():
            yield from (service.part for service in each)
        yield from (gateway.part for gateway in self.gateways)

    def postgresql_processes(self) -> list[int]:
        """Return the ids of PostgreSQL's processes, the main one first."""
        first = int((self.postgresql.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]


@dataclass
class _Builder:
    """Makes the files of an installation, and the commands of its processes."""

    folder: Path
    layout: Layout
    relays: Relays
    postgresql: PostgresServer
    certificates: Path
    valkey_port: int = field(default_factory=processes.free_port)

    def valkey(self, folder: Path) -> Part:
        """Return the Valkey server, in a folder of its user."""
        command = command_of(find_program(None), self.valkey_port, folder)
        output = self.folder / "valkey.log"
        return Part("Valkey", command, output, is_unprivileged=True)

    def key_service(self, shard: str, database: str, number: int) -> KeyService:
        """Return one key service of a shard. Both of a shard have the same root key."""
        home = self.layout.directory / f"keyservice-{shard}-{number}"
        first = self.layout.directory / f"keyservice-{shard}-0"
        shutil.copytree(first if number else self.layout.key_service, home)
        if not number:
            key = home / "root.key"
            key.chmod(0o600)
            key.write_bytes(os.urandom(32))
            key.chmod(0o400)
        port = processes.free_port()
        link = self.relays.new(port)
        to_database = self.relays.new(self.postgresql.port)
        settings = home / "settings.toml"
        changes = {
            "shard": shard,
            "socket": None,
            "gateway_uid": None,
            "operator_socket": f"../run/{shard}-{number}.sock",
            "database": f"postgresql://{KEYS_ROLE}@{HOST}:{to_database.port}/{database}",
            "link": {"listen": f"{HOST}:{port}", **self._link(Role.KEY_SERVICE)},
        }
        settings.write_text(edited(settings.read_text(), changes))
        command: list[str | Path] = [sys.executable, "-P", "-m", "pqkeep_keyservice", settings]
        name = f"key service {number} of {shard}"
        part = Part(name, command, self.folder / f"{home.name}.log")
        return KeyService(part, link, to_database, port)

    def gateway(
        self,
        number: int,
        accounts: str,
        shards: Mapping[str, object],
        listeners: Sequence[Listeners],
    ) -> Gateway:
        """Return the gateway with its listening sockets."""
        sockets = listeners[number]
        assert sockets.management is not None
        to_database = self.relays.new(self.postgresql.port)
        to_valkey = self.relays.new(self.valkey_port)
        settings = self.layout.gateway / f"settings-{number}.toml"
        changes = {
            "key_service_socket": None,
            "shards": shards,
            "link": self._link(Role.GATEWAY),
            "database": f"postgresql://{ACCOUNTS_ROLE}@{HOST}:{to_database.port}/{accounts}",
            "redis_url": f"redis://{HOST}:{to_valkey.port}",
            **CHEAP_PASSWORDS,
        }
        settings.write_text(edited(self.layout.gateway_settings.read_text(), changes))
        descriptors = [sockets.public.fileno(), sockets.management.fileno()]
        command: list[str | Path] = [sys.executable, "-P", "-m", "pqkeep_gateway", settings]
        command += ["--fd", str(descriptors[0]), "--management-fd", str(descriptors[1])]
        for other in (each.public.fileno() for each in listeners if each is not sockets):
            command += ["--other-fd", str(other)]
            descriptors.append(other)
        output = self.folder / f"gateway-{number}.log"
        part = Part(f"gateway {number}", command, output, descriptors)
        port = sockets.management.getsockname()[1]
        return Gateway(part, f"http://{HOST}:{port}", to_database, to_valkey)

    def _link(self, role: Role) -> Mapping[str, str]:
        name = "gateway" if role is Role.GATEWAY else "keyservice"
        folder = self.certificates / f"{name}-{HOST}"
        return {each: str(folder / file) for each, file in OWN.items()}


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run all processes for a block."""
    with ExitStack() as stack:
        server = stack.enter_context(running_postgresql())
        # Ten for each shard: deploy/postgresql.sql has one.
        server.sql("ALTER ROLE pqkeep_keyservice CONNECTION LIMIT 20")
        stores = stack.enter_context(new_databases(server))
        second = server.new_database(KEYS_ROLE)
        stack.callback(server.drop, second)
        relays = stack.enter_context(Relays())
        listeners = stack.enter_context(listening((HOST, 0), (HOST, 0), GATEWAYS))
        layout, operator_key = Layout(folder / "data"), new_credential(CredentialKind.OPERATOR)
        initialise(layout, operator_key, signup="operator", stores=stores)
        certificates = folder / "certificates"
        roles = [(Role.GATEWAY, HOST), (Role.KEY_SERVICE, HOST)]
        issue(certificates, roles, algorithm=None, days=1, renew=False)
        builder = _Builder(folder, layout, relays, server, certificates)
        databases = dict(zip(SHARDS, (_name(stores.keys), second), strict=True))
        services = {
            shard: [builder.key_service(shard, name, number) for number in range(KEY_SERVICES)]
            for shard, name in databases.items()
        }
        shards = {
            shard: {"addresses": [f"{HOST}:{each.link.port}" for each in found]}
            for shard, found in services.items()
        }
        valkey = builder.valkey(stack.enter_context(unprivileged.own_folder("valkey")))
        cluster = Cluster(
            operator_key=operator_key,
            relays=relays,
            postgresql=server,
            stores={shard: server.url(KEYS_ROLE, name) for shard, name in databases.items()},
            accounts=stores.accounts,
            valkey=valkey,
            key_services=services,
            gateways=[
                builder.gateway(number, _name(stores.accounts), shards, listeners)
                for number in range(GATEWAYS)
            ],
            base_url=f"http://{HOST}:{listeners[0].public.getsockname()[1]}",
        )
        for part in cluster.parts():
            stack.callback(part.stop)
            part.start()
        cluster.until_whole()
        yield cluster


def _name(url: str) -> str:
    return url.rpartition("/")[2]
