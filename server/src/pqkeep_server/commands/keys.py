"""``pqkeepd recovery-key``, ``root-key`` and ``certificates``: an installation's own keys."""

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
        Path, typer.Option(help="The file for the private half, which decrypts backups.")
    ],
    public: Annotated[
        Path,
        typer.Option(help="The file for the public half, which encrypts backups."),
    ],
    algorithm: Annotated[
        Literal["ML-KEM-1024", "X-Wing"], typer.Option(help="The KEM.")
    ] = "ML-KEM-1024",
) -> None:
    """Make a recovery key. Do this on another machine, and keep the private half there."""
    with fail_on(RecoveryKeyError):
        recovery_key.create(algorithm, private, public)
    typer.echo(
        f"{private} decrypts every backup that is made with {public}.\n"
        "Never store it on the machine that runs pqkeep: only the public half belongs there."
    )


def rotate_root_key(
    *,
    data: Installed,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help='The source of the new root key, as in the settings: file = "…",'
            ' credential = "…", pkcs11 = {…} or command = […]. A missing file or a missing key in a'
            " token is made.",
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
            help="The shard of the root key. By default, the root keys of all shards here are changed.",
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
    """Return the shards to change. Raises RootKeyError."""
    if shard is not None and shard not in known:
        raise RootKeyError(f"no such shard here: choose one of {', '.join(known)}")
    if shard is None and to is not None and len(known) > 1:
        raise RootKeyError("--to works only for one shard: add --shard")
    return known if shard is None else (shard,)


def _rotate(layout: Layout, to: str | None, *, destroy_old: bool, is_one: bool) -> None:
    with fail_on(RootKeyError), progress("making a root key") as report:
        old = rotate(layout, to=to, destroy_old=destroy_old, report=report)
    of_shard = "" if is_one else f" of the shard {layout.shard}"
    typer.echo(
        f"Every private key{of_shard} is sealed under the new root key. Copy the new root key to a"
        " safe place and make a new backup."
    )
    for source in old:
        typer.echo(f"Destroy {source}. Destroy its copies once no backup needs them.")


def certificates(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The directory of the certificates.", file_okay=False),
    ],
    *,
    gateway: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="A host of a gateway. Can be repeated."),
    ] = None,
    keyservice: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="A host of a key service, as gateways address it. Can be repeated."
        ),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make new keys and certificates for every host in DIR.")
    ] = False,
    days: Annotated[
        int, typer.Option(min=1, max=MAX_DAYS, help="The validity of the certificates in days.")
    ] = 365,
    algorithm: Annotated[
        Literal["ML-DSA-65", "P-256"] | None,
        typer.Option(
            help="The CA's signature algorithm. The default is ML-DSA-65 if this machine has OpenSSL"
            " 3.5, which both hosts then need."
        ),
    ] = None,
) -> None:
    """Make certificates of a private CA for gateways and key services on different hosts.

    Existing certificates are kept, except with --renew.
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
        "Copy each folder to its host, readable only for the user of the process. The process reads"
        " it again on SIGHUP.\n"
        f"{directory / 'ca' / 'key.pem'} can make certificates that both sides accept: keep it offline."
    )
