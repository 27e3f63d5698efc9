"""``pqkeep kms-plugin``: a KMS v2 plugin for Kubernetes API servers, on a Unix socket."""

from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.failures import OTHER, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.errors import ConfigurationError, how_to_install

RETRIES = 3


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "kms-plugin")(kms_plugin)


def kms_plugin(
    invocation: Invocation,
    *,
    endpoint: Annotated[
        str,
        typer.Option(
            "--socket",
            metavar="ENDPOINT",
            help="The socket to listen on, such as unix:///run/pqkeep-kms/kms.sock.",
        ),
    ],
    keyring: Annotated[
        str, typer.Option("--keyring", metavar="NAME", help="The keyring. Use it for nothing else.")
    ] = "kubernetes",
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            metavar="NAME",
            help="The algorithm that encrypts: X-Wing, Kyber768, ML-KEM-1024 or XAES-256-GCM.",
        ),
    ] = "X-Wing",
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Let this group use the socket (mode 0660). Without it, only this user and root do.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=60,
            help="Less than the timeout in the API server's EncryptionConfiguration.",
        ),
    ] = 2.5,
) -> None:
    """Encrypt the keys of a Kubernetes API server (KMS v2) until a signal ends the program."""
    try:
        from pqkeep.cli import kms_server  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise Refusal(
            "the plugin for Kubernetes is not installed", how_to_install("cli,kubernetes"), OTHER
        ) from None
    from pqkeep import AsyncClient  # noqa: PLC0415 - it loads HTTP
    from pqkeep.cli.transit_move import forbid_core_dumps  # noqa: PLC0415 - it loads HTTP
    from pqkeep.kubernetes_kms import Kms  # noqa: PLC0415 - it loads HTTP

    forbid_core_dumps()

    def connect() -> AsyncClient:
        try:
            return AsyncClient(
                invocation.url,
                invocation.api_key(),
                profile=invocation.profile,
                compliance_profile=invocation.compliance_profile,
                timeout=timeout,
                retries=RETRIES,
            )
        except OSError as error:
            wrong = f"the API key's file cannot be read: {error.strerror}"
        except Refusal as error:
            wrong = str(error)
        raise ConfigurationError(wrong)

    def kms() -> Kms:
        return Kms(connect, keyring=keyring, algorithm=algorithm, timeout=timeout)

    kms_server.serve(endpoint, group, kms, invocation.note, grace=timeout)
