"""Worker processes that encapsulate for batches, while the event loop does all the rest.

ML-KEM holds the interpreter lock, and is half of what a batch of encapsulations costs. A worker gets
a public key and a number, and returns so many fresh shared secrets with their KEM ciphertexts, over a
pair of sockets: nothing secret is in a file, an argument or the environment. It has no private key.

Whatever a worker cannot do now, because it starts, has ended or was too slow, the event loop does.
"""

import asyncio
import itertools
import multiprocessing
import os
import socket
from functools import lru_cache
from io import BufferedRWPair
from typing import NamedTuple

import msgspec

from pqkeep_keyservice import hardening
from pqkeep_keyservice.crypto import selftest
from pqkeep_keyservice.crypto.kem import KEMS, EncapsulationKey
from pqkeep_keyservice.live import MAX_WAITING
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.fair_queue import FairQueue, QueueFullError, QueueTimeoutError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

MOST_WORKERS = 4
"""Two encapsulate as fast as the event loop can record, with ML-KEM; X-Wing takes longer."""
JOBS_OF_A_WORKER = 8
"""It works on one; the others are there when it has done, however busy the event loop is then."""
SECONDS = 5.0
"""After which a worker that has not answered is ended: 128 encapsulations take milliseconds."""
SECONDS_BETWEEN_STARTS = 60.0
"""Of one worker: what ends it may end the next one too."""
BUFFER = 1 << 20
"""More bytes than 128 encapsulations have."""
PUBLIC_KEYS = 100
"""Expanded ones that a worker keeps: 7 to 11 KB each."""

Encapsulation = tuple[bytes, bytes]
"""A fresh shared secret, and the KEM ciphertext that carries it."""


class _Job(NamedTuple):
    id: int
    algorithm: Algorithm
    public_key: bytes
    number: int


class _Made(NamedTuple):
    job: int
    encapsulations: list[Encapsulation]


_JOB = msgspec.msgpack.Decoder(_Job)
_MADE = msgspec.msgpack.Decoder(_Made)
_ENCODER = msgspec.msgpack.Encoder()
_SIZE = 4
"""Bytes of the size, big-endian, before each message. The first one of a worker is empty."""


class _WrongAnswerError(Exception):
    """An answer is another job's, such as one that came too late, or not as long as its own."""


_FAILURES = (OSError, EOFError, TimeoutError, msgspec.DecodeError, _WrongAnswerError)


class EncapsulationWorkers:
    """All but one core's. No tenant keeps others from them."""

    def __init__(self) -> None:
        """Start nothing yet; a process starts with its first work, which it does not get."""
        self._workers = [_Worker() for _ in range(min(MOST_WORKERS, (os.cpu_count() or 1) - 1))]
        self._ids = itertools.count()
        self._running: set[asyncio.Task[list[Encapsulation]]] = set()
        places = self._workers * JOBS_OF_A_WORKER
        self._queue = FairQueue[TenantId, _Worker](
            places, per_subject=len(places), max_waiting=MAX_WAITING
        )

    async def encapsulate(
        self,
        tenant: TenantId,
        deadline: float,
        algorithm: Algorithm,
        public_key: bytes,
        number: int,
    ) -> list[Encapsulation]:
        """Return so many encapsulations to a public key that was checked; or none.

        The deadline, in the event loop's time, is for a worker to be free.
        """
        if not self._workers:
            return []
        try:
            worker = await self._queue.acquire(tenant, deadline)
        except (QueueFullError, QueueTimeoutError):
            return []
        job = _Job(next(self._ids), algorithm, public_key, number)
        run = asyncio.create_task(self._run(tenant, worker, job))  # goes on if this is cancelled
        self._running.add(run)
        run.add_done_callback(self._running.discard)
        return await asyncio.shield(run)

    async def _run(self, tenant: TenantId, worker: "_Worker", job: _Job) -> list[Encapsulation]:
        try:
            return await worker.run(job)
        finally:
            self._queue.release(tenant, worker)

    def close(self) -> None:
        """End the processes."""
        for each in self._workers:
            each.end()


class _Worker:
    """One process, which runs one job after the other. It starts again after it has ended."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        """Answers come in the order of the jobs, and those who wait are let in in theirs."""
        self._process: multiprocessing.process.BaseProcess | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._greeting: asyncio.Task[bytes] | None = None
        self._may_start_at = 0.0

    async def run(self, job: _Job) -> list[Encapsulation]:
        """Return what a job makes; nothing where the process is not ready, or has failed."""
        streams = self._streams
        try:
            if streams is None or self._greeting is None:
                await self._start()
                return []
            if not self._greeting.done():
                return []
            self._greeting.result()
            reader, writer = streams
            writer.write(_message(_ENCODER.encode(job)))
            async with asyncio.timeout(SECONDS), self._reading:
                return await _answer(reader, job)
        except _FAILURES as error:
            if streams is self._streams:  # else another job has ended it
                _LOG.warning("a worker process has failed", error=type(error).__name__)
                self.end()
            return []

    async def _start(self) -> None:
        """Start the process, but not at once again. Spawned, it has nothing of this one's memory."""
        now = asyncio.get_running_loop().time()
        if now < self._may_start_at:
            return
        self._may_start_at = now + SECONDS_BETWEEN_STARTS
        ours, theirs = socket.socketpair()
        with ours, theirs:
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            self._process = process
            self._streams = await asyncio.open_unix_connection(sock=ours.dup(), limit=BUFFER)
        self._greeting = asyncio.create_task(_next(self._streams[0]))

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._greeting is not None:
            self._greeting.cancel()
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._process = self._streams = self._greeting = None


async def _answer(reader: asyncio.StreamReader, job: _Job) -> list[Encapsulation]:
    made = _MADE.decode(await _next(reader))
    if made.job != job.id or len(made.encapsulations) != job.number:
        raise _WrongAnswerError
    return made.encapsulations


async def _next(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(_SIZE), "big")
    return await reader.readexactly(size)


def _message(data: bytes) -> bytes:
    return len(data).to_bytes(_SIZE, "big") + data


def _serve(peer: socket.socket) -> None:
    """Run jobs until the other end closes."""
    hardening.harden_worker()
    selftest.require_kems()
    with peer, peer.makefile("rwb") as stream:
        _send(stream, b"")
        while size := stream.read(_SIZE):
            job = _JOB.decode(stream.read(int.from_bytes(size, "big")))
            key = _loaded(job.algorithm, job.public_key)
            made = _Made(job.id, [key.encapsulate() for _ in range(job.number)])
            _send(stream, _ENCODER.encode(made))


def _send(stream: BufferedRWPair, data: bytes) -> None:
    stream.write(_message(data))
    stream.flush()


@lru_cache(PUBLIC_KEYS)
def _loaded(algorithm: Algorithm, public_key: bytes) -> EncapsulationKey:
    return KEMS[algorithm].load_public(public_key)
