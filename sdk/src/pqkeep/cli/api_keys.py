"""``pqkeep api-keys``: a tenant's API keys. A new one is shown once, or written to a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pqkeep.cli import choice
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Force, Tenant
from pqkeep.models import NewApiKey
from pqkeep.new_files import PRIVATE

COLUMNS = {
    "version": "VERSION",
    "status": "STATUS",
    "key_last4": "ENDS WITH",
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
def create(
    invocation: Invocation, *, tenant: Tenant = None, to: To = None, force: Force = False
) -> None:
    """Make one more API key. It is shown this once."""
    with invocation.connect() as client, _kept(to, force=force) as keep:
        facts = keep(client.api_keys.create(choice.tenant_id(client, tenant)))
    _show_new(invocation, facts, to)


@command(app, "list")
def list_api_keys(invocation: Invocation, *, tenant: Tenant = None) -> None:
    """List API keys. None can be shown again."""
    with invocation.connect() as client:
        keys = client.api_keys.list(choice.tenant_id(client, tenant))
    show_rows(invocation, "api_keys", keys, COLUMNS)


@command(app, "rotate")
def rotate(
    invocation: Invocation, *, tenant: Tenant = None, to: To = None, force: Force = False
) -> None:
    """Put a new API key in the place of the one in use; as the operator, of the newest.

    The old one works for a short while longer, by default 30 seconds.
    """
    with invocation.connect() as client, _kept(to, force=force) as keep:
        rotation = client.api_keys.rotate(choice.tenant_id(client, tenant))
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
        yield asdict
        return
    with destination(to, otherwise=to, force=force, mode=PRIVATE) as file:

        def keep(new: NewApiKey) -> dict[str, Any]:
            file.write(new.api_key.encode() + b"\n")
            facts = asdict(new)
            del facts["api_key"]
            return facts

        yield keep


def _show_new(invocation: Invocation, facts: dict[str, Any], to: str | None) -> None:
    show_facts(invocation, facts)
    if to is None:
        invocation.note("keep the API key: it is not shown again")
