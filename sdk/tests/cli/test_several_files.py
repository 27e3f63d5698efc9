"""Several files in one command: each has its output, and failed files are named."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import pytest
import typer

from pqkeep import Client
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.recovery import Encapsulated, Recovery
from pqkeep.cli.several import Asking, Several
from pqkeep.errors import InvalidRequestError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sdk.tests.cli.conftest import Command

NAMES = ("a", "b", "c")


def _files(command: Command) -> dict[str, bytes]:
    contents = {name: os.urandom(1_000) for name in NAMES}
    for name, content in contents.items():
        (command.directory / name).write_bytes(content)
    return contents


def _requests(tenant: Client, operation: str) -> list[str]:
    """Return the request ids of an operation's records."""
    return [record.request_id for record in tenant.audit.records(operation=operation)]


@pytest.mark.parametrize("options", [(), ("--armor",), ("--server-side",), ("--envelope",)])
def test_encrypt_and_decrypt(command: Command, tenant: Client, options: tuple[str, ...]) -> None:
    """Several files share one request to the service."""
    tenant.keys.generate("Kyber768")
    contents = _files(command)
    (command.directory / "c.pqk").write_bytes(b"mine")
    ended = command("encrypt", "a", "gone", "c", "b", *options)
    assert (ended.status, ended.out) == (1, b"")
    assert "pqkeep: gone: No such file or directory" in ended.err
    assert "pqkeep: c.pqk: File exists" in ended.err
    assert ended.err.splitlines()[-1] == "2 of 4 files"
    assert command("encrypt", "c", "--force", *options).status == 0
    for name in NAMES:
        (command.directory / name).unlink()
    (command.directory / "bad.pqk").write_bytes((command.directory / "b.pqk").read_bytes()[:-9])
    names = ("a.pqk", "bad.pqk", "plain", "b.pqk", "c.pqk")
    ended = command("decrypt", *names, "--output", "json", "--quiet")
    assert ended.status == 2
    results = json.loads(ended.out)["files"]
    errors = {result["file"]: result.get("error") for result in results}
    bad = errors.pop("bad.pqk")  # an envelope that was cut may still be one
    assert bad in ({"DecryptionError"} if options == () else {"DecryptionError", "Refusal"})
    assert errors == {"a": None, "b": None, "c": None, "plain": "Refusal"}
    assert {name: (command.directory / name).read_bytes() for name in NAMES} == contents
    operation = "decrypt" if options in {("--server-side",), ("--envelope",)} else "decapsulate"
    assert len(set(_requests(tenant, operation))) == 1


@pytest.mark.parametrize("options", [(), ("--context", "contracts")])
def test_sign_and_verify(command: Command, tenant: Client, options: tuple[str, ...]) -> None:
    """Each file gets its signature; an invalid one is named, and decides the exit status."""
    tenant.keys.generate("Dilithium3")
    _files(command)
    ended = command("sign", *NAMES, *options)
    assert (ended.status, ended.err.splitlines()[-1]) == (0, "3 of 3 files")
    assert len(set(_requests(tenant, "sign-mu" if options else "sign-hash"))) == 1
    assert command("verify", *NAMES, *options).status == 0
    assert len(set(_requests(tenant, "verify-mu" if options else "verify-hash"))) == 1
    (command.directory / "b").write_bytes(b"changed")
    ended = command("verify", *NAMES, *options)
    assert (ended.status, ended.out.count(b"is good")) == (7, 2)
    assert "b: the signature is not good" in ended.err
    assert ended.err.splitlines()[-1] == "2 of 3 files"


def _serve(pipe: Path, contents: Iterable[bytes]) -> None:
    """Give each reader of a pipe different content, until the pipe is removed."""
    with suppress(FileNotFoundError):
        for content in contents:
            with pipe.open("wb") as file:
                file.write(content)
            with suppress(OSError):  # there is no reader any more
                while True:
                    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                    time.sleep(0.001)


def test_a_signature_is_read_once(command: Command, tenant: Client) -> None:
    """The shown key belongs to the signature that the service verified."""
    tenant.keyrings.create("payments")
    for keyring in (None, "payments"):
        tenant.keys.generate("Dilithium3", keyring=keyring)
    _files(command)
    assert command("sign", "a").status == 0
    assert command("sign", "b", "--keyring", "payments").status == 0
    pipe = command.directory / "a.sig"
    signed = pipe.read_bytes()
    pipe.unlink()
    os.mkfifo(pipe)
    claims = json.dumps({**json.loads(signed), "keyring": "payments"}).encode()
    threading.Thread(target=_serve, args=(pipe, (signed, claims)), daemon=True).start()
    ended = command("verify", "a", "b", "--keyring", "payments")
    assert (ended.status, ended.out.count(b"is good")) == (7, 1)
    assert "a: the signature is not good" in ended.err


def test_a_secret_is_of_the_key_that_its_file_names(tenant: Client) -> None:
    """Files with the same KEM ciphertext and different keys do not share secrets."""
    tenant.keys.generate("Kyber768")
    made = tenant.kem.encapsulate(key_version=1)
    tenant.keys.rotate("Kyber768")
    encapsulated = [
        Encapsulated(made.kem_ciphertext, version, "Kyber768", None) for version in (1, 2)
    ]
    recovery = Recovery(tenant)
    recovery.ask(encapsulated)
    first, second = (recovery.decapsulate(**request._asdict()) for request in encapsulated)
    assert first == made.shared_secret != second


def test_what_is_refused_whole(command: Command, tenant: Client) -> None:
    """If a whole request is refused, each file is reported, and nothing is written."""
    _files(command)
    ended = command("sign", *NAMES)
    assert (ended.status, ended.err.count("generate a key: pqkeep keys generate Dilithium3")) == (
        4,
        3,
    )
    assert command("encrypt", *NAMES).status == 4
    tenant.keys.generate("Kyber768")
    for arguments in (
        ("encrypt", *NAMES, "--to", "one"),
        ("sign", "a", "-"),
        ("verify", *NAMES, "--signature", "a.sig"),
    ):
        assert command(*arguments).status == 2
    assert command.names() == set(NAMES)


def test_who_is_refused_in_a_refused_request() -> None:
    """If a joint request is refused as invalid, each file is requested alone."""

    def alone(*, number: int, step: int) -> int:
        if number == 2:
            raise MessageTooLargeError("too much", error_code="ERR_SIGN_001")
        return number + step

    def many(_items: object, **_common: int) -> Iterator[int]:
        raise InvalidRequestError("too much in all", error_code="ERR_INVALID_001")

    invocation = Invocation(quiet=True)
    tally = Several(invocation, NAMES, is_listed=True)
    made: dict[str, int] = {}
    asking = Asking(alone, many, {"step": 10}, nullcontext)
    asking.ask(tally, NAMES, lambda file: {"number": NAMES.index(file) + 1}, made.__setitem__)
    assert made == {"a": 11, "c": 13}
    with pytest.raises(typer.Exit):
        tally.end()
