"""``pqkeep api-keys``: a tenant's API keys. A new one is shown once, or written to a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pqkeep.cli import choice
from pqkeep.cli.api_key_limits import (
    AbsentKeyrings,
    Algorithms,
    Allow,
    Expires,
    Keyrings,
    Name,
    Scopes,
    limits,
    listed,
    scopes_in_words,
    without_limits,
)
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Force, Tenant
from pqkeep.models import NewApiKey
from pqkeep.new_files import PRIVATE

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
