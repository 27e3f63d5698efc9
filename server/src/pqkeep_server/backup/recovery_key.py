"""Recovery keys: backups are encrypted to the public half, and the private half opens them.

Both are text files of three lines: what the file is and for which KEM, the fingerprint of the
pair (SHA-256 of the public key, in hexadecimal), and the key in base64. Of the private key that
is the seed: 64 bytes for ML-KEM-1024, 32 for X-Wing.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey, EncapsulationKey
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_server.private_files import write_whole

KEM_NAMES: Mapping[str, Algorithm] = {
    "ML-KEM-1024": Algorithm.ML_KEM_1024,
    "X-Wing": Algorithm.X_WING,
}
"""What a recovery key can be for, by the name in its file."""
_HEADING = "pqkeep recovery key v1, {half} half, {kem}"
_LINES = 3

Half = Literal["public", "private"]


class RecoveryKeyError(Exception):
    """There is no such recovery key. The message is for the person who named it."""


@dataclass(frozen=True, slots=True)
class PublicHalf:
    """What backups are encrypted to."""

    kem: str
    fingerprint: bytes
    key: EncapsulationKey


@dataclass(frozen=True, slots=True, repr=False)
class PrivateHalf:
    """What opens them."""

    kem: str
    fingerprint: bytes
    key: DecapsulationKey


def create(kem: str, private_file: Path, public_file: Path) -> None:
    """Make a pair. The private half gets mode 0400. Raises RecoveryKeyError."""
    private = KEMS[KEM_NAMES[kem]].generate()
    public_key = private.public_bytes()
    fingerprint = sha256(public_key).digest()
    try:
        with private.seed() as seed:
            text = _text("private", kem, fingerprint, bytes(seed.reveal()))
        write_whole(private_file, text, 0o400)
        write_whole(public_file, _text("public", kem, fingerprint, public_key), 0o644)
    except OSError as error:
        raise RecoveryKeyError(f"cannot write the recovery key: {error}") from None


def read_public(path: Path) -> PublicHalf:
    """Read what backups are encrypted to. Raises RecoveryKeyError."""
    kem, fingerprint, data = _read(path, "public")
    try:
        key = KEMS[KEM_NAMES[kem]].load_public(data)
    except ValueError:
        raise RecoveryKeyError(f"{path} is damaged") from None
    _require_match(path, fingerprint, data)
    return PublicHalf(kem, fingerprint, key)


def read_private(path: Path) -> PrivateHalf:
    """Read what opens backups. Raises RecoveryKeyError."""
    kem, fingerprint, data = _read(path, "private")
    if path.stat().st_mode & 0o077:
        raise RecoveryKeyError(f"{path} can be read by others; its mode must be 0400")
    try:
        with Secret(data) as seed:
            key = KEMS[KEM_NAMES[kem]].load_seed(seed)
    except ValueError:
        raise RecoveryKeyError(f"{path} is damaged") from None
    _require_match(path, fingerprint, key.public_bytes())
    return PrivateHalf(kem, fingerprint, key)


def _text(half: Half, kem: str, fingerprint: bytes, data: bytes) -> bytes:
    heading = _HEADING.format(half=half, kem=kem)
    return f"{heading}\n{fingerprint.hex()}\n{base64.b64encode(data).decode()}\n".encode()


def _read(path: Path, half: Half) -> tuple[str, bytes, bytes]:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError as error:
        raise RecoveryKeyError(f"cannot read the recovery key {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        lines = []
    headings = {_HEADING.format(half=half, kem=kem): kem for kem in KEM_NAMES}
    if len(lines) != _LINES or lines[0] not in headings:
        raise RecoveryKeyError(f"{path} is not the {half} half of a pqkeep recovery key")
    try:
        fingerprint = bytes.fromhex(lines[1])
        return headings[lines[0]], fingerprint, base64.b64decode(lines[2], validate=True)
    except (ValueError, binascii.Error):
        raise RecoveryKeyError(f"{path} is damaged") from None


def _require_match(path: Path, fingerprint: bytes, public_key: bytes) -> None:
    if not hmac.compare_digest(fingerprint, sha256(public_key).digest()):
        raise RecoveryKeyError(f"{path} is damaged")
