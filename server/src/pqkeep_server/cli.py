"""The command ``pqkeepd``."""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pqkeep_protocol.startup.logs import write_logs
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server import administration
from pqkeep_server.dev import HOST, OWNER, Dev, DevError, Ready, data_directory, write_private
from pqkeep_server.initialise import ACCOUNTS_FILE, KEYS_FILE, Stores
from pqkeep_server.operator import (
    GatewayError,
    Operator,
    acceptance,
    read_credential,
)
from pqkeep_server.selftest import run as run_selftest

app = typer.Typer(
    name="pqkeepd",
    help="pqkeep: post-quantum cryptography as a service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


admin = typer.Typer(help="Let people in.", no_args_is_help=True)
app.add_typer(admin, name="admin")
app.add_typer(administration.recovery_keys, name="recovery-key")
app.command()(administration.backup)
app.command()(administration.restore)
app.add_typer(administration.root_keys, name="root-key")


@app.callback()
def pqkeepd() -> None:
    """Start, supervise and administer a pqkeep installation."""


@app.command()
def dev(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")
    ] = 8080,
    data: Annotated[
        Path | None,
        typer.Option(
            readable=False,  # what is wrong with it is said below
            help="Data directory; without it a temporary one, removed at the end.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="Write base_url, tenant_id, api_key, operator_key, owner_invitation and mailbox"
            " here when ready."
        ),
    ] = None,
    accounts_database: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Keep accounts in PostgreSQL: postgresql://user@host/name"
        ),
    ] = None,
    keys_database: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Keep keys and audit records in PostgreSQL, likewise."),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Keep rate windows in Redis or Valkey: redis://host:port"),
    ] = None,
) -> None:
    """Run gateway and key service on this machine's loopback, with a demo tenant."""
    write_logs("pqkeepd")
    try:
        with data_directory(data) as directory:
            stores = Stores(
                accounts=accounts_database or ACCOUNTS_FILE,
                keys=keys_database or KEYS_FILE,
                redis_url=redis_url,
            )
            installation = Dev(directory, port, stores)
            asyncio.run(_serve(installation, directory, ready_file, temporary=data is None))
    except DevError as error:
        typer.echo(f"pqkeepd: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def selftest(
    *,
    openssl: Annotated[
        bool, typer.Option("--openssl", help="Test SLH-DSA of the system's OpenSSL >= 3.5.")
    ] = False,
    openssl_library: Annotated[
        str, typer.Option(help="Another libcrypto than the system's, with --openssl.")
    ] = "",
) -> None:
    """Check every algorithm against its known answer, and print a table."""
    try:
        table, passed = run_selftest(openssl_library if openssl else None)
    except ConfigError as error:
        typer.echo(f"pqkeepd: {error}", err=True)
        raise typer.Exit(1) from None
    Console().print(table)
    if not passed:
        typer.echo("pqkeepd: the cryptography of this installation must not be used", err=True)
        raise typer.Exit(1)


@admin.command("create")
def create_person(
    *,
    email: Annotated[str, typer.Option(help="Whom to invite.")],
    tenant: Annotated[str, typer.Option(metavar="ID", help="The tenant they belong to.")],
    operator_key_file: Annotated[
        Path,
        typer.Option(help="A file of mode 0400 with the operator's credential, and nothing else."),
    ],
    role: Annotated[str, typer.Option(help="owner, admin, developer or viewer.")] = "owner",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The gateway's port here.")] = 8080,
    portal_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where they reach the gateway, if not on this machine."),
    ] = None,
) -> None:
    """Invite somebody: print the command, good once and for a week, that chooses a password."""
    try:
        operator = Operator(HOST, port, read_credential(operator_key_file))
        token = operator.invite(tenant, email, role)
    except (ConfigError, GatewayError) as error:
        typer.echo(f"pqkeepd: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(acceptance(portal_url or f"http://{HOST}:{port}", token))


async def _serve(
    installation: Dev, directory: Path, ready_file: Path | None, *, temporary: bool
) -> None:
    ready = await installation.start()
    with suppress(BrokenPipeError):  # nobody reads, which is no reason to stop serving
        _show(ready, directory, temporary=temporary)
    if ready_file is not None:
        try:
            write_private(ready_file, asdict(ready))
        except OSError as error:
            await installation.stop()
            raise DevError(f"cannot write {ready_file}: {error.strerror}") from None
    await installation.wait()


CURL = """\
  export PQKEEP_URL={url} PQKEEP_API_KEY={api_key}
  pq() {{ curl -sS "$PQKEEP_URL/api/v1$1" -H "X-API-Key: $PQKEEP_API_KEY" \
-H 'Content-Type: application/json' -d "${{2:-@-}}"; echo; }}

  pq /kms/keys/generate '{{"algorithm":"Kyber768"}}'
  pq /kem/encrypt '{{"plaintext":"aGVsbG8sIHdvcmxk"}}' | tee /dev/stderr \
| sed 's/.*"ciphertext":"\\([^"]*\\)".*/{{"ciphertext":"\\1","key_version":1}}/' | pq /kem/decrypt
"""


def _show(ready: Ready, directory: Path, *, temporary: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    kept = "temporary: gone when this ends" if temporary else "kept"
    console.print()
    console.print("[bold]pqkeep is serving.[/bold] Ctrl-C stops it.")
    console.print()
    for name, value in (
        ("base URL", ready.base_url),
        ("demo tenant", f"{ready.tenant_id} (plan enterprise_plus)"),
        ("operator", f"{ready.operator_key} (in X-API-Key, for /api/v1/tenants)"),
        ("reference", f"{ready.base_url}/docs"),
        *((("mailbox", f"{ready.mailbox} (what would be sent)"),) if ready.mailbox else ()),
        ("data", f"{directory} ({kept})"),
    ):
        console.print(f"  [dim]{name:12}[/dim] ", end="")
        console.print(value, markup=False)
    console.print()
    if ready.owner_invitation:
        console.print(f"Become the demo tenant's owner, {OWNER}, with a password of your choice:")
        console.print()
        console.print(f"  {acceptance(ready.base_url, ready.owner_invitation)}", markup=False)
        console.print()
    console.print("Paste into another terminal to encrypt and decrypt a first secret:")
    console.print()
    console.print(CURL.format(url=ready.base_url, api_key=ready.api_key), markup=False)
