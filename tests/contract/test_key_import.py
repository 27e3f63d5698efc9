"""Private keys from elsewhere, wrapped by the client and imported over HTTP."""

from __future__ import annotations

import ctypes
from base64 import b64decode, b64encode
from collections.abc import Callable
from ctypes import byref, c_char_p, c_void_p
from datetime import datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation

from pqkeep import ImportKey, InvalidRequestError
from pqkeep.key_import import wrap

KEM = "Kyber768"
NOT_IMPORTED = (400, "ERR_INVALID_001", "wrapped_private_key")
USED_UP = (404, "ERR_NOT_FOUND_001", "import_key_id")


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


def issue(caller: Caller, algorithm: str = KEM, **query: object) -> ImportKey:
    """Return a new import key in the client's form."""
    data = caller.get("/kms/keys/import-key", algorithm=algorithm, **query)
    data.pop("keyring", None)
    return ImportKey(
        import_key_id=data["import_key_id"],
        public_key=_bytes(data["public_key"]),
        suite=data["suite"],
        info=_bytes(data["info"]),
        algorithm=data["algorithm"],
        expires_at=datetime.fromisoformat(data["expires_at"]),
    )


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def body(issued: ImportKey, private_key: bytes, **more: object) -> dict[str, Any]:
    """Return a request to import a private key."""
    return {
        "algorithm": issued.algorithm,
        "import_key_id": issued.import_key_id,
        "wrapped_private_key": b64encode(wrap(issued, private_key)).decode(),
        **more,
    }


def pkcs8(private: Any, encoding: Encoding = Encoding.PEM) -> bytes:
    """Return a private key as cryptography encodes it."""
    data: bytes = private.private_bytes(encoding, PrivateFormat.PKCS8, NoEncryption())
    return data


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_what_was_encrypted_to_it_elsewhere_is_decrypted(
    tenant: Caller, b64: Callable[[bytes], str], encoding: Encoding
) -> None:
    """An imported key decapsulates another library's encapsulation, and stays marked as imported."""
    private = MLKEM768PrivateKey.generate()
    secret, ciphertext = private.public_key().encapsulate()
    made = tenant.post(
        "/kms/keys/import", body(issue(tenant), pkcs8(private, encoding)), status=201
    )
    assert made.pop("imported") is True
    assert made.keys() == {"key_version", "algorithm", "status", "public_key", "created_at"}
    assert made["public_key"] == b64(private.public_key().public_bytes_raw())
    asked = {"kem_ciphertext": b64(ciphertext), "key_version": 1}
    assert tenant.post("/kem/decapsulate", asked)["shared_secret"] == b64(secret)
    tenant.post("/kms/keys/rotate", {"algorithm": KEM}, status=201)
    assert tenant.post("/kem/decapsulate", asked)["shared_secret"] == b64(secret)
    keys = tenant.get("/kms/keys")["keys"]
    assert [(key["key_version"], key.get("imported")) for key in keys] == [(1, True), (2, None)]
    assert tenant.get("/kms/keys/1", algorithm=KEM)["imported"] is True
    assert "imported" not in tenant.get("/kms/keys/active", algorithm=KEM)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("Kyber768", "ML-KEM-768"),
        ("ML-KEM-1024", "ML-KEM-1024"),
        ("Dilithium3", "ML-DSA-65"),
        ("ML-DSA-87", "ML-DSA-87"),
    ],
)
def test_openssl_s_private_keys_are_taken(
    tenant: Caller, openssl_library: str, unb64: Callable[[str], bytes], algorithm: str, name: str
) -> None:
    """The client extracts the seed from OpenSSL's private key, and the public keys match."""
    crypto = ctypes.CDLL(openssl_library)
    crypto.EVP_PKEY_Q_keygen.restype = c_void_p
    crypto.EVP_PKEY_Q_keygen.argtypes = [c_void_p, c_void_p, c_char_p]
    crypto.EVP_PKEY_free.argtypes = [c_void_p]
    key = crypto.EVP_PKEY_Q_keygen(None, None, name.encode())
    written = []
    for function in (crypto.i2d_PrivateKey, crypto.i2d_PUBKEY):
        function.argtypes = [c_void_p, c_void_p]
        out = c_void_p()
        size = function(key, byref(out))
        written.append(ctypes.string_at(out, size))
    crypto.EVP_PKEY_free(key)
    tenant.post("/kms/keys/import", body(issue(tenant, algorithm), written[0]), status=201)
    shown = tenant.get("/kms/keys/1/public-key", algorithm=algorithm, format="der")
    assert unb64(shown["public_key"]) == written[1]


def test_it_is_refused_where_it_must_be(tenant: Caller, new_tenant: Callable[..., Caller]) -> None:
    """Refused: garbage, a used or foreign import key, another keyring or algorithm, an active key."""
    private = pkcs8(MLKEM768PrivateKey.generate())
    issued = issue(tenant)
    good = body(issued, private)
    assert new_tenant().refusal("/kms/keys/import", good) == USED_UP
    assert tenant.refusal("/kms/keys/import", {**good, "keyring": "other"})[0] == 404
    assert tenant.refusal("/kms/keys/import", {**good, "algorithm": "X-Wing"}) == USED_UP
    garbage = {**good, "wrapped_private_key": b64encode(bytes(1700)).decode()}
    assert tenant.refusal("/kms/keys/import", garbage) == NOT_IMPORTED
    assert tenant.refusal("/kms/keys/import", good) == USED_UP
    second = body(issue(tenant), private)
    tenant.post("/kms/keys/import", second, status=201)
    again = (400, "ERR_INVALID_001", "algorithm")
    assert tenant.refusal("/kms/keys/import", body(issue(tenant), private)) == again
    for name, value in (("import_key_id", "x"), ("wrapped_private_key", "?")):
        assert tenant.refusal("/kms/keys/import", {**second, name: value})[2] == name
    too_large = {**second, "wrapped_private_key": b64encode(bytes(4097)).decode()}
    assert tenant.refusal("/kms/keys/import", too_large)[0] == 400


def test_a_plan_without_the_algorithm_imports_none(new_tenant: Callable[..., Caller]) -> None:
    """The free plan has no X-Wing and therefore no import key for it.

    Its quota counts imported keys.
    """
    free = new_tenant("free")
    response = free.ask("GET", "/kms/keys/import-key", params={"algorithm": "X-Wing"})
    assert refusal_of(response)[:2] == (403, "ERR_POLICY_001")
    private = pkcs8(MLKEM768PrivateKey.generate())
    request = body(issue(free), private)
    assert free.refusal("/kms/keys/import", {**request, "algorithm": "X-Wing"})[0] == 403
    free.post("/kms/keys/import", request, status=201)


def test_a_repeated_request_gives_the_first_answer(tenant: Caller) -> None:
    """With its Idempotency-Key an import can be repeated."""
    request = body(issue(tenant), pkcs8(MLKEM768PrivateKey.generate()))
    headers = {"Idempotency-Key": "import-1"}
    first, again = (
        tenant.ask("POST", "/kms/keys/import", request, headers=headers).json()["data"]
        for _ in range(2)
    )
    assert first == again


def test_who_may(installation: Installation, nobody: Caller, anonymous: Caller) -> None:
    """Callers that may generate keys may import them. Viewers and anonymous callers may not."""
    query = {"params": {"algorithm": KEM}}
    for caller, status in (
        (installation.person(nobody.tenant_id, "viewer"), 403),
        (anonymous, 401),
        (installation.operator(), 403),
    ):
        assert refusal_of(caller.ask("GET", "/kms/keys/import-key", **query))[0] == status
        assert refusal_of(caller.ask("POST", "/kms/keys/import", {}))[0] == status
    developer = installation.person(nobody.tenant_id, "developer")
    assert developer.ask("GET", "/kms/keys/import-key", **query).is_success


@pytest.mark.parametrize(
    "private_key",
    [
        b"",
        b"\0" * 100,
        b"-----BEGIN PRIVATE KEY-----\n!!!\n-----END PRIVATE KEY-----",
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----",
    ],
)
def test_the_client_refuses_what_is_no_private_key(tenant: Caller, private_key: bytes) -> None:
    """The client refuses the file before it sends anything, and shows none of its contents."""
    with pytest.raises(InvalidRequestError):
        wrap(issue(tenant), private_key)
