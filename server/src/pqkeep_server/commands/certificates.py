"""``pqkeepd certificates``."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from pqkeep_protocol.link import Role
from pqkeep_server import link_certificates
from pqkeep_server.exit_status import fail_on
from pqkeep_server.link_certificates import MAX_DAYS, LinkCertificatesError


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
    for each in issued:
        made = "new" if each.is_new else "kept"
        typer.echo(f"{each.folder}  {made}, valid until {each.expires:%Y-%m-%d}")
    typer.echo(
        "Copy each of these folders to its host, for the user of its process alone, which reads it"
        " again on SIGHUP.\n"
        f"{directory / 'ca' / 'key.pem'} makes certificates that both sides accept: keep it offline."
    )
