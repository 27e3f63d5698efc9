"""``pqkeepd rules``: lists, sets and removes a tenant's rules, also to weaken them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from pqkeep_keyservice import config as key_service_config
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import ListRules, OverrideRule, Rules
from pqkeep_protocol.rules import MAX_RULES, Rule, rules_of, rules_text
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Installed
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError, ask_rules

MAX_FILE = 1024 * 1024
"""Bytes in a file with rules."""

Tenant = Annotated[UUID, typer.Option(help="The tenant's id.")]
Shard = Annotated[
    str | None,
    typer.Option(
        help="The tenant's shard. The default is the only shard, or the shard that has its rules."
    ),
]


class RulesError(Exception):
    """Nothing was changed."""


def list_all(*, tenant: Tenant, shard: Shard = None, data: Installed) -> None:
    """Print a tenant's rules as JSON, in the form that ``rules set`` reads."""
    with fail_on(ConfigError, KeyServiceError, RulesError):
        _, found = _find(data, TenantId(tenant), shard)
        text = rules_text(found.rules)
        typer.echo(msgspec.json.format(text, indent=2).decode())


def set_(
    file: Annotated[
        Path, typer.Argument(help="A JSON file with one rule or a list of rules.", dir_okay=False)
    ],
    *,
    tenant: Tenant,
    shard: Shard = None,
    discard_damaged: Annotated[
        bool, typer.Option(help="Discard rules that are damaged, and begin with none.")
    ] = False,
    data: Installed,
) -> None:
    """Add or replace rules of a tenant, even if that weakens them: all or none.

    The audit log has one record of the change.
    """
    with fail_on(ConfigError, KeyServiceError, RulesError):
        rules = _read(file)
        socket, _ = _find(data, TenantId(tenant), shard, may_be_damaged=discard_damaged)
        request = OverrideRule(
            tenant=TenantId(tenant),
            name=_common_name(rules),
            rules=rules,
            discards_damaged=discard_damaged,
        )
        ask_rules(socket, request)
        for rule in rules:
            typer.echo(f"set: {rule.name}")


def remove(
    name: Annotated[str, typer.Argument(help="The rule's name.")],
    *,
    tenant: Tenant,
    shard: Shard = None,
    data: Installed,
) -> None:
    """Remove a rule of a tenant. The audit log records it."""
    with fail_on(ConfigError, KeyServiceError, RulesError):
        socket, found = _find(data, TenantId(tenant), shard)
        if name not in {rule.name for rule in found.rules}:
            raise RulesError(f"the tenant has no rule {name}: pqkeepd rules list shows its rules")
        ask_rules(socket, OverrideRule(tenant=TenantId(tenant), name=name, rules=()))
        typer.echo(f"removed: {name}")


def _find(
    data: Path, tenant: TenantId, shard: str | None, *, may_be_damaged: bool = False
) -> tuple[Path, Rules]:
    """Return the socket of a tenant's key service, and the tenant's rules."""
    layout = Layout(data)
    names = list(layout.shards)
    if shard is not None and shard not in names:
        raise RulesError(f"there is no shard {shard}: pqkeepd shard list shows the shards")
    chosen = names if shard is None else [shard]
    found: list[tuple[Path, Rules]] = []
    for name in chosen:
        socket = _operator_socket(Layout(layout.directory, name))
        try:
            found.append((socket, ask_rules(socket, ListRules(tenant=tenant))))
        except KeyServiceError:
            if len(chosen) > 1:
                continue  # the tenant has moved to another shard
            if not may_be_damaged:
                raise
            found.append((socket, Rules(rules=(), revision=0, sha256=bytes(32))))
    changed = [(socket, rules) for socket, rules in found if rules.revision] or found
    if len(changed) != 1:
        raise RulesError("several shards could have the tenant: name its shard with --shard")
    return changed[0]


def _operator_socket(layout: Layout) -> Path:
    socket = key_service_config.read(layout.key_service_settings).operator_socket
    if socket is None:
        raise ConfigError(f"{layout.key_service_settings} has no operator_socket: add one")
    return socket


def _common_name(rules: tuple[Rule, ...]) -> str | None:
    """Return the name of the only rule or of the profile of all rules; None: several names."""
    if len(rules) == 1:
        return rules[0].name
    first, _, _ = rules[0].name.rpartition(".")
    return first if first and all(rule.name.startswith(f"{first}.") for rule in rules) else None


def _read(file: Path) -> tuple[Rule, ...]:
    """Return the rules in a file. Fields that it omits have their defaults."""
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise RulesError(f"{file} is larger than {MAX_FILE} bytes")
        content = msgspec.json.decode(text)
        given = content if isinstance(content, list) else [content]
        if not given:
            raise RulesError(f"{file} has no rules: pqkeepd rules remove NAME removes one")
        rules = rules_of(msgspec.json.encode([_complete(file, rule) for rule in given]))
    except OSError as error:
        raise RulesError(f"{file} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:  # msgspec's errors are ValueErrors
        raise RulesError(f"{file} has no valid rules: {error}") from None
    if len(rules) > MAX_RULES:
        raise RulesError(f"{file} has more than {MAX_RULES} rules")
    if len({rule.name for rule in rules}) < len(rules):
        raise RulesError(f"{file} has two rules of the same name: remove one of them")
    return rules


def _complete(file: Path, rule: Mapping[str, Any]) -> dict[str, Any]:
    (defaults,) = msgspec.json.decode(rules_text([Rule("any", (Algorithm.X_WING,))]))
    for name in ("name", "algorithms"):
        del defaults[name]
        if name not in rule:
            raise RulesError(f"{file}: a rule has no {name}")
    if unknown := rule.keys() - {*defaults, "name", "algorithms"}:
        raise RulesError(f"{file}: a rule has no field {min(unknown)}")
    return {**defaults, **rule}
