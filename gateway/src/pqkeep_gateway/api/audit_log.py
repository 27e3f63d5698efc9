"""The audit log of each shard, and the choice of logs for a request."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from pqkeep_gateway.api.audit_fields import LOG, SHARD
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.errors import forbidden, not_found
from pqkeep_gateway.shards import ShardNotFoundError, Shards, UnknownShardError
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Checkpoint, ListAuditKeys, ListCheckpoints
from pqkeep_protocol.keys import DEFAULT_SHARD, INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, KeyService, Request

R = TypeVar("R")

_ATTRIBUTION = Attribution("", "gateway", "")


class AuditLog:
    """The audit log of one shard."""

    def __init__(self, keys: KeyService) -> None:
        self._keys = keys

    async def ask(self, request: Request[R]) -> R:
        """Send a request to the shard's key service."""
        return await self._keys.execute(request, _ATTRIBUTION)

    async def id(self) -> str:
        """Return the log's id."""
        return str((await self.ask(ListAuditKeys(tenant=INSTALLATION))).log_id)

    async def newest(self) -> Checkpoint:
        """Return the newest checkpoint."""
        request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=Algorithm.ML_DSA_65)
        found = (await self.ask(request)).checkpoints
        if not found:
            raise not_found("there is no checkpoint yet; try again in a second")
        return found[0]

    async def pages(
        self, first: Request[R], following: Callable[[R], Request[R] | None]
    ) -> AsyncGenerator[R, None]:
        """Yield responses. The next one is requested while the caller uses the current one."""
        asked: asyncio.Task[R] | None = asyncio.create_task(self.ask(first))
        try:
            while asked is not None:
                page = await asked
                request = following(page)
                asked = None if request is None else asyncio.create_task(self.ask(request))
                yield page
        finally:
            if asked is not None:
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)


class AuditLogs:
    """The audit logs of all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def one(self, call: ApiCall) -> AuditLog:
        """Return the log of the request: the named one, or the one of the tenant's shard.

        Raises ShardNotFoundError.
        """
        logs, tenant = await self.all(call), call.principal.tenant
        if len(logs) == 1 or tenant is None:
            return logs[0]
        return AuditLog(self._shards.of(await self._shards.residence(tenant)))

    async def all(self, call: ApiCall, of: TenantId = INSTALLATION) -> Sequence[AuditLog]:
        """Return the named log, or all logs with the tenant's records, the oldest first.

        For an operator: the log of a shard, or all logs with a tenant's records. Raises
        ShardNotFoundError.
        """
        tenant, shard = call.principal.tenant, call[SHARD]
        named = call[LOG]
        if tenant is not None:
            if shard is not None:
                raise forbidden("only an operator may send shard")
            shards: Sequence[str] = await self._shards.recorded(tenant, call.principal.placement)
        elif of != INSTALLATION and shard is None:
            shards = await self._shards.recorded(of)
        elif named is not None and shard is None:
            shards = self._shards.names
        else:
            shards = (shard or DEFAULT_SHARD,)
        try:
            logs = [AuditLog(self._shards.of(shard)) for shard in shards]
        except UnknownShardError:
            if tenant is not None:
                raise
            raise ShardNotFoundError from None
        if named is None:
            return logs
        for log in logs:
            if await log.id() == str(named):
                return [log]
        raise not_found("no such log", "log")
