"""The format of a backup, fixed by a vector: an old backup stays readable."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_server.backup.authentication import authenticate
from pqkeep_server.backup.contents import End, Manifest, Rows, finish, write
from pqkeep_server.backup.encrypted_file import Origin, Writer
from pqkeep_server.backup.recovery_key import PublicHalf

VECTOR: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "backup.json").read_text()
)
ROOT_KEY = bytes.fromhex(VECTOR["root_key"])
MANIFEST = Manifest(
    revisions={"accounts": "accounts_0001", "keys": "keys_0001"},
    files={"gateway/pepper": bytes(range(32)), "gateway/settings.toml": b"port = 1\n"},
)
ROWS = Rows("keys", "root_keys", ("id", "check_value"), [[1, bytes(range(250)) * 280]])
COUNTS = {"accounts": {}, "keys": {"root_keys": 1}}


@dataclass(frozen=True)
class FixedEncapsulation:
    """An encapsulation with a recorded result."""

    shared_secret: bytes
    kem_ciphertext: bytes

    def public_bytes(self) -> bytes:
        """Return no public key: no writer needs it."""
        return b""

    def encapsulate(self) -> tuple[bytes, bytes]:
        """Return shared secret and KEM ciphertext."""
        return self.shared_secret, self.kem_ciphertext


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The vector's backup, written again: longer than one segment."""
    sealer = Sealer({1: Secret(ROOT_KEY)})
    key = FixedEncapsulation(
        *(bytes.fromhex(VECTOR[n]) for n in ("shared_secret", "kem_ciphertext"))
    )
    fingerprint = bytes.fromhex(VECTOR["recovery_private"].splitlines()[1])
    origin = Origin(
        created_at_us=1_795_000_000_000_000,
        version="0.1",
        log_id="6f2c41d0-8a53-4c57-9d0b-2f6de1a5c9e4",
        generation=1,
        records=1200,
        root_keys={1: sealer.check_value(1)},
    )
    file = io.BytesIO()
    writer = Writer(file, PublicHalf("X-Wing", fingerprint, key), origin)
    write(writer, MANIFEST)
    write(writer, ROWS)
    finish(writer, COUNTS, {DEFAULT_SHARD: sealer})
    written = tmp_path / "backup"
    written.write_bytes(file.getvalue())
    written.chmod(0o600)
    return written


def test_every_byte_of_a_backup(file: Path) -> None:
    """Magic, header, labels, segments, messages and tag equal the vector's values."""
    assert sha256(file.read_bytes()).hexdigest() == VECTOR["sha256"]


def test_the_tag_of_a_backup() -> None:
    """HMAC and key derivation equal the vector's values."""
    tag = Sealer({1: Secret(ROOT_KEY)}).backup_tag(1, bytes(32))
    assert tag.hex() == VECTOR["tag_of_zeros"]


def test_a_backup_of_the_vector_is_read(file: Path, tmp_path: Path) -> None:
    """The vector's recovery key and root key open the backup, and its content is unchanged."""
    private, root_key = tmp_path / "private", tmp_path / "root.key"
    private.write_text(VECTOR["recovery_private"])
    root_key.write_bytes(ROOT_KEY)
    for path in (private, root_key):
        path.chmod(0o400)
    backup = authenticate(file, private, [RootKeySource(file=root_key)])
    assert backup.manifest == MANIFEST
    assert list(backup.messages()) == [ROWS, End(counts=COUNTS)]
    assert str(backup.origin.number) == "1.1200"
