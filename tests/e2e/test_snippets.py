"""The reference's snippets run unchanged against an installation."""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep import Client
from pqkeep_gateway.access.callers import GRANTS, Credential
from pqkeep_gateway.api import installation
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.reference.client_calls import CALLS
from pqkeep_gateway.reference.snippets import curl, example_values, python, takes_api_key

_NOTHING: Any = None
HEALTH = installation.health_endpoint(_NOTHING)
ROWS: Mapping[str, Endpoint] = {row.name: row for row in (*api_rows(), HEALTH)}
MADE_BY = {
    "decrypt": ("/kem/encrypt", {"plaintext": "AAAA"}, "ciphertext"),
    "re_encrypt": ("/kem/encrypt", {"plaintext": "AAAA"}, "ciphertext"),
    "decapsulate": ("/kem/encapsulate", {"key_version": 1}, "kem_ciphertext"),
    "unwrap": ("/kem/wrap", {"key_version": 1, "symmetric_key": "A" * 43 + "="}, "wrapped_key"),
    "verify": ("/signature/sign", {"message": "cGF5IEJvYiAxMCBFVVI="}, "signature"),
    "verify_hash": (
        "/signature/sign-hash",
        {"hash_algorithm": "SHA-256", "hash": "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg="},
        "signature",
    ),
    "verify_mac": ("/mac/compute", {"message": "cGF5IEJvYiAxMCBFVVI="}, "mac"),
    "verify_mu": ("/signature/sign-mu", {"mu": ROWS["sign_mu"].fields[0].example}, "signature"),
}
FIRST = ("generate_key",)
CHANGES = ("rotate_key", "retire_key", "disable_key", "enable_key", "cancel_archive")
LAST = (*CHANGES, "rotate_api_key", "revoke_api_key", "change_tenant")
LAST_OF_ALL = ("delete_tenant", "cancel_tenant_deletion")
BY_OPERATOR = {
    *("prove_audit_record", "get_audit_tlog_proof", *LAST[len(CHANGES) :], *LAST_OF_ALL),
    *(name for name, row in ROWS.items() if Credential.API_KEY not in GRANTS[row.permission]),
}
"""Operations that an API key may not call, or that would revoke it."""
IN_THE_CLIENT = (
    "/kem/",
    "/signature/",
    "/mac/",
    "/kms/",
    "/tenants",
    "/webhooks",
    "/audit/",
    "/healthz",
)
"""The beginnings of paths with calls of the client."""
BATCH = "_batch"
"""The endings of batches' names."""
WRAPPED_ELSEWHERE = "import_key"
"""Its input has no working example: see test_key_import.py and key_import.py."""
IN_ORDER = (
    *FIRST,
    *(
        name
        for name, row in ROWS.items()
        if takes_api_key(row) and name not in {*FIRST, *LAST, *LAST_OF_ALL, WRAPPED_ELSEWHERE}
    ),
    "check_health",
    *LAST,
    *LAST_OF_ALL,
)


@pytest.fixture
def address(installation: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The service's address, in the environment of the snippets, which run in a new folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PQKEEP_URL", installation.base_url)
    monkeypatch.setenv("NO_PROXY", "*")
    return installation.base_url


def prepared(tenant: Caller, person: Caller) -> Iterator[str]:
    """Yield the operations in order, after preparing the objects of their examples."""
    rules = person.ask_proven("PUT", "/rules/algorithms", {"profile": "cnsa-2.0"})
    rules.raise_for_status()  # without dates
    webhook = {"name": "on-call", "url": "https://hooks.example.com/"}
    person.post_proven("/webhooks", webhook, status=201)
    for algorithm in ("Dilithium3", "HMAC-SHA-256"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    tenant.post(f"/tenants/{tenant.tenant_id}/api-keys", status=201)
    for _ in range(64):  # as many records as the examples speak of
        tenant.get("/kms/keys")
    for name in IN_ORDER:
        if name == "list_audit_records":
            wait_for_a_checkpoint(tenant)
        yield name


def wait_for_a_checkpoint(tenant: Caller) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(each["size"] >= 64 for each in tenant.get("/audit/checkpoints")["checkpoints"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def values_of(name: str, tenant: Caller) -> dict[str, object]:
    """Return an example's values, with this tenant's own values in place of placeholders."""
    row = ROWS[name]
    values = dict(example_values(row))
    if "tenant_id" in values:
        values["tenant_id"] = tenant.tenant_id
    if name == "create_tenant":
        values["name"] = f"one more, beside {tenant.tenant_id}"
    if "webhook" in values:
        values["webhook"] = tenant.get("/webhooks")["webhooks"][0]["id"]
    if "delivery" in values:
        path = f"/webhooks/{values['webhook']}/deliveries"
        values["delivery"] = tenant.get(path)["deliveries"][0]["id"]
    if name.endswith(BATCH):
        values["items"] = [values_of(name.removesuffix(BATCH), tenant)]
    if made := MADE_BY.get(name.removesuffix("_by_short_path")):
        path, body, field = made
        values[field] = tenant.post(path, body)[field]
    return values


def suspend(operator: Caller, tenant: Caller) -> None:
    changed = operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": "suspended"})
    assert changed.is_success


def operators_session(address: str, operator: Caller) -> str:
    """Begin a browser's session of the operator; return its identifier."""
    key = {"operator_key": operator.api_key}
    httpx2.post(f"{address}/api/v1/auth/operator", json=key).raise_for_status()
    session: str = operator.get("/operators/sessions")["sessions"][0]["id"]
    return session


def shell(snippet: str, expected: int, **environment: str) -> str:
    """Run a command in a shell; return the response's body."""
    ended = subprocess.run(
        ["/bin/sh", "-euc", snippet + " -sS -w '\\n%{http_code}'"],
        env=os.environ | environment,
        capture_output=True,
        check=True,
        timeout=PATIENCE,
        text=True,
    )
    response, _, status = ended.stdout.rpartition("\n")
    assert int(status) == expected, snippet + response
    return response


@pytest.fixture
def deleting(
    installation: Installation, new_person: Callable[..., Caller]
) -> Callable[[Caller], Caller]:
    """Let a keyring be deleted, and return an API key of its tenant that may delete it."""

    def prepare(tenant: Caller) -> Caller:
        person = new_person(tenant.tenant_id)
        changes = {"deletion_allowed": True}
        person.ask_proven("PATCH", "/kms/keyrings/payments.cards", changes).raise_for_status()
        scopes = {"scopes": [{"operations": ["delete-keyring"]}]}
        made = person.post_proven(f"/tenants/{tenant.tenant_id}/api-keys", scopes, status=201)
        return installation.caller(made["api_key"], tenant.tenant_id)

    return prepare


def test_each_curl_works(
    address: str,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    operator: Caller,
    deleting: Callable[[Caller], Caller],
) -> None:
    """In a sensible order, each curl command of a program gets the documented response."""
    tenant = new_tenant()
    for name in prepared(tenant, new_person(tenant.tenant_id)):
        row = ROWS[name]
        credential = operator if name in BY_OPERATOR else tenant
        if name == "delete_tenant":
            suspend(operator, tenant)
        if name == "delete_keyring":
            credential = deleting(tenant)
        prefix = {"prefix": ""} if row is HEALTH else {}
        values = values_of(name, tenant)
        if name == "end_operator_session":
            values["session"] = operators_session(address, operator)
        snippet = curl(row, values, **prefix)
        response = shell(snippet, row.status, PQKEEP_API_KEY=credential.api_key)
        data = json.loads(response)["data"] if name.startswith("verify") else {}
        for each in data.get("results", [{"data": data}] if data else []):
            assert each["data"]["valid"] is True


def test_each_program_works(
    address: str,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    operator: Caller,
    deleting: Callable[[Caller], Caller],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a sensible order, each Python program gets its response."""
    tenant, ran = new_tenant(), set()
    for name in prepared(tenant, new_person(tenant.tenant_id)):
        credential = operator if name in BY_OPERATOR else tenant
        if name == "delete_tenant":
            suspend(operator, tenant)
        if name == "delete_keyring":
            credential = deleting(tenant)
        program = python(ROWS[name], values_of(name, tenant))
        assert program or not ROWS[name].path.startswith(IN_THE_CLIENT), name
        if program is None:
            continue
        monkeypatch.setenv("PQKEEP_API_KEY", credential.api_key)
        made: dict[str, Any] = {}
        exec(compile(program, name, "exec"), made)  # noqa: S102 - as whoever copies it does
        ran.add(name)
        if name.startswith("verify"):
            assert made["result" if name.endswith(BATCH) else "is_valid"] is True
    assert ran == CALLS.keys() | {name for name in ROWS if name.endswith(BATCH)}
    assert tenant.api_key not in capsys.readouterr().out


def test_commands_of_people_work(
    address: str,
    new_person: Callable[..., Caller],
    new_tenant: Callable[..., Caller],
    tmp_path: Path,
) -> None:
    """People's commands work with a session's cookie file, and a step-up token where needed."""
    tenant = new_tenant()
    algorithm = {"algorithm": "Kyber768"}
    tenant.post("/kms/keys/generate", algorithm, status=201)
    tenant.post("/kms/keys/rotate", algorithm, status=201)
    person = new_person(tenant.tenant_id)
    cookies = tmp_path / "cookies.txt"
    kept = [
        "\t".join((each.domain, "FALSE", each.path, "FALSE", "0", each.name, each.value or ""))
        for each in person.client.cookies.jar
    ]
    cookies.write_text("\n".join(["# Netscape HTTP Cookie File", *kept, ""]))
    session = {
        "COOKIES": str(cookies),
        "STEP_UP_TOKEN": person.post("/auth/step-up", {"password": PASSWORD})["step_up_token"],
    }
    for name in ("me", "list_members", "list_invitations", "archive_key"):
        shell(curl(ROWS[name], example_values(ROWS[name])), ROWS[name].status, **session)
    assert tenant.get("/kms/keys/1", **algorithm)["status"] == "archived"


@pytest.mark.parametrize("name", CALLS)
def test_the_client_has_the_call(name: str) -> None:
    """Each call's method accepts the arguments, and its operation has the fields."""
    call = CALLS[name]
    assert {*call.positional, *call.keywords} <= {each.name for each in ROWS[name].fields}
    with Client("http://127.0.0.1:1", "pqk_x") as client:
        resource, method = call.method.split(".")
        parameters = inspect.signature(getattr(getattr(client, resource), method)).parameters
    kinds = [each.kind for each in parameters.values()]
    positional = [each for each in kinds if each is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(positional) == len(call.positional) + len(call.constants)
    filters = [each.annotation for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    named = {name for typed in filters for name in get_args(typed)[0].__annotations__}
    assert set(call.keywords.values()) <= parameters.keys() | named


def test_examples_hide_nothing() -> None:
    """No snippet has a realistic value in place of a secret."""
    for row in ROWS.values():
        for secret in re.findall(r"pq\w_\w+", curl(row, example_values(row))):
            assert secret.startswith(f"{secret[:4]}{'0' * 40}")


def test_binary_example_values_are_canonical() -> None:
    """Base64 in the examples equals the client's encoding of the same bytes."""
    for row in ROWS.values():
        for each in row.fields:
            if each.is_base64:
                text = str(each.example)
                assert base64.b64encode(base64.b64decode(text)).decode() == text
