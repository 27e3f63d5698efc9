"""``pqkeepd dev``."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pqkeep_protocol.startup.logs import write_logs
from pqkeep_server.atomic_files import write_private_json
from pqkeep_server.commands.arguments import on_server
from pqkeep_server.dev import OWNER, Dev, Ready, require_reachable, require_shared_rate_limits
from pqkeep_server.dev_directory import DevError, data_directory
from pqkeep_server.exit_status import end_on_signals, fail_on, ignore_user_signals
from pqkeep_server.initialise import ACCOUNTS_FILE, KEYS_FILE, Stores
from pqkeep_server.start_settings import MOST_GATEWAYS, MOST_SHARDS


def dev(
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port on 127.0.0.1; 0 chooses a free one.")
    ] = 8080,
    data: Annotated[
        Path | None,
        typer.Option(
            readable=False,  # Dev has a better message
            help="The data directory, by default a temporary one that is removed at the end.",
        ),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            help="Write base_url, portal_url, portal_link, owner_password, management_url,"
            " management_urls, tenant_id, api_key, operator_key, owner_invitation and mailbox here"
            " when ready."
        ),
    ] = None,
    accounts_database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            parser=on_server,
            help="Keep accounts in PostgreSQL: postgresql://user@host/name",
        ),
    ] = None,
    keys_database: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            parser=on_server,
            help="Keep keys and audit records in PostgreSQL. Repeat it for each further shard.",
        ),
    ] = None,
    redis_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Keep rate limits in Redis or Valkey: redis://host:port"),
    ] = None,
    gateways: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_GATEWAYS,
            help="Gateway processes on the port. Two or more need Redis or Valkey.",
        ),
    ] = 1,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_SHARDS,
            help="Key services, each with its own database. Missing ones are made.",
        ),
    ] = 1,
) -> None:
    """Run a gateway and a key service with a demo tenant on this machine's loopback address."""
    write_logs("pqkeepd")
    end_on_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignore_user_signals()
    first, *further = keys_database or [KEYS_FILE]
    stores = Stores(
        accounts=accounts_database or ACCOUNTS_FILE,
        keys=first,
        redis_url=redis_url,
    )
    with fail_on(DevError):
        if ready_file is not None and not ready_file.parent.is_dir():
            raise DevError(f"cannot write {ready_file}: {ready_file.parent} is not a directory")
        require_shared_rate_limits(data, gateways, redis_url)
        if redis_url is not None:
            require_reachable(redis_url)
    with fail_on(DevError), data_directory(data) as directory:
        installation = Dev(directory, port, stores, gateways, shards, further)
        asyncio.run(_serve(installation, directory, ready_file, temporary=data is None))


async def _serve(
    installation: Dev, directory: Path, ready_file: Path | None, *, temporary: bool
) -> None:
    ready = await installation.start()
    if ready is None:
        return
    with suppress(BrokenPipeError):  # serve even if standard output is closed
        _show(ready, directory, temporary=temporary)
    if ready_file is not None:
        try:
            write_private_json(ready_file, asdict(ready))
        except OSError as error:
            await installation.stop()
            raise DevError(f"cannot write {ready_file}: {error.strerror}") from None
    await installation.wait()


CURL = """\
  export PQKEEP_URL={url} PQKEEP_API_KEY={api_key}
  pq() {{ curl -sS "$PQKEEP_URL/api/v1$1" -H "X-API-Key: $PQKEEP_API_KEY" \
-H 'Content-Type: application/json' -d "${{2:-@-}}"; echo; }}

  pq /kms/keys/generate '{{"algorithm":"Kyber768","if_absent":true}}'
  pq /kem/encrypt '{{"plaintext":"aGVsbG8sIHdvcmxk"}}' | tee /dev/stderr \
| sed 's/.*\\("ciphertext":"[^"]*","key_version":[0-9]*\\).*/{{\\1}}/' | pq /kem/decrypt
"""


def _show(ready: Ready, directory: Path, *, temporary: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    kept = "temporary, removed at the end" if temporary else "kept"
    console.print()
    console.print("[bold]pqkeep is serving.[/bold] Ctrl-C stops it.")
    console.print(
        "For development only: one user runs both processes, so an attacker in the gateway"
    )
    console.print("could read the root key. pqkeepd init makes an installation with two users.")
    console.print()
    for name, value in (
        ("base URL", ready.base_url),
        ("demo tenant", f"{ready.tenant_id} (plan enterprise_plus)"),
        ("operator", f"{ready.operator_key} (in X-API-Key, for /api/v1/tenants)"),
        ("reference", f"{ready.base_url}/docs"),
        ("Vault", f"{ready.base_url} (as VAULT_ADDR; VAULT_TOKEN is the API key)"),
        *(
            (("mailbox", f"{ready.mailbox} (messages are stored here, not sent)"),)
            if ready.mailbox
            else ()
        ),
        ("data", f"{directory} ({kept})"),
    ):
        console.print(f"  [dim]{name:12}[/dim] ", end="")
        console.print(value, markup=False)
    console.print()
    console.print("Open the portal as the demo tenant's owner:")
    console.print()
    console.print(f"  {ready.portal_link}", markup=False)
    console.print()
    console.print(f"  The owner is {OWNER}; sensitive actions ask for the password:", markup=False)
    console.print(f"  {ready.owner_password}", markup=False)
    console.print()
    console.print("To encrypt and decrypt a first secret, paste this into another terminal:")
    console.print()
    console.print(CURL.format(url=ready.base_url, api_key=ready.api_key), markup=False)
