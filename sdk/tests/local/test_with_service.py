"""Both clients with a running service, which has the keys and never sees the data."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from tests.patience import PATIENCE

from pqkeep import (
    AsyncClient,
    Client,
    ComplianceError,
    DecryptionError,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
)
from pqkeep.errors import how_to_install
from pqkeep.local import Recipient, encrypt, encrypt_for_service, read_header

ALGORITHMS = ["Kyber768", "X-Wing", "ML-KEM-1024"]
MEBIBYTE = 1024 * 1024
DATA = os.urandom(MEBIBYTE + 1)
Connect = Callable[..., Client]
Answer = Callable[..., str]


def contents(folder: Path) -> list[Path]:
    """Return the names in a folder."""
    return list(folder.iterdir())


def open_in(folder: Path) -> list[str]:
    """Return this process's open files in a folder, including files without a name."""
    paths = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it is closed by now
            paths.append(str(descriptor.readlink()))
    return [path for path in paths if path.startswith(str(folder))]


def wait_until_open_in(folder: Path) -> None:
    """Wait until this process has an open file in a folder."""
    deadline = time.monotonic() + PATIENCE
    while not open_in(folder):
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Discard:
    """Keeps nothing."""

    def write(self, data: bytes, /) -> None:
        pass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_round_trip(client: Client, tmp_path: Path, algorithm: str) -> None:
    """Bytes, streams and files are restored after a rotation, without other information."""
    plain, cipher, back = (tmp_path / name for name in ("plain", "cipher", "back"))
    plain.write_bytes(DATA)
    client.keys.generate(algorithm)
    sealed = client.local.encrypt(DATA, algorithm=algorithm)
    stream = BytesIO()
    client.local.encrypt_stream(BytesIO(DATA), stream, algorithm=algorithm)
    client.local.encrypt_file(plain, cipher, algorithm=algorithm)
    client.keys.rotate(algorithm)
    assert client.local.decrypt(sealed) == DATA
    opened = BytesIO()
    client.local.decrypt_stream(BytesIO(stream.getvalue()), opened)
    assert opened.getvalue() == DATA
    client.local.decrypt_file(cipher, back)
    assert back.read_bytes() == DATA
    newer = client.local.encrypt(DATA, algorithm=algorithm)
    assert read_header(BytesIO(sealed)).recipients[0].key_version == 1
    assert read_header(BytesIO(newer)).recipients[0].key_version == 2


def test_what_the_service_hears(client: Client) -> None:
    """Encryption requests only a public key, and decryption only a decapsulation."""
    client.keys.generate("Kyber768")
    before = {record.id for record in client.audit.records()}
    assert client.local.decrypt(client.local.encrypt(b"a secret")) == b"a secret"
    records = sorted(client.audit.records(), key=lambda record: record.number)
    heard = [record.operation for record in records if record.id not in before]
    assert heard == ["get-active-key", "decapsulate"]


def test_a_file_moves_to_the_active_key(client: Client, tmp_path: Path) -> None:
    """After a rotation a file moves to the active key by one decapsulation, in place."""
    key, path = client.keys.generate("Kyber768"), tmp_path / "file.pqk"
    path.write_bytes(client.local.encrypt(DATA, capacity=1))
    client.keys.rotate("Kyber768")
    before = {record.id for record in client.audit.records()}
    inode = path.stat().st_ino
    assert client.local.re_encrypt_file(path)
    records = sorted(client.audit.records(), key=lambda record: record.number)
    heard = [record.operation for record in records if record.id not in before]
    assert heard == ["decapsulate", "get-active-key"]
    assert path.stat().st_ino == inode
    assert not client.local.re_encrypt_file(path)
    assert client.local.decrypt(path.read_bytes()) == DATA
    (recipient,) = read_header(BytesIO(path.read_bytes())).recipients
    active = client.keys.active("Kyber768")
    assert recipient.key_version == active.key_version == 2
    assert recipient.fingerprint == hashlib.sha256(active.public_key).digest()
    assert hashlib.sha256(key.public_key).digest() not in path.read_bytes()


def test_another_algorithm_and_a_stream(client: Client) -> None:
    """Data moves to another algorithm's active key, and to a given public key."""
    for algorithm in ("Kyber768", "ML-KEM-1024"):
        client.keys.generate(algorithm)
    sealed = client.local.encrypt(DATA)
    moved = client.local.re_encrypt(sealed, algorithm="ML-KEM-1024")
    assert [recipient.algorithm for recipient in read_header(BytesIO(moved)).recipients] == [
        "ML-KEM-1024"
    ]
    key = client.keys.active("Kyber768")
    to = Recipient(public_key=key.public_key, algorithm="Kyber768", key_version=key.key_version)
    back = BytesIO()
    client.local.re_encrypt_stream(BytesIO(moved), back, to=to)
    assert client.local.decrypt(back.getvalue()) == DATA
    with pytest.raises(InvalidRequestError, match="an algorithm or a public key"):
        client.local.re_encrypt(sealed, algorithm="ML-KEM-1024", to=to)


def test_two_tenants(
    client: Client, connect: Connect, base_url: str, new_api_key: Any, tmp_path: Path
) -> None:
    """A file for two tenants opens for both in any order, and after a removal for one."""
    friend, path = connect(base_url, new_api_key()), tmp_path / "file.pqk"
    recipients = []
    for reader in (client, friend):
        key = reader.keys.generate("X-Wing")
        recipients.append(
            Recipient(public_key=key.public_key, algorithm="X-Wing", key_version=key.key_version)
        )
    plain = tmp_path / "plain"
    plain.write_bytes(DATA)
    client.local.encrypt_file(plain, path, algorithm="X-Wing")
    with pytest.raises(DecryptionError):
        friend.local.decrypt(path.read_bytes())
    assert client.local.add_recipient(path, recipients[1])
    assert friend.local.decrypt(path.read_bytes()) == DATA
    assert friend.local.remove_recipient(path, recipients[0].fingerprint)
    with pytest.raises(DecryptionError):
        client.local.decrypt(path.read_bytes())
    both = friend.local.encrypt(DATA, algorithm="X-Wing", recipients=recipients)
    assert client.local.decrypt(both) == DATA


@pytest.fixture
def cards(base_url: str, api_key: str) -> str:
    """A keyring with a key of version 1."""
    with httpx2.Client(headers={"X-API-Key": api_key}, trust_env=False, timeout=PATIENCE) as http:
        for path, body in (
            ("/keyrings", {"name": "payments.cards"}),
            ("/keys/generate", {"algorithm": "Kyber768", "keyring": "payments.cards"}),
        ):
            http.post(f"{base_url}/api/v1/kms{path}", json=body).raise_for_status()
    return "payments.cards"


def test_keyrings(client: Client, cards: str, tmp_path: Path) -> None:
    """A keyring's files open, and move within the keyring unless another is named."""
    client.keys.generate("Kyber768")
    path = tmp_path / "file"
    path.write_bytes(client.local.encrypt(DATA, keyring=cards, capacity=1))
    (recipient,) = read_header(BytesIO(path.read_bytes())).recipients
    assert (recipient.keyring, recipient.key_version) == (cards, 1)
    assert client.local.decrypt(path.read_bytes()) == DATA
    assert not client.local.re_encrypt_file(path)
    assert client.local.re_encrypt_file(path, keyring="default")
    assert read_header(BytesIO(path.read_bytes())).recipients[0].keyring == "default"
    moved = client.local.re_encrypt(path.read_bytes(), keyring=cards)
    assert read_header(BytesIO(moved)).recipients[0].keyring == cards
    assert client.local.decrypt(moved) == DATA
    with pytest.raises(NotFoundError):
        client.local.encrypt(DATA, keyring="payments.logs")


async def test_keyrings_on_asyncio(base_url: str, api_key: str, cards: str) -> None:
    """The client for asyncio supports keyrings too."""
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate("Kyber768")
        sealed = await client.local.encrypt(DATA, keyring=cards)
        assert await client.local.decrypt(sealed) == DATA
        moved = await client.local.re_encrypt(sealed, keyring="default")
        assert read_header(BytesIO(moved)).recipients[0].keyring == "default"
        assert await client.local.decrypt(moved) == DATA


async def test_moving_on_asyncio(base_url: str, api_key: str, tmp_path: Path) -> None:
    """The client for asyncio moves data, streams and files, and adds and removes recipients."""
    path = tmp_path / "file.pqk"
    async with AsyncClient(base_url, api_key) as client:
        old, hybrid = [await client.keys.generate(name) for name in ("Kyber768", "X-Wing")]
        sealed = await client.local.encrypt(DATA, capacity=2)
        path.write_bytes(sealed)
        await client.keys.rotate("Kyber768")
        moved = await client.local.re_encrypt(sealed)
        assert await client.local.decrypt(moved) == DATA
        assert read_header(BytesIO(moved)).recipients[0].key_version == 2
        recipient = Recipient(public_key=hybrid.public_key, algorithm="X-Wing", key_version=1)
        assert await client.local.add_recipient(path, recipient)
        fingerprint = hashlib.sha256(old.public_key).digest()
        assert await client.local.remove_recipient(path, fingerprint)
        assert await client.local.re_encrypt_file(path, algorithm="Kyber768")
        (found,) = read_header(BytesIO(path.read_bytes())).recipients
        assert (found.algorithm, found.key_version) == ("Kyber768", 2)
        assert await client.local.decrypt(path.read_bytes()) == DATA
        with pytest.raises(NotFoundError):
            await client.local.decrypt(encrypt(DATA, recipients=[recipient_of_nobody()]))


def recipient_of_nobody() -> Recipient:
    """Return a recipient with a key version that no tenant has."""
    private = MLKEM768PrivateKey.generate()
    public_key = private.public_key().public_bytes_raw()
    return Recipient(public_key=public_key, algorithm="Kyber768", key_version=99)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_offline(client: Client, algorithm: str) -> None:
    """Data that was encrypted offline is decrypted like other data."""
    key = client.keys.generate(algorithm)
    recipient = Recipient(
        public_key=key.public_key, algorithm=algorithm, key_version=key.key_version
    )
    sealed = encrypt(DATA, recipients=[recipient])
    assert client.local.decrypt(sealed) == DATA


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [0, 1, MEBIBYTE])
def test_for_the_service(client: Client, algorithm: str, size: int) -> None:
    """The service decrypts data that was encrypted for it on this machine."""
    client.keys.generate(algorithm)
    (tenant,) = client.tenants.list()
    sealed = client.local.encrypt_for_service(DATA[:size], tenant_id=tenant.id, algorithm=algorithm)
    opened = client.kem.decrypt(
        sealed.ciphertext, key_version=sealed.key_version, algorithm=sealed.algorithm
    )
    assert opened == DATA[:size]


def test_for_the_service_and_nobody_else(client: Client) -> None:
    """Another tenant, version or associated data is refused, and too much data at once."""
    key = client.keys.generate("Kyber768")
    (tenant,) = client.tenants.list()

    def sealed(
        data: bytes, tenant_id: str = tenant.id, bound: bytes = b"row 1", **other: Any
    ) -> bytes:
        named = {"algorithm": "Kyber768", "key_version": 1, **other}
        recipient = Recipient(public_key=key.public_key, **named)
        return encrypt_for_service(
            data, tenant_id=tenant_id, recipient=recipient, associated_data=bound
        ).ciphertext

    def opened(ciphertext: bytes) -> bytes:
        return client.kem.decrypt(ciphertext, key_version=1, associated_data=b"row 1")

    assert opened(sealed(b"x")) == b"x"
    for wrong in (
        sealed(b"x", "00000000-0000-4000-8000-000000000000"),
        sealed(b"x", bound=b"row 2"),
        sealed(b"x", key_version=2),
        sealed(b"x", keyring="payments.cards"),
    ):
        with pytest.raises(DecryptionError):
            opened(wrong)
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        sealed(DATA)
    with pytest.raises(ValueError, match="UUID"):
        sealed(b"x", "somebody")


def test_another_tenant(client: Client, connect: Connect, base_url: str, new_api_key: Any) -> None:
    """Another tenant's key of the same version does not open the data."""
    client.keys.generate("Kyber768")
    sealed = client.local.encrypt(b"a secret")
    other = connect(base_url, new_api_key())
    with pytest.raises(NotFoundError):
        other.local.decrypt(sealed)
    other.keys.generate("Kyber768")
    with pytest.raises(DecryptionError, match="encrypted to another key"):
        other.local.decrypt(sealed)


def test_damage_that_the_service_finds(client: Client) -> None:
    """A KEM ciphertext that the service refuses raises the same exception as other damage."""
    client.keys.generate("X-Wing")
    sealed = bytearray(client.local.encrypt(b"a secret", algorithm="X-Wing"))
    at = sealed.index(read_header(BytesIO(sealed)).recipients[0].kem_ciphertext)
    sealed[at + 1088 : at + 1120] = bytes(32)  # a point of low order
    sealed[1283:1331] = hashlib.sha384(sealed[:1283]).digest()
    with pytest.raises(DecryptionError):
        client.local.decrypt(bytes(sealed))


def test_no_active_key(client: Client) -> None:
    """Without an active key, encryption fails."""
    with pytest.raises(NotFoundError):
        client.local.encrypt(b"a secret")


@pytest.mark.parametrize("algorithm", ["Dilithium3", "ML-KEM-512", ""])
def test_no_such_algorithm(client: Client, algorithm: str) -> None:
    """Other algorithms are refused before anything is sent."""
    with pytest.raises(InvalidRequestError, match="Kyber768") as caught:
        client.local.encrypt(b"a secret", algorithm=algorithm)
    assert (caught.value.field, caught.value.request_id) == ("algorithm", None)


def test_compliance(connect: Connect, base_url: str, api_key: str) -> None:
    """Under CNSA 2.0 only ML-KEM-1024 encrypts and decrypts."""
    free = connect(base_url, api_key)
    bound = connect(base_url, api_key, compliance_profile="cnsa-2.0")
    for algorithm in ("Kyber768", "ML-KEM-1024"):
        free.keys.generate(algorithm)
    sealed = bound.local.encrypt(b"a secret")
    assert read_header(BytesIO(sealed)).recipients[0].algorithm == "ML-KEM-1024"
    assert bound.local.decrypt(sealed) == b"a secret"
    for algorithm in ("Kyber768", "X-Wing", "ML-DSA-87"):
        with pytest.raises(ComplianceError):
            bound.local.encrypt(b"a secret", algorithm=algorithm)
    with pytest.raises(ComplianceError):
        bound.local.decrypt(free.local.encrypt(b"a secret"))
    weak = free.keys.active("Kyber768")
    recipient = Recipient(public_key=weak.public_key, algorithm="Kyber768", key_version=1)
    with pytest.raises(ComplianceError):
        bound.local.re_encrypt(sealed, to=recipient)
    with pytest.raises(ComplianceError):
        bound.local.re_encrypt(sealed, add=[recipient])
    with pytest.raises(ComplianceError):
        bound.local.encrypt(b"a secret", recipients=[recipient])
    strong = free.keys.active("ML-KEM-1024")
    allowed = Recipient(public_key=strong.public_key, algorithm="ML-KEM-1024", key_version=1)
    both = free.local.encrypt(b"a secret", recipients=[allowed])
    assert bound.local.decrypt(both) == b"a secret"


@pytest.mark.parametrize(
    ("version", "size"), [(1, 0), (1, 1183), (1, 1568), (0, 1184), (1 << 32, 1184)]
)
def test_a_service_with_strange_keys(
    connect: Connect, response: Answer, version: int, size: int
) -> None:
    """An invalid key from the service is a malformed response."""
    key = {
        "key_version": version,
        "algorithm": "Kyber768",
        "status": "active",
        "public_key": base64.b64encode(bytes(size)).decode(),
        "created_at": "2026-01-01T00:00:00.000Z",
    }
    client = connect(response(json.dumps({"data": key}).encode()), "pqk_x")
    with pytest.raises(MalformedResponseError):
        client.local.encrypt(b"a secret")


@pytest.mark.parametrize("said", ["Kyber768", "ML-KEM-1024"])
def test_a_service_that_weakens(connect: Connect, response: Answer, kyber: Any, said: str) -> None:
    """The service cannot replace the requested algorithm by another one."""
    key = {
        "key_version": 1,
        "algorithm": said,
        "status": "active",
        "public_key": base64.b64encode(kyber.public["public_key"]).decode(),
        "created_at": "2026-01-01T00:00:00.000Z",
    }
    url = response(json.dumps({"data": key}).encode())
    with pytest.raises(MalformedResponseError):
        connect(url, "pqk_x", compliance_profile="cnsa-2.0").local.encrypt(b"a secret")
    with pytest.raises(MalformedResponseError):
        connect(url, "pqk_x").local.encrypt(b"a secret", algorithm="X-Wing")


def test_a_service_with_a_strange_secret(connect: Connect, response: Answer, kyber: Any) -> None:
    """A secret of another length is a malformed response. A wrong one of 32 bytes opens nothing."""
    sealed = encrypt(b"a secret", recipients=[kyber.recipient])
    other = base64.b64encode(bytes(32)).decode()
    for secret, error in (
        ("", MalformedResponseError),
        ("AAAA", MalformedResponseError),
        (other, DecryptionError),
    ):
        url = response(json.dumps({"data": {"shared_secret": secret}}).encode())
        with pytest.raises(error):
            connect(url, "pqk_x").local.decrypt(sealed)


def test_what_is_there_stays(client: Client, tmp_path: Path) -> None:
    """Both directions refuse to replace a file unless asked."""
    client.keys.generate("Kyber768")
    plain, cipher = tmp_path / "plain", tmp_path / "cipher"
    plain.write_bytes(DATA)
    cipher.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        client.local.encrypt_file(plain, cipher)
    client.local.encrypt_file(plain, cipher, replace=True)
    with pytest.raises(FileExistsError):
        client.local.decrypt_file(cipher, plain)
    client.local.decrypt_file(cipher, plain, replace=True)
    assert plain.read_bytes() == DATA
    assert sorted(tmp_path.iterdir()) == [cipher, plain]


async def test_many_at_once(base_url: str, api_key: str, tmp_path: Path) -> None:
    """More concurrent calls than threads all end."""
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate("Kyber768")
        source = tmp_path / "source"
        source.write_bytes(await client.local.encrypt(DATA))
        targets = [tmp_path / str(number) for number in range(60)]
        await asyncio.gather(*(client.local.decrypt_file(source, target) for target in targets))
    assert all(target.read_bytes() == DATA for target in targets)


async def test_the_event_loop_stays_free(base_url: str, api_key: str) -> None:
    """While data is processed, other tasks run."""
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate("Kyber768")
        names = set()

        class Reader(BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                names.add(threading.current_thread().name)
                return super().read(size)

        await client.local.encrypt_stream(Reader(DATA), BytesIO())
    assert names
    assert threading.main_thread().name not in names


async def test_a_cancelled_file(base_url: str, api_key: str, tmp_path: Path) -> None:
    """A cancelled call ends together with its thread, and leaves no file."""
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate("Kyber768")
        endless = asyncio.create_task(client.local.encrypt_file("/dev/zero", tmp_path / "target"))
        await asyncio.to_thread(wait_until_open_in, tmp_path)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
    assert open_in(tmp_path) == []
    assert contents(tmp_path) == []


async def test_a_cancelled_stream(base_url: str, api_key: str) -> None:
    """A cancelled call no longer reads."""

    class Endless:
        def __init__(self) -> None:
            self.count = 0
            self.is_read = threading.Event()

        def read(self, size: int, /) -> bytes:
            self.count += 1
            self.is_read.set()
            return bytes(size)

    reader = Endless()
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate("Kyber768")
        endless = asyncio.create_task(client.local.encrypt_stream(reader, Discard()))
        await asyncio.to_thread(reader.is_read.wait, PATIENCE)
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        count = reader.count
        await asyncio.sleep(0.05)
        assert reader.count == count


def test_without_the_extra() -> None:
    """Without cryptography the client works, and local encryption says what to install."""
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from pqkeep import Client\n"
        "client = Client('http://127.0.0.1:1', 'pqk_x')\n"
        "try: client.local\n"
        "except ImportError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, check=True, timeout=PATIENCE
    )
    said = f"local encryption is not installed: {how_to_install('local')}"
    assert ended.stdout.decode().strip() == said
