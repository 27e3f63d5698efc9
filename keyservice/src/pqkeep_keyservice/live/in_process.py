"""The executor of this process: keys are generated on the event loop, signatures made in threads."""

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, SealedSeed
from pqkeep_keyservice.live.executors import SuppliedKey
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.signables import Signable, sign, sign_and_verify, verify
from pqkeep_keyservice.threads import Threads
from pqkeep_protocol.keys import KeyVersion, TenantId


class InProcess:
    """An Executor with threads."""

    def __init__(
        self, material: KeyMaterial, threads: Threads, *, verify_signatures: bool = False
    ) -> None:
        """Sign and verify in threads. ``verify_signatures``: release none that does not verify."""
        self._material = material
        self._threads = threads
        self._verify_signatures = verify_signatures

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
        if not self._verify_signatures:
            return await self._threads.run(sign, private, signable)
        public = self._material.verifying_key(tenant, entry)
        return await self._threads.run(sign_and_verify, private, public, signable)

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
        await self._threads.run(verify, public, signature, signable)

    def close(self) -> None:
        """Wait for what runs."""
        self._threads.close()
