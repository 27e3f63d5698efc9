"""Options that limit an API key: what it may do, for how long, and from where."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from pqkeep.algorithms import Algorithm
from pqkeep.cli.options import future_time
from pqkeep.models import ApiKey, Scope

PROPOSED = "use"
"""What a program needs that only uses keys."""
GROUPS = (PROPOSED, "encrypt-only", "decrypt-only", "verify-only", "manage-keys", "administer")
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="What you call it. The audit log has it.", show_default=False
    ),
]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="GROUP|OPERATION",
        help=f"What it may do: {', '.join(GROUPS)}, or an operation such as encrypt. Can be repeated.",
        autocompletion=lambda: list(GROUPS),
        show_default=False,
    ),
]
Keyrings = Annotated[
    list[str] | None,
    typer.Option(
        "--keyring",
        metavar="PATTERN",
        help="Only with this keyring, or with those that begin so: 'payments.*'. Can be repeated.",
        show_default=False,
    ),
]
AbsentKeyrings = Annotated[
    bool,
    typer.Option("--allow-absent-keyrings", help="--keyring may name one that does not exist."),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="Only with this algorithm. Can be repeated.",
        autocompletion=lambda: [each.value for each in Algorithm],
        show_default=False,
    ),
]
Expires = Annotated[
    datetime | None,
    typer.Option(
        metavar="TIME",
        parser=future_time,
        help="When it ends: 90d, 12h, or a time such as 2026-11-20T17:31:10Z.",
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NETWORK",
        help="Only from this network, such as 10.0.0.0/8. Can be repeated.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedApiKey(ApiKey):
    """An API key as a row of a table."""

    may: str


def limits(
    name: str | None,
    scopes: list[str] | None,
    keyrings: list[str] | None,
    algorithms: list[str] | None,
    expires: datetime | None,
    allow: list[str] | None,
    allow_absent_keyrings: bool,  # noqa: FBT001 - an option
) -> dict[str, Any]:
    """Return the options as the client's arguments: one scope, if any of its options is there."""
    scope = None
    if scopes or keyrings or algorithms:
        scope = Scope(
            operations=tuple(scopes or (PROPOSED,)),
            keyrings=tuple(keyrings) if keyrings else None,
            algorithms=tuple(algorithms) if algorithms else None,
        )
    return {
        "name": name,
        "scopes": None if scope is None else [scope],
        "expires_at": expires,
        "allowed_addresses": allow or None,
        "allow_absent_keyrings": allow_absent_keyrings,
    }


def listed(key: ApiKey) -> ListedApiKey:
    """Return an API key with what it may do in words."""
    values = {name: getattr(key, name) for name in ApiKey.__dataclass_fields__}
    may = "everything" if key.scopes is None else "; ".join(map(_words, key.scopes))
    return ListedApiKey(**values, may=may)


def scopes_in_words(scopes: list[dict[str, Any]]) -> str:
    """Return what the scopes of a new API key allow, as the list of API keys says it."""
    return "; ".join(_words(Scope(**each)) for each in scopes)


def without_limits(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a new API key without the limits that it was not given."""
    left_out = {"name", "scopes", "expires_at", "allowed_addresses"}
    return {name: each for name, each in facts.items() if name not in left_out or each is not None}


def _words(scope: Scope) -> str:
    words = ", ".join(scope.operations or ("everything",))
    if scope.keyrings:
        words += f" on {', '.join(scope.keyrings)}"
    if scope.algorithms:
        words += f" with {', '.join(scope.algorithms)}"
    return words
