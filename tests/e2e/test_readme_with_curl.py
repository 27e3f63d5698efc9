"""README's example with curl alone: a real file encrypted, a document signed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

Curl = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]


@pytest.fixture
def curl(installation: Installation, new_tenant: Callable[..., Caller], tmp_path: Path) -> Curl:
    """POST a file's JSON with curl; return status and body."""
    program = shutil.which("curl")
    assert program is not None, "these tests need curl"
    api_key = new_tenant().api_key

    def post(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        request, response = tmp_path / "request.json", tmp_path / "answer.json"
        request.write_text(json.dumps(body))
        ended = subprocess.run(
            [
                *(program, "--silent", "--show-error", "--noproxy", "*", "--max-time", "30"),
                *("--header", f"X-API-Key: {api_key}"),
                *("--header", "Content-Type: application/json"),
                *("--data-binary", f"@{request}", "--output", str(response)),
                *("--write-out", "%{http_code}", f"{installation.base_url}/api/v1{path}"),
            ],
            capture_output=True,
            check=True,
            timeout=PATIENCE,
        )
        return int(ended.stdout), json.loads(response.read_text())

    return post


def test_a_file_of_1_mib_through_a_rotation(curl: Curl, tmp_path: Path) -> None:
    """generate, encrypt 1 MiB, rotate, decrypt with the old version: the bytes are equal."""
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1_048_576))
    status, made = curl("/kms/keys/generate", {"algorithm": "Kyber768"})
    assert (status, made["data"]["key_version"]) == (201, 1)
    plaintext = base64.b64encode(file.read_bytes()).decode()
    status, encrypted = curl("/kem/encrypt", {"plaintext": plaintext})
    assert (status, encrypted["data"]["key_version"]) == (200, 1)
    status, rotated = curl("/kms/keys/rotate", {"algorithm": "Kyber768"})
    assert (status, rotated["data"]["key_version"], rotated["data"]["old_key_version"]) == (
        201,
        2,
        1,
    )
    body = {"ciphertext": encrypted["data"]["ciphertext"], "key_version": 1}
    status, decrypted = curl("/kem/decrypt", body)
    assert status == 200
    assert base64.b64decode(decrypted["data"]["plaintext"]) == file.read_bytes()
    assert curl("/kem/decrypt", {**body, "key_version": 2})[0] == 400


def test_a_signature_and_one_bit(curl: Curl) -> None:
    """Sign and verify is true; with one bit changed verify is false, with status 200."""
    message = bytearray(os.urandom(1000))
    encoded = base64.b64encode(message).decode()
    assert curl("/kms/keys/generate", {"algorithm": "Dilithium3"})[0] == 201
    status, signed = curl("/signature/sign", {"message": encoded})
    assert status == 200
    body = {"message": encoded, "signature": signed["data"]["signature"], "key_version": 1}
    status, verified = curl("/signature/verify", body)
    assert (status, verified["data"]["valid"]) == (200, True)
    message[500] ^= 1
    status, verified = curl(
        "/signature/verify", {**body, "message": base64.b64encode(message).decode()}
    )
    assert (status, verified["data"]["valid"]) == (200, False)


def test_the_banner_can_be_pasted(start: Callable[..., Installation]) -> None:
    """The commands from pqkeepd dev run in a shell unchanged, again, and after a rotation."""
    installation = start()
    lines = installation.output.splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith("export "))
    pasted = "\n".join(lines[first:])
    rotating = pasted.replace("/generate", "/rotate").replace(',"if_absent":true', "")
    for version, commands in ((1, pasted), (1, pasted), (2, rotating)):
        changed, decrypted = (
            json.loads(line) for line in _run(commands).stdout.splitlines() if line
        )
        assert changed["data"]["key_version"] == decrypted["data"]["key_version"] == version
        assert base64.b64decode(decrypted["data"]["plaintext"]) == b"hello, world"


def _run(command: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("bash")
    assert shell is not None
    return subprocess.run(
        [shell, "-c", command],
        capture_output=True,
        check=False,
        timeout=PATIENCE,
        text=True,
        env={"PATH": os.defpath, "NO_PROXY": "*"},
    )


def _acceptance(said: str, folder: Path) -> dict[str, Any]:
    """Run the command that accepts an invitation, with a password; return its response."""
    (line,) = (each.strip() for each in said.splitlines() if "accept-invitation" in each)
    as_it_stands = json.loads(_run(f"cd {folder} && {line}").stdout)
    assert as_it_stands["error"]["field"] == "password"
    line = line.replace("CHOOSE ONE", "the horse prefers oats")
    response: dict[str, Any] = json.loads(_run(f"cd {folder} && {line}").stdout)
    return response


def test_the_banner_has_a_link_for_the_owner(start: Callable[..., Installation]) -> None:
    """The banner has the portal's link and the password, which sign the owner in."""
    installation = start()
    printed = [line.strip() for line in installation.output.splitlines()]
    link, password = installation.ready["portal_link"], installation.ready["owner_password"]
    assert link in printed
    assert password in printed
    assert link.startswith(f"{installation.ready['portal_url']}/demo#")
    assert parse_qs(urlsplit(link).fragment) == {
        "email": ["owner@localhost"],
        "invitation": [installation.ready["owner_invitation"]],
        "password": [password],
    }


def test_admin_create_lets_somebody_in(
    start: Callable[..., Installation], pqkeepd: Callable[..., Any], tmp_path: Path
) -> None:
    """The output of pqkeepd admin create invites a person, who also gets the token by e-mail."""
    installation = start()
    key_file = tmp_path / "operator.key"
    key_file.write_text(installation.ready["operator_key"])
    key_file.chmod(0o400)
    output = tmp_path / "created"
    created = pqkeepd(
        output,
        *("admin", "create", "--email", "grace@example.com", "--role", "admin"),
        *("--tenant", installation.ready["tenant_id"], "--operator-key-file", str(key_file)),
        *("--url", installation.base_url),
    )
    assert created.wait(PATIENCE) == 0, output.read_text()
    assert installation.mailbox.token("grace@example.com", "invitation") in output.read_text()
    response = _acceptance(output.read_text(), tmp_path)
    assert (response["data"]["email"], response["data"]["role"]) == ("grace@example.com", "admin")
