"""``pqkeep transit translate-policy``: scopes never allow more than the policy."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep.cli.failures import Refusal
from pqkeep.cli.transit_policy import LARGEST_POLICY, Translation, translate

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command


def hcl(*rules: tuple[str, str]) -> str:
    """Return a policy: paths with their capabilities."""
    return "\n".join(
        f'path "{path}" {{ capabilities = {json.dumps(names.split())} }}' for path, names in rules
    )


def translated(text: str, mount: str = "transit") -> Translation:
    """Translate a policy."""
    return translate(text.encode(), mount)


def scope(*operations: str, keyrings: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return a scope."""
    only = {"keyrings": list(keyrings)} if keyrings else {}
    return {"operations": list(operations), **only}


READ = ("get-keyring", "list-keys", "get-key", "get-active-key")
WHOLE: dict[str, tuple[str, list[dict[str, list[str]]]]] = {
    "one key": (
        hcl(("transit/encrypt/a", "update"), ("transit/decrypt/a", "update")),
        [scope("encrypt", "decrypt", keyrings=("a",))],
    ),
    "a prefix": (hcl(("transit/encrypt/pay.*", "update")), [scope("encrypt", keyrings=("pay.*",))]),
    "every key by a plus": (hcl(("transit/encrypt/+", "update")), [scope("encrypt")]),
    "every key by a star": (hcl(("transit/encrypt/*", "update")), [scope("encrypt")]),
    "a plus in place of the mount": (
        hcl(("+/encrypt/a", "update")),
        [scope("encrypt", keyrings=("a",))],
    ),
    "keys with the same operations": (
        hcl(("transit/hmac/b", "update"), ("transit/hmac/a", "update")),
        [scope("compute-mac", keyrings=("a", "b"))],
    ),
    "rewrap beside encrypt and decrypt": (
        hcl(*((f"transit/{name}/a", "update") for name in ("rewrap", "encrypt", "decrypt"))),
        [scope("encrypt", "decrypt", "re-encrypt", keyrings=("a",))],
    ),
    "both kinds of data keys": (
        hcl(("transit/datakey/plaintext/a", "update"), ("transit/datakey/wrapped/a", "update")),
        [scope("generate-data-key", keyrings=("a",))],
    ),
    "lists beside reading": (
        hcl(("transit/keys", "list"), ("transit/keys/*", "read list")),
        [scope(*READ, "list-keyrings")],
    ),
    "a specific path counts more": (
        hcl(("transit/encrypt/*", "deny"), ("transit/encrypt/a", "update")),
        [scope("encrypt", keyrings=("a",))],
    ),
    "two blocks of a path": (
        hcl(("transit/keys/a", "read"), ("transit/keys/a", "update")),
        [scope(*READ, "create-keyring", "generate-key", keyrings=("a",))],
    ),
    "operations without a key": (
        hcl(("transit/hash", "update"), ("transit/random", "update")),
        [scope("hash", "generate-random")],
    ),
    "comments": (
        "# x\n// y\n/* z */ " + hcl(("/transit/verify/a", "update")),
        [scope("verify", "verify-hash", "verify-mac", keyrings=("a",))],
    ),
    "JSON": (
        '{"path": {"transit/sign/a": {"capabilities": ["update"]}}}',
        [scope("sign", "sign-hash", keyrings=("a",))],
    ),
    "a list in JSON": (
        '{"path": [{"transit/keys/a/rotate": {"capabilities": ["update"]}}]}',
        [scope("rotate-key", keyrings=("a",))],
    ),
    "upsert where keys may be created": (
        hcl(("transit/encrypt/a", "create update"), ("transit/keys/a", "update")),
        [scope("encrypt", "create-keyring", "generate-key", keyrings=("a",))],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_scopes_can_say_is_translated(name: str) -> None:
    """The scopes equal the policy exactly, and no rule is left out."""
    text, scopes = WHOLE[name]
    assert translated(text) == Translation(tuple(scopes), (), 0)


NARROWED: dict[str, tuple[str, list[dict[str, list[str]]]]] = {
    "an exception": (
        hcl(("transit/encrypt/*", "update"), ("transit/encrypt/a", "deny")),
        [],
    ),
    "an exception without deny": (
        hcl(("transit/decrypt/*", "update"), ("transit/decrypt/a*", "read")),
        [],
    ),
    "deny in another block of the path": (
        hcl(("transit/encrypt/a", "update deny"), ("transit/encrypt/b", "create")),
        [],
    ),
    "an exception by a template": (
        hcl(("transit/decrypt/*", "update"), ("transit/decrypt/{{identity.entity.id}}", "deny")),
        [],
    ),
    "an exception with a condition": (
        hcl(("transit/decrypt/*", "update"))
        + '\npath "transit/decrypt/a" { capabilities = ["update"]\n max_wrapping_ttl = "1h" }',
        [],
    ),
    "an exception by a plus": (
        hcl(("+/decrypt/a", "deny"), ("transit/decrypt/*", "update"), ("transit/+/a", "deny")),
        [scope("decrypt")],
    ),
    "denied parameters": (
        'path "transit/decrypt/a" { capabilities = ["update"]\n denied_parameters = { "x" = [] } }',
        [],
    ),
    "allowed parameters": (
        'path "transit/keys/a" { capabilities = ["update"] allowed_parameters = { "type" = ["x"] } }',
        [],
    ),
    "rewrap alone": (
        hcl(("transit/rewrap/a", "update"), ("transit/decrypt/a", "update")),
        [scope("decrypt", keyrings=("a",))],
    ),
    "a wrapped data key alone": (hcl(("transit/datakey/wrapped/a", "update")), []),
    "lists alone": (hcl(("transit/keys", "list")), []),
    "soft deletion alone": (hcl(("transit/keys/a/soft-delete", "delete")), []),
    "one hash of a signature": (hcl(("transit/sign/a/sha2-256", "update")), []),
    "upsert": (hcl(("transit/encrypt/a", "create update")), [scope("encrypt", keyrings=("a",))]),
    "only upsert": (hcl(("transit/encrypt/a", "create")), []),
    "export": (hcl(("transit/export/encryption-key/a", "read")), []),
    "backup": (hcl(("transit/backup/a", "read")), []),
    "a template": (hcl(("transit/encrypt/{{identity.entity.name}}", "update")), []),
    "a star inside": (hcl(("transit/encrypt/a*b", "update")), []),
    "a name that no keyring has": (hcl(("transit/encrypt/a b", "update")), []),
    "the old form": ('path "transit/encrypt/a" { policy = "write" }', []),
}


@pytest.mark.parametrize("name", NARROWED)
def test_what_scopes_cannot_say_is_left_out(name: str) -> None:
    """The scopes are narrower than the policy.

    Missing permissions are named, unless they are denied.
    """
    text, scopes = NARROWED[name]
    translation = translated(text)
    assert list(translation.scopes) == scopes
    if name not in {"an exception by a plus", "the old form"}:
        assert translation.untranslated


def test_every_path_of_a_wildcard_is_translated_or_named() -> None:
    """A policy for all of the engine has every operation, and names what is not offered."""
    translation = translated(hcl(("transit/*", "create read update delete list")))
    (only,) = translation.scopes
    assert {"encrypt", "re-encrypt", "delete-keyring", "list-keyrings"} <= {*only["operations"]}
    assert "export" in translation.untranslated[0].reason
    every = translated(hcl(("*", "update"), ("secret/x", "read")), "other/mount")
    assert (len(every.scopes), every.skipped) == (1, 1)


def test_many_keys_are_several_scopes() -> None:
    """A scope has at most 16 keyrings."""
    rules = [(f"transit/encrypt/k{number}", "update") for number in range(40)]
    scopes = translated(hcl(*rules)).scopes
    assert [len(scope["keyrings"]) for scope in scopes] == [16, 16, 8]


NOT_POLICIES = [
    "path",
    'path "a" {',
    'path "a" { capabilities = ["read" }',
    'path "a" { capabilities = "read" }',
    'path "a" { capabilities = ["fly"] }',
    'path "a" { capabilities = [1] }',
    'path "a" { capabilities = [] capabilities = [] }',
    'path "a" = 5',
    "path <<EOF\nEOF",
    '{"path": 7}',
    '{"path": {"a": 7}}',
    '{"path": {}} x',
    "x = " + "[" * 100,
    "x " + "{ x " * 100,
    "\x00",
    'path "\n" {}',
]


@pytest.mark.parametrize("text", NOT_POLICIES)
def test_what_is_not_a_policy_is_refused(text: str) -> None:
    """A text that cannot be read gives no scopes, only the line."""
    with pytest.raises(Refusal, match=re.compile("line [0-9]+ of the policy")):
        translated(text)


def test_the_command_prints_scopes_that_a_key_can_have(command: Command, api_key: str) -> None:
    """Standard output is a JSON list of scopes. The status is 1 if something is left out."""
    text = hcl(
        ("transit/encrypt/a", "update"), ("secret/b", "read"), ("transit/export/+/+", "read")
    )
    ended = command("transit", "translate-policy", stdin=text.encode())
    assert ended.status == 1
    assert "line 3: transit/export/+/+: pqkeep does not offer export" in ended.err
    scopes: list[dict[str, Any]] = json.loads(ended.out)
    assert scopes == [scope("encrypt", keyrings=("a",))]
    shown = command("--output", "json", "transit", "translate-policy", stdin=text.encode())
    assert json.loads(shown.out)["untranslated"][0]["line"] == 3
    whole = hcl(("transit/encrypt/a", "update"))
    assert command("transit", "translate-policy", stdin=whole.encode()).status == 0
    huge = b"#" * (LARGEST_POLICY + 1)
    assert command("transit", "translate-policy", stdin=huge).status == 2
