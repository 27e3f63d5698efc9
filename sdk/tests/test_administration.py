"""Tenants and API keys, by both clients, against the real service."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import pytest

from pqkeep import (
    AuthenticationError,
    Client,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PolicyDeniedError,
    Scope,
    Tenant,
)

Connect = Callable[..., Client]
DAY = timedelta(days=1)


@pytest.fixture
def administrator(connect: Connect, service: dict[str, str]) -> Client:
    """Be the operator, with either client."""
    return connect(service["base_url"], service["operator_key"])


@pytest.fixture
def tenant(administrator: Client) -> Tenant:
    """Make a tenant without API keys."""
    return administrator.tenants.create(f"test {uuid4()}", plan="starter")


def test_created_tenant(administrator: Client, tenant: Tenant) -> None:
    """A new tenant is active, on its plan, and can be read; the operator sees more fields."""
    assert (tenant.plan, tenant.status) == ("starter", "active")
    assert str(UUID(tenant.id)) == tenant.id
    assert (tenant.tier, tenant.subscription, tenant.requests_per_minute) == (None, None, None)
    assert administrator.tenants.get(tenant.id) == tenant
    (listed,) = (listed for listed in administrator.tenants.list() if listed.id == tenant.id)
    assert (listed.name, listed.tier, listed.subscription) == (tenant.name, "starter", "active")


def test_default_plan(administrator: Client) -> None:
    """Without a plan a tenant has the free one."""
    assert administrator.tenants.create(f"test {uuid4()}").plan == "free"


def test_taken_name(administrator: Client, tenant: Tenant) -> None:
    """A name that exists raises ConflictError."""
    with pytest.raises(ConflictError) as caught:
        administrator.tenants.create(tenant.name)
    assert (caught.value.status, caught.value.error_code) == (409, "ERR_CONFLICT_001")


def test_update(administrator: Client, tenant: Tenant) -> None:
    """Only named fields change."""
    changed = administrator.tenants.update(tenant.id, tier="growth", requests_per_minute=7)
    assert (changed.plan, changed.tier, changed.requests_per_minute) == (
        "professional",
        "growth",
        7,
    )
    again = administrator.tenants.update(tenant.id, requests_per_minute="plan")
    assert (again.tier, again.requests_per_minute) == ("growth", None)
    ended = administrator.tenants.update(tenant.id, subscription="ended")
    assert (ended.tier, ended.subscription) == ("growth", "ended")
    with pytest.raises(InvalidRequestError) as caught:
        administrator.tenants.update(tenant.id, plan="starter", tier="starter")
    assert (caught.value.status, caught.value.field) == (422, "tier")


def test_suspension(administrator: Client, connect: Connect, tenant: Tenant, base_url: str) -> None:
    """A suspended tenant's requests are refused until it is resumed."""
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    assert administrator.tenants.suspend(tenant.id).status == "suspended"
    with pytest.raises(PermissionDeniedError):
        own.keys.list()
    assert administrator.tenants.resume(tenant.id).status == "active"
    assert own.keys.list() == ()


def test_deletion(administrator: Client, tenant: Tenant) -> None:
    """A suspended tenant's deletion is scheduled once, and can be cancelled."""
    with pytest.raises(ConflictError):
        administrator.tenants.delete(tenant.id)
    administrator.tenants.suspend(tenant.id)
    scheduled = administrator.tenants.delete(tenant.id, days=30)
    assert scheduled.deletion_at is not None
    assert (scheduled.deletion_at - scheduled.updated_at).days in {29, 30}
    assert administrator.tenants.delete(tenant.id).deletion_at == scheduled.deletion_at
    with pytest.raises(ConflictError):
        administrator.tenants.resume(tenant.id)
    assert administrator.tenants.cancel_deletion(tenant.id).deletion_at is None
    assert administrator.tenants.resume(tenant.id).status == "active"


def test_own_tenant(administrator: Client, connect: Connect, tenant: Tenant, base_url: str) -> None:
    """An API key sees only its own tenant."""
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    assert own.tenants.list() == (own.tenants.get(tenant.id),) == (tenant,)
    for other in (administrator.tenants.create(f"test {uuid4()}").id, "no such tenant?"):
        with pytest.raises(NotFoundError):
            own.tenants.get(other)
    for refused in ("no/such?tenant", ".."):  # an encoded slash by the service, dots by the client
        with pytest.raises(InvalidRequestError):
            own.tenants.get(refused)
    with pytest.raises(PermissionDeniedError):
        own.tenants.create("mine")


def test_api_keys(administrator: Client, connect: Connect, tenant: Tenant, base_url: str) -> None:
    """An API key works until it is revoked; revoking twice is allowed."""
    made = administrator.api_keys.create(tenant.id)
    assert (made.version, made.status) == (1, "active")
    assert made.api_key.endswith(made.key_last4)
    assert made.api_key not in repr(made)
    own = connect(base_url, made.api_key)
    asked = own.api_keys.own()
    assert (asked.tenant_id, asked.version, asked.scopes) == (tenant.id, 1, None)
    assert not asked.rotated
    (listed,) = own.api_keys.list(tenant.id)
    assert (listed.version, listed.key_last4, listed.revoked_at) == (1, made.key_last4, None)
    revoked = administrator.api_keys.revoke(tenant.id, version=1)
    assert (revoked.status, revoked.created_at) == ("revoked", made.created_at)
    assert revoked.revoked_at is not None
    with pytest.raises(AuthenticationError):
        own.keys.list()
    assert administrator.api_keys.revoke(tenant.id, version=1) == revoked
    with pytest.raises(NotFoundError):
        administrator.api_keys.revoke(tenant.id, version=2)


def test_rotated_api_key(
    administrator: Client, connect: Connect, tenant: Tenant, base_url: str
) -> None:
    """Rotation replaces the client's own API key; the old one works a little longer."""
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    rotation = own.api_keys.rotate(tenant.id)
    assert (rotation.revoked_version, rotation.new_key.version) == (1, 2)
    assert rotation.new_key.api_key not in repr(rotation)
    assert [key.status for key in administrator.api_keys.list(tenant.id)] == ["revoked", "active"]
    assert connect(base_url, rotation.new_key.api_key).keys.list() == ()
    with pytest.raises(ConflictError):
        own.api_keys.rotate(tenant.id)


def test_a_limited_api_key(
    administrator: Client, connect: Connect, tenant: Tenant, base_url: str
) -> None:
    """Name, scopes, expiry and addresses are returned, enforced, and kept by a rotation."""
    expires_at = datetime(2096, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))
    asked: dict[str, Any] = {
        "name": "worker",
        "scopes": (
            Scope(operations=("use", "rotate-api-key")),
            Scope(operations=("rotate-key",), keyrings=("payments.*",), algorithms=("Kyber768",)),
        ),
        "expires_at": expires_at,
        "allowed_addresses": ("127.0.0.0/8",),
    }
    made = administrator.api_keys.create(tenant.id, **asked)
    assert {name: getattr(made, name) for name in asked} == asked
    (listed,) = administrator.api_keys.list(tenant.id, details=True)
    assert {name: getattr(listed, name) for name in asked} == asked
    (plain,) = administrator.api_keys.list(tenant.id)
    assert (plain.name, plain.scopes, plain.expires_at, plain.allowed_addresses) == (None,) * 4
    own = connect(base_url, made.api_key)
    assert own.keys.list() == ()
    with pytest.raises(PolicyDeniedError):
        own.tenants.list()
    with pytest.raises(PolicyDeniedError) as refused:
        own.api_keys.rotate(tenant.id, scopes=[Scope()])
    assert refused.value.field == "scopes"
    rotated = own.api_keys.rotate(tenant.id, name="second").new_key
    assert (rotated.name, rotated.scopes) == ("second", None)
    assert administrator.api_keys.list(tenant.id, details=True)[1].scopes == asked["scopes"]
    with pytest.raises(ValueError, match="time zone"):
        administrator.api_keys.create(tenant.id, expires_at=datetime(2096, 1, 31))  # noqa: DTZ001


def test_filters_of_api_keys(administrator: Client, tenant: Tenant) -> None:
    """Each filter leaves out the API keys that it does not match."""
    soon = datetime.now(UTC) + timedelta(days=5)
    scopes = [Scope(operations=("encrypt",), keyrings=("payments.*",))]
    administrator.api_keys.create(tenant.id, name="checkout-eu", scopes=scopes, expires_at=soon)
    administrator.api_keys.create(tenant.id, name="mailer", scopes=[Scope(operations=("sign",))])
    administrator.api_keys.revoke(tenant.id, version=2)

    def versions(**asked: Any) -> list[int]:
        return [key.version for key in administrator.api_keys.list(tenant.id, **asked)]

    assert versions() == [1, 2]
    assert versions(status="active") == [1]
    assert versions(status="active,revoked", name="mailer") == [2]
    assert versions(name="eu checkout") == [1]
    assert versions(scope="payments.") == [1]
    assert versions(may_use="payments.cards/Kyber768") == [1]
    assert versions(may_use="default/Kyber768") == []
    assert versions(expires_before=soon + timedelta(days=1)) == [1]
    assert versions(unused_since=soon) == [1, 2]
    assert versions(used_since=soon - timedelta(days=90)) == []
    assert versions(created_since=soon) == []
    assert versions(created_before=soon) == [1, 2]


def test_no_overlap(administrator: Client, connect: Connect, tenant: Tenant, base_url: str) -> None:
    """Without an overlap, a rotated API key is refused at once."""
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    made = own.api_keys.rotate(tenant.id, overlap_seconds=0).new_key
    with pytest.raises(AuthenticationError):
        own.tenants.list()
    assert connect(base_url, made.api_key).tenants.list() == (administrator.tenants.get(tenant.id),)


def test_the_installation(administrator: Client) -> None:
    """The operator sees the installation's state and operators."""
    state = administrator.installation.get()
    assert {part.name: part.is_ready for part in state.parts}["accounts_database"]
    assert set(state.facts) == {"log", "root_key", "mail", "backups", "tenants"}
    assert state.facts["log"] is not None
    assert state.certificates == {}
    assert administrator.operators.list() == ()


def test_nobody_else_sees_the_installation(
    administrator: Client, connect: Connect, tenant: Tenant, base_url: str
) -> None:
    """A tenant's API key cannot see the installation or its operators."""
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    for look in (own.installation.get, own.operators.list):
        with pytest.raises(PermissionDeniedError):
            look()


def test_parts_of_lists(administrator: Client, connect: Connect, base_url: str) -> None:
    """A list comes in parts of limited size, each after the one before."""
    tenant = administrator.tenants.create(f"test {uuid4()}", plan="professional")
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    algorithms = ("Dilithium3", "Kyber768", "X-Wing")
    made = {algorithm: own.keys.generate(algorithm) for algorithm in algorithms}
    first = own.keys.list_page(limit=2)
    rest = own.keys.list_page(limit=2, after=first.next)
    assert [key.algorithm for key in (*first.items, *rest.items)] == list(algorithms)
    assert (len(first.items), rest.next) == (2, None)
    assert set(own.keys.list_page(status="active").items) == set(made.values())
    page = administrator.tenants.list_page(limit=1)
    assert (len(page.items), page.next is None) == (1, False)
    named = administrator.tenants.list_page(name=tenant.name)
    assert [item.id for item in named.items] == [tenant.id]


def test_workloads(administrator: Client, connect: Connect, tenant: Tenant, base_url: str) -> None:
    """Issuers and roles are put, listed and removed; an API key may list them only."""
    access = administrator.workloads
    made = access.put_issuer(
        tenant.id,
        "github",
        url="https://token.actions.githubusercontent.com",
        audience="https://pqkeep.example.com",
        algorithms=("RS256", "ES256"),
    )
    assert (made.algorithms, made.jwks) == (("RS256", "ES256"), None)
    role = access.put_role(
        tenant.id,
        "deploy",
        issuer="github",
        claims={"repository": "acme/shop", "ref": ("refs/heads/main", "refs/tags/*")},
        scopes=[Scope(operations=("sign",), keyrings=("releases",))],
        lifetime_seconds=600,
        allow_absent_keyrings=True,
    )
    assert role.claims["ref"] == ("refs/heads/main", "refs/tags/*")
    assert role.scopes == (Scope(operations=("sign",), keyrings=("releases",)),)
    assert (role.lifetime_seconds, role.valid_keys) == (600, 0)
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key).workloads
    assert own.issuers(tenant.id) == (made,)
    assert own.roles(tenant.id) == (role,)
    with pytest.raises(PermissionDeniedError):
        own.remove_role(tenant.id, "deploy")
    access.remove_role(tenant.id, "deploy")
    with pytest.raises(NotFoundError):
        access.remove_role(tenant.id, "deploy")
    access.remove_issuer(tenant.id, "github")
    assert (access.issuers(tenant.id), access.roles(tenant.id)) == ((), ())


def test_the_team(administrator: Client, connect: Connect, tenant: Tenant, base_url: str) -> None:
    """The operator invites, lists, changes and removes people; an API key may not."""
    team = administrator.team
    invited = team.invite(tenant.id, f"{tenant.id}@example.com", role="owner")
    other = team.invite(tenant.id, f"other-{tenant.id}@example.com", role="viewer")
    assert other.token is not None
    assert other.token not in repr(other)
    listed = team.invitations(tenant.id)
    assert {one.id: one.token for one in listed} == {invited.id: None, other.id: None}
    assert [one.id for one in team.invitations(tenant.id, role="viewer")] == [other.id]
    team.withdraw(tenant.id, other.id)
    with pytest.raises(NotFoundError):
        team.withdraw(tenant.id, other.id)
    accepted = administrator.requests.send(
        "POST",
        "/auth/accept-invitation",
        body={"token": invited.token, "password": "correct horse battery staple"},
    )
    (owner,) = team.members(tenant.id, email=tenant.id, role="owner,admin", has_mfa=False)
    assert (owner.id, owner.email, owner.status) == (accepted["id"], invited.email, "active")
    assert team.members(tenant.id, not_signed_in_since=datetime.now(UTC) - DAY) == ()
    for refuse in (
        lambda: team.change_role(tenant.id, owner.id, role="admin"),
        lambda: team.remove(tenant.id, owner.id),
    ):
        with pytest.raises(ConflictError):
            refuse()
    own = connect(base_url, administrator.api_keys.create(tenant.id).api_key)
    with pytest.raises(PermissionDeniedError):
        own.team.members(tenant.id)
    with pytest.raises(PermissionDeniedError):
        own.search.find("test")


def test_the_search(administrator: Client, tenant: Tenant) -> None:
    """The operator finds a tenant by name, and a record by number."""
    found = administrator.search.find(tenant.name)
    assert [(result.kind, result.id) for result in found.results] == [("tenant", tenant.id)]
    records = administrator.search.find("1").results
    assert ("record", "1") in {(result.kind, result.id) for result in records}
    assert found.unavailable == ()
