"""The OpenAPI documents are valid and complete, and match the service."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE
from tests.sampling import sampled

from pqkeep_protocol.algorithms import ALIASES, Algorithm

PARTS = (
    "kem",
    "signature",
    "mac",
    "tools",
    "kms",
    "rules",
    "campaigns",
    "webhooks",
    "inventory",
    "tenants",
    "operators",
    "auth",
    "team",
    "approvals",
    "billing",
    "installation",
    "usage",
    "notices",
    "audit",
    "search",
)
WHOLE = "/api/v1/openapi.json"
MADE_BY = {
    "decrypt": ("encrypt", "ciphertext"),
    "decapsulate": ("encapsulate", "kem_ciphertext"),
    "unwrap": ("wrap", "wrapped_key"),
    "re_encrypt": ("encrypt", "ciphertext"),
    "unwrap_by_short_path": ("wrap_by_short_path", "wrapped_key"),
    "verify": ("sign", "signature"),
    "verify_hash": ("sign_hash", "signature"),
    "verify_mu": ("sign_mu", "signature"),
    "verify_mac": ("compute_mac", "mac"),
}
FIRST = ("create_keyring", "generate_key")
LAST = (
    *("rotate_key", "retire_key", "disable_key", "enable_key", "cancel_archive"),
    "close_campaign",
    *("remove_workload_role", "remove_workload_issuer"),
    "remove_external_keys",
    *("change_tenant", "rotate_api_key", "revoke_api_key"),
    *("delete_tenant", "cancel_tenant_deletion"),
)
OPERATOR = (
    "create_tenant",
    *("list_operators", "list_operator_sessions", "end_operator_session"),
    "operator_me",
    "get_installation",
    "change_tenant",
    "delete_tenant",
    "cancel_tenant_deletion",
    "rotate_api_key",
    "revoke_api_key",
    "prove_audit_record",
    "get_audit_tlog_proof",
    "export_audit_log",
    "sign_audit_checkpoint",
    "invite",
    "put_workload_issuer",
    "put_workload_role",
    "remove_workload_role",
    "remove_workload_issuer",
    "search",
)
TEXTS = ("export_audit_log", "get_audit_note", "get_audit_tlog_proof")
"""Operations with a text response, outside the envelope and without JSON."""
PEOPLE = (["auth"], ["team"])
"""The parts with operations for people: see test_people.py and test_team.py."""
WRAPPED = ("import_key",)
"""Operations with wrapped input from an earlier response: see test_key_import.py."""
PEOPLE_ONLY: Any = [{"Session": []}]
"""Other operations for signed-in people: see test_billing.py."""


@pytest.fixture(scope="module")
def web(installation: Installation) -> Iterator[httpx2.Client]:
    """A client without a credential, outside the envelope."""
    with httpx2.Client(base_url=installation.base_url, trust_env=False, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def document(web: httpx2.Client) -> Any:
    """The whole document."""
    return web.get(WHOLE).json()


def operations(document: Any) -> dict[str, tuple[str, str, Any]]:
    """Return path, method and description by operation id."""
    return {
        each["operationId"]: (path, method, each)
        for path, methods in document["paths"].items()
        for method, each in methods.items()
    }


def check(document: Any, schema: Any, value: object) -> None:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow

    Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def resolved(document: Any, response: Any) -> Any:
    """Return a response, also one that several operations share."""
    *_, name = response.get("$ref", "").split("/")
    return document["components"]["responses"][name] if name else response


def content(thing: Any) -> Any:
    (found,) = thing["content"].values()
    return found


@pytest.mark.parametrize(
    "path", sampled([WHOLE, *(f"/api/v1/openapi/{part}.json" for part in PARTS)], 6)
)
def test_documents_are_valid(web: httpx2.Client, path: str) -> None:
    """Each document is valid OpenAPI 3.1 without external references, and public."""
    from openapi_spec_validator import validate  # noqa: PLC0415 - slow

    answer = web.get(path)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["openapi"] == "3.1.0"
    validate(answer.json())
    components = answer.json()["components"]
    references = set(re.findall(r'"#/components/(\w+)/([^"]+)"', answer.text))
    assert {(kind, name) for kind, name in references if name not in components[kind]} == set()


def test_the_same_everywhere(
    web: httpx2.Client,
    tmp_path: Path,
) -> None:
    """Another installation serves the same document, byte for byte."""
    other = running(tmp_path)
    with other as installation, httpx2.Client(trust_env=False, timeout=PATIENCE) as client:
        assert client.get(installation.base_url + WHOLE).content == web.get(WHOLE).content


def test_parts_make_up_the_whole(web: httpx2.Client, document: Any) -> None:
    """The parts' paths and those outside the API make up the whole document."""
    parts: dict[str, Any] = {}
    for part in PARTS:
        parts |= web.get(f"/api/v1/openapi/{part}.json").json()["paths"]
    assert parts | {"/healthz": document["paths"]["/healthz"]} == document["paths"]


def test_known_documents_are_not_sent_again(web: httpx2.Client) -> None:
    """A client with a current document gets 304 without a body."""
    first = web.get(WHOLE)
    again = web.get(WHOLE, headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")


def test_head_is_get_without_a_body(web: httpx2.Client) -> None:
    """HEAD returns the document's length without the document."""
    head = web.head(WHOLE)
    assert int(head.headers["content-length"]) == len(web.get(WHOLE).content)
    assert head.content == b""


def test_documents_cannot_be_changed(
    anonymous: Caller, refused: Callable[[httpx2.Response], tuple[int, str, str | None]]
) -> None:
    """Another method on a document is 405, in the envelope."""
    answer = anonymous.ask("POST", "/openapi.json", {})
    assert refused(answer) == (405, "ERR_INVALID_001", None)
    assert answer.headers["allow"] == "GET, HEAD"


def test_answers_may_name_algorithms_as_requests_do(document: Any) -> None:
    """Responses use the algorithm names of requests, and their schema lists them."""
    names = document["components"]["schemas"]["Algorithm"]["enum"]
    assert set(names) == {*Algorithm, *ALIASES}


def test_operations_have_names_and_summaries(document: Any) -> None:
    """Each operation has a unique identifier and a summary."""
    named = operations(document)
    assert len(named) == sum(len(methods) for methods in document["paths"].values())
    assert all(each["summary"].endswith(".") for _, _, each in named.values())


def test_examples_have_their_schemas_form(document: Any) -> None:
    """Each example of a request or response is valid against its schema."""
    count = 0
    for name, (_, _, operation) in operations(document).items():
        if name in TEXTS:
            continue
        bodies = [resolved(document, each) for each in operation["responses"].values()]
        bodies += [operation["requestBody"]] if "requestBody" in operation else []
        for body in bodies:
            for example in content(body)["examples"].values():
                check(document, content(body)["schema"], example["value"])
                count += 1
    assert count > 200


def operators_session(web: httpx2.Client, operator: Caller) -> str:
    """Begin a browser session of the operator; return its identifier."""
    fields = {"operator_key": operator.api_key}
    assert web.post("/api/v1/auth/operator", json=fields).is_success
    web.cookies.clear()
    identifier: str = operator.get("/operators/sessions")["sessions"][0]["id"]
    return identifier


def test_examples_work(
    document: Any,
    web: httpx2.Client,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    operator: Caller,
) -> None:
    """In a sensible order, each operation's example succeeds as documented."""
    tenant = new_tenant()
    for algorithm in ("Dilithium3", "HMAC-SHA-256"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    rule = {"algorithms": ["Dilithium3"]}
    owner = new_person(tenant.tenant_id)
    assert owner.ask_proven("PUT", "/rules/algorithms/cnsa-2.0.kem", rule).is_success
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    webhook = owner.post_proven("/webhooks", hook, status=201)["id"]
    ids = {
        "tenant_id": tenant.tenant_id,
        "webhook": webhook,
        "delivery": tenant.post(f"/webhooks/{webhook}/test", status=202)["id"],
        "session": operators_session(web, operator),
    }
    for _ in range(64):  # as many records as the examples speak of
        tenant.get("/kms/keys")
    operator.post("/audit/checkpoints", status=201)
    named = operations(document)
    middle = tuple(
        name
        for name, (_, _, each) in named.items()
        if name not in (*FIRST, *LAST, *WRAPPED)
        and each["tags"] not in PEOPLE
        and each.get("security") != PEOPLE_ONLY
    )
    responses: dict[str, Any] = {}
    for name in (*FIRST, *middle, *LAST):
        path, method, operation = named[name]
        by_operator = name in OPERATOR
        if name == "delete_tenant":  # only a suspended one is deleted
            suspended = {"status": "suspended"}
            assert operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", suspended).is_success
        answer = web.request(
            method,
            path.format(**{**path_examples(operation), **ids}),
            params={
                field: tenant.tenant_id if field == "tenant_id" else example
                for field, example in query_examples(operation).items()
            },
            json=body_example(name, operation, responses),
            headers={"X-API-Key": operator.api_key if by_operator else tenant.api_key},
        )
        assert answer.is_success is (name not in {"archive_key", "delete_keyring"}), answer.text
        response = resolved(document, operation["responses"][str(answer.status_code)])
        (described,) = response["content"]
        assert answer.headers["content-type"] == described
        if name in TEXTS:
            continue
        check(document, content(response)["schema"], answer.json())
        responses[name] = answer.json().get("data")


def test_what_teams_answer(
    document: Any, new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """The responses about teams are as documented."""
    owner = new_person(new_tenant().tenant_id)
    member = new_person(owner.tenant_id, "viewer").get("/auth/me")["id"]
    fields = {"email": "grace@example.com", "role": "viewer"}
    made = owner.post_proven(f"/tenants/{owner.tenant_id}/invitations", fields, status=201)
    ids = {"change_role": member, "withdraw_invitation": made["id"]}
    named = operations(document)
    for name in ("list_members", "list_invitations", "change_role", "withdraw_invitation"):
        path, method, operation = named[name]
        filled = path.removeprefix("/api/v1").format(id=ids.get(name))
        body = {"role": "developer"} if name == "change_role" else None
        answer = owner.ask_proven(method, filled, body)
        assert answer.status_code == 200, answer.text
        check(document, content(operation["responses"]["200"])["schema"], answer.json())


def path_examples(operation: Any) -> dict[str, object]:
    return {
        each["name"]: each["example"]
        for each in operation["parameters"]
        if each.get("in") == "path" and each["name"] != "tenant_id"
    }


AFTER_WITHOUT_FILTERS = {("after", "export_audit_log"), ("after", "list_keyrings")}
"""Positions that are refused beside the examples of filters."""


def query_examples(operation: Any) -> dict[str, str]:
    return {
        each["name"]: _text(each["example"])
        for each in operation["parameters"]
        if each.get("in") == "query"
        # The keys are in the default ones, and only the operator names a tenant.
        and each["name"] not in {"keyring", "shard", "log", "tenant"}
        and (each["name"], operation["operationId"]) not in AFTER_WITHOUT_FILTERS
        and each["schema"].get("format") != "uuid"  # positions in lists of others
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def body_example(name: str, operation: Any, responses: dict[str, Any]) -> Any:
    if "requestBody" not in operation:
        return None
    (example,) = content(operation["requestBody"])["examples"].values()
    if name not in MADE_BY:
        return example["value"]
    assert example["summary"].startswith("Shortened")
    other, made = MADE_BY[name]
    return example["value"] | {made: responses[other][made]}


def test_what_a_query_must_have_it_must_have(
    web: httpx2.Client, document: Any, demo: Caller, operator: Caller
) -> None:
    """A request without the required query field is refused, and the field is named."""
    seen = 0
    for name, (path, method, operation) in operations(document).items():
        required = [
            each
            for each in operation["parameters"]
            if each.get("in") == "query" and each["required"]
        ]
        if required:
            seen += 1
            caller = operator if name in OPERATOR else demo
            answer = web.request(
                method,
                path.format(**path_examples(operation)),
                headers={"X-API-Key": caller.api_key},
            )
            field = required[0]["name"]
            status = 400 if field in {"algorithm", "text"} else 422
            assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)
    assert seen == 9
