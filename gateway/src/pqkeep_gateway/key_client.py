"""A shard's key services in other processes: one of them serves, the others stand by.

Calls go to the one that serves in the newest epoch. One that refuses a call because it stands by has
done nothing, so the next is tried; one that is lost with a call may have carried it out, so that is
not tried again.

Whatever goes wrong is a KeyServiceError: out of reach, standing by or lost on the way UNAVAILABLE,
no answer in time DEADLINE_EXCEEDED, an answer that is none BAD_ANSWER.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast
from uuid import UUID

from pqkeep_gateway.key_connection import PING_SECONDS, KeyConnection
from pqkeep_gateway.key_service_address import KeyServiceAddress
from pqkeep_gateway.rehearsal import before_change
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.audit import AnyAuditRequest
from pqkeep_protocol.codec import RESULT_TYPE, Answer, Call, Ping, Pong, Refusal, ToGateway
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    Batch,
    GetActiveKey,
    GetKey,
    GetKeyring,
    R_co,
    Request,
)
from pqkeep_protocol.metrics import GetMetrics, Samples
from pqkeep_protocol.shards import DEFAULT_SHARD

TIMEOUT_SECONDS = 9.0
SLOW_SECONDS = 14.0
"""For SLH-DSA, whose signatures take up to seconds, and whose key pairs are tried with one."""
SLOW = frozenset(name for name, spec in ALGORITHMS.items() if spec.standard == "FIPS 205")
_LOOK_UPS = (GetActiveKey, GetKey, GetKeyring)
"""What a rehearsal asks for."""

ClaimDatabase = Callable[[str, UUID], Awaitable[UUID]]
"""Notes which database a shard has, unless that is noted; returns what is. Raises UnavailableError."""


class KeyClient:
    """A KeyService in another process, or in whichever of several serves."""

    def __init__(
        self,
        *addresses: KeyServiceAddress,
        shard: str = DEFAULT_SHARD,
        claim: ClaimDatabase | None = None,
    ) -> None:
        """Use a shard's key services at these addresses, once ``run`` runs.

        With ``claim`` only those are used that have the database which it returns.
        """
        self._ids = itertools.count(1)
        self._shard = shard
        self._claim = claim
        self._database: UUID | None = None
        on_epoch = self._leave_earlier_epochs if len(addresses) > 1 else None
        self._connections = [
            KeyConnection(address, shard, self._ids, self._verify, on_epoch)
            for address in addresses
        ]
        self.refusals: Counter[ErrorKind] = Counter()
        """How many calls were refused, or not answered."""

    @property
    def waiting(self) -> int:
        """How many calls wait for an answer."""
        return sum(each.waiting for each in self._connections)

    async def run(self) -> None:
        """Stay connected to each until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._connections:
                group.create_task(each.run())

    async def execute(self, request: Request[R_co], attribution: Attribution) -> R_co:
        """Carry out one request, or raise KeyServiceError. A rehearsal makes look-ups only."""
        if not isinstance(request, _LOOK_UPS):
            before_change()
        seconds = SLOW_SECONDS if _is_slow(request) else TIMEOUT_SECONDS
        call = Call(
            next(self._ids),
            int(seconds * 1000),
            attribution,
            cast("AnyRequest | Batch | AnyAuditRequest", request),
        )
        try:
            answer = await self._ask_who_serves(call, seconds)
        except KeyServiceError as refusal:
            raise self._refused(refusal.kind) from None
        match answer:
            case Answer(result=result) if isinstance(result, RESULT_TYPE[type(request)]):
                return cast(R_co, result)
            case Refusal(kind=kind):
                raise self._refused(kind)
            case _:
                raise self._refused(ErrorKind.BAD_ANSWER)

    async def metrics(self) -> Samples:
        """Return the key service's numbers. Raises KeyServiceError."""
        attribution = Attribution("", "gateway", "", "")
        return (await self.execute(GetMetrics(tenant=INSTALLATION), attribution)).samples

    async def is_reachable(self) -> bool:
        """Return whether a key service answers that serves: one that stands by is none."""
        asked = (_epoch(each, next(self._ids)) for each in self._by_epoch())
        return any(await asyncio.gather(*asked))

    async def _ask_who_serves(self, call: Call, seconds: float) -> ToGateway:
        """Return the answer of the first key service that does not stand by."""
        for each in self._by_epoch():
            answer = await each.exchange(call, seconds)
            if not (isinstance(answer, Refusal) and answer.kind is ErrorKind.STANDBY):
                return answer
            each.epoch = 0
        raise KeyServiceError(ErrorKind.UNAVAILABLE)

    async def _verify(self, database: UUID | None) -> None:
        """Raise ConnectionError unless it is the database that the shard's key services have.

        Otherwise one that was set up with another, perhaps empty, database could take its place.
        """
        if self._claim is None:
            return
        if database is None:
            raise ConnectionError("it does not say which database it has")
        if self._database is None:
            try:
                self._database = await self._claim(self._shard, database)
            except UnavailableError:
                raise ConnectionError("the accounts database does not say which its is") from None
        if self._database != database:
            raise ConnectionError(f"it has another database than the shard {self._shard} has")

    def _by_epoch(self) -> list[KeyConnection]:
        """Return the open connections, that to the newest epoch's key service first."""
        opened = [each for each in self._connections if each.is_open]
        if len(opened) > 1:
            opened.sort(key=lambda each: -each.epoch)
        return opened

    def _leave_earlier_epochs(self) -> None:
        """End connections to key services that another one has taken over from."""
        newest = max(each.epoch for each in self._connections)
        for each in self._connections:
            if 0 < each.epoch < newest:
                each.abandon()

    def _refused(self, kind: ErrorKind) -> KeyServiceError:
        self.refusals[kind] += 1
        return KeyServiceError(kind)


async def _epoch(connection: KeyConnection, number: int) -> int:
    """Return in which epoch a key service serves; 0 where it does not, or does not answer."""
    try:
        answer = await connection.exchange(Ping(number), PING_SECONDS)
    except KeyServiceError:
        return 0
    return answer.epoch if isinstance(answer, Pong) else 0


def _is_slow(request: Request[Any]) -> bool:
    if isinstance(request, Batch):
        return any(_is_slow(item.request) for item in request.items)
    return getattr(request, "algorithm", None) in SLOW
