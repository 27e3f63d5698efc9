"""The executor of this process: keys are generated on the event loop, signatures made in threads."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, SealedSeed
from pqkeep_keyservice.live.executors import SuppliedKey
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.signables import Signable, sign, verify
from pqkeep_protocol.keys import KeyVersion, TenantId


class InProcess:
    """An Executor with one thread a core."""

    def __init__(self, material: KeyMaterial) -> None:
        """Start nothing yet; threads start with the first work."""
        self._material = material
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="crypto")

    async def generate(
        self, name: KeyName, version: KeyVersion, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        return self._material.generate(name, version)

    async def adopt(
        self, name: KeyName, version: KeyVersion, seed: Secret, deadline: float
    ) -> tuple[bytes, SealedSeed]:
        return self._material.adopt(name, version, seed)

    async def sign(
        self, tenant: TenantId, entry: KeyEntry, signable: Signable, deadline: float
    ) -> bytes:
        private = self._material.signing_key(tenant, entry)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, sign, private, signable)

    async def verify(
        self,
        tenant: TenantId,
        key: KeyEntry | SuppliedKey,
        signable: Signable,
        signature: bytes,
        deadline: float,
    ) -> None:
        if isinstance(key, SuppliedKey):
            public = self._material.supplied_verifying_key(key.algorithm, key.public_key)
        else:
            public = self._material.verifying_key(tenant, key)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, verify, public, signature, signable)

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.shutdown()
