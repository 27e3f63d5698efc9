"""Public keys, JWS, notes and imported keys from the command are read by other libraries."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
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
    """A PEM file is imported, and its public key is returned as PEM, DER and JWK."""
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
    assert "text that is no PEM" in ended.err


def test_an_import_key_from_the_portal(command: Command, tenant: Client) -> None:
    """A saved import key works.

    One of another algorithm, and other files, are refused before sending.
    """
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
        ("no JSON", "import key is needed"),
        ("[" * 5000, "import key is needed"),
        (json.dumps({**saved, "public_key": 1}), "import key is needed"),
        (
            json.dumps({**saved, "algorithm": "ML-DSA-87"}),
            "the import key is for the algorithm ML-DSA-87",
        ),
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
    """FILE.jws verifies with the JWK Set; a detached one also needs the file."""
    tenant.keys.generate(KEY)
    file = command.directory / "order.json"
    file.write_bytes(b'{"amount":10}')
    keys = JWKSet.from_json(command("keys", "jwks").out.decode())
    whole, detached = ("--typ", "order+jwt"), ("--detached", "--force")
    for options, payload, typ in ((whole, None, "order+jwt"), (detached, file.read_bytes(), None)):
        ended = command("sign", file.name, "--jws", *options)
        assert (ended.status, ended.out) == (0, b"")
        assert ended.err == "order.json.jws: signed with Dilithium3 version 1\n"
        read = JWS()
        read.deserialize(file.with_name("order.json.jws").read_text().strip())
        read.allowed_algs = ["ML-DSA-65"]
        read.verify(keys, detached_payload=payload)
        assert read.jose_header.get("typ") == typ
    for option in (("--detached",), ("--typ", "JWT")):
        ended = command("sign", file.name, *option)
        assert ended.status != 0
        assert "--jws" in ended.err


def test_a_note(command: Command, tenant: Client) -> None:
    """The newest checkpoint is written as a note, once there is one."""
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
    """A public key in PEM or DER encrypts and verifies offline; another PEM block is refused."""
    file = command.directory / "order.json"
    file.write_bytes(b'{"amount":10}')
    for algorithm in (KEY, "Composite-ML-DSA", "Kyber768"):
        tenant.keys.generate(algorithm)
        command("keys", "public-key", algorithm, "--format", "pem", "--to", f"{algorithm}.pem")
    for algorithm in (KEY, "Composite-ML-DSA"):
        command("sign", file.name, "-a", algorithm, "--force")
        assert command("verify", file.name, "--public-key", f"{algorithm}.pem").status == 0
        ended = command("verify", file.name, "--public-key", "Kyber768.pem")
        assert (ended.status, "a public key of Kyber768" in ended.err) == (1, True)
    for form in ("pem", "der", "raw"):
        to = ("--format", form, "--to", f"Kyber768.{form}", "--force")
        assert command("keys", "public-key", "Kyber768", *to).status == 0
        of = ("--public-key", f"Kyber768.{form}", "-a", "Kyber768", "-k", "1")
        assert command("encrypt", file.name, *of, "--force").status == 0
        assert command("decrypt", "order.json.pqk", "--to", "-").out == file.read_bytes()
    for form, said in (("pem", 0), ("der", 0), ("raw", 0)):
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
        assert (ended.status, "bad.pem is " in ended.err) == (1, True)


def test_a_jws_is_verified(command: Command, tenant: Client) -> None:
    """A JWS of pqkeep, with and without payload, is verified by the service and with a JWK, a JWK Set and PEM."""
    tenant.keys.generate(KEY)
    tenant.keys.generate("ML-DSA-87")
    command("keys", "jwks", "--to", "jwks.json")
    for form in ("jwk", "pem", "pqkeep"):
        command("keys", "public-key", KEY, "--format", form, "--to", f"key.{form}")
    command("keys", "public-key", "ML-DSA-87", "--format", "jwk", "--to", "other.jwk")
    file = command.directory / "order.json"
    for options in ((), ("--detached",)):
        file.write_bytes(b'{"amount":10}')
        assert command("sign", file.name, "--jws", "--force", *options).status == 0
        file.with_name("order.json.jws").rename(file.with_name("a.jws"))
        keys = ((), *(("--public-key", f"key.{form}") for form in ("jwk", "pem", "pqkeep")))
        for key in (*keys, ("--public-key", "jwks.json")):
            verify = ("verify", file.name, "--signature", "a.jws", *key)
            ended = command(*verify)
            assert (ended.status, b"good, by Dilithium3" in ended.out) == (0, True), ended.err
            file.write_bytes(b'{"amount":11}')
            assert command(*verify).status == 7
            file.write_bytes(b'{"amount":10}')
        ended = command(*verify[:-1], "other.jwk")
        assert (ended.status, "a public key of ML-DSA-87" in ended.err) == (1, True)
    assert command("sign", file.name, "--jws").status == 0
    shown = command("verify", file.name, "--output", "json")  # there is only FILE.jws
    assert json.loads(shown.out) == {
        "valid": True,
        "algorithm": KEY,
        "key_version": 1,
        "detached": False,
    }
    tenant.keys.rotate(KEY)
    assert command("verify", file.name).status == 0
    assert command("verify", file.name, "-k", "2").status == 4
    assert command("verify", file.name, "-a", "ML-DSA-87").status == 2


def test_signatures_made_elsewhere(command: Command, tenant: Client) -> None:
    """A raw signature as bytes, base64 or digits verifies a file, with a public key or the tenant's key."""
    private = MLDSA65PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for name, content in (("key.pem", pem), ("pub.pem", public), ("order.json", b"{}")):
        (command.directory / name).write_bytes(content)
    ended = command("keys", "import", KEY, "key.pem", "--expect-public-key", "pub.pem")
    assert (ended.status, b"fingerprint" in ended.out) == (0, True)
    tenant.keys.rotate(KEY)
    signature, bound = private.sign(b"{}"), private.sign(b"{}", b"orders")
    lines = b64encode(signature)
    wrapped = b"\r\n".join(lines[at : at + 76] for at in range(0, len(lines), 76)) + b"\r\n"
    path = command.directory / "order.json.sig"
    for text in (signature, lines, b"\xef\xbb\xbf" + wrapped, signature.hex().encode()):
        path.write_bytes(text)
        assert command("verify", "order.json").status == 0
        assert command("verify", "order.json", "-k", "2").status == 7
        assert command("verify", "order.json", "--public-key", "pub.pem").status == 0
        assert command("verify", "order.json", "--context", "orders").status == 7
    path.write_bytes(bound)
    for key in ((), ("--public-key", "pub.pem")):
        assert command("verify", "order.json", "--context", "orders", *key).status == 0
        assert command("verify", "order.json", *key).status == 7
    for text, what in (
        (signature[:-1], "3308 bytes"),
        (bytes(2420), "which is the length of ML-DSA-44"),
        (lines[:-1] + b"!", "no base64"),
        (b"-----BEGIN PGP SIGNATURE-----\n\nAA=\n=AA\n-----END PGP SIGNATURE-----\n", "OpenPGP"),
    ):
        path.write_bytes(text)
        ended = command("verify", "order.json")
        assert (ended.status, what in ended.err) == (1, True), ended.err
    path.write_bytes(bytes(4627))
    ended = command("verify", "order.json", "--public-key", "pub.pem")
    assert (ended.status, "the signature is of ML-DSA-87" in ended.err) == (1, True)
    assert command("verify", "order.json").status == 4  # the tenant has no such key


def test_an_import_that_is_refused_sends_nothing(command: Command, tenant: Client) -> None:
    """A public key or keyring other than expected is refused before sending."""
    private, other = MLDSA65PrivateKey.generate(), MLDSA65PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (command.directory / "key.pem").write_bytes(pem)
    (command.directory / "other.bin").write_bytes(other.public_key().public_bytes_raw())
    ended = command.as_(PQKEEP_URL="http://127.0.0.1:1")(
        "keys", "import", KEY, "key.pem", "--expect-public-key", "other.bin"
    )
    assert (ended.status, "nothing was sent" in ended.err) == (1, True)
    ended = command("keys", "import", "ML-DSA-87", "key.pem")
    assert (ended.status, "ML-DSA-87 is needed" in ended.err) == (1, True)
    assert not tenant.keys.list()


UNREADABLE = {
    "empty": (b"", "is empty"),
    "white": (b" \n\n", "nothing but white space"),
    "random": (bytes(range(7, 200)), "is 193 bytes"),
    "rsa.pem": (b"-----BEGIN RSA PRIVATE KEY-----\nMAA=\n-----END RSA PRIVATE KEY-----\n", "RSA"),
    "cut.pem": (b"-----BEGIN PUBLIC KEY-----\nMII", "has no end: it was cut"),
    "page.html": (b"<html><body>Sign in</body></html>", "HTML or XML"),
    "jwe": (b"eyJhbGciOiJkaXIifQ.AA.AA.AA.AA", "a JSON Web Encryption"),
    "other.json": (b'{"format":"pqkeep/v1/unknown"}', "pqkeep/v1/unknown"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_named(command: Command, name: str) -> None:
    """For an unreadable file the exit status is 1, with a description and without a request."""
    offline = command.as_(PQKEEP_URL="http://127.0.0.1:1")
    data, what = UNREADABLE[name]
    (command.directory / name).write_bytes(data)
    signature = {
        "format": "pqkeep/v1/signature",
        "algorithm": KEY,
        "key_version": 1,
        "hash_algorithm": "SHA-512",
        "signature": b64encode(bytes(3309)).decode(),
    }
    (command.directory / "file.sig").write_text(json.dumps(signature))
    (command.directory / "file").write_bytes(b"file")
    for arguments in (
        ("verify", "file", "--signature", name),
        ("verify", "file", "--public-key", name),
        ("encrypt", "file", "--public-key", name),
        ("decrypt", name, "--to", "-"),
        ("recipients", name),
        ("decapsulate", name),
        ("unwrap", name),
        ("keys", "import", KEY, name),
        ("audit", "verify", name),
    ):
        ended = offline(*arguments)
        assert (ended.status, ended.out) == (1, b""), (arguments, ended.err)
        assert ended.err.startswith(f"pqkeep: {name} is "), ended.err
        assert what in ended.err, ended.err
        assert ended.err.count("\n") == 2
        assert "wrapped_private_key" not in ended.err
