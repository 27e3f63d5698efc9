"""``pqkeepd recovery-key``, ``root-key`` and ``certificates``: makes and changes an installation's keys."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from pqkeep_protocol.link import Role
from pqkeep_server import link_certificates
from pqkeep_server.backup import recovery_key
from pqkeep_server.backup.recovery_key import RecoveryKeyError
from pqkeep_server.commands.arguments import Installed
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.link_certificates import MAX_DAYS, LinkCertificatesError
from pqkeep_server.progress import progress
from pqkeep_server.root_key import RootKeyError, rotate


def create_recovery_key(
    *,
    private: Annotated[
        Path, typer.Option(help="The file to write the private half to. It opens backups.")
    ],
    public: Annotated[
        Path,
        typer.Option(help="The file to write the public half to. Backups are encrypted to it."),
    ],
    algorithm: Annotated[
        Literal["ML-KEM-1024", "X-Wing"], typer.Option(help="The KEM.")
    ] = "ML-KEM-1024",
) -> None:
    """Make a recovery key. Do so on another machine, and keep the private half there."""
    with fail_on(RecoveryKeyError):
        recovery_key.create(algorithm, private, public)
    typer.echo(
        f"{private} opens every backup that is made with {public}.\n"
        "Keep it away from the machine that pqkeep runs on: only the public half belongs there."
    )


def rotate_root_key(
    *,
    data: Installed,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help='Where the new root key comes from, as in the settings: file = "…",'
            ' credential = "…", pkcs11 = {…} or command = […]. A file, and a key in a token, are'
            " made if they are missing.",
        ),
    ] = None,
    destroy_old: Annotated[
        bool,
        typer.Option(
            "--destroy-old",
            help="Overwrite and delete the old root key's file, or destroy its key in the token.",
        ),
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The shard whose root key it is. By default that of each shard here, one after the"
            " other.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Seal every private key under a new root key, while the service runs.

    If it is interrupted, run it again: it continues.
    """
    os.umask(0o077)
    with fail_on(RootKeyError, OSError):
        known = Layout(data).shards
        shards = _chosen(shard, known, to)
    for name in shards:
        _rotate(Layout(data, name), to, destroy_old=destroy_old, is_one=len(known) == 1)


def _chosen(shard: str | None, known: tuple[str, ...], to: str | None) -> tuple[str, ...]:
    """Return the shards whose root keys are changed. Raises RootKeyError."""
    if shard is not None and shard not in known:
        raise RootKeyError(f"there is no such shard here: there are {', '.join(known)}")
    if shard is None and to is not None and len(known) > 1:
        raise RootKeyError("each shard has a root key of its own: with --to, name one by --shard")
    return known if shard is None else (shard,)


def _rotate(layout: Layout, to: str | None, *, destroy_old: bool, is_one: bool) -> None:
    with fail_on(RootKeyError), progress("making a root key") as report:
        old = rotate(layout, to=to, destroy_old=destroy_old, report=report)
    of_shard = "" if is_one else f" of the shard {layout.shard}"
    typer.echo(
        f"Every private key{of_shard} is sealed under the new root key. Make a copy of it, and a"
        " new backup."
    )
    for source in old:
        typer.echo(f"Destroy {source}, and its copies once no backup needs them.")


def certificates(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where they are kept.", file_okay=False)
    ],
    *,
    gateway: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host that a gateway runs on; again for each."),
    ] = None,
    keyservice: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host that gateways reach a key service at."),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make new keys and certificates of every host in DIR.")
    ] = False,
    days: Annotated[
        int, typer.Option(min=1, max=MAX_DAYS, help="How long the certificates are valid.")
    ] = 365,
    algorithm: Annotated[
        Literal["ML-DSA-65", "P-256"] | None,
        typer.Option(
            help="The CA's signature algorithm; by default ML-DSA-65 if this machine's OpenSSL has"
            " it (3.5), which both hosts must have too."
        ),
    ] = None,
) -> None:
    """Make certificates for gateways and key services on different hosts, from a private CA.

    Existing ones are kept, unless they are to be renewed.
    """
    os.umask(0o077)
    hosts = [(Role.GATEWAY, host) for host in gateway or ()]
    hosts += [(Role.KEY_SERVICE, host) for host in keyservice or ()]
    with fail_on(LinkCertificatesError):
        issued = link_certificates.issue(
            directory, hosts, algorithm=algorithm, days=days, renew=renew
        )
    for certificate in issued:
        made = "new" if certificate.is_new else "kept"
        typer.echo(f"{certificate.folder}  {made}, valid until {certificate.expires:%Y-%m-%d}")
    typer.echo(
        "Copy each of these folders to its host, for the user of its process alone, which reads it"
        " again on SIGHUP.\n"
        f"{directory / 'ca' / 'key.pem'} makes certificates that both sides accept: keep it offline."
    )
