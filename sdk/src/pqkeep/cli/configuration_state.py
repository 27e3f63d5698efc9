"""The configuration that a service has, in the form of configuration files."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pqkeep.algorithms import canonical
from pqkeep.cli.configuration_schema import (
    EVERYTHING,
    PLAN_RATE,
    Values,
    canonical_json,
    folded,
    instant,
    network,
)
from pqkeep.cli.secret_stores import Owner
from pqkeep.errors import MalformedResponseError, PermissionDeniedError

if TYPE_CHECKING:
    from pqkeep.client import Client

T = TypeVar("T")

_MOST_PAGES = 10_000
_PAGE = 100
_GONE = frozenset({"deleted"})
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(slots=True)
class Present:
    """An entry that the service has."""

    values: Values
    id: str = ""
    """The identifier for changing or removing it."""
    is_invitation: bool = False
    version: int = 0
    """The version of an API key. 0 for other entries."""
    last4: str = ""
    is_unused: bool = False


@dataclass(slots=True)
class TenantState:
    """A tenant that the service has."""

    owner: Owner
    values: Values
    is_deleting: bool
    sections: dict[str, dict[str, Present]] = field(default_factory=dict)
    """The lists that were read, by identity."""
    named_keys: Sequence[tuple[str, int]] = ()
    """The names and versions of all API keys, including revoked API keys."""


def member(data: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a member of a response. Raises MalformedResponseError."""
    value = data.get(name)
    if type(value) is not kind:
        raise MalformedResponseError("a field of the response has another form", field=name)
    return value


def _optional(data: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    return None if data.get(name) is None else member(data, name, kind)


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    values = member(data, name, list)
    if not all(isinstance(value, str) for value in values):
        raise MalformedResponseError("a field of the response has another form", field=name)
    return values


def _objects(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    values = member(data, name, list)
    if not all(isinstance(value, dict) for value in values):
        raise MalformedResponseError("a field of the response has another form", field=name)
    return values


def listed(
    client: "Client", path: str, name: str, **query: str | int | None
) -> Iterator[Mapping[str, Any]]:
    """Yield the members of a list, page by page. Raises MalformedResponseError if it never ends."""
    after: str | int | None = None
    for _ in range(_MOST_PAGES):
        page = client.requests.send("GET", path, query={**query, "after": after})
        yield from _objects(page, name)
        place = page.get("next")
        if place is None:
            return
        if not isinstance(place, str | int) or place == after:
            break
        after = place
    raise MalformedResponseError("the pages of the list do not end", field="next")


def tenants(client: "Client") -> dict[str, TenantState]:
    """Return the tenants that a credential can see, by folded name, without their lists."""
    found: dict[str, TenantState] = {}
    for data in listed(client, "/tenants", "tenants", limit=_PAGE):
        status = member(data, "status", str)
        if status in _GONE:
            continue
        name, identifier = member(data, "name", str), member(data, "id", str)
        if not _UUID.fullmatch(identifier):
            raise MalformedResponseError("a field of the response has another form", field="id")
        rate = _optional(data, "requests_per_minute", int)
        found[folded(name)] = TenantState(
            owner=Owner(identifier, name),
            values={
                "plan": member(data, "plan", str),
                "requests_per_minute": PLAN_RATE if rate is None else rate,
                "status": status,
            },
            is_deleting=status == "deleting" or data.get("deletion_at") is not None,
        )
    return found


def path_of(tenant: str, *parts: str) -> str:
    """Return a path below a tenant."""
    return "/".join(["/tenants", quote(tenant, safe=""), *(quote(part, safe="") for part in parts)])


def api_key_identity(values: Values) -> str:
    """Return what two API keys have in common if one can stand for the other: name and limits."""
    limits = [values.get(name) for name in ("name", "scopes", "expires_at", "allowed_addresses")]
    return json.dumps(limits, sort_keys=True)


def read_api_keys(client: "Client", tenant: TenantState, now: str) -> None:
    """Read the active API keys: by identity, the newest of each, and the others by version."""
    data = client.requests.send(
        "GET", path_of(tenant.owner.id, "api-keys"), query={"details": "true"}
    )
    keys = _objects(data, "api_keys")
    tenant.named_keys = [
        (_optional(key, "name", str) or "", member(key, "version", int)) for key in keys
    ]
    section = tenant.sections["api_keys"] = {}
    for key in sorted(keys, key=lambda key: -member(key, "version", int)):
        expires = _optional(key, "expires_at", str)
        if (
            member(key, "status", str) != "active"
            or key.get("overlap_ends_at") is not None
            or (expires is not None and instant(_seconds(expires)) <= now)
        ):
            continue
        present = _api_key(key)
        identity = api_key_identity(present.values)
        section[identity if identity not in section else f"{identity} {present.version}"] = present


def _seconds(time: str) -> str:
    """Return a time without its fraction of a second."""
    return f"{time[:19]}Z" if time.endswith("Z") else time


def _api_key(data: Mapping[str, Any]) -> Present:
    version = member(data, "version", int)
    scopes = data.get("scopes")
    values: Values = {
        "name": _optional(data, "name", str),
        "scopes": EVERYTHING if scopes is None else _scopes(data),
    }
    expires = _optional(data, "expires_at", str)
    if expires is not None:
        values["expires_at"] = instant(_seconds(expires))
    if data.get("allowed_addresses") is not None:
        values["allowed_addresses"] = sorted(map(network, _texts(data, "allowed_addresses")))
    return Present(
        values,
        id=str(version),
        version=version,
        last4=member(data, "key_last4", str),
        is_unused=data.get("last_used_at") is None,
    )


def _scopes(data: Mapping[str, Any]) -> list[Values]:
    scopes: list[Values] = []
    for scope in _objects(data, "scopes"):
        values: Values = {}
        for name in ("operations", "keyrings", "algorithms"):
            if scope.get(name) is not None:
                texts = _texts(scope, name)
                values[name] = list(map(canonical, texts)) if name == "algorithms" else texts
        scopes.append(values)
    return scopes


def read_workloads(client: "Client", tenant: TenantState) -> None:
    """Read issuers and roles of workloads."""
    data = client.requests.send("GET", path_of(tenant.owner.id, "workloads"))
    issuers = tenant.sections["workload_issuers"] = {}
    for issuer in _objects(data, "issuers"):
        name = member(issuer, "name", str)
        values: Values = {
            "name": name,
            "url": member(issuer, "issuer", str),
            "audience": member(issuer, "audience", str),
            "algorithms": _texts(issuer, "algorithms"),
        }
        jwks = _optional(issuer, "jwks", str)
        if jwks is not None:
            values["jwks"] = canonical_json(jwks)
        issuers[name] = Present(values, id=name)
    roles = tenant.sections["workload_roles"] = {}
    for role in _objects(data, "roles"):
        name = member(role, "name", str)
        claims = member(role, "claims", dict)
        values = {
            "name": name,
            "issuer": member(role, "issuer", str),
            "claims": {claim: _texts(claims, claim) for claim in sorted(claims)},
            "scopes": _scopes(role),
            "lifetime_seconds": member(role, "lifetime_seconds", int),
        }
        roles[name] = Present(values, id=name)


def read_members(client: "Client", tenant: TenantState) -> None:
    """Read members, and people with a valid invitation."""
    section = tenant.sections["members"] = {}
    for kind in ("members", "invitations"):
        people = listed(client, f"/team/{kind}", kind, tenant_id=tenant.owner.id, limit=_PAGE)
        for person in people:
            email = member(person, "email", str)
            values = {"email": email.lower(), "role": member(person, "role", str)}
            section.setdefault(
                values["email"],
                Present(values, member(person, "id", str), is_invitation=kind == "invitations"),
            )


def left_to_people(client: "Client", tenant: TenantState, scopes: Any) -> str:
    """Return a note about rules and webhooks that the client can read; empty without any.

    No API key and no operator may change them. ``client`` has the tenant's API key with these scopes.
    """
    found = []
    with suppress(PermissionDeniedError):
        if rules := len(client.rules.list().rules):
            found.append(f"{rules} {'rule' if rules == 1 else 'rules'}")
    if scopes == EVERYTHING or any(
        set(scope) == {"operations"} and not _READS_WEBHOOKS.isdisjoint(scope["operations"])
        for scope in scopes
    ):
        with suppress(PermissionDeniedError):
            if webhooks := len(client.webhooks.list()):
                found.append(f"{webhooks} {'webhook' if webhooks == 1 else 'webhooks'}")
    if not found:
        return ""
    return (
        f"{' and '.join(found)} of {tenant.owner.name} cannot be in a file: owners and admins change"
        " them in the portal"
    )


_READS_WEBHOOKS = frozenset({"*", "administer", "list-webhooks"})
_KEYRING_FLAGS = ("deletion_allowed", "retired_public_keys_allowed", "derived")
_KEYRING_NUMBERS = ("minimum_decryption_version", "minimum_encryption_version", "first_version")


def read_keyrings(client: "Client", tenant: TenantState) -> None:
    """Read keyrings with the algorithms of their keys. ``client`` has a credential of the tenant."""
    section = tenant.sections["keyrings"] = {}
    for data in listed(client, "/kms/keyrings", "keyrings"):
        name = member(data, "name", str)
        values: Values = {
            "name": name,
            "description": member(data, "description", str),
            "labels": dict(sorted(member(data, "labels", dict).items())),
            "purposes": sorted(_texts(data, "purposes")),
            "rotation_days": _optional(data, "rotation_days", int) or 0,
            **{number: member(data, number, int) for number in _KEYRING_NUMBERS},
            **{flag: member(data, flag, bool) for flag in _KEYRING_FLAGS},
            "keys": [],
        }
        transit_type = _optional(data, "transit_type", str)
        if transit_type is not None:
            values["transit_type"] = transit_type
        section[name] = Present(values, id=name)
    keys = {name: set[str]() for name in section}
    for key in listed(
        client, "/kms/keys", "keys", all_keyrings="true", status="active", limit=_PAGE
    ):
        keyring = member(key, "keyring", str)
        if keyring in keys and key.get("legacy") is not True:  # only an import makes these
            keys[keyring].add(canonical(member(key, "algorithm", str)))
    for name, present in section.items():
        present.values["keys"] = sorted(keys[name])
