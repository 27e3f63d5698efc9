"""Signs checkpoints: the audit log's size and root at one time. They make rewriting detectable.

A new checkpoint, signed with Dilithium3 (ML-DSA-65), covers the new records every second. It comes
earlier if there are 1,000 new records. Once a day and on request, one is signed with
SLH-DSA-SHA2-128s. The keys belong to INSTALLATION. They are stored like all keys, as sealed seeds,
and have records.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID, uuid4

from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.ledger import checkpoints
from pqkeep_keyservice.ledger.records import iso_timestamp
from pqkeep_keyservice.live.executors import Executors, Message
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import Checkpoint
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyVersion
from pqkeep_protocol.messages import Attribution, GenerateKey
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

CONTEXT = b"pqkeep/v1/audit-checkpoint"
STATEMENT_CONTEXT = b"pqkeep/v1/audit-statement"
ALGORITHMS = (Algorithm.ML_DSA_65, Algorithm.SLH_DSA_SHA2_128S)
SECONDS = 1.0
RECORDS = 1_000
DAY_MICROSECONDS = 24 * 3600 * 1_000_000
SIGNING_SECONDS = 60.0

Execute = Callable[[GenerateKey, Attribution, float], Awaitable[object]]
"""Generates and records a key before a deadline in the event loop's time."""


def signed_text(log_id: UUID, size: int, root: bytes, at_us: int) -> bytes:
    """Return the bytes that a checkpoint's signature covers."""
    time_text = iso_timestamp(at_us)
    lines = (CONTEXT.decode(), str(log_id), str(size), b64encode(root).decode(), time_text)
    return "".join(f"{line}\n" for line in lines).encode()


class CheckpointSigner:
    """Signs the durable part of the log."""

    seconds: float = SECONDS
    """The longest that fewer than RECORDS new records wait for a checkpoint."""

    def __init__(
        self,
        execute: Execute,
        store: KeyStore,
        key_cache: KeyCache,
        material: KeyMaterial,
        executors: Executors,
    ) -> None:
        """Take ``execute``, which generates a signing key at its first use."""
        self._execute = execute
        self._store = store
        self._key_cache = key_cache
        self._material = material
        self._executors = executors
        self._lock = asyncio.Lock()
        self.signed_size = 0
        """The size that the newest checkpoint covers, as soon as ``run`` has read it."""
        self.count = 0
        """The number of checkpoints signed by this process."""

    async def check(self) -> None:
        """Verify the newest checkpoints. Raises ConfigError and DatabaseUnavailableError.

        An attacker with write access to the database can change a record, its tree and a
        checkpoint's root consistently, and add a public key. They cannot sign or seal a key. A log
        with an invalid checkpoint must not be signed again.
        """
        for algorithm in ALGORITHMS:
            try:
                self._require_sealed(await self._key_cache.get(KeyName(INSTALLATION, algorithm)))
            except DamagedKeyError as damage:
                raise ConfigError(
                    f"the audit log is damaged: its {algorithm} keys are not the generated ones: "
                    f"{damage}; see docs/audit.md"
                ) from None
            await self._check_newest(algorithm)

    async def _check_newest(self, algorithm: Algorithm) -> None:
        newest = await self._store.database.query(checkpoints.find_newest_checkpoint, algorithm)
        if newest is None:
            return
        if newest.log_id != await self._store.database.query(checkpoints.log_id):
            raise ConfigError(
                "the audit log is damaged: its newest checkpoint is from another log;"
                " see docs/audit.md"
            )
        if not await self._is_signed(newest):
            raise ConfigError(
                f"the audit log is damaged: the checkpoint of its first {newest.size} records does "
                "not have the log's signature; see docs/audit.md"
            )

    async def _is_signed(self, checkpoint: Checkpoint) -> bool:
        """Return whether a stored checkpoint has the signature of the log's key."""
        text = signed_text(checkpoint.log_id, checkpoint.size, checkpoint.root, checkpoint.at_us)
        versions = await self._key_cache.get(KeyName(INSTALLATION, checkpoint.algorithm))
        try:
            entry = versions.entry(checkpoint.key_version)
            public = self._material.verifying_key(INSTALLATION, entry)
            public.verify(checkpoint.signature, text, CONTEXT)
        except (KeyServiceError, InvalidSignature):
            return False
        return True

    def _require_sealed(self, versions: KeyVersions) -> None:
        for entry in versions.entries:
            if entry.sealed is None:  # the log's keys are never archived
                raise DamagedKeyError("a private key is missing")
            self._material.authenticate(INSTALLATION, entry)

    async def run(self) -> None:
        """Sign checkpoints until cancelled."""
        while True:
            try:
                await self._run()
            except Exception as error:  # noqa: BLE001 - the next checkpoint covers the missing records
                if not _is_unavailable(error):
                    _LOG.exception("the audit log could not be signed")
            await asyncio.sleep(SECONDS)

    async def _run(self) -> None:
        """Sign checkpoints until something fails."""
        loop = asyncio.get_running_loop()
        self.signed_size = await self._store.database.query(checkpoints.signed_size)
        since = loop.time()
        while True:
            await self._store.wait_for_size(self.signed_size + 1)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(since + self.seconds):
                    await self._store.wait_for_size(self.signed_size + RECORDS)
            since = loop.time()
            self.signed_size = (await self.sign(Algorithm.ML_DSA_65)).size
            if await self._is_day_over():
                await self.sign(Algorithm.SLH_DSA_SHA2_128S)

    async def sign(self, algorithm: Algorithm, *, now: bool = False) -> Checkpoint:
        """Sign the log's current root, and store the checkpoint. Raises KeyServiceError.

        If the algorithm's newest checkpoint covers the same records, return it instead. With
        ``now``, sign the root again with the present time, and do not store that checkpoint. But if
        the database has a different root or signature than the signed one, return the database's.
        """
        if algorithm not in ALGORITHMS:
            raise KeyServiceError(ErrorKind.UNSUPPORTED)
        async with self._lock:
            entry = await self._active_key(algorithm)
            log_id, frontier = await self._store.frontier()
            newest = await self._store.database.read(checkpoints.find_newest_checkpoint, algorithm)
            if newest is not None and newest.size >= frontier.size:  # never a truncated log
                is_right = newest.size == frontier.size and newest.root == frontier.root()
                if not (now and is_right and await self._is_signed(newest)):
                    return newest
            at_us = clock.now_us()
            text = signed_text(log_id, frontier.size, frontier.root(), at_us)
            checkpoint = Checkpoint(
                log_id=log_id,
                size=frontier.size,
                root=frontier.root(),
                at_us=at_us,
                algorithm=algorithm,
                key_version=entry.info.version,
                signature=await self._executors[algorithm].sign(
                    INSTALLATION, entry, Message(text, CONTEXT), _deadline()
                ),
            )
            if newest is None or newest.size < frontier.size:
                await self._store.add_checkpoint(checkpoint)
                self.count += 1
        return checkpoint

    async def sign_statement(self, statement: bytes) -> tuple[KeyVersion, bytes]:
        """Sign a statement about records. Return the key version and the signature.

        Its context differs from that of checkpoints. Raises KeyServiceError.
        """
        entry = await self._active_key(Algorithm.ML_DSA_65)
        text = b"%b\n%b\n" % (STATEMENT_CONTEXT, statement)
        signature = await self._executors[Algorithm.ML_DSA_65].sign(
            INSTALLATION, entry, Message(text, STATEMENT_CONTEXT), _deadline()
        )
        return entry.info.version, signature

    async def _active_key(self, algorithm: Algorithm) -> KeyEntry:
        versions = await self._key_cache.get(KeyName(INSTALLATION, algorithm))
        if versions.active is None:
            request = GenerateKey(tenant=INSTALLATION, algorithm=algorithm, quota=None)
            attribution = Attribution(str(uuid4()), "key-service", "", "")
            await self._execute(request, attribution, _deadline())
            versions = await self._key_cache.get(KeyName(INSTALLATION, algorithm))
        return versions.require_active()

    async def _is_day_over(self) -> bool:
        newest = await self._store.database.read(
            checkpoints.find_newest_checkpoint, Algorithm.SLH_DSA_SHA2_128S
        )
        if newest is None:
            since = await self._store.database.query(checkpoints.first_recorded_at)
        else:
            since = newest.at_us
        return clock.now_us() - since > DAY_MICROSECONDS


def _is_unavailable(error: Exception) -> bool:
    """Return whether the database is unavailable, already logged, or a worker process died."""
    if isinstance(error, KeyServiceError):
        return error.kind is ErrorKind.UNAVAILABLE
    return isinstance(error, DatabaseUnavailableError)


def _deadline() -> float:
    return asyncio.get_running_loop().time() + SIGNING_SECONDS
