"""Writes vectors.json: the format by a second implementation, from docs/local-format.md alone.

KEM ciphertexts cannot be made again, so those of an earlier run are kept; everything else follows
from them. ``python sdk/tests/local/write_vectors.py``
"""

import json
from collections.abc import Iterator
from hashlib import sha3_256, sha256, shake_256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM1024PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

FILE = Path(__file__).with_name("vectors.json")
PIECE = 262_144
TAG = 16
KEY_VERSION = 7
SIZES = (0, 1, 12, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3)
SHORT = 100
NUMBERS = {"Kyber768": 1, "X-Wing": 2, "ML-KEM-1024": 3}
HASHES = {"Kyber768": SHA256(), "X-Wing": SHA256(), "ML-KEM-1024": SHA384()}


def plaintext(size: int) -> bytes:
    """Return the plaintext of so many bytes."""
    return bytes(i % 251 for i in range(size))


def decapsulate(algorithm: str, seed: bytes, ciphertext: bytes) -> bytes:
    """Return the shared secret."""
    if algorithm == "ML-KEM-1024":
        return MLKEM1024PrivateKey.from_seed_bytes(seed).decapsulate(ciphertext)
    if algorithm == "Kyber768":
        return MLKEM768PrivateKey.from_seed_bytes(seed).decapsulate(ciphertext)
    expanded = shake_256(seed).digest(96)
    m, x = MLKEM768PrivateKey.from_seed_bytes(expanded[:64]), _x25519(expanded[64:])
    x_ciphertext = ciphertext[1088:]
    x_secret = x.exchange(X25519PublicKey.from_public_bytes(x_ciphertext))
    joined = m.decapsulate(ciphertext[:1088]) + x_secret + x_ciphertext
    label = bytes.fromhex("5c2e2f2f5e5c")
    return sha3_256(joined + x.public_key().public_bytes_raw() + label).digest()


def encapsulated(algorithm: str, seed: bytes) -> bytes:
    """Return a new KEM ciphertext for the public key of a seed."""
    if algorithm == "ML-KEM-1024":
        return MLKEM1024PrivateKey.from_seed_bytes(seed).public_key().encapsulate()[1]
    m_seed = seed if algorithm == "Kyber768" else shake_256(seed).digest(96)[:64]
    m_ciphertext = MLKEM768PrivateKey.from_seed_bytes(m_seed).public_key().encapsulate()[1]
    if algorithm == "Kyber768":
        return m_ciphertext
    return m_ciphertext + X25519PrivateKey.generate().public_key().public_bytes_raw()


def written(
    algorithm: str, ciphertext: bytes, secret: bytes, data: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return file, data key and commitment."""
    numbers = bytes((1, NUMBERS[algorithm])) + KEY_VERSION.to_bytes(4, "big")
    bound = b"pqkeep\x00" + numbers + ciphertext

    def derived(purpose: bytes) -> bytes:
        parts = (b"pqkeep/local/v1", purpose, bound)
        info = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
        return HKDF(HASHES[algorithm], length=32, salt=None, info=info).derive(secret)

    data_key, commitment = derived(b"data key"), derived(b"commitment")
    pieces = [data[at : at + PIECE] for at in range(0, max(1, len(data)), PIECE)]
    return bound + commitment + b"".join(_segments(data_key, pieces)), data_key, commitment


def refused(files: dict[str, bytes], data_key: bytes) -> dict[str, list[Any]]:
    """Return what must not open, by what is wrong: parts of Kyber768's files, and other bytes."""
    header, segment = 1133, PIECE + TAG
    one, many, whole, hybrid = (
        f"Kyber768 {12}",
        f"Kyber768 {SIZES[-1]}",
        f"Kyber768 {PIECE}",
        "X-Wing 12",
    )
    end = {name: len(data) for name, data in files.items()}

    def changed(at: int, new: str) -> list[Any]:
        return [[one, 0, at], new, [one, at + len(new) // 2, end[one]]]

    def flipped(at: int) -> list[Any]:
        return changed(at, f"{files[one][at] ^ 1:02x}")

    empty = AESGCM(data_key).encrypt(bytes(7) + (1).to_bytes(4, "big") + b"\x01", b"", None)
    return {
        "nothing": [],
        "another beginning": changed(0, "50"),
        "format 2": changed(7, "02"),
        "algorithm 0": changed(8, "00"),
        "algorithm 4": changed(8, "04"),
        "another key version": changed(9, "00000008"),
        "another KEM ciphertext": flipped(13),
        "another commitment": flipped(header - 1),
        "a header that was cut off": [[one, 0, header - 1]],
        "a header and nothing else": [[one, 0, header]],
        "segments of another file": [[one, 0, header], [hybrid, 1165, end[hybrid]]],
        "another byte": flipped(header),
        "another tag": flipped(end[one] - 1),
        "one byte less": [[one, 0, end[one] - 1]],
        "one byte more": [[one, 0, end[one]], "00"],
        "one byte more than a whole segment": [[whole, 0, end[whole]], "00"],
        "cut off after a segment": [[many, 0, header + segment]],
        "no first segment": [[many, 0, header], [many, header + segment, end[many]]],
        "a segment twice": [[many, 0, header + segment], [many, header, end[many]]],
        "segments in another order": [
            [many, 0, header],
            [many, header + segment, header + 2 * segment],
            [many, header, header + segment],
            [many, header + 2 * segment, end[many]],
        ],
        "its last segment again": [[one, 0, end[one]], [one, header, end[one]]],
        "an empty last segment after a whole one": [[many, 0, header + segment], empty.hex()],
    }


def main() -> None:
    """Write the file."""
    before = json.loads(FILE.read_text())["keys"] if FILE.exists() else {}
    keys: dict[str, Any] = {}
    described: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    data_keys: dict[str, bytes] = {}
    for algorithm, number in NUMBERS.items():
        seed = shake_256(algorithm.encode()).digest(32 if algorithm == "X-Wing" else 64)
        known = before.get(algorithm)
        ciphertext = (
            bytes.fromhex(known["kem_ciphertext"]) if known else encapsulated(algorithm, seed)
        )
        secret = decapsulate(algorithm, seed, ciphertext)
        keys[algorithm] = {
            "number": number,
            "key_version": KEY_VERSION,
            "private_key": seed.hex(),
            "kem_ciphertext": ciphertext.hex(),
            "shared_secret": secret.hex(),
        }
        for size in SIZES:
            data, data_key, commitment = written(algorithm, ciphertext, secret, plaintext(size))
            files[f"{algorithm} {size}"] = data
            data_keys[algorithm] = data_key
            described.append(
                {
                    "name": f"{algorithm} {size}",
                    "algorithm": algorithm,
                    "size": size,
                    "data_key": data_key.hex(),
                    "commitment": commitment.hex(),
                    "sha256": sha256(data).hexdigest(),
                    **({"file": data.hex()} if size < SHORT else {}),
                }
            )
    cases = [
        {"why": why, "parts": parts} for why, parts in refused(files, data_keys["Kyber768"]).items()
    ]
    note = "own data; what it means is in docs/local-format.md"
    vectors = {"note": note, "keys": keys, "files": described, "refused": cases}
    FILE.write_text(json.dumps(vectors, indent=1) + "\n")


def _segments(key: bytes, pieces: list[bytes]) -> Iterator[bytes]:
    for number, piece in enumerate(pieces):
        nonce = bytes(7) + number.to_bytes(4, "big") + bytes((number == len(pieces) - 1,))
        yield AESGCM(key).encrypt(nonce, piece, None)


def _x25519(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


if __name__ == "__main__":
    main()
