"""``pqkeep re-encrypt`` and ``pqkeep recipients``: other keys for files in place."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command


@pytest.fixture
def friend(
    with_key: Callable[[str], Command], new_api_key: Callable[[], str], base_url: str
) -> Command:
    """The command of another tenant, with its public key in a file."""
    other = new_api_key()
    command = with_key(other)
    with Client(base_url, other) as client:
        client.keys.generate("X-Wing")
    assert command("keys", "public-key", "X-Wing", "--to", "friend.json").status == 0
    return command


def test_files_move_to_the_active_key(command: Command, tenant: Client, file: Path) -> None:
    """After a rotation several files move in place, and each failure is reported."""
    tenant.keys.generate("Kyber768")
    folder, plaintext = command.directory, file.read_bytes()
    for name in ("a", "b"):
        (folder / name).write_bytes(plaintext)
        assert command("encrypt", name).status == 0
    assert command("encrypt", "a", "--armor", "--to", "text").status == 0
    tenant.keys.rotate("Kyber768")
    inode = (folder / "a.pqk").stat().st_ino
    (folder / "damaged").write_bytes((folder / "b.pqk").read_bytes()[:100])
    names = ("a.pqk", "damaged", "gone", "text", "b.pqk")
    ended = command("re-encrypt", *names)
    assert (ended.status, ended.out) == (1, b"")
    assert ended.err.splitlines() == [
        "a.pqk: re-encrypted",
        "pqkeep: damaged is data that pqkeep encrypted locally, and was cut off within its header",
        "        get the whole file again",
        "pqkeep: gone: No such file or directory",
        "        check the name, and that its directory exists",
        "text: re-encrypted",
        "b.pqk: re-encrypted",
        "3 of 5 files",
    ]
    assert (folder / "a.pqk").stat().st_ino == inode
    for name in ("a.pqk", "b.pqk", "text"):
        assert command("decrypt", name, "--to", "-").out == plaintext
        (row,) = json.loads(command("recipients", name, "--output", "json").out)["recipients"]
        assert row["key_version"] == 2
    assert (
        len(
            {
                record.request_id
                for record in tenant.audit.records(operation="decapsulate", key_version=1)
            }
        )
        == 1
    )
    again = command("re-encrypt", "a.pqk", "gone", "--output", "json", "--quiet")
    assert json.loads(again.out) == {
        "files": [
            {"file": "a.pqk", "changed": False},
            {"file": "gone", "error": "FileNotFoundError"},
        ],
        "total": 2,
    }
    assert again.status == 1


@pytest.mark.parametrize("option", ["--server-side", "--envelope"])
def test_what_the_service_encrypted(
    command: Command, tenant: Client, file: Path, option: str
) -> None:
    """A file from the service has no recipients: the error says how to move it."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name, option, "--to", "sealed").status == 0
    before = (command.directory / "sealed").read_bytes()
    for arguments in (("re-encrypt", "sealed"), ("recipients", "sealed")):
        ended = command(*arguments)
        assert (ended.status, "was encrypted by the service" in ended.err) == (1, True)
        assert "POST /kem/re-encrypt" in ended.err
    assert (command.directory / "sealed").read_bytes() == before


def test_another_recipient(command: Command, friend: Command, tenant: Client, file: Path) -> None:
    """A new recipient can decrypt after being added, and the first one until removed."""
    own = tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name).status == 0
    assert friend("decrypt", "report.pdf.pqk", "--to", "-").status == 4
    assert command("re-encrypt", "report.pdf.pqk", "--recipient", "friend.json").status == 0
    assert friend("decrypt", "report.pdf.pqk", "--to", "-").out == file.read_bytes()
    said = command("recipients", "report.pdf.pqk").out.decode().splitlines()
    fingerprint = sha256(own.public_key).hexdigest()
    assert said[1].split() == ["Kyber768", "1", "default", fingerprint]
    removed = friend("re-encrypt", "report.pdf.pqk", "--remove", fingerprint)
    assert (removed.status, removed.err) == (0, "report.pdf.pqk: re-encrypted\n")
    assert command("decrypt", "report.pdf.pqk", "--to", "-").status == 4
    for wrong, said_of_it in (("00", "64 hexadecimal digits"), ("00" * 32, "not in the header")):
        ended = friend("re-encrypt", "report.pdf.pqk", "--remove", wrong)
        assert (ended.status, said_of_it in ended.err) == (2, True)
    assert friend("decrypt", "report.pdf.pqk", "--to", "-").out == file.read_bytes()


def test_new_file_keys(command: Command, friend: Command, tenant: Client, file: Path) -> None:
    """With --new-file-key files and texts are encrypted again; a full disk leaves the old file."""
    own = tenant.keys.generate("Kyber768")
    folder = command.directory
    assert command("encrypt", file.name).status == 0
    assert command("encrypt", file.name, "--armor", "--to", "text").status == 0
    for name in ("report.pdf.pqk", "text"):
        before = (folder / name).read_bytes()
        (folder / name).chmod(0o600)
        changed = command("re-encrypt", name, "--new-file-key")
        assert (changed.status, changed.err) == (0, f"{name}: re-encrypted\n")
        assert (folder / name).read_bytes()[-5000:-4900] != before[-5000:-4900]
        assert (folder / name).stat().st_mode & 0o777 == 0o600
        assert command("decrypt", name, "--to", "-").out == file.read_bytes()
    before = (folder / "report.pdf.pqk").read_bytes()
    full = command("re-encrypt", "report.pdf.pqk", "--new-file-key", preexec_fn=_small_files)
    assert (full.status, "File too large" in full.err) == (1, True)
    assert (folder / "report.pdf.pqk").read_bytes() == before
    both = ("re-encrypt", "report.pdf.pqk", "--new-file-key", "--recipient", "friend.json")
    assert command(*both).status == 0
    refused = command("re-encrypt", "report.pdf.pqk", "--new-file-key")
    assert (refused.status, "needs the public key of each recipient" in refused.err) == (2, True)
    assert friend("decrypt", "report.pdf.pqk", "--to", "-").out == file.read_bytes()
    alone = command(*both, "--remove", sha256(own.public_key).hexdigest())
    assert (alone.status, alone.err) == (0, "report.pdf.pqk: re-encrypted\n")


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_for_several_at_once(command: Command, friend: Command, tenant: Client, file: Path) -> None:
    """A file can have several recipients from the beginning, also without a service."""
    tenant.keys.generate("Kyber768")
    assert command("keys", "public-key", "Kyber768", "--to", "own.json").status == 0
    offline = command.as_(PQKEEP_URL="", PQKEEP_API_KEY_FILE="")
    to = ("--public-key", "own.json", "--recipient", "friend.json")
    assert offline("encrypt", file.name, *to).status == 0
    for user in (command, friend):
        assert user("decrypt", "report.pdf.pqk", "--to", "-").out == file.read_bytes()
    assert command("encrypt", file.name, "--server-side", *to[2:]).status == 2


def test_copies(command: Command, friend: Command, tenant: Client, file: Path) -> None:
    """With --to, and in a pipe, a copy has the new recipient, and the file is unchanged."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name).status == 0
    before = (command.directory / "report.pdf.pqk").read_bytes()
    options = ("--public-key", "friend.json")
    copied = command("re-encrypt", "report.pdf.pqk", "--to", "copy", *options)
    assert (copied.status, copied.err) == (0, "copy: re-encrypted\n")
    piped = command("re-encrypt", "-", *options, stdin=before)
    assert (piped.status, piped.err) == (0, "")
    (command.directory / "piped").write_bytes(piped.out)
    for name in ("copy", "piped"):
        assert friend("decrypt", name, "--to", "-").out == file.read_bytes()
        assert command("decrypt", name, "--to", "-").status == 4
    assert (command.directory / "report.pdf.pqk").read_bytes() == before
    assert command("re-encrypt", "report.pdf.pqk", "--to", "copy").status == 1
    assert command("re-encrypt", "copy", "report.pdf.pqk", "--to", "other").status == 2


def test_a_compliance_profile(command: Command, friend: Command, tenant: Client) -> None:
    """Under CNSA 2.0 no file gets a recipient of another algorithm."""
    tenant.keys.generate("ML-KEM-1024")
    profile = ("--compliance-profile", "cnsa-2.0")
    sealed = command("encrypt", "-", "-a", "ML-KEM-1024", "--to", "sealed", stdin=b"hello")
    assert sealed.status == 0
    assert command("re-encrypt", "sealed", *profile).err == "sealed: nothing to change\n"
    for option in ("--recipient", "--public-key"):
        assert command("re-encrypt", "sealed", option, "friend.json", *profile).status == 5


def test_text_around_encrypted_text(command: Command, tenant: Client, file: Path) -> None:
    """In place, surrounding text is never lost: the change is refused, and a copy has only the data."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name, "--armor", "--to", "text").status == 0
    mail = b"Hello,\r\n\r\n" + (command.directory / "text").read_bytes() + b"-- \r\nA\r\n"
    path = command.directory / "mail"
    path.write_bytes(mail)
    tenant.keys.rotate("Kyber768")
    ended = command("re-encrypt", "mail")
    assert (ended.status, "other text surrounds" in ended.err) == (2, True)
    assert path.read_bytes() == mail
    assert command("re-encrypt", "mail", "--to", "copy").status == 0
    for name in ("mail", "copy"):
        assert command("decrypt", name, "--to", "-").out == file.read_bytes()
    path.write_bytes(b"> " + mail[10:].replace(b"\n", b"\n> "))
    ended = command("decrypt", "mail", "--to", "-")
    assert (ended.status, ended.out, "as in a quoted" in ended.err) == (1, b"", True)
    path.write_bytes(mail + mail)
    ended = command("decrypt", "mail", "--to", "out")
    assert (ended.status, "several blocks" in ended.err) == (1, True)
