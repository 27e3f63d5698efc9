"""``pqkeep api-keys``: a tenant's API keys. A new API key is shown once, or written to a file."""

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
from pqkeep.cli.options import Force, PastTime, Tenant, future_time
from pqkeep.models import ApiKey, NewApiKey, Scope
from pqkeep.new_files import PRIVATE

PROPOSED = "use"
"""The scope of a program that only uses keys."""
GROUPS = (PROPOSED, "encrypt-only", "decrypt-only", "verify-only", "manage-keys", "administer")
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The API key's name, which the audit log shows.", show_default=False
    ),
]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="GROUP|OPERATION",
        help=f"Allow operations: {', '.join(GROUPS)}, or one operation such as encrypt. Can be repeated.",
        autocompletion=lambda: list(GROUPS),
        show_default=False,
    ),
]
Keyrings = Annotated[
    list[str] | None,
    typer.Option(
        "--keyring",
        metavar="PATTERN",
        help="Allow only this keyring, or a pattern such as 'payments.*'. Can be repeated.",
        show_default=False,
    ),
]
AbsentKeyrings = Annotated[
    bool,
    typer.Option("--allow-absent-keyrings", help="Accept a --keyring that does not exist yet."),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="Allow only this algorithm. Can be repeated.",
        autocompletion=lambda: [algorithm.value for algorithm in Algorithm],
        show_default=False,
    ),
]
Expires = Annotated[
    datetime | None,
    typer.Option(
        metavar="TIME",
        parser=future_time,
        help="Expiry: a span such as 90d or 12h, or a time such as 2026-11-20T17:31:10Z.",
        show_default=False,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NETWORK",
        help="Allow requests only from this network, such as 10.0.0.0/8. Can be repeated.",
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
    """Return the options as arguments of the client, with at most one scope."""
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
    """Return an API key as a row, with its permissions in words."""
    values = {name: getattr(key, name) for name in ApiKey.__dataclass_fields__}
    may = "everything" if key.scopes is None else "; ".join(map(_words, key.scopes))
    return ListedApiKey(**values, may=may)


def scopes_in_words(scopes: list[dict[str, Any]]) -> str:
    """Return the permissions of a new API key in words, as in the list of API keys."""
    return "; ".join(_words(Scope(**scope)) for scope in scopes)


def without_limits(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a new API key, without unused limits."""
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

app = typer.Typer(name="api-keys", help="Manage a tenant's API keys.", no_args_is_help=True)

To = Annotated[
    str | None,
    typer.Option(
        "--to",
        "-o",
        metavar="FILE",
        help="Write the API key to a file that only you can read, and do not show it.",
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
    """Make an API key. It is shown only once.

    With --keyring or --algorithm but without --scope, the scope is use.
    """
    asked = limits(name, scope, keyring, algorithm, expires, allow, allow_absent_keyrings)
    with invocation.connect() as client, _kept(to, force=force) as keep:
        facts = keep(client.api_keys.create(choice.tenant_id(client, tenant), **asked))
    _show_new(invocation, facts, to)
    if asked["scopes"] is None:
        invocation.note(
            "the API key has every permission; to allow only the use of keys, add --scope use"
        )


@command(app, "list")
def list_api_keys(  # noqa: PLR0913 - filters, by name
    invocation: Invocation,
    *,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS",
            help="Only active, expired or revoked API keys; several with commas.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Only API keys with these words in their name, or these last four characters.",
            show_default=False,
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only API keys that may use this operation, keyring or algorithm.",
            show_default=False,
        ),
    ] = None,
    may_use: Annotated[
        str | None,
        typer.Option(
            metavar="KEYRING/ALGORITHM",
            help="Only API keys that may use this key, such as payments/Kyber768.",
            show_default=False,
        ),
    ] = None,
    created_since: PastTime = None,
    created_before: PastTime = None,
    used_since: PastTime = None,
    unused_since: PastTime = None,
    expires_before: Annotated[
        datetime | None,
        typer.Option(
            metavar="TIME",
            parser=future_time,
            help="Only active API keys that expire before: a span such as 30d, or a time.",
            show_default=False,
        ),
    ] = None,
    tenant: Tenant = None,
) -> None:
    """List API keys. The keys themselves cannot be shown again.

    To list API keys without a use for 90 days: --status active --unused-since 90d.
    """
    with invocation.connect() as client:
        keys = client.api_keys.list(
            choice.tenant_id(client, tenant),
            details=True,
            status=status,
            name=name,
            scope=scope,
            may_use=may_use,
            created_since=created_since,
            created_before=created_before,
            used_since=used_since,
            unused_since=unused_since,
            expires_before=expires_before,
        )
    rows = keys if invocation.is_json else tuple(map(listed, keys))
    show_rows(invocation, "api_keys", rows, COLUMNS)


@command(app, "show")
def show(invocation: Invocation) -> None:
    """Show the API key that you use: its tenant, version, permissions and expiry."""
    with invocation.connect() as client:
        own = client.api_keys.own()
    if invocation.is_json:
        show_facts(invocation, own)
        return
    may = "everything" if own.scopes is None else "; ".join(map(_words, own.scopes))
    facts = {name: value for name, value in asdict(own).items() if name != "scopes"}
    show_facts(invocation, facts | {"may": may})


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
            help="How long the old API key still works; 0 revokes it at once.",
            show_default=False,
        ),
    ] = None,
    tenant: Tenant = None,
    to: To = None,
    force: Force = False,
) -> None:
    """Replace your own API key, or as the operator a tenant's newest one.

    The old API key works for 30 more seconds by default. Limits without an option stay the same. An
    API key can add limits to itself, but cannot remove any.
    """
    asked = limits(name, scope, keyring, algorithm, expires, allow, allow_absent_keyrings)
    with invocation.connect() as client, _kept(to, force=force) as keep:
        own = choice.tenant_id(client, tenant)
        rotation = client.api_keys.rotate(own, overlap_seconds=overlap, **asked)
        facts = keep(rotation.new_key) | {"revoked_version": rotation.revoked_version}
    _show_new(invocation, facts, to)
    invocation.note("replace the old API key where it is stored; in a profile, use pqkeep login")


@command(app, "revoke")
def revoke(
    invocation: Invocation,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=1, help="The API key's version.")
    ],
    *,
    tenant: Tenant = None,
) -> None:
    """Revoke an API key at once. This cannot be undone."""
    with invocation.connect() as client:
        revoked = client.api_keys.revoke(choice.tenant_id(client, tenant), version=version)
    show_facts(invocation, revoked)


@contextmanager
def _kept(to: str | None, *, force: bool) -> Iterator[Callable[[NewApiKey], dict[str, Any]]]:
    """Yield a function that stores a new API key in the named file. It returns what to show.

    The file is opened before the API key exists, so that the API key cannot get lost.
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
        invocation.note("store the API key now: it is not shown again")
