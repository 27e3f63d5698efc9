"""Writes vectors.json by a second implementation, from docs/local-format.md alone.

KEM ciphertexts are kept from an earlier run, because they are random. Everything else is derived.
``python sdk/tests/local/write_vectors.py``
"""

import json
from collections.abc import Iterator
from hashlib import sha3_256, sha256, sha384, shake_256
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
KEYRINGS = {"Kyber768": "default", "X-Wing": "payments.cards", "ML-KEM-1024": "k" * 64}
SIZES = (0, 1, 12, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3)
SHORT = 2000
NUMBERS = {"Kyber768": 1, "X-Wing": 2, "ML-KEM-1024": 3}
HASHES = {"Kyber768": SHA256(), "X-Wing": SHA256(), "ML-KEM-1024": SHA384()}


def plaintext(size: int) -> bytes:
    """Return a plaintext of this size."""
    return bytes(i % 251 for i in range(size))


def public(algorithm: str, seed: bytes) -> bytes:
    """Return the public key."""
    if algorithm == "ML-KEM-1024":
        return MLKEM1024PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    if algorithm == "Kyber768":
        return MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
    expanded = shake_256(seed).digest(96)
    return (
        MLKEM768PrivateKey.from_seed_bytes(expanded[:64]).public_key().public_bytes_raw()
        + _x25519(expanded[64:]).public_key().public_bytes_raw()
    )


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


def derived(digest: Any, secret: bytes, *purpose: bytes, length: int = 32) -> bytes:
    """Return the HKDF output for a secret."""
    parts = (b"pqkeep/local/v2", *purpose)
    info = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    made: bytes = HKDF(digest, length=length, salt=None, info=info).derive(secret)
    return made


def recipient(algorithm: str, key: dict[str, Any], file_key: bytes) -> bytes:
    """Return a recipient."""
    name = key["keyring"].encode()
    bound: bytes = (
        bytes((NUMBERS[algorithm],))
        + key["key_version"].to_bytes(4, "big")
        + bytes((len(name),))
        + name
        + bytes.fromhex(key["fingerprint"])
        + bytes.fromhex(key["kem_ciphertext"])
    )
    secret = bytes.fromhex(key["shared_secret"])
    wrapping_key = derived(HASHES[algorithm], secret, b"wrapping key", bound)
    wrapped: bytes = AESGCM(wrapping_key).encrypt(bytes(12), file_key, None)
    return b"".join((bound, wrapped))


def file_key_of(name: str) -> bytes:
    """Return the file key of a file by its name."""
    return sha256(b"file key of " + name.encode()).digest()


def checked(before_the_checksum: bytes) -> bytes:
    """Return a slot with its checksum and any MAC."""
    return before_the_checksum + sha384(before_the_checksum).digest()


def sealed(before_the_mac: bytes, file_key: bytes) -> bytes:
    """Return a slot."""
    digest = sha384(before_the_mac).digest()
    return checked(before_the_mac + derived(SHA384(), file_key, b"header", digest, length=48))


def slot(file_key: bytes, recipients: list[bytes], slots: int, size: int, sequence: int) -> bytes:
    """Return a slot of this size. Without a size it is as short as possible."""
    size = size or 118 + len(b"".join(recipients))
    start = b"pqkeep\0\2" + bytes((slots,)) + size.to_bytes(4, "big")
    content = start + sequence.to_bytes(8, "big") + bytes((len(recipients),)) + b"".join(recipients)
    return sealed(content + bytes(size - 96 - len(content)), file_key)


def body(file_key: bytes, data: bytes) -> bytes:
    """Return the segments."""
    pieces = [data[at : at + PIECE] for at in range(0, max(1, len(data)), PIECE)]
    return b"".join(_segments(derived(SHA384(), file_key, b"data key"), pieces))


def refused(files: dict[str, bytes], keys: dict[str, Any]) -> dict[str, list[Any]]:
    """Return refused files by the reason: parts of files, and other bytes."""
    one, many, whole, hybrid, pair, two = (
        "Kyber768 12",
        f"Kyber768 {SIZES[-1]}",
        f"Kyber768 {PIECE}",
        "X-Wing 12",
        "Kyber768 and X-Wing",
        "two slots",
    )
    header, segment = int.from_bytes(files[one][9:13], "big"), PIECE + TAG
    start = int.from_bytes(files[two][9:13], "big")
    end = {name: len(data) for name, data in files.items()}
    file_key, mac = file_key_of(one), files[one][header - 96 : header - 48]
    content = files[one][: header - 96]

    def changed(at: int, new: str) -> list[Any]:
        return [[one, 0, at], new, [one, at + len(new) // 2, end[one]]]

    def flipped(at: int) -> list[Any]:
        return changed(at, f"{files[one][at] ^ 1:02x}")

    def under(slot: bytes) -> list[Any]:
        return [slot.hex(), [one, header, end[one]]]

    def wrapped(algorithm: str = "Kyber768", **other: Any) -> bytes:
        return recipient(algorithm, keys[algorithm] | other, file_key)

    def slot_of(recipients: bytes, count: int) -> bytes:
        size = 118 + len(recipients)
        prefix = b"pqkeep\0\2\1" + size.to_bytes(4, "big")
        return prefix + (1).to_bytes(8, "big") + bytes((count,)) + recipients

    def recipients(*each: bytes, count: int | None = None) -> list[Any]:
        number = len(each) if count is None else count
        return under(sealed(slot_of(b"".join(each), number), file_key))

    own, hybrids = wrapped(), wrapped("X-Wing")
    first, second = (22 + len(own), 22 + len(own) + len(hybrids))
    swapped = files[pair][:22] + files[pair][first:second] + files[pair][22:first]
    empty = AESGCM(derived(SHA384(), file_key_of(many), b"data key")).encrypt(
        bytes(7) + (1).to_bytes(4, "big") + b"\x01", b"", None
    )
    return {
        "nothing": [],
        "another beginning": changed(0, "50"),
        "format 1": changed(7, "01"),
        "format 3": changed(7, "03"),
        "no slots": changed(8, "00"),
        "three slots": changed(8, "03"),
        "a slot of another size": changed(9, "00000514"),
        "a slot that is too small": changed(9, "00000075"),
        "a slot that is too large": changed(9, "00010001"),
        "another sequence number": flipped(20),
        "another checksum": flipped(header - 1),
        "another MAC": under(checked(content + bytes(48))),
        "the MAC of another file key": under(sealed(content, bytes(32))),
        "another sequence number under the same MAC": under(
            checked(content[:20] + b"\2" + content[21:] + mac)
        ),
        "a recipient added by somebody else": under(checked(slot_of(own + hybrids, 2) + mac)),
        "a recipient exchanged by somebody else": under(checked(slot_of(hybrids, 1) + mac)),
        "a recipient removed by somebody else": [
            checked(slot_of(files[pair][22:first], 1) + files[pair][-124:-76]).hex(),
            [pair, end[pair] - 28, end[pair]],
        ],
        "recipients in another order": [
            checked(swapped + files[pair][-124:-76]).hex(),
            [pair, end[pair] - 28, end[pair]],
        ],
        "no recipients": recipients(),
        "33 recipients": recipients(
            own, *(wrapped(fingerprint=f"{number:064x}") for number in range(32))
        ),
        "a recipient twice": recipients(own, own),
        "a recipient twice, by two names": recipients(own, wrapped(keyring="other")),
        "fewer recipients than there are": recipients(own, hybrids, count=1),
        "more recipients than there are": recipients(own, count=2),
        "a byte after the recipients": recipients(own, b"\1", count=1),
        "algorithm 0": recipients(b"\0" + own[1:]),
        "algorithm 4": recipients(b"\4" + own[1:]),
        "key version 0": recipients(wrapped(key_version=0)),
        "a keyring without a name": recipients(wrapped(keyring="")),
        "a keyring with a space": recipients(wrapped(keyring="de fault")),
        "a keyring of 129 characters": recipients(wrapped(keyring="k" * 129)),
        "a keyring that begins with a dot": recipients(wrapped(keyring=".default")),
        "another key version than was wrapped to": recipients(own[:4] + b"\x08" + own[5:]),
        "another fingerprint than was wrapped to": recipients(own[:13] + bytes(32) + own[45:]),
        "a header that was cut off": [[one, 0, header - 1]],
        "a header and nothing else": [[one, 0, header]],
        "one slot of two": [[two, 0, start]],
        "both slots are damaged": [
            [two, 0, start - 1],
            f"{files[two][start - 1] ^ 1:02x}",
            [two, start, 2 * start - 1],
            f"{files[two][2 * start - 1] ^ 1:02x}",
            [two, 2 * start, end[two]],
        ],
        "a newer second slot by somebody else": [
            [two, 0, start],
            checked(files[two][:20] + b"\2" + files[two][21 : start - 48]).hex(),
            [two, 2 * start, end[two]],
        ],
        "segments of another file": [[one, 0, header], [hybrid, end[hybrid] - 28, end[hybrid]]],
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


def interrupted(files: dict[str, bytes]) -> dict[str, tuple[int, list[Any]]]:
    """Return files with an interrupted change, and the number of the slot in use."""
    old, new = "two slots", "two slots, changed"
    start, end = int.from_bytes(files[old][9:13], "big"), len(files[old])
    rest, torn = [old, 2 * start, end], [new, 0, start // 2]
    return {
        "while the second slot was written": (
            1,
            [[old, 0, start], torn, [old, start // 2, start], rest],
        ),
        "after the second slot was written": (2, [[old, 0, start], [new, 0, start], rest]),
        "while the first slot was written": (
            2,
            [torn, [old, start // 2, start], [new, 0, start], rest],
        ),
        "after a change that began with the first slot": (
            2,
            [[new, 0, start], [old, 0, start], rest],
        ),
    }


def main() -> None:
    """Write the file."""
    before = json.loads(FILE.read_text())["keys"] if FILE.exists() else {}
    keys: dict[str, Any] = {}
    for algorithm, number in NUMBERS.items():
        seed = shake_256(algorithm.encode()).digest(32 if algorithm == "X-Wing" else 64)
        known = before.get(algorithm)
        ciphertext = (
            bytes.fromhex(known["kem_ciphertext"]) if known else encapsulated(algorithm, seed)
        )
        keys[algorithm] = {
            "number": number,
            "key_version": KEY_VERSION,
            "keyring": KEYRINGS[algorithm],
            "private_key": seed.hex(),
            "fingerprint": sha256(public(algorithm, seed)).hexdigest(),
            "kem_ciphertext": ciphertext.hex(),
            "shared_secret": decapsulate(algorithm, seed, ciphertext).hex(),
        }
    planned = [
        *(
            (f"{algorithm} {size}", [algorithm], size, 1, 0, 1)
            for algorithm in NUMBERS
            for size in SIZES
        ),
        ("Kyber768 and X-Wing", ["Kyber768", "X-Wing"], 12, 1, 0, 1),
        ("two slots", ["Kyber768"], 12, 2, 4096, 1),
        ("two slots, changed", ["X-Wing", "ML-KEM-1024"], 12, 2, 4096, 2),
        ("all algorithms", [*NUMBERS], PIECE + 1, 2, 8192, 1),
    ]
    described: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for name, algorithms, size, slots, slot_size, sequence in planned:
        file_key = file_key_of(name.removesuffix(", changed"))
        wrapped = [recipient(algorithm, keys[algorithm], file_key) for algorithm in algorithms]
        header = slot(file_key, wrapped, slots, slot_size, sequence) * slots
        files[name] = header + body(file_key, plaintext(size))
        described.append(
            {
                "name": name,
                "recipients": algorithms,
                "size": size,
                "slots": slots,
                "slot_size": len(header) // slots,
                "sequence": sequence,
                "file_key": file_key.hex(),
                "sha256": sha256(files[name]).hexdigest(),
                **({"file": files[name].hex()} if len(files[name]) < SHORT else {}),
            }
        )
    note = "own data; what it means is in docs/local-format.md"
    vectors = {
        "note": note,
        "keys": keys,
        "files": described,
        "interrupted": [
            {"why": why, "sequence": sequence, "parts": parts}
            for why, (sequence, parts) in interrupted(files).items()
        ],
        "refused": [{"why": why, "parts": parts} for why, parts in refused(files, keys).items()],
    }
    FILE.write_text(json.dumps(vectors, indent=1) + "\n")


def _segments(key: bytes, pieces: list[bytes]) -> Iterator[bytes]:
    for number, piece in enumerate(pieces):
        nonce = bytes(7) + number.to_bytes(4, "big") + bytes((number == len(pieces) - 1,))
        yield AESGCM(key).encrypt(nonce, piece, None)


def _x25519(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


if __name__ == "__main__":
    main()
