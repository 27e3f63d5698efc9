"""The audit log over HTTP: each tenant's own records, and proofs that anyone can verify."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

from pqkeep.audit import verify

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]
KYBER, DILITHIUM = {"algorithm": "Kyber768"}, {"algorithm": "Dilithium3"}
FIELDS = {
    *("algorithm", "event_id", "format", "happened_at", "id", "key_version", "nonce", "number"),
    *("operation", "outcome", "policy", "principal", "recorded_at", "request_id"),
    *("source_address", "tenant_id", "keyring", "keyring_revision", "public_key_sha256", "target"),
    *("rule", "campaign"),
}
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
NOT_FOUND = "ERR_NOT_FOUND_001"
UNPROCESSABLE = "ERR_INVALID_001"
NO_REFUSALS = {
    *("success", "begun", "handed-out", "completed", "cancelled", "verification-failed"),
}


def leaf(record: dict[str, Any]) -> bytes:
    """Return a record's leaf, from the API's record."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(b"\x00" + text.encode()).digest()


def node(left: bytes, right: bytes) -> bytes:
    """Return the hash of two neighbours."""
    return sha256(b"\x01" + left + right).digest()


def climbed(root: bytes, number: int, last: int, path: list[bytes]) -> bytes:
    """Return the root of an inclusion proof (RFC 9162, section 2.1.3.2)."""
    for step in path:
        if number & 1 or number == last:
            root = node(step, root)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            root = node(root, step)
        number, last = number >> 1, last >> 1
    assert last == 0
    return root


def joined(first: int, second: int, root: bytes, path: list[bytes]) -> tuple[bytes, bytes]:
    """Return the two roots of a consistency proof (RFC 9162, section 2.1.4.2)."""
    path = [root, *path] if first & (first - 1) == 0 else path
    number, last = first - 1, second - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old = new = path[0]
    for step in path[1:]:
        if number & 1 or number == last:
            old, new = node(step, old), node(step, new)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new = node(new, step)
        number, last = number >> 1, last >> 1
    assert last == 0
    return old, new


def decoded(path: list[str]) -> list[bytes]:
    """Decode a proof."""
    return [b64decode(step, validate=True) for step in path]


def sign(operator: Caller) -> dict[str, Any]:
    """Have the key service sign a checkpoint of all records."""
    return operator.post("/audit/checkpoints", status=201)


def records(caller: Caller, **query: object) -> list[dict[str, Any]]:
    """Return the records of one page."""
    found: list[dict[str, Any]] = caller.get("/audit/records", limit=500, **query)["records"]
    return found


@pytest.fixture(scope="module")
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with some operations. This module adds no later operations."""
    made = new_tenant()
    made.post("/kms/keys/generate", KYBER, status=201)
    made.post("/kms/keys/generate", DILITHIUM, status=201)
    made.post("/kms/keys/rotate", KYBER, status=201)
    for _ in range(5):
        made.post("/kem/encrypt", {"plaintext": "QUJD"})
        made.post("/signature/sign", {"message": "QUJD"})
    made.ask("GET", "/kms/keys/9", params=KYBER, headers={"X-Request-ID": "looked-in-vain"})
    return made


def test_a_record_says_what_was_done(tenant: Caller) -> None:
    """Each record has the documented fields. The records are in order, and all of the tenant."""
    own = records(tenant)
    assert [record["number"] for record in own] == list(range(1, len(own) + 1))
    for record in own:
        assert record.keys() == FIELDS
        assert record["tenant_id"] == tenant.tenant_id
        assert INSTANT.fullmatch(record["recorded_at"])
        assert re.fullmatch("[0-9a-f]{32}", record["nonce"])
    assert all(a["id"] < b["id"] for a, b in pairwise(own))
    assert all(a["recorded_at"] <= b["recorded_at"] for a, b in pairwise(own))
    by_operation = [record["operation"] for record in own]
    assert by_operation[:2] == ["create-tenant", "create-api-key"]
    assert by_operation[2:5] == ["generate-key", "generate-key", "rotate-key"]
    assert by_operation[5:-1] == ["encrypt", "sign"] * 5
    vain = own[-1]
    assert (vain["request_id"], vain["operation"]) == ("looked-in-vain", "get-key")
    assert (vain["outcome"], vain["key_version"]) == ("key-not-found", 9)
    assert (vain["principal"], vain["source_address"]) == ("api-key:1", "127.0.0.1")
    assert tenant.get("/audit/records", request_id="looked-in-vain")["records"] == [vain]


def test_a_tenant_sees_its_own_and_the_operator_all(
    operator: Caller, tenant: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """No filter shows another tenant's records to a tenant; the operator sees both."""
    other = new_tenant()
    theirs = {record["id"] for record in records(other)}
    own = {record["id"] for record in records(tenant)}
    assert not own & theirs
    everything = {record["id"] for record in records(operator, order="desc")}
    assert theirs <= everything
    assert {r["tenant_id"] for r in records(other, after=0)} == {other.tenant_id}


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"operation": "encrypt"}, 5),
        ({"algorithm": "Dilithium3"}, 6),
        ({"key_version": 2}, 6),
        ({"outcome": "key-not-found"}, 1),
        ({"operation": "sign", "key_version": 1, "outcome": "success"}, 5),
        ({"operation": "sign", "algorithm": "Kyber768"}, 0),
        ({"from": "2020-01-01T00:00:00Z", "operation": "sign"}, 5),
        ({"to": "2020-01-01T00:00:00Z"}, 0),
        ({"from": "2999-01-01T00:00:00+02:00"}, 0),
    ],
)
def test_filters(query: dict[str, object], count: int, tenant: Caller) -> None:
    """Each filter, and combinations, find the right records."""
    assert len(records(tenant, **query)) == count


def test_refusals_are_one_filter(new_tenant: Callable[..., Caller]) -> None:
    """One filter value finds exactly the refusals, of the key service and of the gateway."""
    tenant = new_tenant()
    tenant.refusal("/kem/encrypt", {"plaintext": "QUJD", "algorithm": "X-Wing"})
    tenant.refusal("/kms/keys/archive", {**KYBER, "key_version": 1, "delay_days": 7})
    refused = records(tenant, outcome="refused")
    everything = records(tenant)
    assert {each["outcome"] for each in refused} >= {"key-not-found", "ERR_KMS_020"}
    assert refused == [each for each in everything if each["outcome"] not in NO_REFUSALS]


def test_records_are_found_by_what_people_call_a_principal(
    installation: Installation, new_tenant: Callable[..., Caller], operator: Caller
) -> None:
    """A principal is found by e-mail address, by API key name, and by the operator's tenant filter."""
    tenant = new_tenant()
    email = f"{uuid4()}@example.com"
    person = installation.person(tenant.tenant_id, email=email)
    person.get("/kms/keys")
    (me,) = {each["principal"] for each in records(tenant, principal=email.upper())}
    assert me == f"user:{person.get('/auth/me')['id']}"
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    made = tenant.post(path, {"name": "billing-run"}, status=201)
    program = installation.caller(made["api_key"], tenant.tenant_id)
    program.get("/kms/keys")
    named = {each["principal"] for each in records(tenant, principal="billing-run")}
    assert named == {f"api-key:{made['version']}/billing-run"}
    for name in (tenant.tenant_id, operator.get(path.removesuffix("/api-keys"))["name"]):
        found = records(operator, tenant=name, principal=email)
        assert {each["tenant_id"] for each in found} == {tenant.tenant_id}
        assert {each["principal"] for each in found} == {me}


def test_nobody_learns_of_others_by_a_filter(
    installation: Installation, new_tenant: Callable[..., Caller]
) -> None:
    """Another tenant's member is treated as unknown. Only the operator can name a tenant."""
    tenant, stranger = new_tenant(), new_tenant()
    email = f"{uuid4()}@example.com"
    installation.person(stranger.tenant_id, email=email)
    unknown = {"principal": f"{uuid4()}@example.com"}
    responses = [
        tenant.ask("GET", "/audit/records", params=each) for each in ({"principal": email}, unknown)
    ]
    assert [each.status_code for each in responses] == [404, 404]
    assert responses[0].json()["error"] == responses[1].json()["error"]
    own = tenant.ask("GET", "/audit/records", params={"tenant": tenant.tenant_id})
    assert own.status_code == HTTPStatus.FORBIDDEN


def test_a_tenant_that_is_not_there_has_no_records(operator: Caller) -> None:
    """The id or name of no tenant, and the installation's own id, are 404."""
    for name in (str(uuid4()), "no such tenant", str(UUID(int=0)), "0"):
        response = operator.ask("GET", "/audit/records", params={"tenant": name})
        assert (response.status_code, response.json()["error"]["field"]) == (404, "tenant")


def test_records_are_found_by_source_address(new_tenant: Callable[..., Caller]) -> None:
    """An address in any spelling finds its records; another finds nothing."""
    tenant = new_tenant()
    tenant.get("/kms/keys")
    everything = records(tenant)
    (address,) = {each["source_address"] for each in everything} - {""}
    found = records(tenant, source_address=address)
    assert found == [each for each in everything if each["source_address"] == address]
    assert records(tenant, source_address="2001:DB8:0::1") == []


def test_page_views_can_be_left_out(
    new_tenant: Callable[..., Caller], new_person: Callable[..., Caller]
) -> None:
    """Successful portal reads of lists can be left out; programs, refusals and other uses stay."""
    tenant = new_tenant()
    person = new_person(tenant.tenant_id, "viewer")
    for caller in (tenant, person):
        caller.get("/kms/keys")
        caller.get("/kms/keyrings")
        caller.get("/rules/algorithms")
    assert person.refusal("/kms/keyrings", {"name": "x"})[0] == 403
    assert person.ask("GET", "/kms/keys?keyring=none").status_code == 404
    everything = records(tenant)
    views = [
        each
        for each in everything
        if each["principal"].startswith("user:")
        and each["outcome"] == "success"
        and each["operation"] in {"list-keys", "list-keyrings", "list-rules"}
    ]
    assert len(views) == 3
    assert records(tenant, page_views=False) == [each for each in everything if each not in views]


def test_times_are_exact_to_the_microsecond(tenant: Caller) -> None:
    """The results from a record's exact time have the record. The results until it do not."""
    for record in records(tenant):
        at = record["recorded_at"]
        after = datetime.fromisoformat(at) + timedelta(microseconds=1)
        found = records(tenant, **{"from": at, "to": after.isoformat()})
        assert record in found
        assert {each["recorded_at"] for each in found} == {at}


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_together_are_the_log(order: str, limit: int, tenant: Caller) -> None:
    """Following next, in either order, gives every record once."""
    everything = records(tenant, order=order)
    bound = "after" if order == "asc" else "before"
    got: list[dict[str, Any]] = []
    query: dict[str, object] = {"order": order, "limit": limit}
    for _ in range(len(everything) + 1):
        page = tenant.get("/audit/records", **query)
        got += page["records"]
        if page["next"] is None:
            break
        query[bound] = page["next"]
    assert got == everything


BAD = [
    *(("/audit/records", name, value) for name in ("after", "before") for value in ("-1", "x", "")),
    *(("/audit/records", "limit", value) for value in ("0", "501", "1.5", "\u0661")),
    *(("/audit/records", "order", value) for value in ("", "ASC", "up")),
    *(
        ("/audit/records", n, v)
        for n in ("from", "to")
        for v in ("", "x", "2026-01-31", "1969-12-31T23:59:59Z")
    ),
    *(("/audit/records", name, "x" * 33) for name in ("operation", "outcome")),
    ("/audit/records", "operation", ""),
    ("/audit/records", "algorithm", "kyber768"),
    *(("/audit/records", "key_version", value) for value in ("0", "x", "2147483648")),
    ("/audit/records", "after", str(2**53)),
    *(("/audit/checkpoints", "limit", value) for value in ("0", "101")),
    ("/audit/checkpoints", "after", "x"),
    ("/audit/checkpoints", "algorithm", "RSA"),
    *(("/audit/consistency", name, "x") for name in ("first", "second")),
    ("/audit/records/x/proof", "id", None),
    ("/audit/records/0/proof", "id", None),
]


@pytest.mark.parametrize(("path", "name", "value"), BAD)
def test_bad_values_are_named(
    path: str, name: str, value: str | None, tenant: Caller, operator: Caller, refused: Refused
) -> None:
    """An invalid value is 422 and names its field."""
    sign(operator)
    sizes = {"first": "1", "second": "2"} if path.endswith("consistency") else {}
    query = sizes if value is None else {**sizes, name: value}
    response = tenant.ask("GET", path, params=query)
    assert refused(response) == (422, UNPROCESSABLE, name)


@pytest.mark.parametrize("missing", ["first", "second"])
def test_consistency_needs_two_sizes(missing: str, tenant: Caller, refused: Refused) -> None:
    """A missing size is named."""
    query = {name: 1 for name in ("first", "second") if name != missing}
    response = tenant.ask("GET", "/audit/consistency", params=query)
    assert refused(response) == (422, UNPROCESSABLE, missing)


def test_a_proof_leads_to_a_signed_root(operator: Caller, tenant: Caller) -> None:
    """For each record of the tenant, proof, root, signature and public key fit together."""
    sign(operator)
    listed = tenant.get("/audit/keys")
    for record in records(tenant):
        proof = tenant.get(f"/audit/records/{record['id']}/proof")
        checkpoint = proof["checkpoint"]
        assert proof["record"] == record
        assert (proof["leaf_index"], proof["size"]) == (record["id"] - 1, checkpoint["size"])
        path = decoded(proof["path"])
        root = climbed(leaf(record), proof["leaf_index"], proof["size"] - 1, path)
        assert b64encode(root).decode() == checkpoint["root"]
    assert checkpoint["log_id"] == listed["log_id"]
    (key,) = (
        key
        for key in listed["keys"]
        if (key["algorithm"], key["key_version"]) == ("Dilithium3", checkpoint["key_version"])
    )
    lines = (
        "pqkeep/v1/audit-checkpoint",
        *(str(checkpoint[n]) for n in ("log_id", "size", "root", "at")),
    )
    MLDSA65PublicKey.from_public_bytes(b64decode(key["public_key"])).verify(
        b64decode(checkpoint["signature"]),
        "".join(f"{line}\n" for line in lines).encode(),
        b"pqkeep/v1/audit-checkpoint",
    )


def test_a_record_of_another_s_is_not_there(
    operator: Caller, tenant: Caller, new_tenant: Callable[..., Caller], refused: Refused
) -> None:
    """Another tenant's record is not found.

    A record that is not yet in the log is not found either.
    """
    other = new_tenant()
    size = sign(operator)["size"]
    theirs = records(other)[0]["id"]
    for number in (theirs, size + 1_000_000):
        response = tenant.ask("GET", f"/audit/records/{number}/proof")
        assert refused(response)[:2] == (404, NOT_FOUND)
    assert operator.get(f"/audit/records/{theirs}/proof")["record"]["id"] == theirs


def test_two_sizes_are_consistent(operator: Caller, tenant: Caller) -> None:
    """A consistency proof shows that an earlier checkpoint's log is a prefix of a later one's."""
    signed = []
    for _ in range(4):
        signed.append(sign(operator))
        tenant.ask("GET", "/kms/keys")
    for first, second in ((a, b) for a in signed for b in signed if a["size"] < b["size"]):
        sizes = {"first": first["size"], "second": second["size"]}
        proof = tenant.get("/audit/consistency", **sizes)
        assert {name: proof[name] for name in sizes} == sizes
        old = b64decode(first["root"])
        shown = joined(first["size"], second["size"], old, decoded(proof["path"]))
        assert shown == (old, b64decode(second["root"]))


def test_no_consistency_with_the_future(operator: Caller, tenant: Caller, refused: Refused) -> None:
    """Sizes in the wrong order, and sizes beyond the log, are not found."""
    size = sign(operator)["size"]
    for first, second in ((2, 1), (1, size + 1_000_000)):
        query = {"first": first, "second": second}
        assert refused(tenant.ask("GET", "/audit/consistency", params=query))[:2] == (
            404,
            NOT_FOUND,
        )


def test_checkpoints_are_listed(operator: Caller, tenant: Caller) -> None:
    """Checkpoints after a size come in order, and are the same for all callers."""
    made = []
    for _ in range(3):
        made.append(sign(operator))
        tenant.ask("GET", "/kms/keys")
    roots = {(each["size"], each["root"]) for each in made}  # the service signs by itself, too
    query = {"after": made[0]["size"] - 1, "algorithm": "Dilithium3"}
    listed = tenant.get("/audit/checkpoints", **query)["checkpoints"]
    assert roots <= {(each["size"], each["root"]) for each in listed}
    sizes = [each["size"] for each in listed]
    assert sizes == sorted(set(sizes))
    assert tenant.get("/audit/checkpoints", **query, limit=1)["checkpoints"] == listed[:1]
    (newest,) = operator.get("/audit/checkpoints", algorithm="Dilithium3")["checkpoints"]
    assert newest["size"] >= made[-1]["size"]


@pytest.mark.parametrize("algorithm", ["Kyber768", "SLH-DSA-SHA2-128f", 1, None, []])
def test_only_two_algorithms_sign(algorithm: object, operator: Caller) -> None:
    """Other algorithm names are refused; null means the default."""
    response = operator.ask("POST", "/audit/checkpoints", {"algorithm": algorithm})
    if algorithm is None:
        assert response.status_code == 201
    else:
        assert (response.status_code, response.json()["error"]["field"]) == (422, "algorithm")


def exported(caller: Caller) -> list[dict[str, Any]]:
    """Return the lines of an export."""
    response = caller.ask("GET", "/audit/export")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/jsonl"
    assert re.fullmatch(
        r'attachment; filename="pqkeep-audit-\d+\.jsonl"', response.headers["content-disposition"]
    )
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize("who", ["operator", "tenant"])
def test_an_export_is_whole_and_proves_itself(who: str, operator: Caller, tenant: Caller) -> None:
    """An export has header, keys, checkpoint, all records with proofs in order, and a correct end line."""
    caller = {"operator": operator, "tenant": tenant}[who]
    sign(operator)
    head, *middle, end = exported(caller)
    assert (head["type"], head["format"]) == ("export", "pqkeep/v1/audit-export")
    assert head["tenant_id"] == (tenant.tenant_id if who == "tenant" else None)
    keys = [line for line in middle if line["type"] == "key"]
    (checkpoint,) = (line for line in middle if line["type"] == "checkpoint")
    lines = [line for line in middle if line["type"] == "record"]
    assert len(keys) + 1 + len(lines) == len(middle)
    assert {key.pop("type") for key in keys} == {"key"}
    assert keys == caller.get("/audit/keys")["keys"]
    assert end == {"type": "end", "records": len(lines)}
    assert head["size"] == checkpoint["size"]
    root = b64decode(checkpoint["root"])
    ids = [line["record"]["id"] for line in lines]
    assert ids == sorted(set(ids))
    if who == "operator":
        assert ids == list(range(1, head["size"] + 1))
    else:
        assert [r["number"] for r in (line["record"] for line in lines)] == list(
            range(1, len(lines) + 1)
        )
    for line in lines[:: max(1, len(lines) // 300)]:
        index, size = line["record"]["id"] - 1, checkpoint["size"]
        assert climbed(leaf(line["record"]), index, size - 1, decoded(line["proof"])) == root


def test_the_whole_log_without_proofs(
    operator: Caller, tenant: Caller, refused: Refused, tmp_path: Path
) -> None:
    """The operator gets the whole log without proofs from any record on, also gzipped; it verifies."""
    sign(operator)
    keys = tmp_path / "keys.json"
    keys.write_bytes(operator.ask("GET", "/audit/keys").content)
    for after, encoding in ((0, "gzip"), (0, "gzip;q=0, identity"), (7, "identity")):
        response = operator.ask(
            "GET",
            "/audit/export",
            params={"after": after},
            headers={"Accept-Encoding": encoding},
        )
        assert response.status_code == 200
        assert response.headers["vary"] == "accept-encoding"
        assert response.headers.get("content-encoding") == ("gzip" if encoding == "gzip" else None)
        head, *middle, end = map(json.loads, response.text.splitlines())
        assert (head["format"], head["after"]) == ("pqkeep/v2/audit-export", after)
        lines = [line for line in middle if line["type"] == "record"]
        assert {tuple(line) for line in lines} == {("type", "record")}
        ids = [line["record"]["id"] for line in lines]
        assert ids == list(range(after + 1, head["size"] + 1))
        assert end == {"type": "end", "records": len(ids)}
        file = tmp_path / "export.jsonl"
        file.write_bytes(response.content)
        assert verify([file], keys).findings == ()
    response = tenant.ask("GET", "/audit/export", params={"after": 0})
    assert refused(response)[0] == 403
    response = operator.ask("GET", "/audit/export", params={"after": 2**40})
    assert refused(response)[::2] == (404, "after")
    for wrong in (-1, "x"):
        response = operator.ask("GET", "/audit/export", params={"after": wrong})
        assert refused(response) == (422, UNPROCESSABLE, "after")


def test_evidence_of_a_query(
    operator: Caller, tenant: Caller, refused: Refused, tmp_path: Path
) -> None:
    """A filtered export has all matching records and verifies offline.

    A missing record is detected.
    """
    sign(operator)
    keys, file = tmp_path / "keys.json", tmp_path / "evidence.jsonl"
    keys.write_bytes(operator.ask("GET", "/audit/keys").content)
    filters: dict[str, Any]
    for caller, filters in (
        (tenant, {"operation": "generate-key, list-keys"}),
        (tenant, {"source_address": "127.0.0.0/8", "page_views": "false"}),
        (tenant, {"outcome": "refused"}),
        (operator, {"tenant": tenant.tenant_id, "operation": "encrypt,generate-key"}),
        (operator, {"principal": "operator"}),
    ):
        response = caller.ask("GET", "/audit/export", params=filters)
        assert response.status_code == 200
        file.write_bytes(response.content)
        report = verify([file], keys)
        assert report.findings == ()
        lines = response.text.splitlines()
        found = [
            json.loads(line)["record"] for line in lines if line.startswith('{"type":"record"')
        ]
        page = caller.get("/audit/records", limit=500, **filters)
        of_tree = [record for record in page["records"] if record["id"] <= report.portions[0].size]
        assert found == of_tree
        for line in [line for line in lines if line.startswith('{"type":"record"')][:2]:
            file.write_text("\n".join(one for one in lines if one != line))
            kinds = {(str(one.kind), one.record) for one in verify([file], keys).findings}
            assert ("missing", json.loads(line)["record"]["id"]) in kinds
    assert found
    response = tenant.ask("GET", "/audit/export", params={"tenant": str(uuid4())})
    assert refused(response)[0] == 403
    response = operator.ask("GET", "/audit/export", params={"after": 0, "outcome": "refused"})
    assert refused(response) == (400, UNPROCESSABLE, "after")
    for name, wrong in (
        ("operation", "encrypt,"),
        ("operation", ",".join(map(str, range(65)))),
        ("source_address", "10.0.0.0/33"),
        ("source_address", "here/8"),
    ):
        response = tenant.ask("GET", "/audit/export", params={name: wrong})
        assert refused(response) == (422, UNPROCESSABLE, name)


def test_usage_counts_uses(new_tenant: Callable[..., Caller], refused: Refused) -> None:
    """Uses of a version are counted with the time of the last; reading the key is not a use."""
    tenant = new_tenant()
    tenant.post("/kms/keys/generate", KYBER, status=201)
    path = "/kms/keys/1/usage"
    nothing = {"key_version": 1, **KYBER, "uses": 0, "last_used_at": None}
    assert tenant.get(path, **KYBER) == tenant.get(path, **KYBER) == nothing
    started = datetime.now(UTC)
    for _ in range(3):
        tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    told = tenant.get(path, **KYBER)
    assert told["uses"] == 3
    assert started <= datetime.fromisoformat(told["last_used_at"]) <= datetime.now(UTC)
    assert tenant.get("/kms/keys/usage") == {"usage": [told], "total": 1}
    tenant.post("/kms/keys/rotate", KYBER, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    first = tenant.get("/kms/keys/usage", limit=1)
    assert first == {"usage": [told], "total": 2, "next": "Kyber768:1"}
    second = tenant.get("/kms/keys/usage", after=first["next"])
    assert (second["usage"][0]["uses"], second["total"]) == (1, 2)
    assert tenant.get("/kms/keys/usage", algorithm="X-Wing") == {"usage": [], "total": 0}
    response = tenant.ask("GET", "/kms/keys/3/usage", params=KYBER)
    assert refused(response)[:2] == (404, NOT_FOUND)


def test_refusals_are_recorded(
    operator: Caller, new_tenant: Callable[..., Caller], anonymous: Caller
) -> None:
    """Refusals by policy, suspension or kind of caller are recorded once; 401 and 404 are not."""
    tenant = new_tenant("free")
    before = len(records(tenant))
    newest = records(operator, order="desc")[0]["id"]
    marked = {"headers": {"X-Request-ID": f"marked-{tenant.tenant_id}"}}
    tenant.ask("POST", "/kem/encrypt", {"plaintext": "QUJD", "algorithm": "X-Wing"}, **marked)
    tenant.ask("POST", "/kem/wrap", {"symmetric_key": "QUJD", "algorithm": "X-Wing"}, **marked)
    tenant.ask("POST", "/kms/keys/archive", {**KYBER, "key_version": 1}, **marked)
    tenant.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"plan": "free"}, **marked)
    tenant.ask("POST", "/audit/checkpoints", {}, **marked)
    tenant.ask("GET", "/nowhere", **marked)
    tenant.ask("GET", "/audit/records/1/proof", **marked)
    anonymous.ask("POST", "/kem/encrypt", {"plaintext": "QUJD"}, **marked)
    operator.ask("POST", "/kem/encrypt", {"plaintext": "QUJD"}, **marked)
    operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": "suspended"})
    tenant.ask("GET", "/kms/keys", **marked)
    operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": "active"})
    said = [(r["operation"], r["outcome"], r["algorithm"]) for r in records(tenant)[before:]]
    assert said == [
        ("encrypt", "ERR_POLICY_001", "X-Wing"),
        ("wrap", "ERR_POLICY_001", "X-Wing"),  # by whichever path
        ("archive-key", "ERR_KMS_020", None),  # whose body is not read
        ("change-tenant", "ERR_FORBIDDEN_001", None),
        ("sign-audit-checkpoint", "ERR_FORBIDDEN_001", None),
        ("suspend-tenant", "success", None),
        ("list-keys", "ERR_FORBIDDEN_001", None),
        ("resume-tenant", "success", None),
    ]
    assert records(tenant)[before]["policy"]
    for record in records(tenant)[before:]:
        assert record["event_id"]
        assert INSTANT.fullmatch(record["happened_at"])
    of_nobody = [
        record
        for record in records(operator, after=newest)
        if record["request_id"] == f"marked-{tenant.tenant_id}"
        and record["tenant_id"] != tenant.tenant_id
    ]
    assert [(r["operation"], r["principal"], r["outcome"]) for r in of_nobody] == [
        ("encrypt", "operator", "ERR_FORBIDDEN_001")
    ]


def test_a_reached_quota_is_recorded_once(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """A refusal by the key quota is recorded once, by the key service."""
    tenant = new_tenant()
    for algorithm in ("X-Wing", "Dilithium3"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"plan": "free"})
    before = len(records(tenant))
    for _ in range(3):
        assert tenant.ask("POST", "/kms/keys/generate", KYBER).status_code == 403
    said = [(r["operation"], r["outcome"], r["event_id"]) for r in records(tenant)[before:]]
    assert said == [("generate-key", "key-quota-reached", None)] * 3


def test_too_many_requests_leave_no_record(
    operator: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """Requests over the rate limit are not recorded, because they could fill the log."""
    tenant = new_tenant("free")
    operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"requests_per_minute": 2})
    newest = records(operator, order="desc")[0]["id"]
    statuses = [tenant.ask("GET", "/kms/keys").status_code for _ in range(20)]
    assert statuses == [200] * 2 + [429] * 18
    left = [r for r in records(operator, after=newest) if r["tenant_id"] == tenant.tenant_id]
    assert [(r["operation"], r["outcome"]) for r in left] == [("list-keys", "success")] * 2
