"""A real installation, started as anyone would start it, and callers of its API."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sysconfig
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as modern
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from conftest import die_with_the_tests

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import TO_GATEWAY, Answer, Call, FrameDecoder, Refusal, encode
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import ArchiveKey, Attribution

if TYPE_CHECKING:
    from conftest import PostgresServer

PQKEEPD = Path(sysconfig.get_path("scripts")) / "pqkeepd"
READY_SECONDS = 60.0
STOP_SECONDS = 60.0
LETTER_SECONDS = 60.0
REQUEST_SECONDS = 60.0
API = "/api/v1"
FAULT = {"error_code", "message", "field", "challenge_token", "second_factor"}
KNOWN_ANSWERS = "known answers: "
"""How the properties begin with which tests say how many known answers they checked."""
PASSWORD = "the horse prefers oats"  # noqa: S105 - everybody's in the tests
TLS = ssl.create_default_context()
"""Not used, and slow to make: every client would make its own."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many known answers of each algorithm were checked, and held."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if str(name).startswith(KNOWN_ANSWERS):
                counts[str(name)] += int(str(value))
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"{name}: {count}")


def read_envelope(response: httpx2.Response) -> dict[str, Any]:
    """Return the body of an answer, after checking that it has the envelope's form."""
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    body: dict[str, Any] = response.json()
    if response.is_success:
        assert body.keys() == {"data", "request_id", "timestamp"}
        assert isinstance(body["data"], dict)
    else:
        assert body.keys() == {"error", "request_id", "timestamp"}
        assert {"error_code", "message"} <= body["error"].keys()
        assert body["error"].keys() <= FAULT
        assert all(isinstance(value, str) and value for value in body["error"].values())
    assert body["request_id"] == response.headers["x-request-id"]
    return body


def _never_a_fault(response: httpx2.Response) -> None:
    response.read()
    if response.headers["content-type"] != "application/jsonl":
        read_envelope(response)
    assert response.status_code < 500, response.text


class Caller:
    """Somebody with one credential, or none.

    Every answer is checked: it must have the envelope's form and be no fault of the service.
    """

    def __init__(self, client: httpx2.Client, tenant_id: str = "") -> None:
        self.client = client
        self.tenant_id = tenant_id

    @property
    def api_key(self) -> str:
        """The credential it shows."""
        return self.client.headers["x-api-key"]

    def ask(self, method: str, path: str, body: object = None, **options: Any) -> httpx2.Response:
        """Send one request; the path begins after /api/v1."""
        if body is not None:
            options["json"] = body
        return self.client.request(method, API + path, **options)

    def post(self, path: str, body: object = None, *, status: int = 200) -> dict[str, Any]:
        """Return the data of a request that must succeed."""
        return self._data(self.ask("POST", path, {} if body is None else body), status)

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return the data of a request that must succeed."""
        return self._data(self.ask("GET", path, params=query), 200)

    def refusal(self, path: str, body: object) -> tuple[int, str, str | None]:
        """Return status, code and field of a POST that must be refused."""
        return refusal_of(self.ask("POST", path, body))

    def _data(self, response: httpx2.Response, status: int) -> dict[str, Any]:
        assert response.status_code == status, response.text
        data: dict[str, Any] = response.json()["data"]
        return data


def refusal_of(response: httpx2.Response) -> tuple[int, str, str | None]:
    """Return status, code and field of an error."""
    error = read_envelope(response)["error"]
    return response.status_code, error["error_code"], error.get("field")


@dataclass
class Installation:
    """A running ``pqkeepd dev``."""

    process: subprocess.Popen[bytes]
    data: Path
    output_file: Path
    ready: dict[str, str]
    clients: ExitStack = field(default_factory=ExitStack)
    _operator: Caller | None = None

    @property
    def base_url(self) -> str:
        """Where it serves."""
        return self.ready["base_url"]

    @property
    def output(self) -> str:
        """Everything it has written to stdout and stderr."""
        return self.output_file.read_text()

    def children(self) -> dict[str, int]:
        """Return the process ids of gateway and key service, by module."""
        return children_of(self.process.pid)

    def caller(self, credential: str | None, tenant_id: str = "") -> Caller:
        """Return a caller with a credential."""
        headers = {} if credential is None else {"X-API-Key": credential}
        client = self.clients.enter_context(
            httpx2.Client(
                base_url=self.base_url,
                headers=headers,
                timeout=REQUEST_SECONDS,
                trust_env=False,
                verify=TLS,
                event_hooks={"response": [_never_a_fault]},
            )
        )
        return Caller(client, tenant_id)

    def operator(self) -> Caller:
        """Return the operator, who is asked so often that one connection is kept."""
        if self._operator is None:
            self._operator = self.caller(self.ready["operator_key"])
        return self._operator

    def demo(self) -> Caller:
        """Return the demo tenant."""
        return self.caller(self.ready["api_key"], self.ready["tenant_id"])

    def new_tenant(self, plan: str = "enterprise_plus") -> Caller:
        """Make a tenant and its first API key, as the operator; return its caller."""
        operator = self.operator()
        name = f"tenant {uuid.uuid4()}"
        tenant = operator.post("/tenants", {"name": name, "plan": plan}, status=201)
        made = operator.post(f"/tenants/{tenant['id']}/api-keys", status=201)
        return self.caller(made["api_key"], tenant["id"])

    def person(self, tenant_id: str, role: str = "owner", email: str = "") -> Caller:
        """Let somebody into a tenant, by an invitation of the operator's; they are signed in."""
        invited = self.operator().post(
            f"/tenants/{tenant_id}/invitations",
            {"email": email or f"{uuid.uuid4()}@example.com", "role": role},
            status=201,
        )
        caller = self.caller(None, tenant_id)
        fields = {"token": invited["invitation_token"], "password": PASSWORD}
        caller.post("/auth/accept-invitation", fields, status=201)
        return caller

    def letters(self, to: str, kind: str, count: int = 1) -> list[EmailMessage]:
        """Return somebody's letters of a kind, the oldest first, once there are so many."""
        deadline = time.monotonic() + LETTER_SECONDS
        while len(found := self.letters_by_now(to, kind)) < count:
            assert time.monotonic() < deadline, f"{kind}: {len(found)} letters to {to}"
            time.sleep(0.05)
        return found

    def letters_by_now(self, to: str, kind: str = "*") -> list[EmailMessage]:
        """Return somebody's letters that are in the mailbox."""
        files = sorted(Path(self.ready["mailbox"]).glob(f"[!.]*-{kind}-*.eml"))  # drafts have a dot
        read = [message_from_bytes(file.read_bytes(), policy=modern) for file in files]
        return [each for each in read if each["To"] == to]

    def token(self, to: str, kind: str, count: int = 1) -> str:
        """Return the token that the newest of so many letters of a kind hands over."""
        text = self.letters(to, kind, count)[-1].get_content()
        (token,) = re.findall(r"#(pq[a-z]_\w+)$", text, re.MULTILINE)
        return str(token)

    def code(self, to: str, count: int = 1) -> str:
        """Return the code in the newest of so many letters."""
        text = self.letters(to, "code", count)[-1].get_content()
        (code,) = re.findall(r"^    (\d{6})$", text, re.MULTILINE)
        return str(code)

    def archive(self, tenant_id: str, algorithm: Algorithm, version: int) -> None:
        """Archive a retired key as the portal would: the API refuses to."""
        call = Call(
            1,
            10_000,
            Attribution("test", "user:1", "127.0.0.1", "test"),
            ArchiveKey(
                tenant=TenantId(uuid.UUID(tenant_id)),
                algorithm=algorithm,
                version=KeyVersion(version),
            ),
        )
        decoder = FrameDecoder(TO_GATEWAY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(str(self.data / "keyservice" / "keyservice.sock"))
            connection.sendall(encode(call))
            while True:
                size = connection.recv_into(decoder.space())
                assert size, "the key service hung up"
                for frame in decoder.filled(size):
                    assert not isinstance(frame, Refusal), frame.kind
                    assert isinstance(frame, Answer)
                    return

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, if it runs; return its exit status."""
        self.clients.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def children_of(pid: int) -> dict[str, int]:
    """Return the children of a process by the Python module that they run."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if b"-m" in words:
            found[words[words.index(b"-m") + 1].decode()] = int(child)
    return found


def run_pqkeepd(output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the command in an environment that has a PATH and nothing else."""
    with output.open("ab") as file:
        return subprocess.Popen(
            [PQKEEPD, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath},
            start_new_session=True,
            preexec_fn=die_with_the_tests,  # noqa: PLW1509 - see there
        )


@contextmanager
def running(
    data: Path, ready_file: Path, output: Path, port: int = 0, options: Sequence[str] = ()
) -> Iterator[Installation]:
    """Run an installation on a data directory."""
    ready_file.unlink(missing_ok=True)
    process = run_pqkeepd(
        output,
        "dev",
        *("--port", str(port)),
        *("--data", str(data)),
        *("--ready-file", str(ready_file)),
        *options,
    )
    installation = Installation(process, data, output, {})
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not ready_file.exists():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.02)
        installation.ready = json.loads(ready_file.read_text())
        yield installation
    finally:
        installation.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Installation]]:
    """Start installations; those that still run at the end of the test are stopped."""
    with ExitStack() as stack:

        def starter(data: Path = tmp_path / "data", port: int = 0) -> Installation:
            output = tmp_path / "output"
            return stack.enter_context(running(data, tmp_path / "ready.json", output, port))

        yield starter


@pytest.fixture(scope="session")
def run_installation() -> Callable[..., AbstractContextManager[Installation]]:
    """Run an installation in a with statement: data directory, ready file, output file, port."""
    return running


@contextmanager
def on_postgresql(server: PostgresServer) -> Iterator[Sequence[str]]:
    """Make two databases; yield the options with which an installation uses them."""
    options = {"--accounts-database": "pqkeep_gateway", "--keys-database": "pqkeep_keyservice"}
    made = {option: (role, server.new_database(role)) for option, role in options.items()}
    yield [
        word for option, (role, name) in made.items() for word in (option, server.url(role, name))
    ]
    for _, name in made.values():
        server.drop(name)


@pytest.fixture(scope="session")
def own_postgresql(
    postgres_server: PostgresServer,
) -> Callable[[], AbstractContextManager[Sequence[str]]]:
    """Options that put an installation on PostgreSQL, on databases that nobody else uses."""
    return lambda: on_postgresql(postgres_server)


@pytest.fixture(scope="session")
def installation(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """One installation for all tests that do not disturb it; tests/contract has one of each kind."""
    folder = tmp_path_factory.mktemp("installation")
    files = folder / "data", folder / "ready.json", folder / "output"
    with ExitStack() as stack:
        options: Sequence[str] = ()
        if getattr(request, "param", "sqlite") == "postgresql":
            options = stack.enter_context(on_postgresql(request.getfixturevalue("postgres_server")))
        yield stack.enter_context(running(*files, options=options))


@pytest.fixture(scope="session")
def operator(installation: Installation) -> Caller:
    """The operator."""
    return installation.operator()


@pytest.fixture(scope="session")
def anonymous(installation: Installation) -> Caller:
    """Somebody without a credential."""
    return installation.caller(None)


@pytest.fixture(scope="session")
def demo(installation: Installation) -> Caller:
    """The demo tenant, by the API key of the ready file."""
    return installation.demo()


@pytest.fixture(scope="session")
def new_tenant(installation: Installation) -> Callable[..., Caller]:
    """Make a tenant that no other test uses; the plan is enterprise_plus unless named."""
    return installation.new_tenant


@pytest.fixture(scope="session")
def new_person(installation: Installation) -> Callable[..., Caller]:
    """Make somebody who is signed in: of which tenant, in which role."""
    return installation.person


@pytest.fixture(scope="session")
def password() -> str:
    """The password of everybody who was made so."""
    return PASSWORD


@pytest.fixture(scope="session")
def b64() -> Callable[[bytes], str]:
    """Encode bytes as the API takes them."""
    return lambda data: base64.b64encode(data).decode()


@pytest.fixture(scope="session")
def unb64() -> Callable[[str], bytes]:
    """Decode what the API returns."""
    return lambda text: base64.b64decode(text, validate=True)


@pytest.fixture(scope="session")
def refused() -> Callable[[httpx2.Response], tuple[int, str, str | None]]:
    """Read status, code and field out of an error."""
    return refusal_of


@pytest.fixture(scope="session")
def pqkeepd() -> Callable[..., subprocess.Popen[bytes]]:
    """Start the command with arguments, its output going to a file."""
    return run_pqkeepd


@pytest.fixture(scope="session")
def child_processes() -> Callable[[int], dict[str, int]]:
    """List the children of a process by module."""
    return children_of
