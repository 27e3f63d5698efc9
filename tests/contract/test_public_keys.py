"""Public keys in standard formats, and JWS that others verify, over HTTP."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from jwcrypto.common import JWException
from jwcrypto.jwk import JWKSet
from jwcrypto.jws import JWS
from tests.contract.conftest import World
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation
from tests.sampling import fast_algorithms_first

from pqkeep import bech32
from pqkeep_protocol import public_keys
from pqkeep_protocol.algorithms import ALGORITHMS, KEY_PAIRS, Algorithm, Kind
from pqkeep_protocol.der import BIT_STRING, SEQUENCE, der
from pqkeep_protocol.public_keys import JWK_ALGORITHM

NO_FORMAT = (400, "ERR_INVALID_001", "format")
PAYLOAD = b'{"amount":10}'

every_algorithm = pytest.mark.parametrize("algorithm", fast_algorithms_first(KEY_PAIRS))


def jwks(caller: Caller) -> list[dict[str, str]]:
    """Return the keys in the tenant's JWK Set."""
    response = caller.ask("GET", "/kms/jwks")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/jwk-set+json"
    assert response.headers["cache-control"] == "no-store"
    answer: dict[str, Any] = response.json()
    assert answer.keys() == {"keys"}
    keys: list[dict[str, str]] = answer["keys"]
    return keys


def verified(jws: str, keys: list[dict[str, str]], payload: bytes | None = None) -> bytes:
    """Verify a JWS with a JWK Set and another library; return its payload."""
    read = JWS()
    read.deserialize(jws)
    kid = json.loads(read.objects["protected"])["kid"]
    key = JWKSet.from_json(json.dumps({"keys": keys})).get_key(kid)
    assert key is not None
    assert key.thumbprint() == kid
    read.allowed_algs = ["ML-DSA-65", "ML-DSA-87"]
    read.verify(key, detached_payload=payload)
    data: bytes = read.objects["payload"] if payload is None else payload
    return data


@every_algorithm
def test_each_format_is_of_the_same_key(
    world: World, algorithm: Algorithm, unb64: Callable[[str], bytes]
) -> None:
    """The raw, DER, PEM, JWK and age forms (where they exist) all contain the key from the list."""
    world.add(algorithm)
    named = {"algorithm": algorithm.value}
    for version in (1, 2, 3):  # archived, retired, active
        path = f"/kms/keys/{version}"
        key = unb64(world.caller.get(path, **named)["public_key"])
        expected: dict[str, Any] = {
            "raw": key,
            "der": public_keys.to_der(algorithm, key),
            "pem": public_keys.to_pem(algorithm, key),
        }
        for name, value in expected.items():
            answer = world.caller.get(f"{path}/public-key", **named, format=name)
            assert answer.keys() == {"format", "public_key", "key_version", "algorithm"}
            assert (answer["format"], answer["key_version"]) == (name, version)
            shown = answer["public_key"]
            assert (shown if name == "pem" else unb64(shown)) == value
        assert world.caller.get(f"{path}/public-key", **named)["format"] == "pem"
        response = world.caller.ask("GET", f"{path}/public-key", params={**named, "format": "jwk"})
        if algorithm in JWK_ALGORITHM:
            shown = response.json()["data"]["public_key"]
            assert shown["pub"] == public_keys.base64url(key)
            assert (shown["kty"], shown["alg"]) == ("AKP", JWK_ALGORITHM[algorithm])
        else:
            assert refusal_of(response) == NO_FORMAT
        response = world.caller.ask("GET", f"{path}/public-key", params={**named, "format": "age"})
        if algorithm is Algorithm.X_WING:
            shown = response.json()["data"]["public_key"]
            assert bech32.decode(shown) == ("age1pq", key)
        else:
            assert refusal_of(response) == NO_FORMAT


def test_an_unknown_format_or_key_is_refused(world: World, nobody: Caller) -> None:
    """An unknown format is 400; an unknown version is 404, in any format."""
    named = {"algorithm": "Dilithium3"}
    bad = world.caller.ask("GET", "/kms/keys/1/public-key", params={**named, "format": "ssh"})
    assert refusal_of(bad) == NO_FORMAT
    for caller, version in ((world.caller, 4), (nobody, 1)):
        for form in ("raw", "pem", "der", "jwk"):
            path = f"/kms/keys/{version}/public-key"
            response = caller.ask("GET", path, params={**named, "format": form})
            assert refusal_of(response)[:2] == (404, "ERR_NOT_FOUND_001")


def test_a_jwk_set_has_the_keys_that_verify(
    new_tenant: Callable[..., Caller], installation: Installation
) -> None:
    """A JWK Set has the active and retired signature keys. It has no archived keys and no KEM keys."""
    tenant = new_tenant()
    assert jwks(tenant) == []
    for algorithm in ("Kyber768", "Dilithium3", "Composite-ML-DSA", "ML-DSA-87"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    for _ in range(2):
        tenant.post("/kms/keys/rotate", {"algorithm": "Dilithium3"}, status=201)
    installation.archive(tenant.tenant_id, Algorithm.ML_DSA_65, 1)
    versions = [("Dilithium3", 2), ("Dilithium3", 3), ("ML-DSA-87", 1)]
    expected = [
        tenant.get(f"/kms/keys/{version}/public-key", algorithm=algorithm, format="jwk")
        for algorithm, version in versions
    ]
    assert jwks(tenant) == [each["public_key"] for each in expected]


def test_a_jws_has_a_media_type(new_tenant: Callable[..., Caller]) -> None:
    """The signed header has ``typ`` if the request names one; only a media type is accepted."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Dilithium3"}, status=201)
    for typ in (None, "JWT", "a", "application/order+jwt", "x" * 127):
        jws = tenant.post("/signature/jws", {"payload": "", "typ": typ})["jws"]
        read = JWS()
        read.deserialize(jws)
        assert read.jose_header.get("typ") == typ
        assert verified(jws, jwks(tenant)) == b""
    refused: tuple[object, ...] = (
        "",
        "x" * 128,
        "a b",
        "a\n",
        "a/b/c",
        "/",
        "a/",
        "é",
        '"',
        "\u202e",
        7,
        ["JWT"],
        {},
    )
    for wrong in refused:
        body = {"payload": "", "typ": wrong}
        assert tenant.refusal("/signature/jws", body) == (400, "ERR_SIG_001", "typ"), wrong


@pytest.mark.parametrize("algorithm", ["Dilithium3", "ML-DSA-87"])
def test_a_jws_is_verified_by_another_library(
    new_tenant: Callable[..., Caller], b64: Callable[[bytes], str], algorithm: str
) -> None:
    """A JWS verifies with the JWK Set, also after a rotation; a detached one needs its payload."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    body = {"payload": b64(PAYLOAD), "algorithm": algorithm}
    whole = tenant.post("/signature/jws", body)
    assert whole.keys() == {"jws", "key_version", "algorithm"}
    assert (whole["key_version"], whole["algorithm"]) == (1, algorithm)
    detached = tenant.post("/signature/jws", {**body, "detached": True, "key_version": 1})["jws"]
    tenant.post("/kms/keys/rotate", {"algorithm": algorithm}, status=201)
    keys = jwks(tenant)
    assert verified(whole["jws"], keys) == PAYLOAD
    header, payload, signature = detached.split(".")
    assert payload == ""
    assert verified(detached, keys, PAYLOAD) == PAYLOAD
    with pytest.raises(JWException):
        verified(detached, keys, PAYLOAD + b" ")
    other = public_keys.base64url(PAYLOAD.replace(b"10", b"99"))
    with pytest.raises(JWException):
        verified(f"{header}.{other}.{signature}", keys)
    empty = tenant.post("/signature/jws", {"payload": "", "algorithm": algorithm})
    assert verified(empty["jws"], jwks(tenant)) == b""
    assert tenant.refusal("/signature/jws", {**body, "key_version": 1})[0] == 404


def test_the_largest_payload_becomes_a_jws(
    new_tenant: Callable[..., Caller], b64: Callable[[bytes], str]
) -> None:
    """1,048,576 bytes are signed; one more byte, and other algorithms, are refused."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Dilithium3"}, status=201)
    payload = bytes(1_048_576)
    signed = tenant.post("/signature/jws", {"payload": b64(payload)})
    assert verified(signed["jws"], jwks(tenant)) == payload
    too_large = {"payload": b64(payload + b"\0")}
    assert tenant.refusal("/signature/jws", too_large)[:2] == (400, "ERR_SIG_002")
    for algorithm in ("Kyber768", "Composite-ML-DSA", "SLH-DSA-SHA2-128s"):
        body = {"payload": "", "algorithm": algorithm}
        assert tenant.refusal("/signature/jws", body) == (400, "ERR_INVALID_001", "algorithm")
    assert tenant.refusal("/signature/jws", {}) == (400, "ERR_SIG_001", "payload")


def test_who_may(
    installation: Installation, nobody: Caller, anonymous: Caller, operator: Caller
) -> None:
    """Viewers read public keys and cannot sign; operators and anonymous callers can do neither."""
    viewer = installation.person(nobody.tenant_id, "viewer")
    assert jwks(viewer) == []
    assert refusal_of(viewer.ask("POST", "/signature/jws", {"payload": ""}))[0] == 403
    for caller, status in ((anonymous, 401), (operator, 403)):
        for path in ("/kms/jwks", "/kms/keys/1/public-key?algorithm=Dilithium3"):
            assert refusal_of(caller.ask("GET", path))[0] == status
        assert refusal_of(caller.ask("POST", "/signature/jws", {"payload": ""}))[0] == status


def _brought(algorithm: Algorithm) -> tuple[str, dict[str, Any], str]:
    """Return an operation that takes a public key, its other fields, and its error code."""
    named = {"algorithm": algorithm.value}
    if ALGORITHMS[algorithm].kind is Kind.KEM:
        return "/kem/encapsulate", named, "ERR_KEM_001"
    return "/signature/verify", {**named, "message": "QUJD", "signature": "QUJD"}, "ERR_SIG_001"


def _certificate_of(key: bytes) -> str:
    """Return PEM of a certificate with a key, and with empty names and signature."""
    empty = der(SEQUENCE, b"")
    signed = der(SEQUENCE, b"\xa0\x03\x02\x01\x02\x02\x01\x01" + 4 * empty + key)
    text = b64encode(der(SEQUENCE, signed + empty + der(BIT_STRING, b"\0"))).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"


@every_algorithm
def test_a_public_key_is_taken_in_every_form_that_it_is_given_in(
    world: World, nobody: Caller, algorithm: Algorithm
) -> None:
    """Every format of public-key's response is accepted as public_key, also with added white space, and so is a certificate."""
    world.add(algorithm)
    path, body, _ = _brought(algorithm)
    for name in ("raw", "der", "pem", *(("jwk",) if algorithm in JWK_ALGORITHM else ())):
        asked = {"algorithm": algorithm.value, "format": name}
        shown = world.caller.get("/kms/keys/3/public-key", **asked)["public_key"]
        forms = [shown]
        if name == "jwk":
            forms += [json.dumps(shown), f"\ufeff{json.dumps(shown, indent=2)}\n"]
        if name == "pem":
            forms += [shown.replace("\n", "\r\n"), f"\ufeff{shown}", f"A letter.\n\n{shown}-- \nA"]
        if name == "der":
            forms.append(_certificate_of(b64decode(shown)))
        for form in forms:
            answer = nobody.post(path, {**body, "public_key": form})
            assert "key_version" not in answer


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "it is empty"),
        (7, "not a number"),
        ([], "not an array"),
        ({}, "not a JWK of type AKP"),
        ("{}", "not a JWK of type AKP"),
        ("{", "no JSON"),
        ('{"kty":"AKP","kty":"AKP"}', "kty occurs twice"),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA", "a public key of OpenSSH"),
        ("-_-_", "base64url"),
        ("QUJD\nQUJD", "line breaks"),
        ("0a1b2c0d" * 4, "it is hexadecimal"),
        ("QUJD", "must have 1,184 bytes for Kyber768; it has 3"),
        (b64encode(bytes(1568)).decode(), "as one of ML-KEM-1024"),
        (b64encode(bytes(800)).decode(), "as a public key of ML-KEM-512"),
        (b64encode(b"\xff" * 2400).decode(), "as a private key of ML-KEM-768: do not send it"),
        ("-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----", "a private key (PKCS#8)"),
        ("x" * 70_000, "longer than"),
    ],
)
def test_what_a_public_key_is_instead_is_said(demo: Caller, value: object, said: str) -> None:
    """The error names the input's kind without quoting it, with the usual code and field."""
    answer = demo.ask("POST", "/kem/encapsulate", {"public_key": value, "algorithm": "Kyber768"})
    assert refusal_of(answer) == (400, "ERR_KEM_001", "public_key")
    message = answer.json()["error"]["message"]
    assert said in message
    assert "QUJD" not in message


def test_another_algorithm_s_public_key_is_named(demo: Caller) -> None:
    """The error for a document with another algorithm's key names both algorithms."""
    text = public_keys.to_pem(Algorithm.ML_KEM_1024, bytes(1568))
    answer = demo.ask("POST", "/kem/encapsulate", {"public_key": text, "algorithm": "Kyber768"})
    assert refusal_of(answer) == (400, "ERR_INVALID_001", "algorithm")
    assert "of ML-KEM-1024, not of Kyber768" in answer.json()["error"]["message"]
