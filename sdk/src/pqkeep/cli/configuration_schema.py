"""The fields of configuration files, and how their values are read.

A field outside the tables is refused with its line and the nearest name. Values come out in one
normal form, and are compared with the service's values in that form.
"""

import ipaddress
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from pqkeep.algorithms import NAMES, canonical
from pqkeep.cli.configuration_yaml import Fields, Items, Node, Place, Scalar, shortened

VERSION = 1
EVERYTHING = "everything"
"""The scopes of an API key without scopes."""
PLANS = ("free", "starter", "professional", "enterprise", "enterprise_plus")
STATUSES = ("active", "suspended")
ROLES = ("owner", "admin", "developer", "viewer")
PURPOSES = (
    *("encrypt", "decrypt", "wrap", "unwrap", "encapsulate", "decapsulate"),
    *("sign", "verify", "mac"),
)
PLAN_RATE = "plan"
_SIMILAR = 0.6
_MAX_TEXT = 16_384
_DIGITS = re.compile(r"0|[1-9][0-9]{0,11}")
_API_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_EMAIL = re.compile(r"[^\s@\x00-\x20-][^\s@\x00-\x20]*@[^\s@\x00-\x20]+")
_FILE_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,1024}")

Values = dict[str, Any]
Read = Callable[[Node, str], Any]
"""Returns the value of a field with this name. Raises Refusal."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an entry."""

    read: Read
    is_required: bool = False
    is_fixed: bool = False
    """True if it can only be chosen when the entry is created."""
    otherwise: Any = None
    """The value if an entry leaves the field out.

    None means that an omitted field is not changed.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a list, with the line where it begins."""

    values: Values
    place: Place
    lines: Mapping[str, Place]

    def place_of(self, name: str) -> Place:
        """Return the place of a field."""
        return self.lines.get(name, self.place)


def folded(name: str) -> str:
    """Return a tenant's name as the service compares it."""
    return unicodedata.normalize("NFC", name).casefold()


def text(node: Node, name: str) -> str:
    """Read a text."""
    if not isinstance(node, Scalar):
        raise node.place.refusal(f"{name} must be a text", "write it on one line")
    if not node.is_text:
        raise node.place.refusal(f"{name} must be a text", "put it in quotation marks")
    if not node.text or len(node.text) > _MAX_TEXT:
        raise node.place.refusal(
            f"{name} must have 1 to {_MAX_TEXT:,} characters", "correct its length"
        )
    return node.text


def _any_text(node: Node, name: str) -> str:
    """Read a text that may be empty."""
    is_empty = isinstance(node, Scalar) and node.is_text and not node.text
    return "" if is_empty else text(node, name)


def _file(node: Node, name: str) -> str:
    value = text(node, name)
    if not _FILE_NAME.fullmatch(value):
        raise node.place.refusal(f"{name} must be a file's name", "remove control characters")
    return value


def _api_key_name(node: Node, name: str) -> str:
    value = text(node, name)
    if not _API_KEY_NAME.fullmatch(value):
        raise node.place.refusal(
            f"{name} of an API key must be 1 to 64 letters, digits, dots, dashes and underscores",
            "begin it with a letter or a digit",
        )
    return value


def _email(node: Node, name: str) -> str:
    value = text(node, name)
    if not _EMAIL.fullmatch(value):
        raise node.place.refusal(f"{name} is not an e-mail address", "write it as ada@acme.example")
    return value


def _choice(choices: Sequence[str]) -> Read:
    def read(node: Node, name: str) -> str:
        value = text(node, name)
        if value not in choices:
            near = get_close_matches(value, choices, n=1, cutoff=_SIMILAR)
            advice = f"write {near[0]}" if near else f"choose one of {', '.join(choices)}"
            raise node.place.refusal(f"{name} has an unknown value", advice)
        return value

    return read


def _integer(at_least: int, at_most: int) -> Read:
    def read(node: Node, name: str) -> int:
        digits = node.text if isinstance(node, Scalar) else ""
        if not _DIGITS.fullmatch(digits) or not at_least <= int(digits) <= at_most:
            raise node.place.refusal(
                f"{name} must be a whole number from {at_least:,} to {at_most:,}", "correct it"
            )
        return int(digits)

    return read


def _rate(node: Node, name: str) -> int | str:
    if isinstance(node, Scalar) and node.text == PLAN_RATE:
        return PLAN_RATE
    rate: int = _integer(1, 1_000_000)(node, name)
    return rate


def _flag(node: Node, name: str) -> bool:
    value = node.text if isinstance(node, Scalar) and not node.is_text else ""
    if value not in {"true", "false"}:
        raise node.place.refusal(f"{name} must be true or false", "write true or false")
    return value == "true"


def instant(value: str) -> str:
    """Return a time in UTC as the service writes it, in whole seconds. Raises ValueError."""
    time = datetime.fromisoformat(value)
    if time.tzinfo is None or time.microsecond:
        raise ValueError
    return time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _time(node: Node, name: str) -> str:
    try:
        return instant(node.text if isinstance(node, Scalar) else "")
    except (ValueError, OverflowError):
        raise node.place.refusal(
            f"{name} must be a time in whole seconds", "write it as 2027-01-01T00:00:00Z"
        ) from None


def _list(node: Node, name: str) -> Sequence[Node]:
    if not isinstance(node, Items):
        raise node.place.refusal(f"{name} must be a list", "begin each entry with - ")
    return node.members


def _texts(of: Read = text, *, ordered: bool = True) -> Read:
    """Read a list. Members may not repeat. Without an order, they are sorted."""

    def read(node: Node, name: str) -> list[str]:
        values: list[str] = []
        for member in _list(node, name):
            value = of(member, name)
            if value in values:
                raise member.place.refusal(f"{name} has an entry twice", "remove one")
            values.append(value)
        if not values:
            raise node.place.refusal(f"{name} is an empty list", "leave the field out")
        return values if ordered else sorted(values)

    return read


def _algorithm(node: Node, name: str) -> str:
    return canonical(_choice(NAMES)(node, name))


def _network(node: Node, name: str) -> str:
    try:
        return network(text(node, name))
    except ValueError:
        raise node.place.refusal(
            f"{name} must be networks", "write them as 192.0.2.0/24 or 2001:db8::/32"
        ) from None


def network(value: str) -> str:
    """Return a network in its shortest form. Raises ValueError."""
    return str(ipaddress.ip_network(value))


def _mapping(node: Node, name: str) -> Fields:
    if not isinstance(node, Fields):
        raise node.place.refusal(f"{name} must have fields", "write NAME: VALUE")
    return node


def _labels(node: Node, name: str) -> dict[str, str]:
    members = _mapping(node, name).members
    return {key: _any_text(value, key) for key, (_, value) in sorted(members.items())}


def _claims(node: Node, name: str) -> dict[str, list[str]]:
    members = _mapping(node, name).members
    return {
        claim: [text(value, claim)] if isinstance(value, Scalar) else _texts()(value, claim)
        for claim, (_, value) in sorted(members.items())
    }


def _jwks(node: Node, name: str) -> str:
    """Read a JWK Set. The result is its JSON text in one form."""
    return canonical_json(json.dumps(_plain(_mapping(node, name), name)))


def canonical_json(value: str) -> str:
    """Return JSON text with sorted names. Raises ValueError."""
    return json.dumps(json.loads(value), sort_keys=True)


_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"})
"""Members of a JWK with secrets."""


def _plain(node: Node, name: str) -> object:
    """Return a YAML node as JSON. Raises Refusal if it has members of a private key."""
    match node:
        case Scalar():
            return text(node, name)
        case Items():
            return [_plain(member, name) for member in node.members]
        case Fields():
            for key, (place, _) in node.members.items():
                if key in _PRIVATE_MEMBERS:
                    raise place.refusal(
                        f"{name} has a part of a private key", "write only public keys here"
                    )
            return {key: _plain(value, key) for key, (_, value) in node.members.items()}


_SCOPE = {
    "operations": Field(_texts()),
    "keyrings": Field(_texts()),
    "algorithms": Field(_texts(_algorithm)),
}


def _scopes(node: Node, name: str) -> list[Values] | str:
    if isinstance(node, Scalar) and node.text == EVERYTHING:
        return EVERYTHING
    scopes = [entry_of(member, "a scope", _SCOPE).values for member in _list(node, name)]
    if not scopes:
        raise node.place.refusal(f"{name} is an empty list", f"write scopes, or {EVERYTHING}")
    return scopes


def _role_scopes(node: Node, name: str) -> list[Values]:
    scopes = _scopes(node, name)
    if isinstance(scopes, str):
        raise node.place.refusal(f"a role needs {name}", "list its scopes")
    return scopes


_DAYS = _integer(0, 3650)
_VERSION = _integer(0, 1_000_000_000)
_name = Field(text, is_required=True)

API_KEY: Mapping[str, Field] = {
    "name": Field(_api_key_name, is_required=True),
    "scopes": Field(_scopes, is_required=True),
    "expires_at": Field(_time),
    "allowed_addresses": Field(_texts(_network, ordered=False)),
}
KEYRING: Mapping[str, Field] = {
    "name": _name,
    "description": Field(_any_text),
    "labels": Field(_labels),
    "purposes": Field(_texts(_choice(PURPOSES), ordered=False)),
    "rotation_days": Field(_DAYS),
    "minimum_decryption_version": Field(_VERSION),
    "minimum_encryption_version": Field(_VERSION),
    "deletion_allowed": Field(_flag),
    "retired_public_keys_allowed": Field(_flag),
    "first_version": Field(_VERSION, is_fixed=True),
    "derived": Field(_flag, is_fixed=True),
    "transit_type": Field(text, is_fixed=True),
    "keys": Field(_texts(_algorithm, ordered=False)),
}
ISSUER: Mapping[str, Field] = {
    "name": _name,
    "url": Field(text, is_required=True),
    "audience": Field(text, is_required=True),
    "algorithms": Field(_texts(), is_required=True),
    "jwks": Field(_jwks),
}
WORKLOAD_ROLE: Mapping[str, Field] = {
    "name": _name,
    "issuer": Field(text, is_required=True),
    "claims": Field(_claims, is_required=True),
    "scopes": Field(_role_scopes, is_required=True),
    "lifetime_seconds": Field(_integer(60, 3600), otherwise=900),
}
MEMBER: Mapping[str, Field] = {
    "email": Field(_email, is_required=True),
    "role": Field(_choice(ROLES), is_required=True),
}
PROVIDER: Mapping[str, Field] = {
    "name": _name,
    "label": Field(text),
    "issuer": Field(text, is_required=True),
    "client_id": Field(text, is_required=True),
    "client_secret_file": Field(_file),
    "ca_file": Field(_file),
    "scopes": Field(_texts()),
    "groups_claim": Field(text),
    "roles": Field(_labels),
    "default_role": Field(_choice(ROLES)),
    "create_members": Field(_flag),
    "email_domains": Field(_texts()),
    "local_passwords": Field(_flag),
}
AUDIT_SINK: Mapping[str, Field] = {
    "url": Field(text, is_required=True),
    "token_file": Field(_file),
    "ca_file": Field(_file),
}

SECTIONS: Mapping[str, tuple[Mapping[str, Field], str]] = {
    "keyrings": (KEYRING, "name"),
    "api_keys": (API_KEY, "name"),
    "workload_issuers": (ISSUER, "name"),
    "workload_roles": (WORKLOAD_ROLE, "name"),
    "members": (MEMBER, "email"),
    "identity_providers": (PROVIDER, "name"),
}
"""The lists of a tenant: the fields of an entry, and the field that must be unique."""

PUT = frozenset({"workload_issuers", "workload_roles", "identity_providers"})
"""Lists with entries that are replaced as a whole: a field that is left out has no value."""


def _entries(section: str) -> Read:
    def read(node: Node, name: str) -> list[Entry]:
        fields, identity = SECTIONS[section]
        entries: dict[str, Entry] = {}
        for member in _list(node, name):
            entry = entry_of(member, f"an entry of {name}", fields)
            key = entry.values[identity] = _identity(entry.values[identity], section)
            if key in entries:
                first = entries[key].place.line
                raise entry.place.refusal(
                    f"{name} has this {identity} a second time: the first is on line {first}",
                    "remove one of them",
                )
            entries[key] = entry
        return list(entries.values())

    return read


def _identity(value: str, section: str) -> str:
    return value.lower() if section == "members" else value


TENANT: Mapping[str, Field] = {
    "name": _name,
    "plan": Field(_choice(PLANS)),
    "requests_per_minute": Field(_rate),
    "status": Field(_choice(STATUSES)),
    "shard": Field(text),
    "credential": Field(text),
    **{section: Field(_entries(section)) for section in SECTIONS},
}
TENANT_FIELDS = ("plan", "requests_per_minute", "status")
"""A tenant's own fields, which can be changed."""


def _tenants(node: Node, name: str) -> list[Entry]:
    return [entry_of(member, "a tenant", TENANT) for member in _list(node, name)]


def _version(node: Node, name: str) -> int:
    if not isinstance(node, Scalar) or node.text != str(VERSION):
        raise node.place.refusal(f"{name} is unknown", f"write version: {VERSION}")
    return VERSION


def _audit_sink(node: Node, name: str) -> Entry:
    return entry_of(node, name, AUDIT_SINK)


ROOT: Mapping[str, Field] = {
    "version": Field(_version, is_required=True),
    "tenants": Field(_tenants),
    "audit_sink": Field(_audit_sink),
}


_REFUSED = {
    "archive_after_days": (
        "archive_after_days destroys keys, which no program may schedule",
        "leave it out: an owner or an admin sets it in the portal",
    ),
    "client_secret": (
        "a configuration file has no secrets",
        "write client_secret_file with the path of a file of mode 0600",
    ),
}
"""Names that are missing for a reason: the reason, and what to do."""


def entry_of(node: Node, what: str, fields: Mapping[str, Field]) -> Entry:
    """Read a mapping by its table of fields. Raises Refusal."""
    members = _mapping(node, what).members
    for name, (place, _) in members.items():
        if name in _REFUSED:
            raise place.refusal(*_REFUSED[name])
        if name not in fields:
            near = get_close_matches(name, fields, n=1, cutoff=_SIMILAR)
            known = f"write {near[0]}" if near else f"the names are {', '.join(fields)}"
            raise place.refusal(f"{what} has no field {shortened(name)}", known)
    for name, field in fields.items():
        if field.is_required and name not in members:
            value = VERSION if name == "version" else "…"
            raise node.place.refusal(f"{what} needs the field {name}", f"add {name}: {value}")
    values = {
        name: field.read(members[name][1], name) if name in members else field.otherwise
        for name, field in fields.items()
        if name in members or field.otherwise is not None
    }
    return Entry(values, node.place, {name: place for name, (place, _) in members.items()})


@dataclass(frozen=True, slots=True)
class Declaration:
    """The content of all files."""

    tenants: Sequence[Entry]
    audit_sink: Entry | None

    @property
    def has_gateway_settings(self) -> bool:
        """True if a part of it belongs into the gateway's settings."""
        return self.audit_sink is not None or any(
            "identity_providers" in tenant.values for tenant in self.tenants
        )


def declaration(roots: Iterable[Node]) -> Declaration:
    """Read the roots of files as one declaration. Raises Refusal."""
    tenants: dict[str, Entry] = {}
    sink: Entry | None = None
    for root in roots:
        entry = entry_of(root, "the file", ROOT)
        for tenant in entry.values.get("tenants", ()):
            key = folded(tenant.values["name"])
            if key in tenants:
                first = tenants[key].place
                raise tenant.place.refusal(
                    "a tenant has this name already, in "
                    f"{first.file}:{first.line} (case does not matter)",
                    "put everything of a tenant into one entry",
                )
            _check_tenant(tenant)
            tenants[key] = tenant
        if "audit_sink" in entry.values:
            if sink is not None:
                raise entry.place_of("audit_sink").refusal(
                    f"audit_sink is in {sink.place.file}:{sink.place.line} too", "remove one"
                )
            sink = entry.values["audit_sink"]
    return Declaration(list(tenants.values()), sink)


def _check_tenant(tenant: Entry) -> None:
    """Raise Refusal if a name in a tenant's entry refers to nothing."""
    values = tenant.values
    keys = {key.values["name"] for key in values.get("api_keys", ())}
    credential = values.get("credential")
    if credential is not None and "api_keys" in values and credential not in keys:
        raise tenant.place_of("credential").refusal(
            "credential names no API key of this tenant", "name an entry of api_keys"
        )
    issuers = {issuer.values["name"] for issuer in values.get("workload_issuers", ())}
    for role in values.get("workload_roles", ()):
        if "workload_issuers" in values and role.values["issuer"] not in issuers:
            raise role.place_of("issuer").refusal(
                "issuer names no issuer of this tenant", "name an entry of workload_issuers"
            )
