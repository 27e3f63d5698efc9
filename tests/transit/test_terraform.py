"""The requests of Terraform's provider for Vault, as recorded: fields, types and statuses.

The provider is not run. Its requests for a key (``vault_transit_secret_backend_key``) and for one
ciphertext (the data sources ``vault_transit_encrypt`` and ``vault_transit_decrypt``) are sent here.
The responses are read as Terraform reads them. It needs ``skip_child_token = true``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
import requests

Send = Callable[..., requests.Response]

ATTRIBUTES = {
    "type": "aes256-gcm96",
    "derived": False,
    "exportable": False,
    "allow_plaintext_backup": False,
    "deletion_allowed": False,
    "min_decryption_version": 1,
    "min_encryption_version": 0,
}
"""The attributes of a resource that names only its key, with their defaults."""
REPLACING = {"type", "derived", "convergent_encryption"}
"""If one of these differs, the provider plans to replace the key."""
NUMBERS = {
    "latest_version",
    "min_available_version",
    "min_decryption_version",
    "min_encryption_version",
}
"""The provider fails where one of these is not a number."""
TEXT = "4111 1111 1111 1111"


def create(send: Send, path: str, **attributes: Any) -> dict[str, Any]:
    """Create a key, configure it and read it; return its data."""
    wanted = {**ATTRIBUTES, **attributes}
    made = {
        "convergent_encryption": False,
        "derived": wanted["derived"],
        "type": wanted["type"],
        "auto_rotate_period": 0,
        "key_size": wanted.pop("key_size", 0),
    }
    made |= {field: value for field, value in attributes.items() if field not in made}
    configured = {
        "min_decryption_version": wanted["min_decryption_version"],
        "min_encryption_versoin": wanted["min_encryption_version"],
        "deletion_allowed": wanted["deletion_allowed"],
        "exportable": False,
        "allow_plaintext_backup": False,
        "auto_rotate_period": 0,
    }
    for response in (send("PUT", path, made), send("PUT", f"{path}/config", configured)):
        assert response.status_code in {200, 204}, response.text
    return read(send, path)


def read(send: Send, path: str) -> dict[str, Any]:
    """Read a key and check the types that the provider needs."""
    response = send("GET", path)
    assert response.status_code == 200, response.text
    data: dict[str, Any] = response.json()["data"]
    assert {field: type(data[field]) for field in NUMBERS} == dict.fromkeys(NUMBERS, int)
    for version in data.get("keys", {}).values():
        texts = version.values() if isinstance(version, dict) else ()
        assert isinstance(version, dict | int)
        assert all(isinstance(text, str) for text in texts)
    return data


def difference(data: dict[str, Any], attributes: dict[str, Any]) -> set[str]:
    """Return the attributes for which a plan would show a change."""
    state = {"convergent_encryption": False, **data}
    wanted = {**ATTRIBUTES, "convergent_encryption": False, **attributes}
    return {field for field, value in wanted.items() if state[field] != value}


def test_the_provider_starts(send: Send) -> None:
    """The token is looked up. The version is high enough that the provider sends all fields."""
    token = send("GET", "auth/token/lookup-self").json()["data"]
    assert all(isinstance(policy, str) for policy in token["policies"])
    assert not token.get("namespace_path")
    status = send("GET", "sys/seal-status").json()
    assert len(status["version"].partition("-")[0].split(".")) == 3


@pytest.mark.parametrize("key_type", ["aes256-gcm96", "chacha20-poly1305"])
@pytest.mark.parametrize("usage", [{"derived": False}, {"derived": True}], ids=["", "derived"])
def test_a_key_is_planned_again_without_a_difference(
    send: Send, name: str, key_type: str, usage: dict[str, Any]
) -> None:
    """After a key was created, the next plan shows no change; a rotation changes none either."""
    attributes = {"type": key_type, **usage}
    path = f"transit/keys/{name}"
    assert difference(create(send, path, **attributes), attributes) == set()
    assert send("PUT", f"{path}/rotate", {}).status_code in {200, 204}
    data = read(send, path)
    assert difference(data, attributes) == set()
    assert data["latest_version"] == 2


def test_a_mac_key_is_planned_again_without_a_difference(send: Send, name: str) -> None:
    """A MAC key has a key size, which is a number."""
    attributes = {"type": "hmac", "key_size": 32}
    data = create(send, f"transit/keys/{name}", **attributes)
    assert difference(data, attributes) == set()
    assert type(data["key_size"]) is int


@pytest.mark.parametrize(
    "attributes",
    [
        {"type": "ml-dsa", "parameter_set": "65"},
        {
            "type": "hybrid",
            "parameter_set": "65",
            "hybrid_key_type_pqc": "ml-dsa",
            "hybrid_key_type_ec": "ecdsa-p256",
        },
    ],
    ids=lambda attributes: str(attributes["type"]),
)
def test_a_signing_key_is_planned_again_without_a_difference(
    pqkeep: Any, send: Send, name: str, attributes: dict[str, Any]
) -> None:
    """A post-quantum key keeps its type; OpenBao 2.4 has none."""
    data = create(send, f"transit/keys/{name}", **attributes)
    assert difference(data, {"type": attributes["type"]}) == set()
    assert data["supports_signing"] is True


def test_a_key_changes_and_is_destroyed(send: Send, name: str) -> None:
    """A key that may not be deleted stays. After a change of the attribute it is destroyed."""
    path = f"transit/keys/{name}"
    create(send, path)
    assert send("DELETE", path).status_code == 400
    attributes = {"deletion_allowed": True}
    body = {
        **{field: ATTRIBUTES[field] for field in ATTRIBUTES if field not in {"type", "derived"}},
        **attributes,
        "auto_rotate_period": 0,
    }
    assert send("PUT", f"{path}/config", body).status_code in {200, 204}
    assert difference(read(send, path), attributes) == set()
    assert send("DELETE", path).status_code == 204
    gone = send("GET", path)
    assert (gone.status_code, gone.json()["errors"]) == (404, [])


def test_a_destroyed_key_is_created_again(server: Any, send: Send, name: str) -> None:
    """OpenBao makes a new key. pqkeep still has the old one, and restores it on request."""
    path = f"transit/keys/{name}"
    create(send, path, deletion_allowed=True)
    assert send("DELETE", path).status_code == 204
    if server.is_pqkeep:
        refused = send("PUT", path, {"type": "aes256-gcm96"})
        assert refused.status_code == 400
        assert "soft-delete-restore" in refused.json()["errors"][0]
        assert send("PUT", f"{path}/soft-delete-restore", {}).status_code in {200, 204}
    data = create(send, path, deletion_allowed=True)
    assert difference(data, {"deletion_allowed": True}) == set()


def test_a_key_that_was_changed_elsewhere(send: Send, name: str) -> None:
    """A minimum that another client raised is a difference that does not replace the key."""
    path = f"transit/keys/{name}"
    create(send, path)
    send("PUT", f"{path}/rotate", {})
    send("PUT", f"{path}/config", {"min_decryption_version": 2})
    changed = difference(read(send, path), {})
    assert changed == {"min_decryption_version"}
    assert not changed & REPLACING


def test_the_data_sources(send: Send, name: str) -> None:
    """A ciphertext is made and read with an empty context, an empty ``iv`` and version 0."""
    create(send, f"transit/keys/{name}")
    plaintext = b64encode(TEXT.encode()).decode()
    body = {"plaintext": plaintext, "context": "", "key_version": 0, "iv": ""}
    made = send("PUT", f"transit/encrypt/{name}", body)
    assert made.status_code == 200, made.text
    ciphertext = made.json()["data"]["ciphertext"]
    assert isinstance(ciphertext, str)
    body = {"ciphertext": ciphertext, "context": "", "iv": ""}
    opened = send("PUT", f"transit/decrypt/{name}", body)
    assert opened.json()["data"]["plaintext"] == plaintext


def test_the_data_sources_with_a_context(send: Send, name: str) -> None:
    """The provider encodes a context in base64, for a derived key."""
    create(send, f"transit/keys/{name}", derived=True)
    plaintext, context = (b64encode(text.encode()).decode() for text in (TEXT, "tenant 7"))
    body = {"plaintext": plaintext, "context": context, "key_version": 0, "iv": ""}
    ciphertext = send("PUT", f"transit/encrypt/{name}", body).json()["data"]["ciphertext"]
    body = {"ciphertext": ciphertext, "context": context, "iv": ""}
    opened = send("PUT", f"transit/decrypt/{name}", body)
    assert opened.json()["data"]["plaintext"] == plaintext
