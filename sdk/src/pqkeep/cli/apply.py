"""``pqkeep apply`` and ``pqkeep export-config``: configuration as code."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_json
from pqkeep.cli.failures import CHANGES, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD

if TYPE_CHECKING:
    from pqkeep.cli.secret_stores import Store

MAX_FILES = 1_000
"""The most files of a folder."""
_ENDINGS = frozenset({".yaml", ".yml"})
_COLOURS = {"+": "green", "-": "red"}

SecretsFolder = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="DIR",
        help="The folder for new API keys and invitations: a file of mode 0600 each.",
        show_default=False,
    ),
]
SecretsCommand = Annotated[
    str | None,
    typer.Option(
        "--secrets-command",
        metavar="PROGRAM",
        help="A program that stores secrets instead: PROGRAM get or put, TENANT_ID, NAME.",
        show_default=False,
    ),
]
GatewaySettings = Annotated[
    Path | None,
    typer.Option(
        "--gateway-settings",
        metavar="FILE",
        help="The gateway's settings file, for identity providers and the audit sink.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""

    @command(app, "apply")
    def apply(
        invocation: Invocation,
        *,
        file: Annotated[
            str,
            typer.Option(
                "--file", "-f", metavar="FILE", help="A YAML file, a folder of them, or -."
            ),
        ],
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only show what would change; 10 if anything.")
        ] = False,
        prune: Annotated[
            bool, typer.Option("--prune", help="Remove entries that the lists do not have.")
        ] = False,
        secrets: SecretsFolder = None,
        secrets_command: SecretsCommand = None,
        gateway_settings: GatewaySettings = None,
    ) -> None:
        """Make tenants and their configuration as files describe them.

        Keys and keyrings are never removed. A list that is not in the files stays unchanged.
        """
        from pqkeep.cli.configuration_changes import Changes  # noqa: PLC0415 - loads YAML
        from pqkeep.cli.configuration_schema import declaration  # noqa: PLC0415 - slow
        from pqkeep.cli.configuration_yaml import parsed  # noqa: PLC0415 - slow

        declared = declaration(parsed(data, name) for name, data in _files(file))
        with invocation.connect() as client:
            changes = Changes(
                client=client,
                declared=declared,
                store=_store(secrets, secrets_command),
                open_client=lambda key: invocation.connect(api_key=key),
                note=invocation.note,
                prunes=prune,
                settings_file=gateway_settings,
            )
            with closing(changes):
                changes.begin()
                plan = changes.plan()
                lines = [line for one in plan.differences for line in one.lines()]
                if invocation.is_json:
                    actions = [*plan.actions, *plan.removals]
                    show_json({"changes": [action.what for action in actions], "diff": lines})
                else:
                    _show(lines)
                for note in plan.notes:
                    invocation.note(note)
                if not dry_run:
                    changes.run(plan, invocation.note)
                elif lines:
                    raise typer.Exit(CHANGES)

    @command(app, "export-config")
    def export_config(
        invocation: Invocation,
        *,
        tenant: Annotated[
            list[str] | None,
            typer.Option(
                "--tenant", metavar="NAME", help="Only this tenant. Repeatable.", show_default=False
            ),
        ] = None,
        secrets: SecretsFolder = None,
        secrets_command: SecretsCommand = None,
        gateway_settings: GatewaySettings = None,
    ) -> None:
        """Write the configuration of all tenants as YAML, without secrets."""
        from pqkeep.cli.configuration_export import exported  # noqa: PLC0415 - loads YAML
        from pqkeep.cli.configuration_yaml import written  # noqa: PLC0415 - slow

        with invocation.connect() as client:
            file = exported(
                client,
                tenant or (),
                _store(secrets, secrets_command),
                gateway_settings,
                lambda key: invocation.connect(api_key=key),
                invocation.note,
            )
        if invocation.is_json:
            show_json(file)
        else:
            typer.echo(written(file), nl=False)


def _store(folder: Path | None, program: str | None) -> "Store | None":
    from pqkeep.cli.secret_stores import Folder, Program  # noqa: PLC0415 - only these commands

    if folder is not None and program is not None:
        raise Refusal("--secrets and --secrets-command exclude each other", "leave out one")
    if folder is not None:
        return Folder(folder)
    return None if program is None else Program(program)


def _files(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and the beginnings of files, in order of their names. Raises OSError."""
    from pqkeep.cli.configuration_yaml import MAX_BYTES  # noqa: PLC0415 - loads YAML

    if name == STANDARD:
        yield "standard input", sys.stdin.buffer.read(MAX_BYTES + 1)
        return
    path = Path(name)
    paths = [path]
    if path.is_dir():
        paths = sorted(one for one in path.iterdir() if one.suffix in _ENDINGS and one.is_file())
        if not 0 < len(paths) <= MAX_FILES:
            raise Refusal(
                f"{name} has {len(paths):,} files that end with .yaml or .yml",
                f"name a folder with 1 to {MAX_FILES:,} of them",
            )
    for one in paths:
        with one.open("rb") as file:
            yield str(one), file.read(MAX_BYTES + 1)


def _show(lines: list[str]) -> None:
    """Write a diff, on a terminal in colours."""
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in lines:
        colour = _COLOURS.get(line[:1]) if is_coloured else None
        typer.echo(typer.style(line, fg=colour) if colour else line)
