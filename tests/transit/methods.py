"""The methods of Transit's clients: which work, and the sentence with which others are refused."""

from __future__ import annotations

from typing import NamedTuple


class Method(NamedTuple):
    """A method of hvac's class, with the method of Spring Vault that does the same."""

    request: str
    spring: str = ""
    refusal: str = ""
    """The sentence of the refusal; empty for a method that works."""


METHODS: dict[str, Method] = {
    "create_key": Method("POST keys/{name}", "createKey"),
    "read_key": Method("GET keys/{name}", "getKey"),
    "list_keys": Method("LIST keys", "getKeys"),
    "delete_key": Method("DELETE keys/{name}", "deleteKey"),
    "update_key_configuration": Method("POST keys/{name}/config", "configureKey"),
    "rotate_key": Method("POST keys/{name}/rotate", "rotate"),
    "export_key": Method(
        "GET export/{type}/{name}",
        "exportKey",
        "export is refused: private keys never leave the key service",
    ),
    "encrypt_data": Method("POST encrypt/{name}", "encrypt"),
    "decrypt_data": Method("POST decrypt/{name}", "decrypt"),
    "rewrap_data": Method("POST rewrap/{name}", "rewrap"),
    "generate_data_key": Method("POST datakey/{type}/{name}"),
    "generate_random_bytes": Method("POST random"),
    "hash_data": Method("POST hash"),
    "generate_hmac": Method("POST hmac/{name}", "getHmac"),
    "sign_data": Method("POST sign/{name}", "sign"),
    "verify_signed_data": Method("POST verify/{name}", "verify"),
    "backup_key": Method(
        "GET backup/{name}",
        refusal=(
            "backup is refused: private keys never leave the key service; pqkeepd backup makes"
            " encrypted backups"
        ),
    ),
    "restore_key": Method(
        "POST restore",
        refusal="restore is refused: it needs a backup that Vault made; use pqkeep transit migrate",
    ),
    "trim_key": Method(
        "POST keys/{name}/trim",
        refusal=(
            "trim is refused: set min_decryption_version, and let an owner archive key versions"
            " in the portal"
        ),
    ),
}
"""hvac's Transit class."""


def table() -> str:
    """Return the methods as a table of Markdown."""
    rows = [
        "| hvac | Spring Vault | request | result |",
        "|---|---|---|---|",
    ]
    for name, method in METHODS.items():
        spring = f"`{method.spring}`" if method.spring else "no method"
        result = f"400: {method.refusal}" if method.refusal else "works"
        rows.append(f"| `{name}` | {spring} | `{method.request}` | {result} |")
    return "\n".join(rows)
