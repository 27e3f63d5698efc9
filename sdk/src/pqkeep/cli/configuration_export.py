"""Writes the configuration of a service as a configuration file."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pqkeep.cli.configuration_changes import OpenClient, key_file, shown
from pqkeep.cli.configuration_schema import EVERYTHING, PUT, SECTIONS, VERSION, Values, folded
from pqkeep.cli.configuration_state import (
    TenantState,
    left_to_people,
    read_api_keys,
    read_keyrings,
    read_members,
    read_workloads,
    tenants,
)
from pqkeep.cli.failures import Refusal
from pqkeep.cli.gateway_settings import read_settings
from pqkeep.cli.secret_stores import Store
from pqkeep.errors import PermissionDeniedError

if TYPE_CHECKING:
    from pqkeep.client import Client

_READS_KEYRINGS = frozenset({"*", "manage-keys"})
_USUAL: tuple[object, ...] = (None, [], {}, "", 0, False)


def exported(
    client: "Client",
    names: Sequence[str],
    store: Store | None,
    settings_file: Path | None,
    open_client: OpenClient,
    note: Callable[[str], None],
) -> Values:
    """Return the configuration of named tenants, by default all. Raises Refusal and PqkeepError."""
    found = tenants(client)
    wanted = [folded(name) for name in names] or list(found)
    for name, key in zip(names, wanted, strict=False):
        if key not in found:
            raise Refusal(f"there is no tenant {name}", "list the tenants: pqkeep tenants list")
    file: Values = {"version": VERSION}
    settings = None if settings_file is None else read_settings(settings_file)
    if settings is not None and (sink := {**settings.sink, **settings.other_sink}):
        file["audit_sink"] = sink
    providers = [] if settings is None else [*settings.providers, *settings.others]
    file["tenants"] = []
    for key in wanted:
        state = found[key]
        if state.is_deleting:
            note(f"{state.owner.name} is left out: it is going to be deleted")
            continue
        tenant = _tenant(client, state, store, open_client, note)
        own = [
            {name: value for name, value in provider.items() if name != "tenant"}
            for provider in providers
            if provider.get("tenant") == state.owner.id
        ]
        file["tenants"].append(tenant | ({"identity_providers": own} if own else {}))
    return file


def _tenant(
    client: "Client",
    state: TenantState,
    store: Store | None,
    open_client: OpenClient,
    note: Callable[[str], None],
) -> Values:
    name = state.owner.name
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    read_api_keys(client, state, now)
    read_workloads(client, state)
    tenant: Values = {"name": name, **state.values}
    try:
        read_members(client, state)
    except PermissionDeniedError:
        note(f"the members of {name} are left out: this credential may not see them")
    credential, secret, scopes = _credential(state, store)
    if secret is not None:
        with open_client(secret) as of_tenant:
            read_keyrings(of_tenant, state)
            if left := left_to_people(of_tenant, state, scopes):
                note(left)
    else:
        try:
            read_keyrings(client, state)
        except PermissionDeniedError:
            note(f"the keyrings of {name} are left out: no stored API key can read them")
    if credential is not None:
        tenant["credential"] = credential
    for section in SECTIONS:
        entries = [shown(_entry(section, present.values)) for present in _unique(section, state)]
        if entries:
            tenant[section] = entries
    return tenant


def _unique(section: str, state: TenantState) -> list[Any]:
    """Return the entries that have a name, one for each name. Of API keys it is the newest."""
    by_name: dict[str, Any] = {}
    for present in state.sections.get(section, {}).values():
        name = present.values[SECTIONS[section][1]]
        if name is not None:
            by_name.setdefault(name, present)
    return [by_name[name] for name in sorted(by_name)]


def _entry(section: str, values: Mapping[str, Any]) -> Values:
    if section in PUT:
        return dict(values)
    return {
        name: value
        for name, value in values.items()
        if value not in _USUAL and (name, value) != ("first_version", 1)
    }


def _credential(state: TenantState, store: Store | None) -> tuple[str | None, str | None, Any]:
    """Return name, secret and scopes of a stored API key that can read keyrings, or None."""
    if store is None:
        return None, None, ()
    for present in state.sections["api_keys"].values():
        name = present.values["name"]
        if name is None or not _reads_keyrings(present.values["scopes"]):
            continue
        secret = store.get(state.owner, key_file(name))
        if secret is not None and secret.endswith(present.last4):
            return name, secret, present.values["scopes"]
    return None, None, ()


def _reads_keyrings(scopes: Any) -> bool:
    return scopes == EVERYTHING or any(
        set(scope) == {"operations"} and not _READS_KEYRINGS.isdisjoint(scope["operations"])
        for scope in scopes
    )
