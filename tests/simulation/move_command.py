"""The operator's command that moves tenants, killed at any moment.

It is the product's own (``pqkeepd shard move``, also with ``--cancel``), with simulated sockets to
key services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from sqlalchemy.util.concurrency import await_only, greenlet_spawn
from tests.simulation.choices import Choices
from tests.simulation.event_loop import Process, SimulatedLoop
from tests.simulation.gateways import Placements
from tests.simulation.history import FindingError
from tests.simulation.installation import operator_path
from tests.simulation.shard import Shard

from pqkeep_gateway.storage.shards import SqlShards
from pqkeep_protocol.administration import AnyMoveRequest
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    Answer,
    Call,
    FramedConnection,
    Refusal,
    ToGateway,
    Unreadable,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Result
from pqkeep_server import key_service_client
from pqkeep_server.key_service_client import KeyServiceError, KeyServiceRefusalError
from pqkeep_server.shards import ShardError, ShardMoves

T = TypeVar("T")
R = TypeVar("R", bound=Result)

LONGEST_REST = 2.0
"""Between two commands, in seconds."""
CANCEL = "--cancel"
RECOVERY_SECONDS = 90.0
"""Seconds until a move ends, once there are no more faults."""


class SimulatedMoves(ShardMoves):
    """The command, without a data directory."""

    def __init__(self, placements: Placements, shards: Mapping[str, Shard]) -> None:
        self._placements = cast(SqlShards, placements)
        self._report = lambda _: None
        self._sockets = {name: Path(name) for name in shards}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        yield  # the operator below runs one after the other

    def _accounts(self, action: Callable[[SqlShards], Awaitable[T]]) -> T:
        result: T = await_only(action(self._placements))
        return result

    def _require_one_transfer_key(self, *shards: str) -> None:
        """There is one."""


class Operator:
    """Runs the command, and calls key services."""

    def __init__(
        self,
        loop: SimulatedLoop,
        seed: int,
        shards: Mapping[str, Shard],
        placements: Placements,
        tell: Callable[..., None],
    ) -> None:
        self.process = Process("operator")
        self._loop = loop
        self._choices = Choices(seed, "operator")
        self._shards = shards
        self._placements = placements
        self._moves = SimulatedMoves(placements, shards)
        self._tell = tell

    async def run(self) -> None:
        """Move tenants, cancel moves and kill the command, until cancelled."""
        while True:
            await asyncio.sleep(self._choices.delay(0.05, LONGEST_REST))
            tenant = self._choices.one_of([*self._placements.at])
            cancels = self._choices.happens(0.5 if self._placements.at[tenant].is_moving else 0.05)
            is_killed = self._choices.happens(0.4)
            seconds = self._choices.delay(0.001, 0.5) if is_killed else None
            await self._command(tenant, seconds, cancels=cancels)

    async def finish(self) -> None:
        """End all moves, as the command says. Raises FindingError."""
        until = self._loop.time() + RECOVERY_SECONDS
        said: str | None = None
        for tenant in self._placements.at:
            while self._placements.at[tenant].is_moving:
                if self._loop.time() > until:
                    raise FindingError("progress", f"the move of {tenant} does not end")
                said = await self._command(
                    tenant, None, cancels=said is not None and CANCEL in said
                )
                await asyncio.sleep(0.5)

    async def _command(
        self, tenant: TenantId, seconds: float | None, *, cancels: bool
    ) -> str | None:
        """Return the command's message, if it fails."""
        source = self._placements.at[tenant].shard
        (target,) = self._shards.keys() - {source}
        words = (self._moves.cancel, tenant) if cancels else (self._moves.move, tenant, target)
        self._tell("command", "cancel" if cancels else f"move to {target}", tenant.int)
        command = asyncio.ensure_future(greenlet_spawn(*words))
        try:
            await asyncio.wait([command], timeout=seconds)
        finally:  # also where the operator ends
            if not command.done():
                command.cancel()
                await asyncio.wait([command])
        if command.cancelled():
            self._tell("command killed")
            return None
        try:
            command.result()
        except ShardError as error:
            self._tell("command failed", str(error))
            return str(error)
        return None

    def ask(
        self, path: Path, request_id: str, request: AnyMoveRequest, kind: type[R], why_not: str
    ) -> R:
        """Act like ``key_service_client._ask``, over the simulated network."""
        seconds = key_service_client.seconds_for(request)
        attribution = Attribution(request_id, "operator", "", "")
        call = Call(1, int(seconds * 1000), attribution, request)
        try:
            response = await_only(self._exchange(self._shards[path.name], call, seconds))
        except OSError as error:  # TimeoutError is one
            raise KeyServiceError(f"does not answer: {error}") from None
        match response:
            case Answer(result=result) if isinstance(result, kind):
                return result
            case Refusal(kind=ErrorKind.STANDBY):
                raise KeyServiceError("stands by")
            case Refusal():
                raise KeyServiceRefusalError(why_not)
            case _:
                raise FindingError("answers", f"{request!r} is answered {response!r}")

    async def _exchange(self, shard: Shard, call: Call, seconds: float) -> ToGateway | Unreadable:
        response: asyncio.Future[ToGateway | Unreadable] = self._loop.create_future()

        def receive(frame: ToGateway | Unreadable) -> None:
            if not response.done():
                response.set_result(frame)

        def lost(_: Exception | None) -> None:
            if not response.done():
                response.set_exception(ConnectionResetError("the connection was closed"))

        def connection() -> FramedConnection[ToGateway]:
            return FramedConnection(TO_GATEWAY, on_frame=receive, on_lost=lost)

        async with asyncio.timeout(seconds):
            path = operator_path(_serving(shard))
            _, made = await self._loop.create_unix_connection(connection, path)
            try:
                made.send(call)
                return await response
            finally:
                made.close()
                response.cancel()


def _serving(shard: Shard) -> str:
    """Return the address of the key service with the database's lock, or None."""
    holder = shard.server.holder
    paths = shard.installation.paths
    return next(
        (
            path
            for path, each in shard.installation.services.items()
            if holder is not None and each.process is holder.process
        ),
        paths[0],
    )
