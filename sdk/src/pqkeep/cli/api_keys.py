"""``pqkeep api-keys``: a tenant's API keys. A new one is shown once, or written to a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from pqkeep.algorithms import Algorithm
from pqkeep.cli import choice
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Force, Tenant, future_time
from pqkeep.models import ApiKey, NewApiKey, Scope
from pqkeep.new_files import PRIVATE

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
        autocompletion=lambda: [algorithm.value for algorithm in Algorithm],
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
    return "; ".join(_words(Scope(**scope)) for scope in scopes)


def without_limits(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of a new API key without the limits that it was not given."""
    left_out = {"name", "scopes", "expires_at", "allowed_addresses"}
    return {
        name: value for name, value in facts.items() if name not in left_out or value is not None
    }


def _words(scope: Scope) -> str:
    words = ", ".join(scope.operations or ("everything",))
    if scope.keyrings:
        words += f" on {', '.join(scope.keyrings)}"
    if scope.algorithms:
        words += f" with {', '.join(scope.algorithms)}"
    return words


COLUMNS = {
    "version": "VERSION",
    "name": "NAME",
    "status": "STATUS",
    "key_last4": "ENDS WITH",
    "may": "MAY",
    "expires_at": "EXPIRES",
    "last_used_at": "LAST USED",
    "created_at": "CREATED",
    "revoked_at": "REVOKED",
}

app = typer.Typer(name="api-keys", help="Administer a tenant's API keys.", no_args_is_help=True)

To = Annotated[
    str | None,
    typer.Option(
        "--to",
        "-o",
        metavar="FILE",
        help="Write the API key to a file of your own, and do not show it.",
        show_default=False,
    ),
]


@command(app, "create")
def create(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    *,
    name: Name = None,
    scope: Scopes = None,
    keyring: Keyrings = None,
    algorithm: Algorithms = None,
    expires: Expires = None,
    allow: Allow = None,
    allow_absent_keyrings: AbsentKeyrings = False,
    tenant: Tenant = None,
    to: To = None,
    force: Force = False,
) -> None:
    """Make one more API key. It is shown this once.

    With --keyring or --algorithm and no --scope it may use keys (--scope use).
    """
    asked = limits(name, scope, keyring, algorithm, expires, allow, allow_absent_keyrings)
    with invocation.connect() as client, _kept(to, force=force) as keep:
        facts = keep(client.api_keys.create(choice.tenant_id(client, tenant), **asked))
    _show_new(invocation, facts, to)
    if asked["scopes"] is None:
        invocation.note(
            "it may do all that an API key may; with --scope use it could use keys only"
        )


@command(app, "list")
def list_api_keys(invocation: Invocation, *, tenant: Tenant = None) -> None:
    """List API keys. None can be shown again."""
    with invocation.connect() as client:
        keys = client.api_keys.list(choice.tenant_id(client, tenant), details=True)
    rows = keys if invocation.is_json else tuple(map(listed, keys))
    show_rows(invocation, "api_keys", rows, COLUMNS)


@command(app, "rotate")
def rotate(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    *,
    name: Name = None,
    scope: Scopes = None,
    keyring: Keyrings = None,
    algorithm: Algorithms = None,
    expires: Expires = None,
    allow: Allow = None,
    allow_absent_keyrings: AbsentKeyrings = False,
    overlap: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="For how long the old one works; 0 is not at all.",
            show_default=False,
        ),
    ] = None,
    tenant: Tenant = None,
    to: To = None,
    force: Force = False,
) -> None:
    """Put a new API key in the place of the one in use; as the operator, of the newest.

    The old one works for a short while longer, by default 30 seconds. What no option names stays as it was. An API key can limit itself further, and no less.
    """
    asked = limits(name, scope, keyring, algorithm, expires, allow, allow_absent_keyrings)
    with invocation.connect() as client, _kept(to, force=force) as keep:
        own = choice.tenant_id(client, tenant)
        rotation = client.api_keys.rotate(own, overlap_seconds=overlap, **asked)
        facts = keep(rotation.new_key) | {"revoked_version": rotation.revoked_version}
    _show_new(invocation, facts, to)
    invocation.note("where the old one is kept, put the new one; in a profile with pqkeep login")


@command(app, "revoke")
def revoke(
    invocation: Invocation,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Which API key.")],
    *,
    tenant: Tenant = None,
) -> None:
    """Revoke an API key, at once and for ever."""
    with invocation.connect() as client:
        revoked = client.api_keys.revoke(choice.tenant_id(client, tenant), version=version)
    show_facts(invocation, revoked)


@contextmanager
def _kept(to: str | None, *, force: bool) -> Iterator[Callable[[NewApiKey], dict[str, Any]]]:
    """Yield what writes an API key to a file, if one is named, and returns what is left to show.

    The file is open before there is a key to lose.
    """
    if to is None:
        yield lambda new: without_limits(asdict(new))
        return
    with destination(to, otherwise=to, force=force, mode=PRIVATE) as file:

        def keep(new: NewApiKey) -> dict[str, Any]:
            file.write(new.api_key.encode() + b"\n")
            facts = without_limits(asdict(new))
            del facts["api_key"]
            return facts

        yield keep


def _show_new(invocation: Invocation, facts: dict[str, Any], to: str | None) -> None:
    if not invocation.is_json and "scopes" in facts:
        facts = facts | {"scopes": scopes_in_words(facts["scopes"])}
    show_facts(invocation, facts)
    if to is None:
        invocation.note("keep the API key: it is not shown again")
