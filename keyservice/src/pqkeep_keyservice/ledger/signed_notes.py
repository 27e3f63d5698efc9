"""Checkpoints as signed notes: C2SP signed-note, tlog-checkpoint and tlog-cosignature (ML-DSA-44).

    note      = origin LF size LF BASE64(root) LF LF "— " name " " BASE64(signature) LF
    signature = key id (4) || time (8, seconds since 1970) || ML-DSA-44.Sign(message) (2420)
    key id    = SHA-256(name || LF || 0x06 || public key)[:4]

The message has origin, size and root in binary, and the signer's name, which is the origin. The
context is empty, as specified.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from uuid import UUID

SIGNATURE_TYPE = b"\x06"
"""The type of timestamped ML-DSA-44 cosignatures."""
_LABEL = b"subtree/v1\n\0"


def origin(log_id: UUID, name: str | None) -> str:
    """Return the log's name in notes: the operator's, or one with the log's id."""
    return name or f"pqkeep/audit/{log_id}"


def message(name: str, log_origin: str, seconds: int, size: int, root: bytes) -> bytes:
    """Return the ``cosigned_message`` of a tree from its first leaf on."""
    return b"".join(
        (
            _LABEL,
            _short(name),
            seconds.to_bytes(8, "big"),
            _short(log_origin),
            (0).to_bytes(8, "big"),
            size.to_bytes(8, "big"),
            root,
        )
    )


def note(log_origin: str, size: int, root: bytes, *signature_lines: str) -> str:
    """Return a note: a checkpoint with its signature lines."""
    return f"{note_text(log_origin, size, root)}\n{''.join(signature_lines)}"


def note_text(log_origin: str, size: int, root: bytes) -> str:
    """Return a note's text without its signatures."""
    return f"{log_origin}\n{size}\n{_base64(root)}\n"


def signature_line(name: str, public_key: bytes, seconds: int, signature: bytes) -> str:
    """Return a note's line for one signature."""
    timestamped = key_id(name, public_key) + seconds.to_bytes(8, "big") + signature
    return timestamped_line(name, timestamped)


def timestamped_line(name: str, timestamped: bytes) -> str:
    """Return a note's line for a key id with its timestamped signature."""
    return f"\u2014 {name} {_base64(timestamped)}\n"


def read_lines(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and timestamped signatures in signature lines. Raises ValueError."""
    text = data.decode()
    if not text.endswith("\n"):
        raise ValueError("the last signature line has no end")
    for line in text.removesuffix("\n").split("\n"):
        dash, name, encoded = line.split(" ")
        if dash != "\u2014":
            raise ValueError("a signature line begins differently")
        yield name, b64decode(encoded, validate=True)


def submission(old: int, proof: tuple[bytes, ...], checkpoint: str) -> bytes:
    """Return the body of add-checkpoint (C2SP tlog-witness)."""
    hashes = "".join(f"{_base64(node)}\n" for node in proof)
    return f"old {old}\n{hashes}\n{checkpoint}".encode()


def verifier_key(name: str, public_key: bytes) -> str:
    """Return a public key in the form for verifiers of notes (a vkey)."""
    key = _base64(SIGNATURE_TYPE + public_key)
    return f"{name}+{key_id(name, public_key).hex()}+{key}"


def key_id(name: str, public_key: bytes) -> bytes:
    """Return the id of a key with a name (4 bytes)."""
    return sha256(name.encode() + b"\n" + SIGNATURE_TYPE + public_key).digest()[:4]


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")
