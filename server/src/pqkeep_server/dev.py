"""``pqkeepd dev``: an installation on this machine's loopback address, ready to try."""

import asyncio
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlencode

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway import redis_address
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.dev_directory import (
    DevError,
    is_made,
    prepare,
    write_credentials,
)
from pqkeep_server.gateway_client import GatewayClient, GatewayError
from pqkeep_server.gateways import (
    ListenError,
    gateway_programs,
    listening,
    require_shares,
)
from pqkeep_server.initialise import Layout, Stores
from pqkeep_server.key_services import is_listening, key_service_programs
from pqkeep_server.programs import Program
from pqkeep_server.readiness import place_of, wait_until_ready, what_is_missing
from pqkeep_server.supervise import FatalExitError, Supervisor
from pqkeep_server.valkey import (
    NoValkeyError,
    environment_of,
    find_program,
    new_socket,
    valkey,
)

HOST = "127.0.0.1"
PLAN = "enterprise_plus"
OWNER = "owner@localhost"
READY_SECONDS = 120.0
"""Seconds. A start takes far less, even on a busy machine."""
CONNECT_SECONDS = 5.0
POLL_SECONDS = 0.02
VALKEY_MIB = 64
_CONFLICT = "ERR_CONFLICT_001"


@dataclass(frozen=True, slots=True)
class Ready:
    """Addresses and credentials for clients: the content of the ready file."""

    base_url: str
    tenant_id: str
    api_key: str = field(repr=False)
    operator_key: str = field(repr=False)
    owner_invitation: str = field(repr=False)
    """The invitation token of the demo tenant's owner, empty once it is accepted."""
    portal_url: str
    """The portal's address."""
    portal_link: str = field(repr=False)
    """A link that signs in the demo tenant's owner. It works with the first password only."""
    owner_password: str = field(repr=False)
    """The owner's first password. Sensitive actions ask for it."""
    management_url: str
    """The address of /livez, /readyz and /metrics, empty if the settings turn them off."""
    management_urls: list[str]
    """The management address of each gateway."""
    mailbox: str
    """The folder of e-mail messages, empty if the settings name none."""


def require_shared_rate_limits(data: Path | None, gateways: int, redis_url: str | None) -> None:
    """Raise DevError, before a directory is made, if several gateways would have no Valkey."""
    if gateways == 1 or redis_url is not None:
        return
    if data is not None and is_made(Layout(data)) and _settings(Layout(data)).redis_url is not None:
        return
    try:
        find_program(None)
    except NoValkeyError as error:
        raise DevError(str(error)) from None


def require_reachable(redis_url: str) -> None:
    """Raise DevError if nothing listens at the address: every request would get 503."""
    try:
        address = redis_address.parse(redis_url)
    except ValueError as error:
        raise DevError(f"--redis-url: {error}") from None
    problem = ""
    for place in address.servers:
        try:
            socket.create_connection(place, CONNECT_SECONDS).close()
        except OSError as error:
            problem = str(error.strerror or error)
        else:
            return
    if problem:
        raise DevError(f"--redis-url: no response at {address.shown}: {problem}")


class Dev:
    """One development installation."""

    def __init__(
        self,
        directory: Path,
        port: int,
        stores: Stores,
        gateways: int = 1,
        shards: int = 1,
        further: Sequence[str] = (),
    ) -> None:
        """Prepare the data directory and listen on the port. Raises DevError.

        ``further``: the databases of the shards after the first.
        """
        self._layout = Layout(directory)
        self._credentials = prepare(self._layout, stores, shards, further)
        settings = _settings(self._layout)
        try:
            require_shares(settings, gateways)
        except ConfigError as error:
            raise DevError(str(error)) from None
        # Any free management port, because several installations may run.
        management = None if settings.management is None else (HOST, 0)
        windows: tuple[Program, ...] = ()
        environment: Mapping[str, str] = {}
        self._sockets = ExitStack()
        try:
            listeners = self._sockets.enter_context(listening((HOST, port), management, gateways))
            if gateways > 1 and settings.redis_url is None:
                path = new_socket(self._layout.valkey, None)
                windows = (valkey(find_program(None), path, VALKEY_MIB, None),)
                environment = environment_of(path)
        except ListenError as error:
            raise DevError(
                f"{error}; name another port with --port, or let --port 0 choose one"
            ) from None
        except (NoValkeyError, OSError) as error:
            self._sockets.close()
            raise DevError(str(error)) from None
        self._url = _url(listeners[0].public)
        self._management = [
            _url(listener.management) for listener in listeners if listener.management
        ]
        self._places = [place_of(listener, is_tls=False) for listener in listeners]
        self._gateway = GatewayClient(self._url, self._credentials.operator_key)
        try:
            key_services = tuple(key_service_programs(self._layout, None))
        except ConfigError as error:
            self._sockets.close()
            raise DevError(str(error)) from None
        self.supervisor = Supervisor(
            (
                *windows,
                *key_services,
                *gateway_programs(
                    self._layout.gateway_settings,
                    listeners,
                    None,
                    environment,
                    are_renewed=False,
                ),
            )
        )
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> Ready | None:
        """Start both processes, and return when they are ready.

        Return None if told to stop earlier.

        Raises DevError.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop.set)
        self._running = asyncio.create_task(self.supervisor.run(self._stop))
        ready = asyncio.create_task(self._until_ready())
        await asyncio.wait([self._running, ready], return_when=asyncio.FIRST_COMPLETED)
        if self._stop.is_set() or not ready.done():
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            await self.wait()
            return None
        try:
            return ready.result()
        except (ConfigError, GatewayError) as error:
            await self.stop()
            raise DevError(str(error)) from None

    async def wait(self) -> None:
        """Return when both processes have stopped, by Ctrl-C or SIGTERM. Raises DevError."""
        try:
            if self._running is not None:
                await self._running
        except (FatalExitError, OSError) as error:
            raise DevError(str(error)) from None
        finally:
            self._sockets.close()

    async def stop(self) -> None:
        """Stop both processes."""
        self._stop.set()
        await self.wait()

    async def _until_ready(self) -> Ready:
        try:
            async with asyncio.timeout(READY_SECONDS):
                await wait_until_ready(self._places)
                while not self._have_key_services():  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            missing = await what_is_missing(self._places)
            problem = "; ".join(missing) or "a shard has no key service"
            raise GatewayError(f"the gateway was not ready in time: {problem}") from None
        return await asyncio.to_thread(self._welcome)

    def _have_key_services(self) -> bool:
        """Return True if every key service listens."""
        return all(
            is_listening(Layout(self._layout.directory, name).socket)
            for name in self._layout.shards
        )

    def _welcome(self) -> Ready:
        """Make the demo tenant unless it exists, and invite its owner."""
        if not self._credentials.api_key:
            self._create_demo_tenant()
        self._keep(management_url=next(iter(self._management), ""))  # pqkeepd doctor asks there
        mailbox = gateway_config.read(self._layout.gateway_settings).mailbox
        invitation, password = self._invite_owner(), self._credentials.owner_password
        portal = f"{self._url.replace(HOST, 'localhost')}/portal"  # passkeys need a name
        who = urlencode({"invitation": invitation, "email": OWNER, "password": password})
        return Ready(
            base_url=self._url,
            management_url=self._credentials.management_url,
            management_urls=self._management,
            tenant_id=self._credentials.tenant_id,
            api_key=self._credentials.api_key,
            operator_key=self._credentials.operator_key,
            owner_invitation=invitation,
            portal_url=portal,
            portal_link=f"{portal}/demo#{who}",
            owner_password=password,
            mailbox="" if mailbox is None else str(mailbox.resolve()),
        )

    def _invite_owner(self) -> str:
        try:
            return self._gateway.invite(self._credentials.tenant_id, OWNER, "owner")
        except GatewayError as error:
            if error.code != _CONFLICT:
                raise
            return ""

    def _create_demo_tenant(self) -> None:
        try:
            tenant = self._gateway.create_tenant("demo", PLAN)
        except GatewayError as error:
            if error.code != _CONFLICT:
                raise
            # An earlier start created it, and ended before its API key was written down.
            tenant = self._gateway.create_tenant(f"demo {secrets.token_hex(4)}", PLAN)
        api_key = self._gateway.create_api_key(tenant)
        self._keep(tenant_id=tenant, api_key=api_key)

    def _keep(self, **known: str) -> None:
        self._credentials = replace(self._credentials, **known)
        write_credentials(self._layout, self._credentials)


def _settings(layout: Layout) -> gateway_config.Config:
    try:
        settings = gateway_config.read(layout.gateway_settings)
    except ConfigError as error:
        raise DevError(str(error)) from None
    if settings.tls_certificate is not None:
        raise DevError("pqkeepd dev serves plain HTTP: remove tls_certificate")
    return settings


def _url(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"
