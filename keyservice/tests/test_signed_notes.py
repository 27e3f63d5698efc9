"""Checkpoints as signed notes, read by an independent parser of the specifications."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.ledger import signed_notes
from pqkeep_keyservice.live.key_material import derive_note_key
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    AuditKeys,
    Checkpoint,
    GetNote,
    ListAuditKeys,
    ListCheckpoints,
    SignCheckpoint,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Sql

VECTOR = json.loads(
    (Path(__file__).parents[2] / "tests" / "vectors" / "signed-note.json").read_bytes()
)
ML_DSA = Algorithm.ML_DSA_65
BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@dataclass
class Read:
    """A checkpoint in a note, with its signer and time."""

    origin: str
    size: int
    root: bytes
    name: str
    seconds: int


class BadNoteError(Exception):
    """The note is invalid."""


def read(text: str, vkey: str) -> Read:
    """Parse and verify a note of one signature. Raises BadNoteError."""
    key_name, key_id, key_text = vkey.split("+", 2)
    typed = b64decode(key_text, validate=True)
    assert typed[0] == 6
    expected_id = sha256(f"{key_name}\n".encode() + typed).digest()[:4]
    assert expected_id.hex() == key_id
    body, separator, lines = text.rpartition("\n\n")
    if not separator or not lines.endswith("\n"):
        raise BadNoteError
    origin, size, root_text = body.split("\n")
    root = b64decode(root_text, validate=True)
    dash, name, signature_text = lines.removesuffix("\n").split(" ")
    assert (dash, name) == ("\u2014", key_name)
    blob = b64decode(signature_text, validate=True)
    if blob[:4] != expected_id or len(blob) != 4 + 8 + 2420:
        raise BadNoteError
    signed = b"subtree/v1\n\x00"
    signed += bytes([len(name)]) + name.encode() + blob[4:12]
    signed += bytes([len(origin)]) + origin.encode() + bytes(8)
    signed += int(size).to_bytes(8, "big") + root
    try:
        MLDSA44PublicKey.from_public_bytes(typed[1:]).verify(blob[12:], signed)
    except InvalidSignature:
        raise BadNoteError from None
    return Read(origin, int(size), root, name, int.from_bytes(blob[4:12], "big"))


class Log:
    """A client of the log's public data."""

    def __init__(self, service: InProcessService, attribution: Attribution) -> None:
        self._service, self._attribution = service, attribution

    async def note(self) -> str:
        return (await self._service.execute(GetNote(tenant=INSTALLATION), self._attribution)).text

    async def keys(self) -> AuditKeys:
        return await self._service.execute(ListAuditKeys(tenant=INSTALLATION), self._attribution)

    async def sign(self) -> Checkpoint:
        request = SignCheckpoint(tenant=INSTALLATION, algorithm=ML_DSA)
        return (await self._service.execute(request, self._attribution)).checkpoint

    async def newest(self) -> Checkpoint:
        request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=ML_DSA)
        return (await self._service.execute(request, self._attribution)).checkpoints[0]

    async def grow(self, tenant: TenantId) -> None:
        for _ in range(3):
            request = GenerateKey(tenant=tenant, algorithm=ML_DSA, quota=0)
            with pytest.raises(KeyServiceError):
                await self._service.execute(request, self._attribution)


@pytest.fixture
def log(service: InProcessService, attribution: Attribution) -> Log:
    """Return a client of the service."""
    return Log(service, attribution)


def test_the_vector() -> None:
    """The derived key, its name, its id and its signature equal the vector's."""
    key = derive_note_key(Secret(bytes.fromhex(VECTOR["checkpoint_key_seed"])))
    name = signed_notes.origin(UUID(VECTOR["log_id"]), None)
    assert name == VECTOR["origin"]
    assert signed_notes.verifier_key(name, key.public_bytes()) == VECTOR["vkey"]
    root = b64decode(VECTOR["root"])
    message = signed_notes.message(name, name, VECTOR["seconds"], VECTOR["size"], root)
    assert message.hex() == VECTOR["message"]
    signature = b64decode(VECTOR["note"].split()[-1])[12:]
    line = signed_notes.signature_line(name, key.public_bytes(), VECTOR["seconds"], signature)
    assert signed_notes.note(name, VECTOR["size"], root, line) == VECTOR["note"]
    expected = Read(name, VECTOR["size"], root, name, VECTOR["seconds"])
    assert read(VECTOR["note"], VECTOR["vkey"]) == expected


@pytest.mark.parametrize("line", [0, 1, 2])
def test_what_is_signed_cannot_be_changed(line: int) -> None:
    """A note with another origin, size, root or time is invalid."""
    lines = VECTOR["note"].split("\n")
    lines[line] = [lines[0] + "x", "2", b64encode(bytes(32)).decode()][line]
    with pytest.raises(BadNoteError):
        read("\n".join(lines), VECTOR["vkey"])
    words = VECTOR["note"].split(" ")
    blob = bytearray(b64decode(words[-1]))
    blob[11] ^= 1
    words[-1] = b64encode(blob).decode() + "\n"
    with pytest.raises(BadNoteError):
        read(" ".join(words), VECTOR["vkey"])


@BOTH
async def test_the_newest_checkpoint_as_a_note(
    log: Log, service: InProcessService, tenant: TenantId
) -> None:
    """A note exists after the first checkpoint, with its size, root and time."""
    with pytest.raises(KeyServiceError) as refusal:
        await log.note()
    assert refusal.value.kind is ErrorKind.RECORD_NOT_FOUND
    assert (await log.keys()).note_key is None
    notes = []
    for _ in range(2):
        await log.grow(tenant)
        checkpoint = await log.sign()
        keys = await log.keys()
        notes.append(await log.note())
        assert await log.note() == notes[-1]
        assert keys.note_key is not None
        origin = f"pqkeep/audit/{keys.log_id}"
        assert read(notes[-1], keys.note_key) == Read(
            origin, checkpoint.size, checkpoint.root, origin, checkpoint.at_us // 1_000_000
        )
    assert notes[0] != notes[1]


async def test_a_checkpoint_that_is_not_the_log_s_is_not_signed(
    log: Log, tenant: TenantId, sql: Sql
) -> None:
    """A root planted in the database gets no note."""
    await log.grow(tenant)
    await log.sign()
    sql("UPDATE audit_checkpoints SET root = ?", bytes(32))
    assert (await log.newest()).root == bytes(32)
    with pytest.raises(KeyServiceError) as refusal:
        await log.note()
    assert refusal.value.kind is ErrorKind.UNAVAILABLE
