"""Unchanged programs that use Transit.

``make interop`` builds the programs and runs these tests.
"""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.openbao import INTEROP, NEEDS_OPENBAO, OPENBAO

Run = Callable[..., str]

SOPS = INTEROP / "bin/sops"
CLIENTS = INTEROP / "bin/clients"
SPRING = INTEROP / "spring"
TEXT = b64encode(b"4111 1111 1111 1111").decode()
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.parametrize(
        "server", ["sqlite", pytest.param("openbao", marks=NEEDS_OPENBAO)], indirect=True
    ),
]


def needs(program: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not program.exists(), reason="make interop builds it")


def results(output: str) -> dict[str, str]:
    """Return a client's report of each call."""
    lines = (line.partition("\t") for line in output.splitlines() if "\t" in line)
    return {call: result for call, _, result in lines}


@needs(CLIENTS)
def test_the_clients_of_go_programs(run: Run) -> None:
    """Each call of vault/api, and OpenBao's wrapper for unsealing, works."""
    reported = results(run(CLIENTS))
    assert len(reported) == 22
    assert {call: result for call, result in reported.items() if result != "works"} == {}


@needs(SPRING)
def test_spring_vault(server: Any, run: Run) -> None:
    """Each method of VaultTransitOperations works but the export, after a login by AppRole."""
    signing = "mldsa-65" if server.is_pqkeep else "ed25519"
    classes = f"{SPRING / 'spring-vault-1.jar'}:{SPRING / 'dependency'}/*"
    java = shutil.which("java")
    assert java is not None
    reported = results(
        run(java, "-cp", classes, "Interop", server.address, server.role_id, signing)
    )
    assert len(reported) == 21
    exported = reported.pop("exportKey")
    assert {call: result for call, result in reported.items() if result != "works"} == {}
    assert "400" in exported


@needs(SOPS)
def test_sops(server: Any, run: Run, tmp_path: Path, name: str) -> None:
    """SOPS encrypts a file, decrypts it, and moves it to the next version of the key."""
    plain, secret = tmp_path / "plain.yaml", tmp_path / "secret.yaml"
    plain.write_text("card: 4111 1111 1111 1111\n")
    key = f"{server.address}/v1/transit/keys/{name}"
    server.client().secrets.transit.create_key(name)
    secret.write_text(run(SOPS, "encrypt", "--hc-vault-transit", key, plain))
    assert "4111" not in secret.read_text()
    assert run(SOPS, "decrypt", secret) == plain.read_text()
    server.client().secrets.transit.rotate_key(name)
    assert run(SOPS, "decrypt", secret) == plain.read_text()
    run(SOPS, "rotate", "--in-place", secret)
    assert "vault:v2:" in secret.read_text()
    assert run(SOPS, "decrypt", secret) == plain.read_text()


@NEEDS_OPENBAO
def test_the_bao_command(server: Any, run: Run, name: str) -> None:
    """The command shows the server and the token, and makes, uses and deletes a key."""
    assert OPENBAO is not None

    def bao(*words: str) -> Any:
        return json.loads(run(OPENBAO, words[0], *words[1:]) or "null")

    json_format = "-format=json"
    assert bao("status", json_format)["sealed"] is False
    assert bao("token", "lookup", json_format)["data"]["id"] == server.token
    assert "transit/" in bao("secrets", "list", json_format)
    key = f"transit/keys/{name}"
    run(OPENBAO, "write", "-force", key)
    assert name in bao("list", json_format, "transit/keys")
    encrypt, decrypt = f"transit/encrypt/{name}", f"transit/decrypt/{name}"
    made = bao("write", json_format, encrypt, f"plaintext={TEXT}")["data"]["ciphertext"]
    run(OPENBAO, "write", "-force", f"{key}/rotate")
    moved = bao("write", json_format, f"transit/rewrap/{name}", f"ciphertext={made}")
    assert moved["data"]["ciphertext"].startswith("vault:v2:")
    for ciphertext in (made, moved["data"]["ciphertext"]):
        opened = run(OPENBAO, "write", "-field=plaintext", decrypt, f"ciphertext={ciphertext}")
        assert opened == TEXT
    run(OPENBAO, "write", f"{key}/config", "min_decryption_version=2", "deletion_allowed=true")
    assert bao("read", json_format, key)["data"]["min_decryption_version"] == 2
    run(OPENBAO, "write", decrypt, f"ciphertext={made}", status=2)
    assert (
        len(run(OPENBAO, "write", "-field=random_bytes", "transit/random/32", "format=hex")) == 64
    )
    run(OPENBAO, "delete", key)
    run(OPENBAO, "read", key, status=2)
