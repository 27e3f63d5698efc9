"""Keys outside pqkeep, over HTTP: imported, replaced, listed, removed, and recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256

import pytest
from gateway.tests.test_external_keys import RSA_2048, SECRETS, asset, bom
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation

from pqkeep_gateway.storage.external_keys import MAX_SOURCES

PATH = "/inventory/external"


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


def document(*moved: str) -> str:
    """Return a document with certificates, each with a statement."""
    components = []
    for number, stated in enumerate(moved):
        certificate = asset(
            f"www-{number}",
            "certificate",
            crypto={"certificateProperties": {"subjectPublicKeyRef": "rsa"}},
        )
        components.append(
            {**certificate, "properties": [{"name": "pqkeep:moved", "value": stated}]}
        )
    return bom(RSA_2048, *components)


def test_sources_are_imported_replaced_and_removed(tenant: Caller) -> None:
    """Each import and removal has a record with the digests of the document and of the list."""
    texts = [document("false", "true"), document("true", "true", "true")]
    imported = [
        tenant.post(PATH, {"source": "tls", "document": text}, status=201) for text in texts
    ]
    assert [(found["moved"], found["total"]) for found in imported] == [(1, 2), (3, 3)]
    other = tenant.post(PATH, {"source": "hsm", "document": document("false")}, status=201)
    listed = tenant.get(PATH)
    assert listed == {"sources": [other, imported[1]], "total": 4, "moved": 3}
    whole = tenant.get(f"{PATH}/tls")
    keys = whole.pop("keys")
    assert whole == imported[1]
    assert [key["algorithm"] for key in keys] == ["RSA-2048"] * 3
    text = json.dumps({"keys": keys, "source": "tls"}, sort_keys=True, separators=(",", ":"))
    assert sha256(text.encode()).hexdigest() == whole["list_sha256"]
    removed = tenant.ask("DELETE", f"{PATH}/tls")
    assert removed.json()["data"] == imported[1]
    assert refusal_of(tenant.ask("GET", f"{PATH}/tls")) == (404, "ERR_NOT_FOUND_001", "source")
    assert refusal_of(tenant.ask("DELETE", f"{PATH}/tls"))[0] == 404
    records = tenant.get("/audit/records")["records"]
    found = [
        (entry["operation"], entry["policy"], entry["target"])
        for entry in records
        if entry["operation"].endswith("external-keys") and entry["outcome"] == "success"
    ]
    digests = [sha256(text.encode()).hexdigest() for text in texts]
    assert [made["document_sha256"] for made in imported] == digests
    targets = [f"tls/sha256-{made['list_sha256']}" for made in imported]
    assert found == [
        ("import-external-keys", f"sha256-{digests[0]}", targets[0]),
        ("import-external-keys", f"sha256-{digests[1]}", targets[1]),
        (
            "import-external-keys",
            f"sha256-{other['document_sha256']}",
            f"hsm/sha256-{other['list_sha256']}",
        ),
        ("remove-external-keys", f"sha256-{digests[1]}", targets[1]),
    ]


@pytest.mark.threat("keys-elsewhere")
def test_a_private_key_is_refused_and_stored_nowhere(
    tenant: Caller, installation: Installation
) -> None:
    """The error names the field and the kind of key.

    Databases and output do not contain the key.
    """
    secret = SECRETS["PKCS#8 in base64"]
    key = asset("key", "certificate", crypto={"certificateProperties": {}}, note=secret)
    refused = tenant.ask("POST", PATH, {"source": "tls", "document": bom(key)})
    assert refusal_of(refused) == (400, "ERR_INVALID_001", "document")
    assert "private key (PKCS#8) of RSA" in refused.json()["error"]["message"]
    part = secret[40:80].encode()
    assert part not in refused.content
    assert part.decode() not in installation.output
    databases = [file for file in installation.data.rglob("*") if "sqlite3" in file.name]
    assert databases
    assert not [file for file in databases if part in file.read_bytes()]
    assert tenant.get(PATH)["sources"] == []


@pytest.mark.threat("keys-elsewhere")
def test_sources_and_names_have_limits(tenant: Caller, installation: Installation) -> None:
    """There are at most MAX_SOURCES; a replacement needs no more. Names are checked."""
    text = document("false")
    for number in range(MAX_SOURCES):
        tenant.post(PATH, {"source": f"s{number}", "document": text}, status=201)
    assert tenant.refusal(PATH, {"source": "more", "document": text})[::2] == (403, "source")
    tenant.post(PATH, {"source": "s0", "document": text}, status=201)
    assert tenant.refusal(PATH, {"source": "a/b", "document": text})[::2] == (400, "source")
    too_large = " " * 1_048_577
    assert tenant.refusal(PATH, {"source": "s0", "document": too_large})[::2] == (400, "document")
    viewer = installation.person(tenant.tenant_id, "viewer")
    assert viewer.get(PATH)["total"] == MAX_SOURCES
    assert viewer.refusal(PATH, {"source": "s0", "document": text})[0] == 403
