"""Compares a declaration with a service, and makes the changes that are missing.

Every change is one request. Repeating a change does nothing, or the next comparison finds the rest
of the change. So a run can end anywhere, and two runs can work at once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID, uuid5

from pqkeep.cli.configuration_schema import (
    EVERYTHING,
    PUT,
    SECTIONS,
    TENANT_FIELDS,
    Declaration,
    Entry,
    Values,
    folded,
)
from pqkeep.cli.configuration_state import (
    Present,
    TenantState,
    api_key_identity,
    left_to_people,
    member,
    path_of,
    read_api_keys,
    read_keyrings,
    read_members,
    read_workloads,
    tenants,
)
from pqkeep.cli.configuration_yaml import written
from pqkeep.cli.failures import Refusal, end, printable
from pqkeep.cli.gateway_settings import GatewaySettings, read_settings, write_settings
from pqkeep.cli.secret_stores import Owner, Store
from pqkeep.errors import ConflictError, NotFoundError, PermissionDeniedError, PqkeepError

if TYPE_CHECKING:
    from pqkeep.client import Client

MAX_ROUNDS = 12
"""The most comparisons of one run. Each finds less, unless somebody else changes things."""
MAX_CONFLICTS = 3
_NAMESPACE = UUID("9b1c33a6-50f6-5d1f-9e39-0c6f0f8a3a0e")
_DEFAULT_KEYRING = "default"
_NEVER_REMOVED = frozenset({"keyrings"})
_WHOLE = 1_000
"""Lines of context: every shown entry is shown whole."""
_UNKNOWN_ID = "(the id of the new tenant)"

OpenClient = Callable[[str], "Client"]
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that differs: its label for messages, and both sides.

    None means that it is missing.
    """

    address: str
    before: Values | None
    after: Values | None

    def lines(self) -> list[str]:
        """Return the lines of a unified diff."""
        before, after = (
            [] if side is None else written(shown(side)).splitlines()
            for side in (self.before, self.after)
        )
        address = printable(self.address)
        return list(
            unified_diff(before, after, f"{address} (now)", f"{address} (file)", "", "", _WHOLE, "")
        )


@dataclass(frozen=True, slots=True)
class Action:
    """A change: its words for people, and the request."""

    what: str
    run: Callable[[], None]
    is_first: bool = False
    """True if others can be compared only afterwards."""
    removes: str = ""
    """The address of what it removes."""


@dataclass(slots=True)
class Plan:
    """What a run would change."""

    differences: list[Difference] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    removals: list[Action] = field(default_factory=list)
    suspensions: list[Action] = field(default_factory=list)
    """The last changes: a suspended tenant's API keys are refused."""
    notes: list[str] = field(default_factory=list)


class Again(Exception):  # noqa: N818 - not an error
    """Somebody else made a change: compare again."""


@dataclass(slots=True)
class Changes:
    """Compares and changes, with an operator's credential or a tenant's own API key."""

    client: "Client"
    declared: Declaration
    store: Store | None
    open_client: OpenClient
    note: Note
    prunes: bool
    settings_file: Path | None
    _clients: ExitStack = field(default_factory=ExitStack)
    _by_key: dict[str, "Client"] = field(default_factory=dict)
    _own: tuple[str, int] | None = None
    _is_operator: bool = False

    def close(self) -> None:
        """Close the clients of tenants."""
        self._clients.close()

    def begin(self) -> None:
        """Find the owner of the credential. Raises PqkeepError."""
        try:
            own = self.client.api_keys.own()
            self._own = (own.tenant_id, own.version)
        except PermissionDeniedError:
            self._is_operator = True
        if self.declared.has_gateway_settings and self.settings_file is None:
            raise Refusal(
                "identity_providers and audit_sink are settings of the gateway",
                "name its settings file with --gateway-settings FILE, or leave them out",
            )

    def run(self, plan: Plan, done: Note) -> None:
        """Make the changes of a plan, and of the comparisons after it.

        Only objects that the first plan removes are removed. Raises Refusal, PqkeepError for a
        comparison, and typer.Exit after an error that names the change.
        """
        removed, conflicts = frozenset(action.removes for action in plan.removals), 0
        for _ in range(MAX_ROUNDS):
            first = [action for action in plan.actions if action.is_first]
            removals = [action for action in plan.removals if action.removes in removed]
            actions = first or [*plan.actions, *removals, *plan.suspensions]
            if not actions:
                return
            try:
                for action in actions:
                    action.run()
                    done(action.what)
                if not first:
                    return
            except (Again, ConflictError, NotFoundError) as error:
                conflicts += 1
                if conflicts == MAX_CONFLICTS and not isinstance(error, Again):
                    raise end(error, action.what) from None
                self.note("something does not fit what was read before; comparing again")
            except PqkeepError as error:
                raise end(error, action.what) from None
            plan = self.plan()
        raise Refusal(
            "the configuration changes as fast as this command",
            "wait until other changes end, and run this command again",
        )

    def plan(self) -> Plan:
        """Compare. Raises PqkeepError, and Refusal for what may not be changed."""
        plan = Plan()
        found = tenants(self.client)
        for tenant in self.declared.tenants:
            _Comparison(self, plan, tenant, found.get(folded(tenant.values["name"]))).compare()
        if self.settings_file is not None and self.declared.has_gateway_settings:
            self._compare_settings(plan, self.settings_file, found)
        declared = {folded(tenant.values["name"]) for tenant in self.declared.tenants}
        left = len(found.keys() - declared)
        if left and self._is_operator and self.prunes:
            plan.notes.append(f"{left} tenants are not in the file: apply removes no tenant")
        return plan

    def tenant_client(self, key: str) -> "Client":
        """Return the client of a tenant's API key."""
        if key not in self._by_key:
            self._by_key[key] = self._clients.enter_context(self.open_client(key))
        return self._by_key[key]

    def secrets(self, place: str) -> Store:
        """Return the store. Raises Refusal without one."""
        if self.store is None:
            raise Refusal(
                f"{place} makes a secret, which needs a place",
                "name a folder with --secrets DIR, or a program with --secrets-command",
            )
        return self.store

    def is_own(self, tenant: str, present: Present) -> bool:
        """Return True for the API key of this run."""
        return self._own == (tenant, present.version) and present.version > 0

    @property
    def is_operator(self) -> bool:
        """True if the credential is an operator's."""
        return self._is_operator

    def _compare_settings(self, plan: Plan, path: Path, found: Mapping[str, TenantState]) -> None:
        settings = read_settings(path)
        after = _settings_after(settings, self.declared, found, prunes=self.prunes)
        before = {provider["name"]: dict(provider) for provider in settings.providers}
        changed = {provider["name"]: dict(provider) for provider in after.providers}
        differences = [
            Difference(f"{path}: identity provider {name}", before.get(name), changed.get(name))
            for name in sorted(before.keys() | changed.keys())
            if before.get(name) != changed.get(name)
        ]
        if settings.sink != after.sink:
            differences.append(
                Difference(f"{path}: audit sink", dict(settings.sink) or None, dict(after.sink))
            )
        if not differences:
            return
        plan.differences += differences
        plan.actions.append(
            Action(
                f"write {path}: restart the gateway to use it",
                lambda: write_settings(path, after.providers, after.sink),
            )
        )


def _settings_after(
    settings: GatewaySettings,
    declared: Declaration,
    found: Mapping[str, TenantState],
    *,
    prunes: bool,
) -> GatewaySettings:
    """Return the settings that the declaration wants. Raises Refusal."""
    providers: dict[str, Values] = {}
    others = {provider.get("name"): provider for provider in settings.others}
    for tenant in declared.tenants:
        state = found.get(folded(tenant.values["name"]))
        owner = _UNKNOWN_ID if state is None else state.owner.id
        for provider in tenant.values.get("identity_providers", ()):
            name = provider.values["name"]
            values = {
                "name": name,
                "tenant": owner,
                **{key: value for key, value in provider.values.items() if key != "name"},
            }
            if name in providers:
                raise provider.place.refusal(
                    f"another tenant has an identity provider {name}", "choose another name"
                )
            if name not in others:
                providers[name] = values
            elif others[name] != values:
                raise provider.place.refusal(
                    f"the settings file has an identity provider {name} of its own, which differs",
                    "remove it from the settings file, so that apply can write it",
                )
    kept = {} if prunes else {provider["name"]: provider for provider in settings.providers}
    sink: Values = dict(settings.sink)
    if declared.audit_sink is not None and settings.other_sink != declared.audit_sink.values:
        sink = declared.audit_sink.values
        if settings.other_sink:
            raise declared.audit_sink.place.refusal(
                "the settings file has an audit_sink of its own, which differs",
                "remove it from the settings file, so that apply can write it",
            )
    wanted = {**kept, **providers}
    return GatewaySettings(list(wanted.values()), sink, settings.others, settings.other_sink)


class _Comparison:
    """Compares one tenant."""

    def __init__(
        self, changes: Changes, plan: Plan, tenant: Entry, state: TenantState | None
    ) -> None:
        self._changes = changes
        self._plan = plan
        self._tenant = tenant
        self._name: str = tenant.values["name"]
        self._state = state
        self._client = changes.client

    def compare(self) -> None:
        """Add what differs to the plan."""
        state, wanted = self._state, self._tenant.values
        own = {name: wanted[name] for name in TENANT_FIELDS if name in wanted}
        if state is None and not self._changes.is_operator:
            raise self._tenant.place.refusal(
                f"this API key does not belong to the tenant {self._name}",
                "use an operator's credential, or an API key of the tenant that the file names",
            )
        if state is None:
            self._plan.differences.append(Difference(self._name, None, {"name": self._name, **own}))
            self._plan.actions.append(
                Action(f"create the tenant {self._name}", self._create, is_first=True)
            )
            state = TenantState(Owner("", self._name), {}, is_deleting=False)
            for section in SECTIONS:
                state.sections[section] = {}
        else:
            self._compare_own(state, own)
            self._read(state)
        for section in SECTIONS:
            if section in wanted and section in state.sections:
                self._compare_section(state, section, wanted[section])

    def _compare_own(self, state: TenantState, own: Values) -> None:
        if state.is_deleting:
            raise self._tenant.place.refusal(
                f"the tenant {self._name} is going to be deleted",
                f"keep it with pqkeep tenants cancel-deletion {state.owner.id}, or remove it here",
            )
        before = {name: state.values[name] for name in own}
        changed = {name: value for name, value in own.items() if value != before[name]}
        if not changed:
            return
        self._plan.differences.append(Difference(self._name, before, own))
        owner = state.owner

        def change() -> None:
            self._client.requests.send("PATCH", path_of(owner.id), body=changed)

        what = f"change {', '.join(changed)} of the tenant {self._name}"
        action = Action(what, change, is_first=changed.get("status") == "active")
        is_last = changed.get("status") == "suspended"
        (self._plan.suspensions if is_last else self._plan.actions).append(action)

    def _create(self) -> None:
        wanted = self._tenant.values
        new = {name: wanted.get(name) for name in ("name", "plan", "shard")}
        created = self._client.requests.send("POST", "/tenants", body=new)
        rest = {name: wanted[name] for name in ("requests_per_minute",) if name in wanted}
        if rest:
            self._client.requests.send("PATCH", path_of(member(created, "id", str)), body=rest)

    def _read(self, state: TenantState) -> None:
        wanted = self._tenant.values
        if "api_keys" in wanted or "credential" in wanted:
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            read_api_keys(self._client, state, now)
        if "workload_issuers" in wanted or "workload_roles" in wanted:
            read_workloads(self._client, state)
        if "members" in wanted:
            read_members(self._client, state)
        if "keyrings" not in wanted:
            return
        if state.values["status"] == "suspended":
            self._plan.notes.append(
                f"the keyrings of {self._name} cannot be read: the tenant is suspended"
            )
            return
        client = self._key_client(state)
        if client is None:
            self._plan.notes.append(
                f"the keyrings of {self._name} cannot be read before its API key"
                f" {wanted['credential']} exists"
            )
            state.sections["keyrings"] = {}
        else:
            read_keyrings(client, state)
            if note := left_to_people(client, state, self._scopes(state)):
                self._plan.notes.append(note)

    def _scopes(self, state: TenantState) -> Any:
        """Return the scopes of the API key that manages the tenant's keyrings."""
        name = self._tenant.values.get("credential")
        keys = self._tenant.values.get("api_keys", ())
        declared = (key.values["scopes"] for key in keys if key.values["name"] == name)
        present = (
            key.values["scopes"]
            for key in state.sections.get("api_keys", {}).values()
            if key.values["name"] == name
        )
        return next(declared, None) or next(present, ())

    def _key_client(self, state: TenantState) -> "Client | None":
        """Return the client that manages the tenant's keyrings; None: it comes with an API key.

        Raises Refusal.
        """
        name = self._tenant.values.get("credential")
        if name is None:
            if not self._changes.is_operator:
                return self._client
            raise self._tenant.place_of("keyrings").refusal(
                "keyrings need a credential: an operator's may not manage keys",
                "add credential: NAME, the name of an entry of api_keys",
            )
        place = self._tenant.place_of("credential")
        store = self._changes.secrets(f"{place.file}:{place.line}: credential")
        for key in self._tenant.values.get("api_keys", ()):
            if key.values["name"] == name:
                present = state.sections["api_keys"].get(api_key_identity(key.values))
                if present is None or self._is_undelivered(state.owner, present):
                    return None
        secret = store.get(state.owner, key_file(name))
        if secret is None:
            raise place.refusal(
                f"the secret of the API key {name} is not in the store",
                "put it there, or revoke the API key: apply then makes a new one",
            )
        return self._changes.tenant_client(secret)

    def _is_undelivered(self, owner: Owner, present: Present) -> bool:
        store, file = self._changes.store, key_file(present.values["name"] or "")
        if store is None or not store.is_missing(owner, file):
            return False
        secret = store.get(owner, file)
        return secret is None or secret[-len(present.last4) :] != present.last4

    def _compare_section(self, state: TenantState, section: str, entries: Sequence[Entry]) -> None:
        present = dict(state.sections[section])
        for entry in entries:
            identity = (
                api_key_identity(entry.values)
                if section == "api_keys"
                else entry.values[SECTIONS[section][1]]
            )
            self._compare_entry(state, section, entry, present.pop(identity, None))
        extra = [one for one in present.values() if not self._changes.is_own(state.owner.id, one)]
        if section == "keyrings":
            extra = [one for one in extra if one.id != _DEFAULT_KEYRING]
        if not extra:
            return
        if not self._changes.prunes or section in _NEVER_REMOVED:
            how = (
                "apply removes no keyring"
                if section in _NEVER_REMOVED
                else "--prune would remove them"
            )
            self._plan.notes.append(
                f"{section} of {self._name} has {len(extra)} more than the file: {how}"
            )
            return
        for one in extra:
            address = self._address(section, one.values, one.id)
            self._plan.differences.append(Difference(address, one.values, None))
            self._plan.removals.append(
                Action(
                    f"remove {address}",
                    lambda one=one: self._remove(state, section, one),  # type: ignore[misc] # mypy finds no type for a default
                    removes=f"{address} {one.id}",
                )
            )

    def _address(self, section: str, values: Values, identifier: str = "") -> str:
        name = values.get(SECTIONS[section][1]) or f"version {identifier}"
        return f"{self._name} / {section} / {name}"

    def _compare_entry(
        self, state: TenantState, section: str, entry: Entry, present: Present | None
    ) -> None:
        address = self._address(section, entry.values)
        wanted = entry.values
        if present is None:
            self._plan.differences.append(Difference(address, None, wanted))
            if state.owner.id and not self._waits(state, section):
                self._add(state, section, entry, f"create {address}")
            return
        if section == "api_keys":
            if self._is_undelivered(state.owner, present):
                self._plan.differences.append(Difference(address, None, wanted))
                self._add(state, section, entry, f"deliver {address}", present)
            return
        is_lost = present.is_invitation and self._is_expected(state.owner, wanted["email"])
        before = {
            name: value
            for name, value in present.values.items()
            if name in wanted or section in PUT
        }
        after = wanted
        if section == "keyrings":
            self._check_keyring(entry, present)
            if "keys" in wanted:
                after = {**wanted, "keys": sorted({*wanted["keys"], *present.values["keys"]})}
        if before != after or is_lost:
            self._plan.differences.append(Difference(address, None if is_lost else before, after))
            self._add(state, section, entry, f"change {address}", present)

    def _waits(self, state: TenantState, section: str) -> bool:
        """Return True for keyrings that can be compared only when their credential exists."""
        return section == "keyrings" and self._key_client(state) is None

    def _is_expected(self, owner: Owner, email: str) -> bool:
        store = self._changes.store
        return store is not None and store.is_missing(owner, _invitation_file(email))

    def _check_keyring(self, entry: Entry, present: Present) -> None:
        """Raise Refusal for a change that cannot be made."""
        for name, value in entry.values.items():
            if SECTIONS["keyrings"][0][name].is_fixed and present.values.get(name) != value:
                raise entry.place_of(name).refusal(
                    f"{name} of the keyring {entry.values['name']} cannot be changed",
                    "use another keyring, or write the value that it has",
                )

    def _add(
        self,
        state: TenantState,
        section: str,
        entry: Entry,
        what: str,
        present: Present | None = None,
    ) -> None:
        owner, values = state.owner, entry.values
        is_first = False
        match section:
            case "keyrings":
                client = self._key_client(state)
                assert client is not None  # noqa: S101 - compared with this client
                run = lambda: _put_keyring(client, values, present)  # noqa: E731
            case "api_keys":
                self._changes.secrets(f"{entry.place.file}:{entry.place.line}: an API key")
                is_first = values["name"] == self._tenant.values.get("credential")
                run = lambda: self._make_api_key(state, values, present)  # noqa: E731
            case "workload_issuers":
                run = lambda: self._put(owner, "issuers", values)  # noqa: E731
            case "workload_roles":
                run = lambda: self._put(owner, "roles", values)  # noqa: E731
            case "members":
                if present is None or present.is_invitation:
                    self._changes.secrets(f"{entry.place.file}:{entry.place.line}: an invitation")
                run = lambda: self._put_member(owner, values, present)  # noqa: E731
            case _:
                return
        self._plan.actions.append(Action(what, run, is_first=is_first))

    def _put(self, owner: Owner, kind: str, values: Values) -> None:
        body = {name: value for name, value in values.items() if name != "name"}
        if "jwks" in body:
            body["jwks"] = json.loads(body["jwks"])
        path = path_of(owner.id, "workloads", kind, values["name"])
        self._client.requests.send("PUT", path, body=body)

    def _put_member(self, owner: Owner, values: Values, present: Present | None) -> None:
        if present is not None and not present.is_invitation:
            self._client.requests.send(
                "PATCH",
                f"/team/members/{quote(present.id, safe='')}",
                body={"role": values["role"], "tenant_id": owner.id},
            )
            return
        store, file = self._changes.secrets("an invitation"), _invitation_file(values["email"])
        store.expect(owner, file)
        invited = self._client.requests.send("POST", path_of(owner.id, "invitations"), body=values)
        token = invited.get("invitation_token")
        place = store.put(owner, file, token if isinstance(token, str) else None)
        if isinstance(token, str):
            self._changes.note(f"the invitation of {values['email']} is in {place}")

    def _make_api_key(
        self, state: TenantState, values: Values, undelivered: Present | None
    ) -> None:
        """Make an API key, or get one again that was made and never delivered.

        The Idempotency-Key comes from the request and the earlier API keys of the name. So a
        repetition gets the same API key, for a day.
        """
        owner, name = state.owner, values["name"]
        store = self._changes.secrets("an API key")
        before = undelivered.version if undelivered else None
        earlier = sum(
            1
            for key_name, version in state.named_keys
            if key_name == name and (before is None or version < before)
        )
        body = {
            **{key: value for key, value in values.items() if value != EVERYTHING},
            "allow_absent_keyrings": name == self._tenant.values.get("credential") or None,
        }
        seed = json.dumps([owner.id, body, earlier], sort_keys=True)
        store.expect(owner, key_file(name))
        made = self._client.requests.send(
            "POST",
            path_of(owner.id, "api-keys"),
            body=body,
            idempotency_key=str(uuid5(_NAMESPACE, seed)),
        )
        version, secret = member(made, "version", int), member(made, "api_key", str)
        self._require_first(state, values, version, before)
        place = store.put(owner, key_file(name), secret)
        self._changes.note(f"the API key {name} of {self._name} is in {place}")
        if undelivered is not None and version != before and undelivered.is_unused:
            self._revoke(owner, undelivered.version)

    def _require_first(
        self, state: TenantState, values: Values, version: int, undelivered: int | None
    ) -> None:
        """Revoke a new API key and raise Again, if another run has just made the same API key."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        after = TenantState(state.owner, state.values, is_deleting=False)
        read_api_keys(self._client, after, now)
        identity = api_key_identity(values)
        before = {present.version for present in state.sections["api_keys"].values()}
        for present in after.sections["api_keys"].values():
            if (
                api_key_identity(present.values) == identity
                and present.version < version
                and present.version not in before
                and present.version != undelivered
            ):
                self._revoke(state.owner, version)
                raise Again

    def _revoke(self, owner: Owner, version: int) -> None:
        self._client.requests.send("DELETE", path_of(owner.id, "api-keys", str(version)))

    def _remove(self, state: TenantState, section: str, one: Present) -> None:
        owner = state.owner
        try:
            match section:
                case "api_keys":
                    self._revoke(owner, one.version)
                case "members":
                    kind = "invitations" if one.is_invitation else "members"
                    self._client.requests.send(
                        "DELETE",
                        f"/team/{kind}/{quote(one.id, safe='')}",
                        query={"tenant_id": owner.id},
                    )
                case _:
                    kind = section.removeprefix("workload_")
                    self._client.requests.send(
                        "DELETE", path_of(owner.id, "workloads", kind, one.id)
                    )
        except NotFoundError:
            pass  # somebody else was faster, or its issuer was removed before


def _put_keyring(client: "Client", values: Values, present: Present | None) -> None:
    """Create or change a keyring, and make the keys that it lacks."""
    settings = {name: value for name, value in values.items() if name not in {"name", "keys"}}
    name = values["name"]
    if present is None and name != _DEFAULT_KEYRING:
        try:
            client.requests.send("POST", "/kms/keyrings", body={"name": name, **settings})
        except ConflictError:
            _restore(client, name)
            raise Again from None
    else:
        before = {} if present is None else present.values
        changed = {key: value for key, value in settings.items() if value != before.get(key)}
        if changed:
            path = f"/kms/keyrings/{quote(name, safe='')}"
            client.requests.send("PATCH", path, body=changed)
    missing = set(values.get("keys", ())) - set(present.values["keys"] if present else ())
    for algorithm in sorted(missing):
        client.requests.send(
            "POST",
            "/kms/keys/generate",
            body={"keyring": name, "algorithm": algorithm, "if_absent": True},
        )


def _restore(client: "Client", name: str) -> None:
    with suppress(NotFoundError, ConflictError):  # another run has just made it
        client.requests.send("POST", f"/kms/keyrings/{quote(name, safe='')}/restore")


def key_file(name: str) -> str:
    """Return the name of an API key's secret in a store."""
    return f"{name}.api-key"


def _invitation_file(email: str) -> str:
    return f"{email}.invitation"


def shown(values: Values) -> Values:
    """Return the values of an entry as a file has them."""
    return values | {"jwks": json.loads(values["jwks"])} if "jwks" in values else values
