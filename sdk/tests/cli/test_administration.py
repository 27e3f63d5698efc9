"""``pqkeep keys``, ``pqkeep tenants`` and ``pqkeep api-keys``."""

from __future__ import annotations

import base64
import json
import re
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


JWKS = (
    b'{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1",'
    b'"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
)


def result(command: Command, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    """Return the JSON output of a run, which must succeed."""
    ended = command(*arguments, "--output", "json", stdin=stdin)
    assert ended.status == 0, ended.err
    said: dict[str, Any] = json.loads(ended.out)
    return said


def test_the_life_of_a_key(command: Command, tenant: Client) -> None:
    """A key is generated, rotated and retired; JSON output has the API's fields."""
    made = result(command, "keys", "generate", "Kyber768")
    assert (made["algorithm"], made["key_version"], made["status"]) == ("Kyber768", 1, "active")
    assert TIME.fullmatch(made["created_at"])
    key = tenant.keys.get("Kyber768", key_version=1)
    assert base64.b64decode(made["public_key"]) == key.public_key
    rotated = result(command, "keys", "rotate", "Kyber768")
    assert (rotated["key_version"], rotated["old_key_version"]) == (2, 1)
    retired = result(command, "keys", "retire", "Kyber768", "--key-version", "2")
    assert (retired["key_version"], retired["status"]) == (2, "retired")
    disabled = result(command, "keys", "disable", "Kyber768", "--key-version", "2")
    assert disabled["status"] == "disabled"
    enabled = result(command, "keys", "enable", "Kyber768", "--key-version", "2")
    assert enabled == retired
    for cancel in ((), ("--cancel",)):
        kept = result(command, "keys", "archive", "Kyber768", "--key-version", "2", *cancel)
        assert kept == retired
    listed = result(command, "keys", "list", "--status", "retired")
    assert [key["key_version"] for key in listed["keys"]] == [1, 2]
    assert listed["total"] == 2


def test_a_table_of_keys(command: Command, tenant: Client) -> None:
    """The table for people has no folded lines outside a terminal, and no escape sequences."""
    tenant.keys.generate("X-Wing")
    tenant.keys.generate("Dilithium3")
    lines = command("keys", "list").out.decode().splitlines()
    assert re.split(r" {2,}", lines[0]) == ["ALGORITHM", "VERSION", "STATUS", "CREATED"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["Dilithium3", "1", "active"],
        ["X-Wing", "1", "active"],
    ]


def test_how_much_a_key_is_in_use(command: Command, tenant: Client) -> None:
    """``show`` has the usage of the active key, or of a named one."""
    tenant.keys.generate("Kyber768")
    tenant.kem.encrypt(b"once")
    tenant.keys.rotate("Kyber768")
    assert result(command, "keys", "show", "Kyber768")["uses"] == 0
    old = result(command, "keys", "show", "Kyber768", "--key-version", "1")
    assert (old["status"], old["uses"]) == ("retired", 1)
    assert old["fingerprint"] == sha256(base64.b64decode(old["public_key"])).hexdigest()
    shown = command("keys", "show", "Kyber768", "-k", "1").out.decode()
    assert re.search(r"^uses +1$", shown, re.MULTILINE)
    (listed,) = result(command, "keys", "usage")["usage"]
    assert listed["last_used_at"] is not None
    assert (listed["key_version"], listed["uses"]) == (1, 1)


def test_usage(command: Command, tenant: Client) -> None:
    """Usage is a table by the hour or by the day; JSON output has all fields."""
    tenant.keys.generate("Kyber768")
    assert result(command, "usage")["total"] == 1
    lines = command("usage", "--period", "30d").out.decode().splitlines()
    assert lines[0].split() == ["START", "SUCCEEDED", "REFUSED"]
    assert len(lines) == 31
    assert lines[-1].split()[-2:] == ["1", "0"]


def test_a_public_key(command: Command, tenant: Client) -> None:
    """A public key's file names the key; --format raw writes only its bytes."""
    key = tenant.keys.generate("ML-KEM-1024")
    said = json.loads(command("keys", "public-key", "ML-KEM-1024").out)
    assert said == {
        "format": "pqkeep/v1/public-key",
        "algorithm": "ML-KEM-1024",
        "key_version": 1,
        "public_key": base64.b64encode(key.public_key).decode(),
    }
    assert command("keys", "public-key", "ML-KEM-1024", "--format", "raw").out == key.public_key


def test_the_operator_s_tenants(operator_command: Command) -> None:
    """The operator creates, updates, suspends and resumes a tenant."""
    name = f"acme {uuid4()}"
    made = result(operator_command, "tenants", "create", name, "--plan", "starter")
    assert (made["name"], made["plan"], made["status"]) == (name, "starter", "active")
    tenant = made["id"]
    options = ("--tier", "growth", "--requests-per-minute", "7", "--subscription", "active")
    changed = result(operator_command, "tenants", "update", tenant, *options)
    assert (changed["plan"], changed["tier"], changed["requests_per_minute"]) == (
        "professional",
        "growth",
        7,
    )
    again = ("--requests-per-minute", "plan")
    changed = result(operator_command, "tenants", "update", tenant, *again)
    assert changed["requests_per_minute"] is None
    assert result(operator_command, "tenants", "suspend", tenant)["status"] == "suspended"
    assert result(operator_command, "tenants", "show", tenant)["status"] == "suspended"
    scheduled = result(operator_command, "tenants", "delete", tenant, "--days", "9")["deletion_at"]
    assert result(operator_command, "tenants", "show", tenant)["deletion_at"] == scheduled
    cancelled = result(operator_command, "tenants", "cancel-deletion", tenant)
    assert cancelled["deletion_at"] is None
    assert result(operator_command, "tenants", "resume", tenant)["status"] == "active"
    listed = result(operator_command, "tenants", "list")
    assert tenant in {tenant_["id"] for tenant_ in listed["tenants"]}
    assert name in operator_command("tenants", "list").out.decode()
    for status, total in (("active", 1), ("suspended", 0)):
        narrowed = ("--name", name.upper(), "--status", status)
        assert result(operator_command, "tenants", "list", *narrowed)["total"] == total
    wrong = operator_command("tenants", "update", tenant, "--requests-per-minute", "many")
    assert wrong.status == 2


def test_one_s_own_tenant(command: Command, tenant: Client) -> None:
    """A tenant need not name itself, and sees no other tenant."""
    (own,) = tenant.tenants.list()
    assert result(command, "tenants", "show")["id"] == own.id
    assert result(command, "tenants", "list")["total"] == 1


def test_api_keys(
    command: Command, with_key: Callable[[str], Command], tenant: Client, base_url: str
) -> None:
    """API keys are created, listed and revoked; a new one is shown once."""
    made = result(command, "api-keys", "create")
    with Client(base_url, made["api_key"], retries=0) as second:
        assert second.tenants.list() == tenant.tenants.list()
    listed = result(command, "api-keys", "list")
    assert [(key["version"], key["status"]) for key in listed["api_keys"]] == [
        (1, "active"),
        (2, "active"),
    ]
    assert made["api_key"] not in json.dumps(listed)
    revoked = result(command, "api-keys", "revoke", "2")
    assert (revoked["version"], revoked["status"]) == (2, "revoked")
    assert with_key(made["api_key"])("keys", "list").status == 3
    assert "store the API key" in command("api-keys", "create").err


def test_an_api_key_goes_to_a_file(command: Command, with_key: Callable[[str], Command]) -> None:
    """With --to, a new API key is only in a file with mode 0600."""
    ended = command("api-keys", "create", "--to", "next", "--output", "json")
    path = command.directory / "next"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    api_key = path.read_text().strip()
    assert api_key not in ended.out.decode() + ended.err
    assert json.loads(ended.out)["key_last4"] == api_key[-4:]
    second = with_key(api_key)
    assert second("api-keys", "rotate", "--to", "next").status == 1
    assert path.read_text().strip() == api_key
    ended = second("api-keys", "rotate", "--to", "third", "--output", "json")
    assert (ended.status, json.loads(ended.out)["revoked_version"]) == (0, 2)
    third = with_key((command.directory / "third").read_text().strip())
    assert third("keys", "list").status == 0


def test_the_operator_names_a_tenant(operator_command: Command, tenant: Client) -> None:
    """The operator has no tenant, and must name one."""
    (own,) = tenant.tenants.list()
    assert operator_command("api-keys", "list").status == 2
    assert result(operator_command, "api-keys", "list", "--tenant", own.id)["total"] == 1


def test_an_api_key_is_limited_by_options(
    command: Command, with_key: Callable[[str], Command]
) -> None:
    """Options become one scope, an expiry and addresses, which the list describes."""
    made = result(
        command,
        *(
            "api-keys",
            "create",
            "--name",
            "worker",
            "--keyring",
            "payments.*",
            "--keyring",
            "default",
        ),
        *("--algorithm", "Kyber768", "--expires", "90d", "--allow", "127.0.0.0/8"),
    )
    scope = {
        "operations": ["use"],
        "keyrings": ["payments.*", "default"],
        "algorithms": ["Kyber768"],
    }
    assert (made["name"], made["allowed_addresses"]) == ("worker", ["127.0.0.0/8"])
    assert made["scopes"] == [scope]
    end = datetime.fromisoformat(made["expires_at"])
    assert timedelta(days=89) < end - datetime.now(UTC) <= timedelta(days=90)
    shown = command("api-keys", "list").out.decode()
    assert "use on payments.*, default with Kyber768" in shown
    assert "everything" in shown
    worker = with_key(made["api_key"])
    assert worker("keys", "generate", "Kyber768").status == 5
    status = result(worker, "status")
    own = result(worker, "api-keys", "show")
    assert status["principal"] == "API key with scopes"
    assert status["tenant"] == own["tenant_id"]
    assert (own["version"], own["name"], own["scopes"]) == (made["version"], "worker", [scope])
    assert "use on payments.*, default with Kyber768" in worker("api-keys", "show").out.decode()
    plain = command("api-keys", "create")
    assert "--scope use" in plain.err
    assert "scopes" not in plain.out.decode()
    assert command("api-keys", "create", "--expires", "soon").status == 2


def test_the_operator_manages_workloads(operator_command: Command, tenant: Client) -> None:
    """Issuers and roles are put, listed with their conditions, and removed."""
    (own,) = tenant.tenants.list()
    at = ("--tenant", own.id)
    url = ("--issuer-url", "https://issuer.example.com", "--audience", "https://pqkeep.example.com")
    issuer = result(
        operator_command, "issuers", "put", "ci", *url, "--algorithm", "EdDSA", "--jwks", "-", *at,
        stdin=JWKS,
    )  # fmt: skip
    assert issuer["jwks"] == JWKS.decode()
    claims = ("--claim", "ref=main", "--claim", "ref=release-*", "--claim", "repository=acme/shop")
    role = result(operator_command, "roles", "put", "deploy", "--issuer", "ci", *claims, *at)
    assert role["claims"] == {"ref": ["main", "release-*"], "repository": ["acme/shop"]}
    assert role["scopes"] == [{"operations": ["use"], "keyrings": None, "algorithms": None}]
    assert result(operator_command, "issuers", "list", *at)["total"] == 1
    assert "ref=main or release-*; repository=acme/shop" in " ".join(
        operator_command("roles", "list", *at).out.decode().split()
    )
    absent = operator_command("roles", "put", "x", "--issuer", "none", *claims, *at)
    assert (absent.status, "pqkeep issuers list" in absent.err) == (4, True)
    unnamed = operator_command("roles", "list")
    assert (unnamed.status, "--tenant ID" in unnamed.err) == (2, True)
    wrong = operator_command("roles", "put", "x", "--issuer", "ci", "--claim", "ref", *at)
    assert wrong.status == 2
    for group, name in (("roles", "deploy"), ("issuers", "ci")):
        assert result(operator_command, group, "remove", name, *at)["removed"] is True
        assert operator_command(group, "remove", name, *at).status == 4


def test_the_operator_manages_a_team(operator_command: Command, tenant: Client) -> None:
    """An invitation shows its link once, is listed and withdrawn; the search finds the tenant."""
    (own,) = tenant.tenants.list()
    at = ("--tenant", own.id)
    email = f"{own.id}@example.com"
    ended = operator_command("team", "invite", email, "--role", "viewer", *at, "--output", "json")
    invited = json.loads(ended.out)
    assert f"/portal/invitation#{invited['token']}" in ended.err
    listed = result(operator_command, "team", "invitations", "--email", own.id[:8], *at)
    assert listed["invitations"] == [{**invited, "token": None}]
    assert result(operator_command, "team", "list", *at) == {"members": [], "total": 0}
    withdrawn = result(operator_command, "team", "withdraw", invited["id"], *at)
    assert withdrawn == {"invitation": invited["id"], "removed": True}
    assert operator_command("team", "withdraw", invited["id"], *at).status == 4
    assert operator_command("team", "remove", str(uuid4()), *at).status == 4
    assert operator_command("team", "change-role", str(uuid4()), "--role", "admin", *at).status == 4
    (found,) = result(operator_command, "search", own.name)["results"]
    assert (found["kind"], found["id"]) == ("tenant", own.id)
