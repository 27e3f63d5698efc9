"""``pqkeepd dev``: a whole installation on this machine's loopback, ready to try.

It keeps its demo tenant's API key and the operator's credential in the data directory, in a file
of mode 0600, so that both still work when it starts again. No other mode keeps either.
"""

import asyncio
import json
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_server.data_lock import locked
from pqkeep_server.initialise import (
    IN_FILES,
    InitialiseError,
    Layout,
    Stores,
    initialise,
    stores_of,
)
from pqkeep_server.operator import GatewayError, Operator
from pqkeep_server.supervise import FatalExitError, Program, Supervisor

HOST = "127.0.0.1"
PLAN = "enterprise_plus"
OWNER = "owner@localhost"
READY_SECONDS = 30.0
POLL_SECONDS = 0.02


class DevError(Exception):
    """It cannot run. The message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What a client needs to know; also the content of the ready file."""

    base_url: str
    tenant_id: str
    api_key: str = field(repr=False)
    operator_key: str = field(repr=False)
    owner_invitation: str = field(repr=False)
    """The token with which somebody becomes the demo tenant's owner; empty once they have."""
    mailbox: str
    """The folder of the messages that would be sent; empty where the settings name none."""


@dataclass(frozen=True, slots=True)
class _Credentials:
    operator_key: str = field(repr=False)
    tenant_id: str = ""
    api_key: str = field(default="", repr=False)


@contextmanager
def data_directory(chosen: Path | None) -> Iterator[Path]:
    """Yield the data directory, ours alone; a temporary one, removed at the end, without choice."""
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="pqkeep-") as temporary:
            yield Path(temporary)
        return
    with ExitStack() as stack:
        try:
            chosen.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(locked(chosen))
        except BlockingIOError:
            raise DevError(f"another pqkeepd uses the data directory {chosen}") from None
        except OSError as error:
            raise DevError(f"cannot use the data directory {chosen}: {error.strerror}") from None
        yield chosen.resolve()


class Dev:
    """One development installation."""

    def __init__(self, directory: Path, port: int, stores: Stores) -> None:
        """Prepare the data directory and take the port. Raises DevError."""
        self._layout = Layout(directory)
        self._credentials_file = self._layout.development_credentials
        self._credentials = self._prepare(stores)
        self._listener = _listen(port)
        self._port = self._listener.getsockname()[1]
        self._operator = Operator(HOST, self._port, self._credentials.operator_key)
        self.supervisor = Supervisor(
            (
                Program(
                    "key service", "pqkeep_keyservice", (str(self._layout.key_service_settings),)
                ),
                Program(
                    "gateway",
                    "pqkeep_gateway",
                    (str(self._layout.gateway_settings), "--fd", str(self._listener.fileno())),
                    pass_fds=(self._listener.fileno(),),
                ),
            )
        )
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> Ready:
        """Start both processes; return when they answer. Raises DevError."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        self._running = asyncio.create_task(self.supervisor.run(self._stop))
        ready = asyncio.create_task(self._until_ready())
        await asyncio.wait([self._running, ready], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self.wait()
            raise DevError("stopped before it was ready")
        try:
            return ready.result()
        except GatewayError as error:
            await self.stop()
            raise DevError(str(error)) from None

    async def wait(self) -> None:
        """Return when both processes are stopped, by Ctrl-C or SIGTERM. Raises DevError."""
        try:
            if self._running is not None:
                await self._running
        except (FatalExitError, OSError) as error:
            raise DevError(str(error)) from None
        finally:
            self._listener.close()

    async def stop(self) -> None:
        """Stop both processes."""
        self._stop.set()
        await self.wait()

    def _prepare(self, stores: Stores) -> _Credentials:
        whole = _content(self._layout.gateway_settings) is not None
        try:
            credentials = _Credentials(**json.loads(_content(self._credentials_file) or b""))
        except (TypeError, ValueError):
            if whole:
                raise DevError(
                    f"{self._layout.directory} was not made by pqkeepd dev: no dev.json to read"
                ) from None
            credentials = _Credentials(new_credential(CredentialKind.OPERATOR))
            self._keep(credentials)
        try:
            if not whole:
                initialise(self._layout, credentials.operator_key, signup="open", stores=stores)
            elif stores != IN_FILES and stores != stores_of(self._layout):
                raise DevError(f"{self._layout.directory} has its databases elsewhere already")
        except InitialiseError as error:
            raise DevError(str(error)) from None
        return credentials

    def _keep(self, credentials: _Credentials) -> None:
        write_private(self._credentials_file, asdict(credentials))

    async def _until_ready(self) -> Ready:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_SECONDS
        while not await asyncio.to_thread(self._operator.is_ready):
            if loop.time() > deadline:
                raise GatewayError("it was not ready in time")
            await asyncio.sleep(POLL_SECONDS)
        if not self._credentials.api_key:
            await asyncio.to_thread(self._create_demo_tenant)
        base_url = f"http://{HOST}:{self._port}"
        return Ready(
            base_url=base_url,
            tenant_id=self._credentials.tenant_id,
            api_key=self._credentials.api_key,
            operator_key=self._credentials.operator_key,
            owner_invitation=await asyncio.to_thread(self._invite_owner),
            mailbox=self._mailbox(),
        )

    def _mailbox(self) -> str:
        named = gateway_config.read(self._layout.gateway_settings).mailbox
        return "" if named is None else str(Path(named).resolve())

    def _invite_owner(self) -> str:
        try:
            return self._operator.invite(self._credentials.tenant_id, OWNER, "owner")
        except GatewayError as error:
            if error.code != "ERR_CONFLICT_001":
                raise
            return ""

    def _create_demo_tenant(self) -> None:
        try:
            tenant = self._operator.create_tenant("demo", PLAN)
        except GatewayError as error:
            if error.code != "ERR_CONFLICT_001":
                raise
            # An earlier start made it, and ended before its API key was kept.
            tenant = self._operator.create_tenant(f"demo {secrets.token_hex(4)}", PLAN)
        api_key = self._operator.create_api_key(tenant)
        self._credentials = _Credentials(self._credentials.operator_key, tenant, api_key)
        self._keep(self._credentials)


def write_private(path: Path, content: object) -> None:
    """Write a JSON file of mode 0600, whole or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    draft.replace(path)


def _content(path: Path) -> bytes | None:
    """Return what a file has; None if it is not there. What cannot be read may well be there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DevError(f"cannot read {path}: {error.strerror}") from None


def _listen(port: int) -> socket.socket:
    """Listen before the gateway runs, and on: while it restarts, clients wait instead of failing."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        raise DevError(f"cannot listen on port {port}: {error.strerror}") from None
    listener.listen(2048)
    return listener
