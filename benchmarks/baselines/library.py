"""The bare library call in a loop: the cost of an operation without a service.

Run as ``python -m benchmarks.baselines.library OPERATION SECONDS``; prints JSON.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping

import msgspec
from cryptography.hazmat.primitives.asymmetric import mldsa, mlkem
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

MESSAGE_SIZE = 1024
WARM_UP_SECONDS = 0.2
CALLS_PER_CLOCK_READ = 16


class Loop(Struct, frozen=True):
    """The result of a loop. CPU is in microseconds per operation."""

    operations_per_second: float
    cpu: float


def encapsulate() -> Callable[[], object]:
    """ML-KEM-768, with the key loaded."""
    return mlkem.MLKEM768PrivateKey.generate().public_key().encapsulate


def decapsulate() -> Callable[[], object]:
    """ML-KEM-768, with the seed expanded."""
    private = mlkem.MLKEM768PrivateKey.generate()
    _, ciphertext = private.public_key().encapsulate()
    return lambda: private.decapsulate(ciphertext)


def encrypt() -> Callable[[], object]:
    """ML-KEM-768, HKDF-SHA256 and AES-256-GCM over 1 KiB."""
    public = mlkem.MLKEM768PrivateKey.generate().public_key()
    plaintext = os.urandom(MESSAGE_SIZE)

    def call() -> bytes:
        secret, ciphertext = public.encapsulate()
        key = HKDF(SHA256(), length=32, salt=None, info=b"benchmark").derive(secret)
        nonce = os.urandom(12)
        return ciphertext + nonce + AESGCM(key).encrypt(nonce, plaintext, None)

    return call


def encrypt_symmetric() -> Callable[[], object]:
    """AES-256-GCM over 1 KiB, with a new key for each nonce, as in XAES-256-GCM."""
    block = Cipher(AES256(os.urandom(32)), ECB()).encryptor()  # noqa: S305 - single blocks
    plaintext = os.urandom(MESSAGE_SIZE)

    def call() -> bytes:
        nonce = os.urandom(24)
        key = block.update(b"\x00\x01X\x00" + nonce[:12] + b"\x00\x02X\x00" + nonce[:12])
        return nonce + AESGCM(key).encrypt(nonce[12:], plaintext, None)

    return call


def sign() -> Callable[[], object]:
    """ML-DSA-65 over 1 KiB, with the seed expanded."""
    private = mldsa.MLDSA65PrivateKey.generate()
    message = os.urandom(MESSAGE_SIZE)
    return lambda: private.sign(message)


def verify() -> Callable[[], object]:
    """ML-DSA-65 over 1 KiB, with the key loaded."""
    private = mldsa.MLDSA65PrivateKey.generate()
    public = private.public_key()
    message = os.urandom(MESSAGE_SIZE)
    signature = private.sign(message)
    return lambda: public.verify(signature, message)


CALLS: Mapping[str, Callable[[], Callable[[], object]]] = {
    "encapsulate": encapsulate,
    "decapsulate": decapsulate,
    "encrypt": encrypt,
    "encrypt_symmetric": encrypt_symmetric,
    "verify": verify,
    "sign": sign,
}


def measure(call: Callable[[], object], seconds: float) -> Loop:
    """Call repeatedly for some seconds."""
    _repeat(call, WARM_UP_SECONDS)
    began, cpu_began = time.perf_counter(), time.process_time()
    count = _repeat(call, seconds)
    elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return Loop(count / elapsed, cpu / count * 1_000_000)


def _repeat(call: Callable[[], object], seconds: float) -> int:
    count = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for _ in range(CALLS_PER_CLOCK_READ):
            call()
        count += CALLS_PER_CLOCK_READ
    return count


if __name__ == "__main__":
    _, operation, duration = sys.argv
    sys.stdout.write(msgspec.json.encode(measure(CALLS[operation](), float(duration))).decode())
