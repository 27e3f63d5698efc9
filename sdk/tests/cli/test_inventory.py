"""``pqkeep inventory``: saved bills of materials and their signatures."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pqkeep.errors import NotFoundError

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

    from pqkeep import Client
    from pqkeep.models import InventoryPage


def until_counted(tenant: Client) -> InventoryPage:
    """Return the first page once it counts all the tenant's records."""
    newest = next(tenant.audit.records(order="desc", page_size=1)).id
    for _ in range(100):
        with suppress(NotFoundError):
            (page,) = tenant.inventory.pages()
            if page.as_of.size >= newest:
                return page
        time.sleep(0.1)
    raise AssertionError("no checkpoint counts the newest record")


def test_a_signed_bill_of_materials_is_saved_and_verified(command: Command, tenant: Client) -> None:
    """The document and its JWS are saved and verify; a changed document does not."""
    tenant.keys.generate("Kyber768")
    tenant.keys.generate("Dilithium3")
    saved = command.directory / "cbom.json"
    assert command("inventory", "cbom", "--out", saved, "--cyclonedx", "1.6").status == 0
    plain = saved.read_bytes()
    assert json.loads(plain)["specVersion"] == "1.6"
    signing = ("inventory", "cbom", "--out", saved, "--signed-by", "default/ML-DSA-65")
    assert command(*signing).status != 0
    again = command(*signing, "--cyclonedx", "1.6", "--verify", "--force")
    assert again.status == 0, again.err
    assert saved.read_bytes() == plain
    assert command("verify", saved).status == 0
    saved.write_bytes(plain.replace(b'"state":"active"', b'"state":"destroyed"'))
    assert command("verify", saved).status == 7
    assert command("inventory", "cbom", "--out", saved, "--verify").status == 2


def test_keys_elsewhere_are_imported_from_certificates_and_documents(
    command: Command, tenant: Client
) -> None:
    """Certificates and documents become lists; a file with a private key does not."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "www.example.com")])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 7, begin, begin + timedelta(days=90))
        .sign(key, SHA256())
        .public_bytes(Encoding.PEM)
    )
    file = command.directory / "web.pem"
    file.write_bytes(certificate)
    stated = ("--place", "web-1", "--owner", "web", "--successor", "ML-DSA-65")
    done = command("inventory", "import", file, "--source", "tls", *stated)
    assert done.status == 0, done.err
    assert tenant.inventory.external()[0].total == 1
    tenant.keys.generate("X-Wing")
    until_counted(tenant)
    assert "Keys elsewhere: 0 of 1 moved" in str(command("inventory", "list").out)
    keys: Any = tenant.inventory.evidence("/inventory/external/tls")["keys"]
    (listed,) = keys
    assert listed == {
        "name": "CN=www.example.com",
        "kind": "certificate",
        "algorithm": "RSA-2048",
        "state": "",
        "place": "web-1",
        "owner": "web",
        "successor": "ML-DSA-65",
        "moved": False,
    }
    document = command.directory / "cbom.json"
    assert command("inventory", "cbom", "--out", document).status == 0
    tenant.keys.generate("Kyber768")
    assert command("inventory", "cbom", "--out", document, "--force").status == 0
    assert command("inventory", "import", document, "--source", "other").status == 0
    assert command("inventory", "import", document, "--source", "other", *stated).status == 2
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(secret)
    refused = command("inventory", "import", file, "--source", "tls")
    assert refused.status != 0
    assert secret.decode().splitlines()[2] not in refused.err
    removed = command("--output", "json", "inventory", "external", "--remove", "tls")
    assert [found["source"] for found in json.loads(removed.out)["sources"]] == ["other"]


def test_keys_are_listed_with_their_uses(command: Command, tenant: Client) -> None:
    """The table has each key version and its principals; JSON has the checkpoint."""
    tenant.keys.generate("Kyber768")
    tenant.kem.encrypt(b"attack at dawn", algorithm="Kyber768")
    page = until_counted(tenant)
    document = command.directory / "uses.json"
    assert command("inventory", "cbom", "--out", document, "--uses", "principals").status == 0
    assert "pqkeep:used-by:encrypt" in document.read_text()
    listed = command("inventory", "list")
    assert listed.status == 0, listed.err
    for part in ("Kyber768", "api-key:", str(page.as_of.size)):
        assert part in str(listed.out)
    (line,) = command("inventory", "list", "--output", "json").out.splitlines()
    (key,) = json.loads(line)["keys"]
    assert (key["uses"], key["private_key"], key["operations"][0]["operation"]) == (
        *(1, "present"),
        "encrypt",
    )
    (use,) = command(
        *("inventory", "uses", "--output", "json", "Kyber768", "--key-version", "1")
    ).out.splitlines()
    assert json.loads(use) == key["principals"][0]
    assert command("inventory", "uses", "Kyber768").status == 0
    assert command("inventory", "uses", "Kyber768", "--keyring", "default").status == 2


def test_keys_are_filtered_and_notices_are_listed(command: Command, tenant: Client) -> None:
    """The filters of the inventory reach the service, and a notice is a row and JSON."""
    tenant.keys.generate("Kyber768")
    until_counted(tenant)
    for options, count in (
        (("--status", "active", "--created-since", "1h"), 1),
        (("--created-before", "1d"), 0),
        (("--status", "retired"), 0),
        (("--unused-since", "30d"), 1),
        (("--used-by", "checkout", "--used-since", "30d"), 0),
    ):
        listed = command("inventory", "list", *options, "--output", "json")
        assert listed.status == 0, listed.err
        assert len(json.loads(listed.out)["keys"]) == count, options
    assert command("inventory", "list", "--status", "lost").status != 0
    shown = command("notices", "list", "--output", "json")
    assert shown.status == 0, shown.err
    kinds = [notice["kind"] for notice in json.loads(shown.out)["notices"]]
    assert kinds == [notice.kind for notice in tenant.notices.list()]
    assert command("notices", "list", "--closed").status == 0
