"""Recovery keys. The public half encrypts backups, the private half decrypts them.

Both are text files of three lines: the type of file and the KEM, the fingerprint of the pair
(SHA-256 of the public key, in hexadecimal), and the key in base64. A private key is stored as its
seed: 64 bytes for ML-KEM-1024, 32 for X-Wing.
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
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError, read_file
from pqkeep_server.atomic_files import write_atomically
from pqkeep_server.exit_status import message_of

KEM_NAMES: Mapping[str, Algorithm] = {
    "ML-KEM-1024": Algorithm.ML_KEM_1024,
    "X-Wing": Algorithm.X_WING,
}
"""The KEMs of recovery keys, by the name in their files."""
_HEADING = "pqkeep recovery key v1, {half} half, {kem}"
_LINES = 3

Half = Literal["public", "private"]


class RecoveryKeyError(Exception):
    """A recovery key cannot be made or read. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class PublicHalf:
    """The half that encrypts backups."""

    kem: str
    fingerprint: bytes
    key: EncapsulationKey


@dataclass(frozen=True, slots=True, repr=False)
class PrivateHalf:
    """The half that decrypts backups."""

    kem: str
    fingerprint: bytes
    key: DecapsulationKey


def create(kem: str, private_file: Path, public_file: Path) -> None:
    """Generate a pair and write both files, the private one with mode 0400.

    Raises RecoveryKeyError.
    """
    private = KEMS[KEM_NAMES[kem]].generate()
    public_key = private.public_bytes()
    fingerprint = sha256(public_key).digest()
    try:
        with private.seed() as seed:
            text = _text("private", kem, fingerprint, bytes(seed.reveal()))
        write_atomically(private_file, text, 0o400)
        write_atomically(public_file, _text("public", kem, fingerprint, public_key), 0o644)
    except OSError as error:
        raise RecoveryKeyError(f"cannot write the recovery key: {message_of(error)}") from None


def read_public(path: Path) -> PublicHalf:
    """Read the public half. Raises RecoveryKeyError."""
    try:
        content = read_file(path, "recovery key")
    except ConfigError as error:
        raise RecoveryKeyError(str(error)) from None
    kem, fingerprint, data = _parse(path, "public", content)
    try:
        key = KEMS[KEM_NAMES[kem]].load_public(data)
    except ValueError:
        raise RecoveryKeyError(f"{path} is damaged: use another copy of it") from None
    _require_match(path, fingerprint, data)
    return PublicHalf(kem, fingerprint, key)


def read_private(path: Path) -> PrivateHalf:
    """Read the private half from a secret file. Raises RecoveryKeyError."""
    try:
        content = read_secret_file(path, "recovery key")
    except ConfigError as error:
        raise RecoveryKeyError(str(error)) from None
    kem, fingerprint, data = _parse(path, "private", content)
    try:
        with Secret(data) as seed:
            key = KEMS[KEM_NAMES[kem]].load_seed(seed)
    except ValueError:
        raise RecoveryKeyError(f"{path} is damaged: use another copy of it") from None
    _require_match(path, fingerprint, key.public_bytes())
    return PrivateHalf(kem, fingerprint, key)


def _text(half: Half, kem: str, fingerprint: bytes, data: bytes) -> bytes:
    heading = _HEADING.format(half=half, kem=kem)
    return f"{heading}\n{fingerprint.hex()}\n{base64.b64encode(data).decode()}\n".encode()


def _parse(path: Path, half: Half, content: bytes) -> tuple[str, bytes, bytes]:
    """Return KEM, fingerprint and key. Raises RecoveryKeyError."""
    lines = content.decode("ascii", "replace").splitlines()
    headings = {_HEADING.format(half=half, kem=kem): kem for kem in KEM_NAMES}
    if len(lines) != _LINES or lines[0] not in headings:
        raise RecoveryKeyError(f"{path} is not the {half} half of a recovery key")
    try:
        fingerprint = bytes.fromhex(lines[1])
        return headings[lines[0]], fingerprint, base64.b64decode(lines[2], validate=True)
    except (ValueError, binascii.Error):
        raise RecoveryKeyError(f"{path} is damaged: use another copy of it") from None


def _require_match(path: Path, fingerprint: bytes, public_key: bytes) -> None:
    if not hmac.compare_digest(fingerprint, sha256(public_key).digest()):
        raise RecoveryKeyError(f"{path} is damaged: use another copy of it")
