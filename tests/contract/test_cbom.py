"""The cryptographic bill of materials: valid by CycloneDX, true to the key API, and signed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from cyclonedx.schema import SchemaVersion
from tests.contract.test_public_keys import jwks, verified
from tests.fixtures import installation as installations
from tests.fixtures.caller import Caller, refusal_of

from pqkeep.algorithms import PARAMETERS
from pqkeep_gateway.api.cbom import (
    DESCRIBED,
    MAX_KEYS,
    MAX_PRINCIPALS,
    Installation,
    SpecVersion,
    document,
)
from pqkeep_gateway.api.key_fields import MAX_MESSAGE
from pqkeep_protocol.algorithms import LEGACY, Algorithm
from pqkeep_protocol.audit import (
    MAX_INVENTORY_LISTED,
    CountedLog,
    InventoryKey,
    OperationUses,
    PrincipalUses,
)
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion
from pqkeep_protocol.tls_groups import NAMES

SCHEMAS = {"1.6": SchemaVersion.V1_6, "1.7": SchemaVersion.V1_7}
FAST = ["Kyber768", "X-Wing", "ML-KEM-1024", "Dilithium3", "ML-DSA-87", "XAES-256-GCM"]
CARDS = "payments.cards"


@pytest.fixture(scope="module")
def tenant(installation: installations.Installation) -> Caller:
    """A tenant with keys in every state."""
    made = installation.new_tenant()
    for algorithm in [*FAST, "Composite-ML-DSA", "HMAC-SHA-256", "HMAC-SHA-512"]:
        made.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    made.post("/kms/keyrings", {"name": CARDS}, status=201)
    of_cards = {"keyring": CARDS, "algorithm": "Kyber768"}
    made.post("/kms/keys/generate", of_cards, status=201)
    made.post_proven("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    made.post_proven("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    made.post("/kms/keys/disable", {**of_cards, "key_version": 1})
    installation.archive(made.tenant_id, Algorithm.ML_KEM_768, 1)
    return made


def errors_in(document: dict[str, Any]) -> object:
    """Return what the strict schema of CycloneDX says against a document."""
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415 - slow

    validator = JsonStrictValidator(SCHEMAS[document["specVersion"]])
    return validator.validate_str(json.dumps(document))


def components(document: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Return the cryptographic assets of a kind, by reference."""
    return {
        component["bom-ref"]: component["cryptoProperties"]
        for component in document["components"]
        if component["type"] == "cryptographic-asset"
        and component["cryptoProperties"]["assetType"] == kind
    }


def properties(component: dict[str, Any]) -> dict[str, str]:
    """Return the properties of a component."""
    return {entry["name"]: entry["value"] for entry in component.get("properties", ())}


@pytest.mark.parametrize("version", SCHEMAS)
def test_it_is_valid_and_says_what_the_key_api_says(tenant: Caller, version: str) -> None:
    """The document is valid by the strict schema, with each key version's state and references."""
    found = tenant.get("/inventory/cbom", version=version)
    document = found["cbom"]
    assert found.keys() == {"spec_version", "cbom"}
    assert errors_in(document) is None
    listed = tenant.get("/kms/keys", all_keyrings="true")["keys"]
    described = [
        (
            said["pqkeep:keyring"],
            said["pqkeep:algorithm"],
            int(said["pqkeep:key-version"]),
            said["pqkeep:status"],
            component["cryptoProperties"]["relatedCryptoMaterialProperties"]["creationDate"],
        )
        for component in document["components"]
        if "pqkeep:keyring" in (said := properties(component))
    ]
    names = ("keyring", "algorithm", "key_version", "status", "created_at")
    assert described == [tuple(key[name] for name in names) for key in listed]
    materials = components(document, "related-crypto-material")
    states = {
        reference: material["relatedCryptoMaterialProperties"].get("state")
        for reference, material in materials.items()
    }
    assert states["key:default/ML-KEM-768/1"] == "destroyed"
    assert states["key:default/ML-KEM-768/2"] == "deactivated"
    assert states["key:default/ML-KEM-768/3"] == "active"
    assert states[f"key:{CARDS}/ML-KEM-768/1"] == "suspended"
    algorithms = components(document, "algorithm")
    for material in materials.values():
        said = material["relatedCryptoMaterialProperties"]
        assert said["algorithmRef"] in algorithms
        if "securedBy" in said:
            assert said["securedBy"]["algorithmRef"] == "algorithm:AES-256-GCM"
    assert "installation:root-key" in materials
    assert any(reference.startswith("installation:checkpoint-key:") for reference in materials)
    libraries = {part["name"]: part["version"] for part in document["components"] if "purl" in part}
    assert libraries.keys() == {"cryptography", "openssl", "pqcrypto"}
    references = [component["bom-ref"] for component in document["components"]]
    assert len(set(references)) == len(references)
    assert document["compositions"][0]["aggregate"] == "complete"


def test_the_same_state_gives_the_same_document(tenant: Caller) -> None:
    """Serial number and timestamp follow from the content, so a new key changes them."""
    document = tenant.get("/inventory/cbom")["cbom"]
    assert tenant.get("/inventory/cbom")["cbom"] == document
    of_cards = {"algorithm": "X-Wing", "keyring": CARDS}
    tenant.post("/kms/keys/generate", of_cards, status=201)
    changed = tenant.get("/inventory/cbom")["cbom"]
    assert changed["serialNumber"] != document["serialNumber"]
    assert changed["metadata"]["timestamp"] > document["metadata"]["timestamp"]


def test_another_library_verifies_the_signature(tenant: Caller) -> None:
    """The JWS contains the same document, verifies with the JWK Set, and leaves a record."""
    document = tenant.get("/inventory/cbom")["cbom"]
    for algorithm in ("ML-DSA-65", "Dilithium3", "ML-DSA-87"):
        found = tenant.post("/inventory/cbom", {"signed_by": f"default/{algorithm}"})
        assert found.keys() == {"spec_version", "jws"}
        assert json.loads(verified(found["jws"], jwks(tenant))) == document
    found = tenant.get("/audit/records", order="desc", operation="sign-jws")["records"]
    assert [entry["algorithm"] for entry in found] == ["ML-DSA-87", "Dilithium3", "Dilithium3"]


def test_a_signature_under_a_rule_is_warned_and_then_denied(
    installation: installations.Installation,
) -> None:
    """A rule that ends the signing key's algorithm has the headers and the code of a signature."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Dilithium3"}, status=201)
    owner = installation.person(tenant.tenant_id)
    rule = {"algorithms": ["Dilithium3"], "warn_from": "2026-01-01T00:00:00Z"}
    for dates in ({}, {"deny_from": "2026-01-02T00:00:00Z"}):
        put = owner.ask_proven("PUT", "/rules/algorithms/no-dilithium", {**rule, **dates})
        assert put.is_success, put.text
        found = tenant.ask("POST", "/inventory/cbom", {"signed_by": "default/Dilithium3"})
        if dates:
            assert refusal_of(found)[:2] == (403, "ERR_POLICY_001")
        else:
            verified(found.json()["data"]["jws"], jwks(tenant))
            assert "no-dilithium" in found.headers["Link"]


def test_a_large_tenant_gets_several_documents(tenant: Caller) -> None:
    """Each part is valid and marked as a part, and the parts together have each key once."""
    found: list[str] = []
    query = {"limit": "4", "version": "1.6"}
    while True:
        page = tenant.get("/inventory/cbom", **query)
        document = page["cbom"]
        assert errors_in(document) is None
        assert document["compositions"][0]["aggregate"] == "incomplete"
        found += [
            part["bom-ref"]
            for part in document["components"]
            if "pqkeep:keyring" in properties(part)
        ]
        if "next" not in page:
            break
        query["after"] = page["next"]
    total = tenant.get("/kms/keys", all_keyrings="true")["total"]
    assert len(found) == len(set(found)) == total
    assert refusal_of(tenant.ask("GET", "/inventory/cbom", params={"limit": "501"}))[0] == 400


@pytest.mark.parametrize(
    ("signer", "status"),
    [
        ("default/X-Wing", 400),
        ("Dilithium3", 400),
        ("/Dilithium3", 400),
        (f"{CARDS}/Dilithium3", 404),
        ("missing/Dilithium3", 404),
    ],
)
def test_a_key_that_cannot_sign_is_refused(tenant: Caller, signer: str, status: int) -> None:
    """The error names the field of the signer."""
    refused = tenant.ask("POST", "/inventory/cbom", {"signed_by": signer})
    assert refusal_of(refused)[::2] == (status, "signed_by"), refused.text


def test_who_may_only_look_cannot_sign(
    tenant: Caller, installation: installations.Installation, new_tenant: Callable[..., Caller]
) -> None:
    """A viewer gets the document, but no signature. Scopes and tenants limit it too."""
    viewer = installation.person(tenant.tenant_id, "viewer")
    assert errors_in(viewer.get("/inventory/cbom")["cbom"]) is None
    signed = {"signed_by": "default/Dilithium3"}
    assert refusal_of(viewer.ask("POST", "/inventory/cbom", signed))[0] == 403
    made = tenant.post(
        f"/tenants/{tenant.tenant_id}/api-keys",
        {"scopes": [{"operations": ["inventory"]}]},
        status=201,
    )
    scoped = installation.caller(made["api_key"], tenant.tenant_id)
    assert scoped.get("/inventory/cbom")["cbom"]["bomFormat"] == "CycloneDX"
    assert refusal_of(scoped.ask("POST", "/inventory/cbom", signed))[0] == 403
    made = tenant.post(
        f"/tenants/{tenant.tenant_id}/api-keys",
        {"scopes": [{"operations": ["encrypt-only"]}]},
        status=201,
    )
    scoped = installation.caller(made["api_key"], tenant.tenant_id)
    assert refusal_of(scoped.ask("GET", "/inventory/cbom"))[0] == 403
    assert refusal_of(installation.operator().ask("GET", "/inventory/cbom"))[0] == 403
    other = new_tenant().get("/inventory/cbom")["cbom"]
    assert not [part for part in other["components"] if "pqkeep:keyring" in properties(part)]
    assert errors_in(other) is None


def test_every_algorithm_is_described_as_the_client_knows_it() -> None:
    """Object identifiers and private keys' sizes equal the values in the client's own table."""
    assert DESCRIBED.keys() == set(Algorithm)
    for algorithm, described in DESCRIBED.items():
        parameters = PARAMETERS.get(algorithm.value)
        if parameters is not None:
            assert (described.bits, described.oid) == (8 * parameters.seed, parameters.identifier)


def test_the_largest_document_can_be_signed() -> None:
    """500 key versions with the longest names fit into the payload of a JWS."""
    made = datetime(2026, 1, 31, 12, tzinfo=UTC)
    keys = [
        KeyInfo(
            Algorithm.COMPOSITE_ML_DSA,
            KeyVersion(2**31 - 1 - number),
            KeyStatus.RETIRED,
            bytes(2017),
            made,
            archive_at=made,
            keyring="k" * 128,
            imported=True,
        )
        for number in range(MAX_KEYS)
    ]
    installation = Installation((), 255, made, (), tuple(NAMES.values()))
    found = document(SpecVersion.V1_7, uuid4(), keys, installation, is_whole=False)
    assert len(json.dumps(found, separators=(",", ":"))) <= MAX_MESSAGE


@pytest.mark.parametrize("version", SpecVersion)
def test_legacy_keys_are_in_it(version: SpecVersion) -> None:
    """Legacy keys have level 0.

    The verifying key is a public key, and the decrypting one a private key.
    """
    made = datetime(2026, 1, 31, 12, tzinfo=UTC)
    keys = [
        KeyInfo(name, KeyVersion(1), KeyStatus.ACTIVE, b"key", made, imported=True)
        for name in LEGACY
    ]
    installation = Installation((), 1, made, (), tuple(NAMES.values()))
    found = document(version, uuid4(), keys, installation, is_whole=True)
    assert errors_in(found) is None
    materials = components(found, "related-crypto-material")
    for name in LEGACY:
        described = DESCRIBED[name]
        said = materials[f"key:default/{described.name}/1"]["relatedCryptoMaterialProperties"]
        assert said["type"] == ("private-key" if "OAEP" in name else "public-key")
        algorithm = components(found, "algorithm")[f"algorithm:{described.name}"]
        shown = algorithm["algorithmProperties"]
        assert shown["nistQuantumSecurityLevel"] == 0
        assert shown["cryptoFunctions"] == (["decrypt"] if "OAEP" in name else ["verify"])


def test_it_states_the_uses_that_the_inventory_counts(tenant: Caller) -> None:
    """On request, uses are included: the inventory's, with the checkpoint that counts them."""
    tenant.post("/kem/encrypt", {"algorithm": "X-Wing", "plaintext": "AAAA"})
    newest = tenant.get("/audit/records", order="desc", limit=1)["records"][0]["id"]
    for _ in range(100):
        document = tenant.get("/inventory/cbom", uses="principals")["cbom"]
        about = properties(document["metadata"]["component"])
        if int(about["pqkeep:counted-records"]) >= newest:
            break
        time.sleep(0.1)
    assert errors_in(document) is None
    page = tenant.get("/inventory", limit=50)
    keys = {
        (key["keyring"], key["algorithm"], str(key["key_version"])): key for key in page["keys"]
    }
    stated = 0
    for part in document["components"]:
        said = properties(part)
        if "pqkeep:keyring" not in said:
            continue
        key = keys[said["pqkeep:keyring"], said["pqkeep:algorithm"], said["pqkeep:key-version"]]
        assert int(said["pqkeep:uses"]) == key["uses"]
        assert said.get("pqkeep:last-used-at") == key["last_used_at"]
        for use in key["operations"]:
            assert int(said[f"pqkeep:uses:{use['operation']}"]) == use["uses"]
        by = [
            (entry["name"].removeprefix("pqkeep:used-by:"), entry["value"])
            for entry in part["properties"]
            if entry["name"].startswith("pqkeep:used-by:")
        ]
        assert by == [
            (use["operation"], f"{use['principal']} {use['uses']}") for use in key["principals"]
        ]
        stated += bool(by)
    assert stated
    counts = tenant.get("/inventory/cbom", uses="counts", version="1.6")["cbom"]
    assert errors_in(counts) is None
    assert "pqkeep:uses:encrypt" in json.dumps(counts)
    assert "pqkeep:used-by" not in json.dumps(counts)
    plain = tenant.get("/inventory/cbom")["cbom"]
    assert "pqkeep:uses" not in json.dumps(plain)
    assert [part["bom-ref"] for part in plain["components"]] == [
        part["bom-ref"] for part in document["components"]
    ]
    signed = tenant.post("/inventory/cbom", {"signed_by": "default/Dilithium3", "uses": "counts"})
    assert b"pqkeep:uses:encrypt" in verified(signed["jws"], jwks(tenant))


def test_a_get_never_signs(tenant: Caller) -> None:
    """The signer is no parameter of a GET, which would make a signature without a change."""
    before = tenant.get("/audit/records", order="desc", operation="sign-jws")["records"]
    tenant.ask("GET", "/inventory/cbom", params={"signed_by": "default/Dilithium3"})
    assert tenant.get("/audit/records", order="desc", operation="sign-jws")["records"] == before
    assert refusal_of(tenant.ask("POST", "/inventory/cbom", {}))[::2] == (400, "signed_by")


def test_the_largest_document_with_principals_can_be_signed() -> None:
    """A page of key versions with the longest names and principals fits into a JWS."""
    made = datetime(2026, 1, 31, 12, tzinfo=UTC)
    longest = PrincipalUses("\U0001f511" * 128, "re-encrypt-target", 2**53, 2**50, 2**50)
    keys = [
        InventoryKey(
            keyring="k" * 128,
            algorithm=Algorithm.COMPOSITE_ML_DSA,
            version=KeyVersion(2**31 - 1 - number),
            status=KeyStatus.RETIRED,
            created_at=made,
            retired_at=made,
            archive_at=made,
            imported=True,
            disabled_until=None,
            rotation_at=None,
            has_private_key=True,
            fingerprint=bytes(32),
            is_keyring_deleted=False,
            labels={},
            operations=(OperationUses("re-encrypt-target", 2**53, 2**50, 2**50),) * 10,
            principals=(longest,) * MAX_PRINCIPALS,
            has_more_principals=True,
        )
        for number in range(MAX_INVENTORY_LISTED)
    ]
    installation = Installation((), 255, made, (), tuple(NAMES.values()))
    counted = CountedLog(uuid4(), 2**53, bytes(32), 2**50)
    found = document(SpecVersion.V1_7, uuid4(), keys, installation, is_whole=False, counted=counted)
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    assert len(text.encode()) <= MAX_MESSAGE
