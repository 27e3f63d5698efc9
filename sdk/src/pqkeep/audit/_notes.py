"""Signed notes, cosignatures and proofs of transparency logs (C2SP), verified offline.

    verifier key   name "+" id in hex "+" base64(type || public key): signed-note
    cosignature    key id (4) || time (8, seconds since 1970) || signature: tlog-cosignature
    proof          a record, its index and inclusion proof, and a cosigned note: tlog-proof

Types are 0x04, Ed25519, and 0x06, ML-DSA-44.
"""

import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from pqkeep.audit._formats import MOST, MalformedError, canonical, parse
from pqkeep.audit._merkle import HASH_SIZE, leaf_hash, proven_root
from pqkeep.verification import verify_timestamped

PROOF = b"c2sp.org/tlog-proof@v1\n"
"""The first line of a proof."""
LONGEST_PROOF = 1024 * 1024
_PATH = 63
_SIZES = {4: 32, 6: 1312}
"""The size of a public key in bytes, by signature type."""
_STAMP = 12
"""Bytes before the signature: key id and time."""


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public key of a witness, or of a log for notes."""

    name: str
    key_id: bytes
    kind: int
    public_key: bytes

    def has_signed(self, stamped: bytes, origin: str, size: int, root: bytes) -> bool | None:
        """Return True if it cosigned a log's tree, and None if another key signed.

        Raises ImportError if the library is not installed.
        """
        if stamped[:4] != self.key_id:
            return None
        seconds, signature = int.from_bytes(stamped[4:_STAMP], "big"), stamped[_STAMP:]
        if not seconds:
            return False
        if self.kind == 4:  # noqa: PLR2004 - Ed25519
            text = f"cosignature/v1\ntime {seconds}\n{origin}\n{size}\n{_base64(root)}\n"
            message = text.encode()
        else:
            message = b"".join(
                (
                    b"subtree/v1\n\0",
                    _short(self.name),
                    stamped[4:_STAMP],
                    _short(origin),
                    bytes(8),
                    size.to_bytes(8, "big"),
                    root,
                )
            )
        return verify_timestamped(message, signature, public_key=self.public_key)


def verifier_key(text: str) -> VerifierKey:
    """Return a verifier key (vkey). Raises ValueError."""
    name, _, rest = text.strip().partition("+")
    key_id, _, encoded = rest.partition("+")
    try:
        typed = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        typed = b""
    is_right = name.isascii() and name.isprintable() and 0 < len(name) < 256 and " " not in name  # noqa: PLR2004
    if not is_right or len(typed) - 1 != _SIZES.get(typed[0] if typed else 0):
        raise ValueError("the witness's key is not a verifier key of type 04 or 06")
    found = sha256(name.encode() + b"\n" + typed).digest()[:4]
    if found.hex() != key_id:
        raise ValueError("the id in the witness's key does not fit its name and key")
    return VerifierKey(name, found, typed[0], typed[1:])


def seconds_of(stamped: bytes) -> int:
    """Return the time of a cosignature, in seconds since 1970."""
    return int.from_bytes(stamped[4:_STAMP], "big")


@dataclass(frozen=True, slots=True)
class Note:
    """A checkpoint as a note."""

    origin: str
    size: int
    root: bytes
    signatures: tuple[tuple[str, bytes], ...]
    """The names and timestamped signatures."""

    def signed_by(self, key: VerifierKey) -> bytes | None:
        """Return the key's valid signature, or None. Raises MalformedError for an invalid one."""
        for name, stamped in self.signatures:
            if name != key.name:
                continue
            is_valid = key.has_signed(stamped, self.origin, self.size, self.root)
            if is_valid:
                return stamped
            if is_valid is False:
                raise MalformedError(f"the signature of {name} is invalid")
        return None


@dataclass(frozen=True, slots=True)
class LogProof:
    """A record with the proof that it is in a log."""

    index: int
    record: dict[str, object]
    leaf: bytes
    path: tuple[bytes, ...]
    note: Note

    @property
    def is_included(self) -> bool:
        """True if the record is in the note's tree."""
        return proven_root(self.leaf, self.index, self.note.size, self.path) == self.note.root


def read_proof(data: bytes) -> LogProof:
    """Return a tlog-proof with a record as its extra data. Raises MalformedError."""
    try:
        return _proof(data)
    except (ValueError, IndexError):
        raise MalformedError("it is not a tlog-proof of a record") from None


def _proof(data: bytes) -> LogProof:
    head, _, note = data.removeprefix(PROOF).decode().partition("\n\n")
    extra, index, *path = head.split("\n")
    if not (data.startswith(PROOF) and extra.startswith("extra ") and index.startswith("index ")):
        raise ValueError
    text = _binary(extra.removeprefix("extra "))
    record = parse(text)
    at = _natural(index.removeprefix("index "))
    if not isinstance(record, dict) or canonical(record) != text or record.get("id") != at + 1:
        raise ValueError
    if len(path) > _PATH:
        raise ValueError
    return LogProof(at, record, leaf_hash(text), tuple(map(_hash, path)), _note(note))


def _note(text: str) -> Note:
    body, _, lines = text.rpartition("\n\n")
    origin, size, root = body.split("\n")
    if not origin or not lines.endswith("\n"):
        raise ValueError
    return Note(origin, _natural(size), _hash(root), tuple(_signatures(lines[:-1].split("\n"))))


def _signatures(lines: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for line in lines:
        dash, name, encoded = line.split(" ")
        if dash != "\u2014":
            raise ValueError
        yield name, _binary(encoded)


def _natural(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) < 20  # noqa: PLR2004
    if not is_number or (number := int(text)) > MOST or str(number) != text:
        raise ValueError
    return number


def _hash(text: str) -> bytes:
    raw = _binary(text)
    if len(raw) != HASH_SIZE:
        raise ValueError
    return raw


def _binary(text: str) -> bytes:
    raw = binascii.a2b_base64(text, strict_mode=True)
    if _base64(raw) != text:
        raise ValueError
    return raw


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data
