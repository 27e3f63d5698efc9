"""Keys outside pqkeep: what a bill of materials says about them, and refused documents."""

from __future__ import annotations

import base64
import json
from time import process_time
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa

from pqkeep_gateway.storage.external_keys import MAX_TEXT, ExternalKey
from pqkeep_gateway.tenancy.external_keys import (
    MAX_KEYS,
    InvalidInventoryError,
    read_inventory,
)

PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
PKCS8 = serialization.PrivateFormat.PKCS8
TRADITIONAL = serialization.PrivateFormat.TraditionalOpenSSL
OPENSSH = serialization.PrivateFormat.OpenSSH
PLAIN = serialization.NoEncryption()
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ML = mldsa.MLDSA65PrivateKey.generate()


def asset(name: str, kind: str, **more: Any) -> dict[str, Any]:
    """Return a cryptographic asset."""
    crypto = {"assetType": kind, **more.pop("crypto", {})}
    return {"type": "cryptographic-asset", "name": name, "cryptoProperties": crypto, **more}


def bom(*components: dict[str, Any], version: str = "1.6") -> str:
    """Return a document."""
    content = {"bomFormat": "CycloneDX", "specVersion": version, "components": components}
    return json.dumps(content)


def material(**values: Any) -> dict[str, Any]:
    """Return the properties of key material."""
    return {"relatedCryptoMaterialProperties": {"type": "private-key", **values}}


ML_DSA = asset(
    "ML-DSA-65",
    "algorithm",
    crypto={"algorithmProperties": {"primitive": "signature", "nistQuantumSecurityLevel": 3}},
    **{"bom-ref": "ml-dsa"},
)
RSA_2048 = asset("RSA-2048", "algorithm", **{"bom-ref": "rsa"})


def test_keys_and_certificates_are_read_from_both_versions() -> None:
    """Algorithm, state, place, owner, successor and state of the migration come from their fields."""
    own_key = asset(
        "signing", "related-crypto-material", crypto=material(state="active", algorithmRef="rsa")
    )
    own_key["properties"] = [
        {"name": "pqkeep:owner", "value": "web team"},
        {"name": "pqkeep:successor", "value": "ML-DSA-65"},
        {"name": "other"},
    ]
    own_key["evidence"] = {"occurrences": [{"location": "hsm-1"}]}
    related = [{"type": "algorithm", "ref": "ml-dsa"}]
    certificate = asset(
        "www",
        "certificate",
        crypto={
            "certificateProperties": {
                "certificateState": [{"state": "active"}],
                "relatedCryptographicAssets": related,
            }
        },
    )
    gone = asset("old", "related-crypto-material", crypto=material(state="destroyed"))
    text = bom(
        {"type": "library", "name": "openssl", "components": [own_key]},
        *(RSA_2048, ML_DSA, certificate, gone),
        version="1.7",
    )
    assert read_inventory(text) == (
        ExternalKey(
            name="signing",
            kind="private-key",
            algorithm="RSA-2048",
            state="active",
            place="hsm-1",
            owner="web team",
            successor="ML-DSA-65",
            moved=False,
        ),
        ExternalKey(
            name="www",
            kind="certificate",
            algorithm="ML-DSA-65",
            state="active",
            place="",
            owner="",
            successor="",
            moved=True,
        ),
        ExternalKey(
            name="old",
            kind="private-key",
            algorithm="",
            state="destroyed",
            place="",
            owner="",
            successor="",
            moved=True,
        ),
    )


def test_a_statement_about_the_migration_counts_first() -> None:
    """``pqkeep:moved`` decides, also against the algorithm."""
    key = asset("key", "related-crypto-material", crypto=material(algorithmRef="ml-dsa"))
    for stated in ("true", "false"):
        key["properties"] = [{"name": "pqkeep:moved", "value": stated}]
        (read,) = read_inventory(bom(ML_DSA, key))
        assert read.moved is (stated == "true")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"bomFormat":"SPDX","specVersion":"1.6"}',
        '{"bomFormat":"CycloneDX","specVersion":"1.5"}',
        bom(),
        bom(RSA_2048),
        bom({"type": "cryptographic-asset"}),
        bom(*[asset("k", "certificate", crypto={"certificateProperties": {}})] * (MAX_KEYS + 1)),
        bom(asset("k" * (MAX_TEXT + 1), "certificate", crypto={"certificateProperties": {}})),
        bom(asset("a\nb", "certificate", crypto={"certificateProperties": {}})),
        "[" * 100_000,
        '{"a":' * 500 + "1" + "}" * 500,
    ],
)
def test_other_documents_are_refused(text: str) -> None:
    """A document of another kind, without keys, too large or too deep is refused."""
    with pytest.raises(InvalidInventoryError):
        read_inventory(text)


@pytest.mark.threat("keys-elsewhere")
def test_many_references_cost_no_more_than_their_number() -> None:
    """References to a key with many references are read in linear time."""
    many = [{"type": "algorithm", "ref": "gone"}] * 8_000
    hub = asset(
        "hub",
        "related-crypto-material",
        crypto=material(relatedCryptographicAssets=many),
        **{"bom-ref": "hub"},
    )
    to_hub = [{"type": "key", "ref": "hub"}] * 8_000
    leaf = asset(
        "leaf", "related-crypto-material", crypto=material(relatedCryptographicAssets=to_hub)
    )
    began = process_time()
    keys = read_inventory(bom(leaf, hub))
    assert [key.algorithm for key in keys] == ["", ""]
    assert process_time() - began < 1  # each way of a reference: 6 seconds


@pytest.mark.threat("keys-elsewhere")
def test_references_in_a_circle_end() -> None:
    """Assets that refer to each other have no algorithm."""
    one = asset("one", "related-crypto-material", crypto=material(algorithmRef="two"))
    two = asset("two", "related-crypto-material", crypto=material(algorithmRef="one"))
    found = read_inventory(bom({**one, "bom-ref": "one"}, {**two, "bom-ref": "two"}))
    assert [key.algorithm for key in found] == ["", ""]


_DER = RSA.private_bytes(DER, PKCS8, PLAIN)
SECRETS = {
    "PKCS#8 in PEM": RSA.private_bytes(PEM, PKCS8, PLAIN).decode(),
    "encrypted PKCS#8 in PEM": RSA.private_bytes(
        PEM, PKCS8, serialization.BestAvailableEncryption(b"x")
    ).decode(),
    "PKCS#1 in PEM": RSA.private_bytes(PEM, TRADITIONAL, PLAIN).decode(),
    "SEC 1 in PEM": EC.private_bytes(PEM, TRADITIONAL, PLAIN).decode(),
    "OpenSSH": ED.private_bytes(PEM, OPENSSH, PLAIN).decode(),
    "PKCS#8 in base64": base64.b64encode(_DER).decode(),
    "PKCS#8 in base64url": base64.urlsafe_b64encode(_DER).decode().rstrip("="),
    "PKCS#8 in lines": base64.encodebytes(_DER).decode(),
    "PKCS#8 in hexadecimal": _DER.hex(),
    "PKCS#8 in hexadecimal with colons": _DER.hex(":"),
    "PKCS#1 in base64": base64.b64encode(RSA.private_bytes(DER, TRADITIONAL, PLAIN)).decode(),
    "SEC 1 in base64": base64.b64encode(EC.private_bytes(DER, TRADITIONAL, PLAIN)).decode(),
    "ML-DSA in base64": base64.b64encode(ML.private_bytes(DER, PKCS8, PLAIN)).decode(),
    "PEM in base64": base64.b64encode(RSA.private_bytes(PEM, PKCS8, PLAIN)).decode(),
    "age": "AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ",
}


@pytest.mark.threat("keys-elsewhere")
@pytest.mark.parametrize("place", ["name", "properties", "unknown"])
@pytest.mark.parametrize("kind", SECRETS)
def test_private_keys_are_refused_and_not_repeated(kind: str, place: str) -> None:
    """A private key in any place and form is refused; the error names it and has none of it."""
    secret = SECRETS[kind]
    key = asset("key", "related-crypto-material", crypto=material())
    if place == "name":
        key["name"] = secret
    elif place == "properties":
        key["properties"] = [{"name": "note", "value": secret}]
    else:
        key["more"] = {"of": [["this", secret]]}
    with pytest.raises(InvalidInventoryError, match=r"contains .*private key") as refused:
        read_inventory(bom(key))
    assert secret[20:60] not in str(refused.value)


@pytest.mark.parametrize(
    "member",
    [
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "d": "AA"},
        {"kty": "AKP", "alg": "ML-DSA-65", "pub": "AA", "priv": "AA"},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"privateKey": "AA"},
        {"secret-key": "AA"},
        {"name": "pqkeep:seed", "value": "AA"},
        {"name": "password", "value": "AA"},
        {"type": "secret-key", "value": "00112233445566778899aabbccddeeff"},
        {"type": "shared-secret", "value": "AA"},
    ],
)
def test_members_that_hold_secrets_are_refused(member: dict[str, str]) -> None:
    """Secret members of a JWK, values of secret material, and telling names are refused."""
    key = asset("key", "related-crypto-material", crypto=material(), more=member)
    with pytest.raises(InvalidInventoryError, match="contains"):
        read_inventory(bom(key))


JWK = json.dumps({"kty": "OKP", "crv": "Ed25519", "d": "A" * 43, "x": "A" * 43})
BEGINNING = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.threat("keys-elsewhere")
@pytest.mark.parametrize(
    "text",
    [
        JWK,
        json.dumps(json.dumps({"key": JWK})),
        base64.b64encode(JWK.encode()).decode(),
        f"data:application/jwk+json;base64,{base64.b64encode(JWK.encode()).decode()}",
        f"data:;base64,{base64.b64encode(BEGINNING.encode()).decode()}",
    ],
)
def test_private_keys_within_texts_are_refused(text: str) -> None:
    """A JWK in a text, a text in a text, and a data URL are found, and a member's name is searched."""
    public = json.loads(JWK)
    del public["d"]
    for place in ({"value": text}, {text: "value"}):
        with pytest.raises(InvalidInventoryError, match="private"):
            read_inventory(bom(asset("key", "certificate", properties=[place]), ML_DSA))
    certificate = asset("www", "certificate", crypto={"certificateProperties": {}})
    certificate["properties"] = [{"name": "jwk", "value": json.dumps(public)}]
    assert len(read_inventory(bom(certificate))) == 1


def test_public_keys_and_fingerprints_are_not_taken_for_private_ones() -> None:
    """Public keys, certificates' digests and long names are no private keys."""
    public = RSA.public_key().public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    pem = RSA.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    key = asset("ab" * 32, "related-crypto-material", crypto=material(type="public-key"))
    key["cryptoProperties"]["relatedCryptoMaterialProperties"] |= {
        "type": "public-key",
        "value": base64.b64encode(public).decode(),
    }
    key["properties"] = [{"name": "pem", "value": pem.decode()}]
    key["jwk"] = {"kty": "RSA", "n": "AA", "e": "AQAB"}
    assert len(read_inventory(bom(key))) == 1
