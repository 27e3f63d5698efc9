"""``pqkeep keys``: make keys, replace them, look at them."""

from dataclasses import asdict
from typing import Annotated

import typer

from pqkeep.cli import choice, documents
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmArgument,
    AlgorithmOption,
    Force,
    KeyVersion,
    To,
)
from pqkeep.models import Key
from pqkeep.new_files import PUBLIC

COLUMNS = {
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "status": "STATUS",
    "created_at": "CREATED",
}
STATUSES = ("active", "retired", "archived")

app = typer.Typer(name="keys", help="Make keys, replace them, look at them.", no_args_is_help=True)


@command(app, "generate")
def generate(invocation: Invocation, algorithm: AlgorithmArgument) -> None:
    """Make the first key of an algorithm, or one after all others were retired."""
    with invocation.connect() as client:
        _show(invocation, client.keys.generate(algorithm))


@command(app, "rotate")
def rotate(invocation: Invocation, algorithm: AlgorithmArgument) -> None:
    """Replace the active key with a new one.

    The old key is retired: what it encrypted or signed can still be decrypted or verified.
    """
    with invocation.connect() as client:
        rotation = client.keys.rotate(algorithm)
        if invocation.is_json:
            show_facts(invocation, rotation)
        else:
            _show(invocation, client.keys.get(algorithm, key_version=rotation.key_version))
    invocation.note(f"version {rotation.old_key_version} is retired")


@command(app, "retire")
def retire(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: Annotated[
        int, typer.Option("--key-version", "-k", metavar="N", min=1, help="A version of the key.")
    ],
) -> None:
    """Allow no new encryption or signature with a key. What it made can still be read."""
    with invocation.connect() as client:
        _show(invocation, client.keys.retire(algorithm, key_version=key_version))


@command(app, "list")
def list_keys(
    invocation: Invocation,
    *,
    algorithm: AlgorithmOption = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS",
            help="Only active, retired or archived ones.",
            autocompletion=lambda: list(STATUSES),
            show_default=False,
        ),
    ] = None,
) -> None:
    """List all keys."""
    with invocation.connect() as client:
        keys = client.keys.list(algorithm=algorithm, status=status)
    show_rows(invocation, "keys", keys, COLUMNS)


@command(app, "show")
def show(
    invocation: Invocation, algorithm: AlgorithmArgument, *, key_version: KeyVersion = None
) -> None:
    """Show a key, by itself the active one, and how much it is in use."""
    with invocation.connect() as client:
        key = choice.key(client, algorithm, key_version)
        usage = client.keys.usage(algorithm, key_version=key.key_version)
    facts = asdict(key) | {"uses": usage.uses, "last_used_at": usage.last_used_at}
    if not invocation.is_json:
        del facts["public_key"]
    show_facts(invocation, facts)


@command(app, "public-key")
def public_key(
    invocation: Invocation,
    algorithm: AlgorithmArgument,
    *,
    key_version: KeyVersion = None,
    to: To = None,
    force: Force = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the key's bytes only, without what they are.")
    ] = False,
) -> None:
    """Write a public key, by itself the active one, for pqkeep encrypt --public-key."""
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as file,
        invocation.connect() as client,
    ):
        key = choice.key(client, algorithm, key_version)
        file.write(key.public_key if raw else documents.written(documents.public_key(key)))


def _show(invocation: Invocation, key: Key) -> None:
    if invocation.is_json:
        show_facts(invocation, key)
    else:
        show_facts(invocation, {name: getattr(key, name) for name in COLUMNS})
