"""The executor of this process: keys are generated on the event loop, signatures made in threads."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from pqkeep_keyservice.keys.keyring import KeyEntry, SealedSeed
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId


class InProcess:
    """An Executor with one thread a core."""

    def __init__(self, material: KeyMaterial) -> None:
        """Start nothing yet; threads start with the first work."""
        self._material = material
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="crypto")

    async def generate(
        self, tenant: TenantId, algorithm: Algorithm, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        return self._material.generate(tenant, algorithm, version)

    async def sign(
        self, tenant: TenantId, entry: KeyEntry, message: bytes, context: bytes, deadline: float
    ) -> bytes:
        private = self._material.signing_key(tenant, entry)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, private.sign, message, context)

    async def verify(
        self,
        tenant: TenantId,
        entry: KeyEntry,
        message: bytes,
        context: bytes,
        signature: bytes,
        deadline: float,
    ) -> None:
        public = self._material.verifying_key(tenant, entry)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, public.verify, signature, message, context)

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown()
