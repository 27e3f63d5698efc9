"""``pqkeep issuers`` and ``pqkeep roles``: how a tenant's workloads get short-lived API keys."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pqkeep.cli import choice
from pqkeep.cli.api_keys import (
    AbsentKeyrings,
    Algorithms,
    Keyrings,
    Scopes,
    limits,
    scopes_in_words,
)
from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Tenant
from pqkeep.cli.sources import whole
from pqkeep.models import WorkloadRole

MAX_JWKS = 12 * 1024
ISSUER_COLUMNS = {
    "name": "NAME",
    "url": "URL",
    "audience": "AUDIENCE",
    "algorithms": "ALGORITHMS",
    "changed_at": "CHANGED",
}
ROLE_COLUMNS = {
    "name": "NAME",
    "issuer": "ISSUER",
    "accepts": "ACCEPTS",
    "may": "MAY",
    "lifetime_seconds": "SECONDS",
    "valid_keys": "VALID KEYS",
}

issuers = typer.Typer(
    name="issuers",
    help="Manage the issuers of workloads' tokens. Changes need the operator's credential.",
    no_args_is_help=True,
)
roles = typer.Typer(
    name="roles",
    help="Manage the roles of workloads. Changes need the operator's credential.",
    no_args_is_help=True,
)
_Issuer = Annotated[str, typer.Argument(metavar="ISSUER", help="The issuer's name.")]
_Role = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name.")]


@command(issuers, "list")
def list_issuers(invocation: Invocation, *, tenant: Tenant = None) -> None:
    """List issuers."""
    with invocation.connect() as client:
        found = client.workloads.issuers(choice.tenant_id(client, tenant))
    show_rows(invocation, "issuers", found, ISSUER_COLUMNS)


@command(issuers, "put")
def put_issuer(
    invocation: Invocation,
    issuer: _Issuer,
    *,
    issuer_url: Annotated[str, typer.Option(metavar="URL", help="The claim iss of the tokens.")],
    audience: Annotated[
        str, typer.Option(metavar="TEXT", help="A value that the claim aud must contain.")
    ],
    algorithm: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Accept this algorithm, such as RS256. Can be repeated."),
    ],
    jwks: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The public keys as a JWK Set. Without this option, the service fetches the keys.",
            show_default=False,
        ),
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Add an issuer, or replace the issuer of this name. Its workloads' API keys end."""
    keys = None
    if jwks is not None:
        keys = whole(jwks, invocation, MAX_JWKS, "name a file with fewer keys").decode()
    with invocation.connect() as client:
        made = client.workloads.put_issuer(
            choice.tenant_id(client, tenant),
            issuer,
            url=issuer_url,
            audience=audience,
            algorithms=algorithm,
            jwks=keys,
        )
    show_facts(invocation, made)


@command(issuers, "remove")
def remove_issuer(invocation: Invocation, issuer: _Issuer, *, tenant: Tenant = None) -> None:
    """Remove an issuer with its roles. The keys of its workloads end."""
    with invocation.connect() as client:
        client.workloads.remove_issuer(choice.tenant_id(client, tenant), issuer)
    show_facts(invocation, {"issuer": issuer, "removed": True})


@command(roles, "list")
def list_roles(invocation: Invocation, *, tenant: Tenant = None) -> None:
    """List roles, with the number of their valid keys."""
    with invocation.connect() as client:
        found = client.workloads.roles(choice.tenant_id(client, tenant))
    if invocation.is_json:
        show_rows(invocation, "roles", found, ROLE_COLUMNS)
    else:
        show_rows(invocation, "roles", [_Row(role) for role in found], ROLE_COLUMNS)


@command(roles, "put")
def put_role(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    role: _Role,
    *,
    issuer: Annotated[
        str, typer.Option(metavar="ISSUER", help="The issuer that signs the tokens.")
    ],
    claim: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE",
            help="Require a claim. All names must fit; of a repeated name, one value must.",
        ),
    ],
    scope: Scopes = None,
    keyring: Keyrings = None,
    algorithm: Algorithms = None,
    allow_absent_keyrings: AbsentKeyrings = False,
    lifetime: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS", help="The longest life of a key; 900 by default.", show_default=False
        ),
    ] = None,
    tenant: Tenant = None,
) -> None:
    """Add a role, or replace the one with this name. The keys of its workloads end.

    Without --scope, the scope is use.
    """
    asked = limits(None, scope or ["use"], keyring, algorithm, None, None, allow_absent_keyrings)
    with invocation.connect() as client:
        made = client.workloads.put_role(
            choice.tenant_id(client, tenant),
            role,
            issuer=issuer,
            claims=_claims(claim),
            scopes=asked["scopes"],
            lifetime_seconds=lifetime,
            allow_absent_keyrings=allow_absent_keyrings,
        )
    show_facts(invocation, made if invocation.is_json else _words(made))


@command(roles, "remove")
def remove_role(invocation: Invocation, role: _Role, *, tenant: Tenant = None) -> None:
    """Remove a role. The keys of its workloads end."""
    with invocation.connect() as client:
        client.workloads.remove_role(choice.tenant_id(client, tenant), role)
    show_facts(invocation, {"role": role, "removed": True})


class _Row:
    """A role as a row of a table."""

    def __init__(self, role: WorkloadRole) -> None:
        self.__dict__.update(_words(role))


def _words(role: WorkloadRole) -> Mapping[str, Any]:
    """Return the fields of a role, with claims and scopes in words."""
    facts = asdict(role)
    scopes, claims = facts.pop("scopes"), facts.pop("claims")
    accepts = "; ".join(f"{name}={' or '.join(values)}" for name, values in claims.items())
    return facts | {"accepts": accepts, "may": scopes_in_words(scopes)}


def _claims(stated: list[str]) -> Mapping[str, list[str]]:
    """Return the accepted values of each claim."""
    claims: defaultdict[str, list[str]] = defaultdict(list)
    for text in stated:
        name, separator, value = text.partition("=")
        if not separator:
            raise typer.BadParameter("expected NAME=VALUE", param_hint="--claim")
        claims[name].append(value)
    return claims
