"""``pqkeepd shard``: moves tenants between the shards of this host while the service runs.

Each step can be repeated after the command or a key service was killed: the accounts database and
the two audit logs have the state of a move. Root talks to the key services' operator sockets, and
changes the accounts database as its owner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.entitlements import TenantNotFoundError
from pqkeep_gateway.shards import (
    Placement,
    ShardInUseError,
    ShardNotFoundError,
    StoredShard,
    removal,
)
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.administration import (
    BUNDLE_PART,
    AnyMoveRequest,
    BundlePart,
    CancelMove,
    ExportedTenant,
    ExportTenant,
    FinishMove,
    ImportProgress,
    ImportTenant,
    ListMoves,
    MoveCancelled,
    MoveFinished,
    MoveRefusal,
    Moves,
    ReadBundle,
    Receipt,
    Renounced,
    RenounceTenant,
)
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Result
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.data_lock import MOVES_LOCK_FILE, locked
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError, MoveRefusedError, take_step
from pqkeep_server.owner import acting_as_owner_of
from pqkeep_server.progress import counted

if TYPE_CHECKING:
    from pqkeep_gateway.storage.shards import SqlShards

Report = Callable[[str], None]
"""Shows the next step."""
T = TypeVar("T")
R = TypeVar("R", bound=Result)
_Opened = tuple[asyncio.Runner, "SqlShards"]
"""An event loop, and the accounts database that is used only on it."""


class ShardError(Exception):
    """A move failed or is unfinished. The message is for the operator."""


class OtherTargetError(ShardError):
    """The tenant is moving to another shard."""


@dataclass(frozen=True, slots=True)
class ShardHere:
    """A shard, with the state of its key service if that runs on this host."""

    stored: StoredShard
    unfinished: int | None
    """The number of moved tenants with bundles left here, or None if the key service is silent."""


class ShardMoves:
    """Moves tenants of the installation in a data directory."""

    def __init__(self, layout: Layout, report: Report) -> None:
        """Find the key services of this host. Raises ShardError."""
        self._layout = layout
        self._report = report
        self._opened: _Opened | None = None
        try:
            self._settings = gateway_config.read(layout.gateway_settings)
            self._sockets = operator_sockets(layout)
        except ConfigError as error:
            raise ShardError(str(error)) from None

    def list(self) -> Sequence[ShardHere]:
        """Return all shards that were not removed. Raises ShardError."""
        with self._accounts_open():
            found = self._accounts(lambda accounts: accounts.list())
        named = self._settings.key_services
        return [
            ShardHere(shard, self._unfinished(shard.name))
            for shard in found
            if shard.name in named or shard.tenants
        ]

    def move(self, tenant: TenantId, target: str) -> None:
        """Move a tenant, or continue its move. Raises ShardError."""
        with self._alone():
            self._move(tenant, target)

    def cancel(self, tenant: TenantId) -> str:
        """Cancel the move of a tenant, and return its shard. Raises ShardError.

        This needs the target shard's proof that it does not have the tenant. No proof is needed if
        the bundle never left the source shard.
        """
        with self._alone():
            return self._cancel(tenant)

    def drain(self, shard: str) -> int:
        """Move all tenants away, accept no new tenants, and return the number moved.

        Raises ShardError.
        """
        with self._alone():
            return self._drain(shard)

    def end_draining(self, shard: str) -> None:
        """Accept new tenants in a shard again. Moved tenants do not return. Raises ShardError.

        Refused while the shard is being drained.
        """
        with self._alone():
            self._accounts(lambda accounts: accounts.set_draining(shard, draining=False))

    def remove(self, shard: str, *, leaves_records: bool) -> int:
        """Record the removal of an empty shard. Return the number of tenants with records there.

        Raises ShardError if the shard cannot be removed; see ``SqlShards.remove``.
        """
        with self._alone():
            if bundles := self._bundles(shard):
                raise ShardError(
                    f"{counted(len(bundles), 'move')} away from the shard {shard} not finished: run"
                    " pqkeepd shard drain"
                )
            try:
                return self._accounts(
                    lambda accounts: accounts.remove(
                        shard, removal(shard), leaves_records=leaves_records
                    )
                )
            except ShardInUseError as error:
                raise ShardError(f"the shard {shard} cannot be removed: {error}") from None

    @contextmanager
    def while_nobody_moves(self) -> Iterator[None]:
        """Prevent moves of tenants here. Raises ShardError if a move is unfinished."""
        with self._alone():
            moving = {
                shard.name: shard.moving
                for shard in self._accounts(lambda accounts: accounts.list())
            }
            for shard in self._sockets:
                if unfinished := max(moving.get(shard, 0), len(self._bundles(shard))):
                    raise ShardError(
                        f"{counted(unfinished, 'move')} away from the shard {shard} not finished: run"
                        " each again, or cancel it"
                    )
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Prevent moves by other commands on this host. Raises ShardError.

        A command that was paused between two steps must not continue after another move.
        """
        try:
            with locked(self._layout.directory, MOVES_LOCK_FILE), self._accounts_open():
                yield
        except BlockingIOError:
            raise ShardError("another command is moving tenants: wait until it has ended") from None
        except OSError as error:
            raise ShardError(
                f"{self._layout.directory / MOVES_LOCK_FILE}: {error.strerror}"
            ) from None

    def _move(self, tenant: TenantId, target: str) -> None:
        self._socket(target)
        shown = f"tenant {tenant}"
        placement = self._placement_of(tenant)
        source = placement.shard
        if source == target:
            self._report(f"{shown}: looking for a bundle to destroy")
            if not self._finish_elsewhere(tenant, target):
                raise ShardError(f"{shown} is already in the shard {target}")
            return
        self._socket(source)
        self._finish_elsewhere(tenant, source)  # of the previous move
        if not placement.is_moving:
            self._require_one_transfer_key(source, target)
            self._require_capacity(tenant, source, target)
        self._report(f"{shown}: refusing its requests")
        source = self._accounts(lambda accounts: accounts.begin_move(tenant))
        self._report(f"{shown}: leaving {source}")
        exported = self._export(tenant, source, target)
        self._report(f"{shown}: arriving at {target}")
        receipt = self._copy(tenant, exported)
        self._report(f"{shown}: destroying what {source} has")
        self._finish(tenant, source, receipt)  # before a call can destroy a key in the target shard
        self._report(f"{shown}: serving it there")
        self._end_move(tenant, source, target)

    def _cancel(self, tenant: TenantId) -> str:
        shown = f"tenant {tenant}"
        placement = self._placement_of(tenant)
        if not placement.is_moving:
            raise ShardError(f"{shown} is in the shard {placement.shard} and is not being moved")
        source = placement.shard
        self._report(f"{shown}: taking it back")
        found = self._take_back(tenant, source)
        if found is not None and not found.cancelled:
            self._report(f"{shown}: asking {found.target} to renounce it")
            renunciation = self._renunciation(tenant, source, found)
            self._report(f"{shown}: taking it back")
            found = self._take_back(tenant, source, renunciation)
        self._report(f"{shown}: serving it in {source}")
        self._end_move(tenant, source, source)
        return source

    def _end_move(self, tenant: TenantId, source: str, target: str) -> None:
        """Serve a tenant in a shard again.

        Raises ShardError if another command has moved the tenant meanwhile.
        """
        self._accounts(lambda accounts: accounts.end_move(tenant, source, target))
        if self._placement_of(tenant) != Placement(target):
            raise ShardError(
                f"another command moved tenant {tenant} meanwhile: run this command again"
            )

    def _take_back(
        self, tenant: TenantId, source: str, renunciation: Receipt | None = None
    ) -> MoveCancelled | None:
        """Ask a shard to take a tenant back. Return None if the tenant is still there."""
        request = CancelMove(tenant=tenant, renunciation=renunciation)
        try:
            return take_step(self._socket(source), request, MoveCancelled)
        except MoveRefusedError as error:
            if error.reason is MoveRefusal.NOT_MOVING:
                return None
            if error.reason is MoveRefusal.HAS_ARRIVED:
                raise ShardError(
                    f"tenant {tenant} has already arrived in the target shard: finish the move with"
                    " pqkeepd shard move --to"
                ) from None
            raise ShardError(f"{source}: {error}") from None
        except KeyServiceError as error:
            raise ShardError(f"{source}: {error}; run the command again to continue") from None

    def _renunciation(self, tenant: TenantId, source: str, move: MoveCancelled) -> Receipt:
        """Return the target shard's statement that it does not have the tenant and never will."""
        request = RenounceTenant(
            tenant=tenant, source=source, generation=move.generation, sha256=move.sha256
        )
        shown, target = f"tenant {tenant}", move.target
        try:
            return take_step(self._socket(target), request, Renounced).renunciation
        except MoveRefusedError as error:
            if error.reason is MoveRefusal.HAS_ARRIVED:
                raise ShardError(
                    f"{shown} has arrived at {target}: finish the move with pqkeepd shard move --to"
                    f" {target}"
                ) from None
            raise ShardError(f"{target}: {error}") from None
        except (KeyServiceError, ShardError) as error:
            raise ShardError(
                f"{target}: {error}. This shard may have the tenant: start its key service or restore"
                " its database, and run the command again. Until then nothing changes, and the"
                " tenant's requests are refused"
            ) from None

    def _drain(self, shard: str) -> int:
        self._socket(shard)
        self._accounts(lambda accounts: accounts.set_draining(shard, draining=True))
        moved = 0
        while tenants := self._accounts(lambda accounts: accounts.tenants_in(shard)):
            for tenant in tenants:
                self._move_anywhere(tenant, shard)
                moved += 1
        for tenant in self._bundles(shard):
            self._finish_elsewhere(tenant, self._placement_of(tenant).shard)
        return moved

    def _placement_of(self, tenant: TenantId) -> Placement:
        return self._accounts(lambda accounts: accounts.find(tenant))

    def _move_anywhere(self, tenant: TenantId, source: str) -> None:
        """Move a tenant to the emptiest shard that runs here, or continue its unfinished move."""
        running = [shard.stored for shard in self.list() if shard.unfinished is not None]
        targets = [
            shard.name
            for shard in sorted(running, key=lambda shard: shard.tenants)
            if shard.name != source and not shard.draining
        ]
        if not targets:
            raise ShardError(
                "no other running shard on this host accepts tenants: add or start one"
            )
        for target in targets:
            try:
                self._move(tenant, target)
            except OtherTargetError:
                continue
            return
        raise ShardError(f"tenant {tenant} is on its way to a shard that does not run on this host")

    def _require_one_transfer_key(self, *shards: str) -> None:
        """Raise ShardError if shards have different transfer keys after an interrupted rotation.

        The target shard could not open the bundle of a tenant then.
        """
        try:
            keys = {transfer_key(Layout(self._layout.directory, shard)) for shard in shards}
        except ConfigError as error:
            raise ShardError(str(error)) from None
        if len(keys) > 1:
            raise ShardError(
                f"the shards {' and '.join(shards)} have different transfer keys: run pqkeepd"
                " transfer-key rotate again, then this command"
            )

    def _require_capacity(self, tenant: TenantId, source: str, target: str) -> None:
        """Raise ShardError, while the tenant is still served, if the target would refuse it."""
        asks = ImportTenant(tenant=tenant, sha256=bytes(32), size=1, part=0, data=b"")
        try:
            take_step(self._socket(target), asks, ImportProgress)
        except KeyServiceError as error:
            raise ShardError(f"tenant {tenant} stays in {source}: {target}: {error}") from None

    def _export(self, tenant: TenantId, source: str, target: str) -> ExportedTenant:
        request = ExportTenant(tenant=tenant, target=target)
        try:
            return take_step(self._socket(source), request, ExportedTenant)
        except MoveRefusedError as error:
            if error.reason is MoveRefusal.OTHER_TARGET:
                raise OtherTargetError(f"tenant {tenant}: {error}") from None
            self._accounts(
                lambda accounts: accounts.end_move(tenant, source, source)
            )  # the tenant has not left
            raise ShardError(f"tenant {tenant} stays in {source}: {error}") from None
        except KeyServiceError as error:
            raise ShardError(f"{source}: {error}; run the command again to continue") from None

    def _copy(self, tenant: TenantId, exported: ExportedTenant) -> Receipt:
        """Copy a bundle from one key service to the other, and return the receipt."""
        digest, size = exported.sha256, max(exported.size, 1)

        def bring(part: int, data: bytes) -> ImportProgress:
            request = ImportTenant(tenant=tenant, sha256=digest, size=size, part=part, data=data)
            return self._ask(exported.target, request, ImportProgress)

        receipt = bring(0, b"").receipt
        for part in range(-(-exported.size // BUNDLE_PART)):
            if receipt is not None:
                break
            read = ReadBundle(tenant=tenant, sha256=digest, part=part)
            receipt = bring(part, self._ask(exported.source, read, BundlePart).data).receipt
        if receipt is None:
            raise ShardError(
                f"{exported.target} sent no receipt for tenant {tenant}: run the command again"
            )
        return receipt

    def _finish(self, tenant: TenantId, source: str, receipt: Receipt) -> None:
        self._ask(source, FinishMove(tenant=tenant, receipt=receipt), MoveFinished)

    def _finish_elsewhere(self, tenant: TenantId, target: str) -> bool:
        """Destroy the bundle of an arrived tenant, if one is left.

        A shard that the accounts database does not know has never had a tenant, and need not run.
        """
        for source in (shard.name for shard in self._accounts(lambda accounts: accounts.list())):
            if source == target or source not in self._sockets:
                continue
            if tenant not in self._bundles(source):
                continue
            exported = self._export(tenant, source, target)
            self._finish(tenant, source, self._copy(tenant, exported))
            return True
        return False

    def _unfinished(self, shard: str) -> int | None:
        with suppress(ShardError):
            return len(self._bundles(shard))
        return None

    def _bundles(self, shard: str) -> Sequence[TenantId]:
        """Return the moved tenants with bundles that are left in a shard."""
        return self._ask(shard, ListMoves(tenant=INSTALLATION), Moves).tenants

    def _ask(self, shard: str, request: AnyMoveRequest, kind: type[R]) -> R:
        try:
            return take_step(self._socket(shard), request, kind)
        except KeyServiceError as error:
            raise ShardError(f"{shard}: {error}; {_what_next(error)}") from None

    def _socket(self, shard: str) -> Path:
        try:
            return self._sockets[shard]
        except KeyError:
            raise ShardError(
                f"the shard {shard} has no key service with an operator_socket on this host: set it in"
                f" keyservice-{shard}/settings.toml of the data directory"
            ) from None

    def _accounts(self, action: "Callable[[SqlShards], Awaitable[T]]") -> T:
        if self._opened is None:
            raise RuntimeError("the accounts database is not open")
        runner, placements = self._opened
        with self._as_gateway():
            return runner.run(_result(action(placements)))

    @contextmanager
    def _accounts_open(self) -> Iterator[None]:
        """Keep the accounts database open for a block. Blocks can be nested. Raises ShardError."""
        from pqkeep_gateway.wiring import open_placements  # noqa: PLC0415 - slow

        if self._opened is not None:
            yield
            return
        with asyncio.Runner() as runner:
            opening = AsyncExitStack()
            with self._as_gateway():
                entering = opening.enter_async_context(open_placements(self._settings))
                self._opened = runner, runner.run(entering)
            try:
                yield
            finally:
                self._opened = None
                with self._as_gateway():
                    runner.run(opening.aclose())

    @contextmanager
    def _as_gateway(self) -> Iterator[None]:
        """Use the accounts database as its owner. Raises ShardError."""
        try:
            with acting_as_owner_of(self._layout.gateway):
                yield
        except TenantNotFoundError:
            raise ShardError("the tenant does not exist: check its id") from None
        except ShardNotFoundError:
            raise ShardError(
                "the gateway's settings do not name this shard: see pqkeepd shard list"
            ) from None
        except UnavailableError:
            raise ShardError("the accounts database cannot be reached") from None
        except (ConfigError, OSError) as error:
            raise ShardError(str(error)) from None


def _what_next(error: KeyServiceError) -> str:
    if isinstance(error, MoveRefusedError) and error.reason is MoveRefusal.BUNDLE_OUTDATED:
        return "cancel the move with pqkeepd shard move --cancel"
    return "run the command again to continue"


async def _result(awaitable: Awaitable[T]) -> T:
    return await awaitable


def operator_sockets(layout: Layout) -> Mapping[str, Path]:
    """Return the operator sockets of the key services here, by shard. Raises ConfigError."""
    found: dict[str, Path] = {}
    for file in layout.key_services:
        settings = key_service_config.read(file)
        if settings.operator_socket is None:
            continue
        if settings.shard in found:
            raise ConfigError(f"{file}: another key service also has the shard {settings.shard}")
        found[settings.shard] = settings.operator_socket
    return found


def transfer_key(layout: Layout) -> bytes | None:
    """Return a shard's transfer key, or None if its settings name none. Raises ConfigError."""
    with acting_as_owner_of(layout.key_service):
        file = key_service_config.read(layout.key_service_settings).transfer_key_file
        return None if file is None else read_secret_file(file, "transfer key")
