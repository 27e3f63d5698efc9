"""Worker processes that encapsulate for batches, so that the event loop is free for other work.

ML-KEM holds the interpreter lock, and takes half the time of a batch of encapsulations. A worker
receives a public key and a number. It returns that many fresh shared secrets with their KEM
ciphertexts. They cross by a pair of sockets: no secret is in a file, an argument or the
environment. A worker has no private key.

If a worker is starting, has ended or is too slow, the event loop does the work itself.
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
"""With ML-KEM, two workers encapsulate as fast as the event loop records. X-Wing takes longer."""
JOBS_OF_A_WORKER = 8
"""Jobs sent to a worker at once. It works on one, and has the next even if the event loop is
busy."""
SECONDS = 5.0
"""The time after which a silent worker is ended. 128 encapsulations take milliseconds."""
SECONDS_BETWEEN_STARTS = 60.0
"""The time between two starts of one worker, because the cause of its end may persist."""
BUFFER = 1 << 20
"""The size of a buffer in bytes. The results of 128 encapsulations need less."""
PUBLIC_KEYS = 100
"""Expanded public keys in a worker's cache, 7 to 11 KB each."""

Encapsulation = tuple[bytes, bytes]
"""A fresh shared secret, and its KEM ciphertext."""


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
"""Bytes of the big-endian size before each message. A worker's first message is empty."""


class _WrongAnswerError(Exception):
    """A result is for another, earlier job, or has the wrong length."""


_FAILURES = (OSError, EOFError, TimeoutError, msgspec.DecodeError, _WrongAnswerError)


class EncapsulationWorkers:
    """The workers, one for each core but one. Tenants share them fairly."""

    def __init__(self) -> None:
        """Start nothing yet. A worker starts at its first job, which the event loop then does."""
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
        """Return ``number`` encapsulations to a checked public key, or an empty list.

        The deadline for a free worker is in the event loop's time.
        """
        if not self._workers:
            return []
        try:
            worker = await self._queue.acquire(tenant, deadline)
        except (QueueFullError, QueueTimeoutError):
            return []
        job = _Job(next(self._ids), algorithm, public_key, number)
        run = asyncio.create_task(self._run(tenant, worker, job))  # survives a cancelled caller
        self._running.add(run)
        run.add_done_callback(self._running.discard)
        return await asyncio.shield(run)

    async def _run(self, tenant: TenantId, worker: "_Worker", job: _Job) -> list[Encapsulation]:
        try:
            return await worker.run(job)
        finally:
            self._queue.release(tenant, worker)

    def close(self) -> None:
        """End all worker processes."""
        for worker in self._workers:
            worker.end()


class _Worker:
    """One process, which runs one job after another. After its end it can start again."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        """Results come in the order of the jobs. The lock lets readers in in the same order."""
        self._process: multiprocessing.process.BaseProcess | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._greeting: asyncio.Task[bytes] | None = None
        self._may_start_at = 0.0

    async def run(self, job: _Job) -> list[Encapsulation]:
        """Return a job's encapsulations, or an empty list if the process is not ready or fails."""
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
            if streams is self._streams:  # otherwise another job has already ended it
                _LOG.warning("a worker process has failed", error=type(error).__name__)
                self.end()
            return []

    async def _start(self) -> None:
        """Start the process, unless it just started. It is spawned: it inherits no memory."""
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
        """End the process if it runs."""
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
    """Run jobs in a worker process until the other end closes."""
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
