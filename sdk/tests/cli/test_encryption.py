"""``pqkeep encrypt`` and ``pqkeep decrypt``: files, pipes, text, and errors."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

BEGIN, END = "-----BEGIN PQKEEP ENCRYPTED DATA-----", "-----END PQKEEP ENCRYPTED DATA-----"


def test_a_file_and_back(command: Command, tenant: Client, file: Path) -> None:
    """FILE becomes FILE.pqk, and FILE.pqk becomes FILE again with mode 0600."""
    tenant.keys.generate("Kyber768")
    plaintext = file.read_bytes()
    ended = command("encrypt", file.name)
    assert (ended.status, ended.out) == (0, b"")
    assert ended.err == "report.pdf.pqk: encrypted to Kyber768 version 1\n"
    file.unlink()
    ended = command("decrypt", "report.pdf.pqk")
    assert (ended.status, ended.out, ended.err) == (0, b"", "report.pdf: decrypted\n")
    assert file.read_bytes() == plaintext
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("is_link", [False, True], ids=["pipe", "link to one"])
def test_a_pipe_in_the_place_of_a_new_file_gets_nothing(
    command: Command, tenant: Client, file: Path, *, is_link: bool
) -> None:
    """Another user's pipe at the default output path gets no plaintext; a named pipe does."""
    tenant.keys.generate("Kyber768")
    plaintext = b"less than a pipe holds"
    file.write_bytes(plaintext)
    assert command("encrypt", file.name).status == 0
    file.unlink()
    pipe = command.directory / "pipe" if is_link else file
    os.mkfifo(pipe)
    if is_link:
        file.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ended = command("decrypt", "report.pdf.pqk")
    assert ended.status != 0
    assert "report.pdf" in ended.err
    assert os.read(reader, 1) == b""
    assert command("decrypt", "report.pdf.pqk", "--to", file.name).status == 0
    assert os.read(reader, len(plaintext)) == plaintext
    os.close(reader)


def test_after_a_rotation(command: Command, tenant: Client, file: Path) -> None:
    """After a rotation, old files are decrypted without naming the key."""
    tenant.keys.generate("X-Wing")
    assert command("encrypt", file.name, "--algorithm", "X-Wing").status == 0
    tenant.keys.rotate("X-Wing")
    assert command("decrypt", "report.pdf.pqk", "--to", "-").out == file.read_bytes()


@pytest.mark.parametrize("size", [0, 48, 262_145])
def test_pipes_and_text(command: Command, tenant: Client, size: int) -> None:
    """Between pipes no file is named; with --armor the output is text of at most 64 columns."""
    tenant.keys.generate("Kyber768")
    data = os.urandom(size)
    for options in ((), ("--armor",)):
        encrypted = command("encrypt", "-", *options, stdin=data)
        assert (encrypted.status, encrypted.err) == (0, "")
        decrypted = command("decrypt", "-", stdin=encrypted.out)
        assert (decrypted.status, decrypted.out, decrypted.err) == (0, data, "")
    first, *lines, last = encrypted.out.decode("ascii").splitlines()
    assert (first, last) == (BEGIN, END)
    assert {len(line) for line in lines[:-1]} <= {64}
    assert len(base64.b64decode("".join(lines))) > size


def test_text_that_was_mailed(command: Command, tenant: Client) -> None:
    """Text with other line ends and line lengths is decrypted too."""
    tenant.keys.generate("Kyber768")
    text = command("encrypt", "-", "--armor", stdin=b"hello").out.decode()
    body = "".join(text.splitlines()[1:-1])
    wrapped = "\r\n".join(body[start : start + 50] for start in range(0, len(body), 50))
    mailed = f"{BEGIN}\r\n{wrapped}\r\n{END}\r\n\r\n".encode()
    assert command("decrypt", "-", stdin=mailed).out == b"hello"


def test_without_a_service(command: Command, tenant: Client, file: Path) -> None:
    """Encryption with a public key's file needs no service and no API key."""
    tenant.keys.generate("X-Wing")
    assert command("keys", "public-key", "X-Wing", "--to", "key.json").status == 0
    assert command("keys", "public-key", "X-Wing", "--format", "raw", "--to", "key.bin").status == 0
    offline = command.as_(PQKEEP_URL="", PQKEEP_API_KEY_FILE="")
    raw = ("--algorithm", "X-Wing", "--key-version", "1")
    good: list[tuple[str, ...]] = [("key.json",), ("key.bin", *raw), ("key.json", *raw)]
    for options in good:
        arguments = ("encrypt", file.name, "--force", "--public-key", *options)
        assert offline(*arguments).status == 0
        assert command("decrypt", "report.pdf.pqk", "--to", "-").out == file.read_bytes()
    for options in (("key.bin",), ("key.json", "--algorithm", "Kyber768"), ("key.json", "-k", "2")):
        assert offline("encrypt", file.name, "--force", "--public-key", *options).status == 2
    wrong = offline("encrypt", file.name, "-f", "--public-key", file.name, *raw)
    assert (wrong.status, "none of X-Wing" in wrong.err or "larger" in wrong.err) == (2, True)


def test_by_the_service(command: Command, tenant: Client, file: Path) -> None:
    """With --server-side the service encrypts, and the file has everything for decryption."""
    tenant.keys.generate("X-Wing")
    ended = command("encrypt", file.name, "--server-side", "-a", "X-Wing", "--output", "json")
    assert json.loads(ended.out) == {
        "file": "report.pdf.pqk",
        "algorithm": "X-Wing",
        "key_version": 1,
    }
    said = json.loads((command.directory / "report.pdf.pqk").read_bytes())
    ciphertext = base64.b64decode(said.pop("ciphertext"))
    assert said == {"format": "pqkeep/v1/ciphertext", "algorithm": "X-Wing", "key_version": 1}
    assert tenant.kem.decrypt(ciphertext, key_version=1, algorithm="X-Wing") == file.read_bytes()
    assert command("decrypt", "report.pdf.pqk", "-o", "-").out == file.read_bytes()


def test_too_large_for_the_service(command: Command, tenant: Client) -> None:
    """Files of more than 1,048,576 bytes are not sent to the service."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", "-", "--server-side", stdin=bytes(1_048_576)).status == 0
    ended = command("encrypt", "-", "--server-side", stdin=bytes(1_048_577))
    assert (ended.status, ended.out) == (2, b"")
    assert "leave out --server-side" in ended.err


def test_what_is_there_stays(command: Command, tenant: Client, file: Path) -> None:
    """An existing file is replaced only with --force, and is unchanged otherwise."""
    tenant.keys.generate("Kyber768")
    there = command.directory / "report.pdf.pqk"
    there.write_bytes(b"mine")
    ended = command("encrypt", file.name)
    assert (ended.status, there.read_bytes()) == (1, b"mine")
    assert ended.err.splitlines() == [
        "pqkeep: report.pdf.pqk: File exists",
        "        replace it with --force, or name another file with --to",
    ]
    assert command("encrypt", file.name, "--force").status == 0
    assert there.read_bytes() != b"mine"
    assert command("decrypt", there.name).status == 1
    assert command.names() == {"report.pdf", "report.pdf.pqk"}


def test_into_a_device(command: Command, tenant: Client, file: Path) -> None:
    """A device stays a device when it is written to, with any permissions."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name, "--to", os.devnull, "--force").status == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)  # noqa: PTH116 - not a path of ours
    full = command("encrypt", file.name, "--to", "/dev/full")
    assert (full.status, "/dev/full: No space left on device" in full.err) == (1, True)


@pytest.mark.parametrize("options", [(), ("--armor",), ("--server-side",)])
def test_a_changed_file(
    command: Command, tenant: Client, file: Path, options: tuple[str, ...]
) -> None:
    """For a changed file the exit status is 7, for a truncated one 1 or 7. Nothing is written."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name, *options).status == 0
    encrypted = command.directory / "report.pdf.pqk"
    whole = encrypted.read_bytes()
    file.unlink()
    changed = bytearray(whole)
    middle = len(whole) // 2 + whole[len(whole) // 2 :].index(b"A" if options else b"")
    changed[middle] ^= 3  # still a character of base64
    is_read_first = bool(options)
    more = whole.replace(b"-----END", b"x-----END", 1) if options == ("--armor",) else whole + b"x"
    for damaged, status in (
        (bytes(changed), 7),
        (whole[: len(whole) // 2], 1 if is_read_first else 7),
        (whole[:-2], 1 if is_read_first else 7),
        (more, 1 if is_read_first else 7),
        (b"", 1),
    ):
        encrypted.write_bytes(damaged)
        ended = command("decrypt", encrypted.name)
        assert (ended.status, ended.out) == (status, b"")
        assert ended.err.count("\n") == 2
        assert command.names() == {"report.pdf.pqk"}


def test_another_tenant_s_file(
    command: Command,
    with_key: Callable[[str], Command],
    new_api_key: Callable[[], str],
    tenant: Client,
    base_url: str,
    file: Path,
) -> None:
    """If another tenant's key of the same version encrypted a file, the exit status is 7."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name).status == 0
    other = new_api_key()
    with Client(base_url, other) as client:
        client.keys.generate("Kyber768")
    ended = with_key(other)("decrypt", "report.pdf.pqk", "--to", "-")
    assert (ended.status, ended.out) == (7, b"")


def test_a_compliance_profile(command: Command, tenant: Client, file: Path) -> None:
    """With cnsa-2.0 the algorithm is ML-KEM-1024, also without a service; others are refused."""
    for algorithm in ("Kyber768", "ML-KEM-1024"):
        tenant.keys.generate(algorithm)
    profile = ("--compliance-profile", "cnsa-2.0")
    ended = command("encrypt", file.name, *profile)
    assert ended.err == "report.pdf.pqk: encrypted to ML-KEM-1024 version 1\n"
    assert command("encrypt", file.name, "--force", "-a", "Kyber768", *profile).status == 5
    assert command("keys", "public-key", "Kyber768", "-o", "key.json").status == 0
    ended = command("encrypt", file.name, "--force", "--public-key", "key.json", *profile)
    assert ended.status == 5


def test_a_key_that_was_not_asked_for(
    command: Command, tenant: Client, file: Path, response: Callable[..., str]
) -> None:
    """Nothing is encrypted if the service returns a key of another algorithm."""
    key = tenant.keys.generate("Kyber768")
    for algorithm, status, sentence in (
        ("Kyber768", 1, "the response is about another key than the request"),
        ("ML-KEM-1024", 2, "the public key is not one of ML-KEM-1024"),
    ):
        said = {
            "key_version": 1,
            "algorithm": algorithm,
            "status": "active",
            "public_key": base64.b64encode(key.public_key).decode(),
            "created_at": "2026-11-20T00:00:00.000Z",
        }
        url = response(json.dumps({"data": said, "request_id": "x"}).encode())
        ended = command("encrypt", file.name, "-a", "ML-KEM-1024", "--url", url)
        assert (ended.status, sentence in ended.err) == (status, True)
        assert command.names() == {file.name}


def test_an_envelope_that_is_bound(command: Command, tenant: Client, file: Path) -> None:
    """With --envelope the output is one line, which decrypts with the same associated data."""
    tenant.keys.generate("Kyber768")
    row = ("--associated-data", "customers/42")
    ended = command("encrypt", file.name, "--envelope", *row)
    assert (ended.status, ended.err) == (0, "report.pdf.pqk: encrypted to Kyber768 version 1\n")
    text = file.with_name("report.pdf.pqk").read_text()
    assert (text[:5], text.count("\n"), text[-1]) == ("pqk1.", 1, "\n")
    assert command("decrypt", "report.pdf.pqk", "--to", "-", *row).out == file.read_bytes()
    assert tenant.kem.decrypt_envelope(text[:-1], associated_data=b"customers/42")
    for other in ((), ("--associated-data", "customers/43")):
        ended = command("decrypt", "report.pdf.pqk", "--to", "-", *other)
        assert (ended.status, ended.out) == (7, b"")


def test_server_side_and_wrapped_keys_are_bound(
    command: Command, tenant: Client, file: Path
) -> None:
    """Server-side encryption and wrap with associated data need the same for the reverse."""
    tenant.keys.generate("Kyber768")
    row = ("--associated-data", "customers/42")
    assert command("encrypt", file.name, "--server-side", *row).status == 0
    assert command("decrypt", "report.pdf.pqk", "--to", "-", *row).out == file.read_bytes()
    assert command("decrypt", "report.pdf.pqk", "--to", "-").status == 7
    wrapped = command("wrap", *row, stdin=bytes(32)).out
    assert command("unwrap", *row, stdin=wrapped).out == bytes(32)
    assert command("unwrap", stdin=wrapped).status == 7


@pytest.mark.parametrize(
    "options",
    [
        ("--associated-data", "customers/42"),
        ("--envelope", "--armor"),
        ("--envelope", "--public-key", "key.json"),
    ],
)
def test_options_that_do_not_go_together(
    command: Command, tenant: Client, file: Path, options: tuple[str, ...]
) -> None:
    """Options of the service's encryption are refused for local encryption, and the reverse."""
    tenant.keys.generate("Kyber768")
    ended = command("encrypt", file.name, *options)
    assert (ended.status, ended.out) != (0, b"")
    assert not file.with_name("report.pdf.pqk").exists()


def test_a_local_file_is_bound_to_nothing(command: Command, tenant: Client, file: Path) -> None:
    """Associated data for a local file is refused with an explanation."""
    tenant.keys.generate("Kyber768")
    assert command("encrypt", file.name).status == 0
    ended = command("decrypt", "report.pdf.pqk", "--to", "-", "--associated-data", "customers/42")
    assert (ended.status != 0, ended.out) == (True, b"")
    assert "--associated-data" in ended.err
