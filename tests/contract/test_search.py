"""The search finds what the caller's role shows, and nothing of another tenant."""

from __future__ import annotations

from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation


def _found(caller: Caller, text: str) -> set[tuple[str, str]]:
    found = caller.get("/search", text=text)
    assert not found["unavailable"]
    return {(result["kind"], result["name"]) for result in found["results"]}


def test_each_role_finds_what_it_may_read(installation: Installation) -> None:
    """People find keyrings and API keys by a part of the name in any case; only admins members."""
    tenant, other = installation.new_tenant(), installation.new_tenant()
    for caller, name in ((tenant, "Needle.cards"), (other, "needle.theirs")):
        caller.post("/kms/keyrings", {"name": name}, status=201)
        path = f"/tenants/{caller.tenant_id}/api-keys"
        caller.post(path, {"name": f"needle-{caller.tenant_id[:4]}"}, status=201)
    deleted = tenant.post("/kms/keyrings", {"name": "needle.deleted"}, status=201)["name"]
    owner = installation.person(tenant.tenant_id, email="needle-owner@example.com")
    assert owner.ask_proven("DELETE", f"/kms/keyrings/{deleted}").status_code == 200
    viewer = installation.person(tenant.tenant_id, "viewer")
    shown = {("keyring", "Needle.cards"), ("api-key", f"needle-{tenant.tenant_id[:4]}")}
    assert _found(viewer, "nEEDLE") == shown
    assert _found(owner, "needle") == {*shown, ("member", "needle-owner@example.com")}
    assert _found(owner, "%") == _found(owner, "needle_") == set()
    assert ("keyring", "default") in _found(viewer, "faul")
    for program in (tenant, installation.caller(None)):
        assert program.ask("GET", "/search", params={"text": "needle"}).status_code in {401, 403}
    too_long = viewer.ask("GET", "/search", params={"text": "a" * 129})
    assert refusal_of(too_long)[0] == 400


def test_records_are_found_by_number_and_by_request_id(installation: Installation) -> None:
    """A record is found by its number and by its whole request id, by tenant and operator."""
    tenant = installation.new_tenant()
    created = tenant.ask("POST", "/kms/keyrings", {"name": "found"})
    request_id = created.json()["request_id"]
    (record,) = tenant.get("/audit/records", request_id=request_id)["records"]
    name = f"record {record['id']}: create-keyring"
    mine = installation.person(tenant.tenant_id)
    theirs = installation.person(installation.new_tenant().tenant_id)
    for text in (str(record["id"]), request_id):
        assert ("record", name) in _found(mine, text)
        assert ("record", name) in _found(installation.operator(), text)
        assert ("record", name) not in _found(theirs, text)
    assert _found(mine, request_id[:-1]) == set()


def test_operators_find_tenants(installation: Installation) -> None:
    """An operator finds tenants by a part of their name, and no keyring of any tenant."""
    operator, tenant = installation.operator(), installation.new_tenant()
    tenant.post("/kms/keyrings", {"name": "no-operator-sees-it"}, status=201)
    operator.post("/tenants", {"name": "Haystack & Sons"}, status=201)
    assert _found(operator, "HAYSTACK & s") == {("tenant", "Haystack & Sons")}
    assert _found(operator, "no-operator") == set()
