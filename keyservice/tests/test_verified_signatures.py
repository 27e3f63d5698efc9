"""With ``verify_signatures`` a faulty signature is not released; without it, it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from cryptography.exceptions import InvalidSignature

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import (
    SignatureScheme,
    SignatureSchemes,
    SigningKey,
    VerifyingKey,
)
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_keyservice.live.executors import InProcess, Message
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.threads import Threads
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId

SIGNABLE = Message(b"4111-1111", b"cards")
LATER = 1e12


@dataclass
class Hardware:
    """Computes signatures, with or without a fault."""

    is_faulty: bool = False


@dataclass(frozen=True)
class Key:
    """A private key that signs with a wrong bit while the hardware is faulty."""

    key: SigningKey
    hardware: Hardware

    def sign(self, message: bytes, context: bytes = b"") -> bytes:
        signature = self.key.sign(message, context)
        return bytes([signature[0] ^ self.hardware.is_faulty]) + signature[1:]

    def seed(self) -> Secret:
        return self.key.seed()

    def public_bytes(self) -> bytes:
        return self.key.public_bytes()


@dataclass(frozen=True)
class Scheme:
    """A scheme on that hardware."""

    scheme: SignatureScheme
    hardware: Hardware

    @property
    def holds_interpreter_lock(self) -> bool:
        return self.scheme.holds_interpreter_lock

    def generate(self) -> SigningKey:
        return Key(self.scheme.generate(), self.hardware)

    def load_public(self, data: bytes) -> VerifyingKey:
        return self.scheme.load_public(data)

    def load_seed(self, seed: Secret) -> SigningKey:
        return Key(self.scheme.load_seed(seed), self.hardware)


@pytest.mark.parametrize(
    "algorithm", [Algorithm.ML_DSA_65, Algorithm.ML_DSA_87, Algorithm.COMPOSITE_ML_DSA]
)
@pytest.mark.parametrize("verifies", [True, False])
async def test_a_faulty_signature_is_not_released(
    algorithm: Algorithm,
    sealer: Sealer,
    schemes: SignatureSchemes,
    tenant: TenantId,
    *,
    verifies: bool,
) -> None:
    """A wrong bit is refused if signatures are verified, and good signatures are released."""
    hardware = Hardware()
    material = KeyMaterial(sealer, {algorithm: Scheme(schemes[algorithm], hardware)})
    public_key, sealed = material.generate(KeyName(tenant, algorithm), KeyVersion(1))
    info = KeyInfo(algorithm, KeyVersion(1), KeyStatus.ACTIVE, public_key, datetime.now(UTC))
    entry = KeyEntry(info, sealed)
    executor = InProcess(material, Threads("test", 1), verify_signatures=verifies)
    try:
        good = await executor.sign(tenant, entry, SIGNABLE, LATER)
        await executor.verify(tenant, entry, SIGNABLE, good, LATER)
        hardware.is_faulty = True
        if verifies:
            with pytest.raises(InvalidSignature):
                await executor.sign(tenant, replace(entry), SIGNABLE, LATER)
        else:
            await executor.sign(tenant, replace(entry), SIGNABLE, LATER)
    finally:
        executor.close()
