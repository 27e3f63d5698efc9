"""Public keys, JWS, notes and imported keys by the command, read by other libraries."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from jwcrypto.jwk import JWKSet
from jwcrypto.jws import JWS

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

KEY = "Dilithium3"


def test_an_imported_key_in_every_format(command: Command, tenant: Client) -> None:
    """A PEM file is imported, and its public half comes back as PEM, DER and JWK."""
    private = MLDSA65PrivateKey.generate()
    public = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    path = command.directory / "key.pem"
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert command("keys", "import", KEY, path.name).status == 0
    key = tenant.keys.get(KEY, key_version=1)
    assert key.imported
    assert not tenant.keys.generate("Kyber768").imported
    assert command("keys", "public-key", KEY, "--format", "der").out == public
    pem = load_pem_public_key(command("keys", "public-key", KEY, "--format", "pem").out)
    der = load_der_public_key(public)
    assert pem == der
    jwk = json.loads(command("keys", "public-key", KEY, "--format", "jwk").out)
    assert json.loads(command("keys", "jwks").out) == {"keys": [jwk]}
    ended = command("keys", "public-key", "Kyber768", "--format", "jwk")
    assert (ended.status != 0, ended.out) == (True, b"")
    path.write_bytes(b"not a key")
    ended = command("keys", "import", KEY, path.name)
    assert ended.status != 0
    assert "no seed" in ended.err


def test_an_import_key_from_the_portal(command: Command, tenant: Client) -> None:
    """A saved import key is used; another's algorithm, and what is none, are refused before."""
    private = MLDSA65PrivateKey.generate()
    (command.directory / "key.pem").write_bytes(
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    issued = tenant.keys.get_import_key(KEY)
    saved = {
        "import_key_id": issued.import_key_id,
        "public_key": b64encode(issued.public_key).decode(),
        "suite": issued.suite,
        "info": b64encode(issued.info).decode(),
        "algorithm": issued.algorithm,
        "expires_at": issued.expires_at.isoformat().replace("+00:00", "Z"),
    }
    path = command.directory / "import-key.json"
    for text, said in (
        ("no JSON", "no import key"),
        ("[" * 5000, "no import key"),
        (json.dumps({**saved, "public_key": 1}), "no import key"),
        (json.dumps({**saved, "algorithm": "ML-DSA-87"}), "the import key is for ML-DSA-87"),
    ):
        path.write_text(text)
        ended = command("keys", "import", KEY, "key.pem", "--import-key", path.name)
        assert (ended.status != 0, said in ended.err) == (True, True), ended.err
    path.write_text(json.dumps(saved))
    assert command("keys", "import", KEY, "key.pem", "--import-key", path.name).status == 0
    assert tenant.keys.get(KEY, key_version=1).imported
    tenant.keys.retire(KEY, key_version=1)
    ended = command("keys", "import", KEY, "key.pem", "--import-key", path.name)
    assert ended.status != 0  # it was used


def test_a_file_as_jws(command: Command, tenant: Client) -> None:
    """FILE.jws verifies by the JWK Set; a detached one with the file."""
    tenant.keys.generate(KEY)
    file = command.directory / "order.json"
    file.write_bytes(b'{"amount":10}')
    keys = JWKSet.from_json(command("keys", "jwks").out.decode())
    for options, payload in (((), None), (("--detached", "--force"), file.read_bytes())):
        ended = command("sign", file.name, "--jws", *options)
        assert (ended.status, ended.out) == (0, b"")
        assert ended.err == "order.json.jws: signed with Dilithium3 version 1\n"
        read = JWS()
        read.deserialize(file.with_name("order.json.jws").read_text().strip())
        read.allowed_algs = ["ML-DSA-65"]
        read.verify(keys, detached_payload=payload)
    ended = command("sign", file.name, "--detached")
    assert ended.status != 0
    assert "--jws" in ended.err


def test_a_note(command: Command, tenant: Client) -> None:
    """The newest checkpoint is written as it is, once there is one."""
    tenant.keys.generate(KEY)
    checkpoints = tenant.audit.checkpoints()
    while not checkpoints:
        checkpoints = tenant.audit.checkpoints()
    text = command("audit", "note").out.decode()
    origin, _size, _root, blank, line = text.splitlines()
    keys = tenant.audit.keys()
    assert (origin, blank) == (f"pqkeep/audit/{keys.log_id}", "")
    assert line.startswith(f"\u2014 {origin} ")
    assert keys.note_key is not None
    assert keys.note_key.startswith(f"{origin}+")


def test_a_file_in_another_format_as_public_key(command: Command, tenant: Client) -> None:
    """A public key in PEM or DER encrypts and verifies offline; other text in PEM is refused."""
    file = command.directory / "order.json"
    file.write_bytes(b'{"amount":10}')
    for algorithm in (KEY, "Composite-ML-DSA", "Kyber768"):
        tenant.keys.generate(algorithm)
        command("keys", "public-key", algorithm, "--format", "pem", "--to", f"{algorithm}.pem")
    for algorithm in (KEY, "Composite-ML-DSA"):
        command("sign", file.name, "-a", algorithm, "--force")
        assert command("verify", file.name, "--public-key", f"{algorithm}.pem").status == 0
        assert command("verify", file.name, "--public-key", "Kyber768.pem").status == 7
    for form in ("pem", "der", "raw"):
        to = ("--format", form, "--to", f"Kyber768.{form}", "--force")
        assert command("keys", "public-key", "Kyber768", *to).status == 0
        of = ("--public-key", f"Kyber768.{form}", "-a", "Kyber768", "-k", "1")
        assert command("encrypt", file.name, *of, "--force").status == 0
        assert command("decrypt", "order.json.pqk", "--to", "-").out == file.read_bytes()
    for form, said in (("pem", 0), ("der", 0), ("raw", 2)):
        of = ("--public-key", f"Kyber768.{form}", "-k", "1", "--to", f"{form}.pqk")
        assert command("encrypt", file.name, *of).status == said
    to_pem = ("encrypt", file.name, "--public-key", "Kyber768.pem", "--force")
    ended = command(*to_pem, "-a", "X-Wing", "-k", "1")
    assert (ended.status, "is a key of Kyber768" in ended.err) == (2, True)
    ended = command(*to_pem)
    assert (ended.status, "add --key-version\n" in ended.err) == (2, True)
    pem = (command.directory / f"{KEY}.pem").read_bytes()
    for bad in (pem.replace(b"PUBLIC", b"PRIVATE"), pem[:-30], pem.replace(b"M", b"N", 1)):
        (command.directory / "bad.pem").write_bytes(bad)
        ended = command("verify", file.name, "--public-key", "bad.pem")
        assert (ended.status, "no public key" in ended.err) == (7, True)


def test_a_jws_is_verified_by_others(command: Command, tenant: Client) -> None:
    """Where a JWS is given to verify, it is said what verifies it."""
    tenant.keys.generate(KEY)
    (command.directory / "order.json").write_bytes(b'{"amount":10}')
    assert command("sign", "order.json", "--jws").status == 0
    ended = command("verify", "order.json", "--signature", "order.json.jws")
    assert (ended.status, "pqkeep keys jwks" in ended.err) == (2, True)
