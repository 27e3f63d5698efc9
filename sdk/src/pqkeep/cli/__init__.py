"""The command ``pqkeep``, from the extra ``pqkeep[cli]``. It uses the client's public names only.

Slow modules (HTTP, cryptography, tables) are imported only by the commands that need them.
"""

import sys

from pqkeep.errors import how_to_install

try:
    import typer
except ModuleNotFoundError:
    sys.exit(f"pqkeep: the command is not installed: {how_to_install('cli')}")

from typing import Annotated

from pqkeep.cli import (
    age,
    api_keys,
    apply,
    audit,
    campaign,
    cms,
    encryption,
    inventory,
    keyrings,
    keys,
    kms_plugin,
    login,
    macs,
    notices,
    re_encryption,
    report,
    rules,
    shared_secrets,
    signing,
    status,
    team,
    tenants,
    transit,
    webhooks,
    workloads,
)
from pqkeep.cli.command import Program, options_before_commands
from pqkeep.cli.status import installed_version

app = Program(
    name="pqkeep",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)
login.add_to(app)
status.add_to(app)

encryption.add_to(app)
re_encryption.add_to(app)
signing.add_to(app)
shared_secrets.add_to(app)
macs.add_to(app)
kms_plugin.add_to(app)
apply.add_to(app)
team.add_to(app)
for group in (
    keys,
    keyrings,
    age,
    cms,
    rules,
    campaign,
    api_keys,
    tenants,
    team,
    audit,
    inventory,
    report,
    transit,
    notices,
    webhooks,
):
    app.add_typer(group.app)
app.add_typer(workloads.issuers)
app.add_typer(workloads.roles)


def _show_version(value: bool) -> None:  # noqa: FBT001 - a Typer callback
    if value:
        typer.echo(f"pqkeep {installed_version()}")
        raise typer.Exit


def pqkeep(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Use pqkeep, the post-quantum cryptography service.

    Files are encrypted and hashed on this machine, and private keys never leave the service. For
    the options of a command, run pqkeep COMMAND --help.
    """


options_before_commands(app, pqkeep)

__all__ = ["app"]
