"""``pqkeep rules``: the algorithms that the tenant ends, and the date for each."""

from dataclasses import asdict
from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation

COLUMNS = {
    "name": "NAME",
    "algorithms": "ENDS",
    "successor": "SUCCESSOR",
    "keyrings": "KEYRINGS",
    "warn_from": "WARNS FROM",
    "deny_from": "DENIES FROM",
}
PREVIEW_COLUMNS = {
    "rule": "RULE",
    "principal": "PRINCIPAL",
    "keyring": "KEYRING",
    "algorithm": "ALGORITHM",
    "operation": "OPERATION",
    "uses": "USES",
    "last_used_at": "LAST USED",
}
PROFILE_COLUMNS = {
    "name": "RULE",
    "algorithms": "ENDS",
    "uses": "USES",
    "successor": "SUCCESSOR",
}

app = typer.Typer(
    name="rules",
    help="Show the rules that end algorithms. Owners and admins change them in the portal.",
    no_args_is_help=True,
)


@command(app, "list")
def list_rules(invocation: Invocation) -> None:
    """List the rules."""
    with invocation.connect() as client:
        rules = client.rules.list()
    show_rows(invocation, "rules", rules.rules, COLUMNS)


@command(app, "show")
def show(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="RULE", help="The rule's name.")],
) -> None:
    """Show a rule."""
    with invocation.connect() as client:
        rule = client.rules.get(name)
    if invocation.is_json:
        show_facts(invocation, rule)
        return
    exceptions = [
        f"API key {exception.api_key} until {exception.until:%Y-%m-%dT%H:%M:%SZ}"
        for exception in rule.exceptions
    ]
    show_facts(invocation, asdict(rule) | {"exceptions": exceptions})


@command(app, "preview")
def preview(
    invocation: Invocation,
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", help="An existing rule.", show_default=False)
    ] = None,
    *,
    rule_profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Preview a profile's rules.", show_default=False),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Preview a new rule that ends it. Can be repeated."),
    ] = None,
    keyring: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Limit it to a keyring or PREFIX*. Can be repeated."),
    ] = None,
    use: Annotated[
        list[str] | None,
        typer.Option(metavar="USE", help="Limit it to a use. Can be repeated."),
    ] = None,
) -> None:
    """Show what a rule would have refused in the last 30 days."""
    with invocation.connect() as client:
        found = client.rules.preview(
            name=rule,
            profile=rule_profile,
            algorithms=algorithm or None,
            keyrings=keyring or None,
            uses=use or None,
        )
    if found.incomplete:
        invocation.note("pqkeep: there is more; limit it with --keyring or --use")
    show_rows(invocation, "refused", found.refused, PREVIEW_COLUMNS)


@command(app, "profiles")
def profiles(invocation: Invocation) -> None:
    """List the profiles: sets of rules that owners and admins can put by name."""
    with invocation.connect() as client:
        found = client.rules.profiles()
    if invocation.is_json:
        show_rows(invocation, "profiles", found, {})
    else:
        rules = [rule for profile in found for rule in profile.rules]
        show_rows(invocation, "rules", rules, PROFILE_COLUMNS)
