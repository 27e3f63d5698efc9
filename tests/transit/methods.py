"""The methods of Transit's clients: supported methods, and the refusal for unsupported ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pqkeep_gateway.transit.routes import REFUSALS


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


CLIENTS = (
    ("hvac", "2.4.0", "each method of its Transit class, tokens, AppRole, sys", "`make test`"),
    (
        "Terraform's provider",
        "its requests for a key and for the two data sources",
        "create, plan again without a difference, change, destroy; needs `skip_child_token = true`",
        "`make test`",
    ),
    ("SOPS", "3.13.3", "encrypt, decrypt, rotate", "`make interop`"),
    (
        "the command `bao`",
        "OpenBao 2.4.4",
        "status, token, secrets, write, read, list, delete",
        "`make interop`",
    ),
    (
        "auto-unseal",
        "OpenBao 2.4.4",
        "init, restarts, rotations of the key, raised minimum versions",
        "`make interop`",
    ),
    (
        "Go programs",
        "vault/api 1.23.0, OpenBao's wrapper 2.6.0",
        "sys, tokens, keys, encryption",
        "`make interop`",
    ),
    (
        "Spring Vault",
        "4.0.4",
        "VaultTransitOperations, AppRole with renewal and revocation",
        "`make interop`",
    ),
)
"""The clients that were run without changes: name, version, what they did, and the test."""


DIFFERENCES = (
    (
        "`key_version` of encrypt, sign and hmac",
        "the latest version only; older versions only read",
    ),
    ("`hmac`", "keys of type `hmac` only: a key has one use"),
    ("`context`", "refused for a key that is not derived, where Vault ignores it"),
    (
        "`deletion_allowed`",
        "set by an API key with the scopes `update-keyring` and `delete-keyring`",
    ),
    ("an unknown parameter", "ignored, without the warning of Vault"),
    ("`key_type` of hvac", "hvac refuses other than classical types: use its `write`"),
    ("DELETE of a key", "softly: its name is free once its private keys are destroyed"),
    ("`renew-self`", "succeeds, and prolongs nothing"),
    ("`revoke-self`", "succeeds, and revokes nothing: the program starts again with its API key"),
    ("a child token", "refused: Terraform's provider needs `skip_child_token = true`"),
)
"""What works differently from OpenBao, and how."""


def _rows(*rows: Iterable[str]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page() -> str:
    """Return the page of docs/reference."""
    methods = (
        (
            f"`{name}`",
            f"`{method.spring}`" if method.spring else "no method",
            f"`{method.request}`",
            f"400: {method.refusal}" if method.refusal else "works",
        )
        for name, method in METHODS.items()
    )
    paths = ((f"`{verb} {path}`", reason) for (verb, path), reason in REFUSALS.items())
    return f"""\
# Clients of Vault Transit

These clients were run without a change: only their address and token are pqkeep's. Terraform's provider was not run; its recorded requests were sent.

| client | version | use | tested by |
|---|---|---|---|
{_rows(*CLIENTS)}

## Methods

Each method of hvac's Transit class, and the method of Spring Vault that does the same. Paths begin after `/v1/transit/`.

| hvac | Spring Vault | request | result |
|---|---|---|---|
{_rows(*methods)}

## Differences

| request | here |
|---|---|
{_rows(*DIFFERENCES)}

## Refused paths

A request to one of these paths gets 400 and the reason. Paths begin after `/v1/`.

| request | reason |
|---|---|
{_rows(*paths)}
"""
