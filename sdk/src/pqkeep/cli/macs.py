"""``pqkeep mac`` and ``verify-mac``: MACs by keys in the service."""

from pathlib import Path
from typing import Annotated

import typer

from pqkeep.cli import choice, documents
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts
from pqkeep.cli.failures import NOT_VERIFIED, Refusal, about
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    Force,
    KeyringOption,
    KeyVersion,
    MacAlgorithmOption,
    OptionalInputFile,
    To,
)
from pqkeep.cli.sources import whole
from pqkeep.models import Mac
from pqkeep.new_files import PUBLIC

LARGEST = 1024 * 1024
"""The most bytes of a message."""
LARGEST_DOCUMENT = 64 * 1024
_HINT = "compute the MAC of a hash of the file"


def add_to(app: typer.Typer) -> None:
    """Add the two commands."""
    command(app, "mac")(mac)
    command(app, "verify-mac")(verify_mac)


def mac(
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    to: To = None,
    force: Force = False,
    algorithm: MacAlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
) -> None:
    """Compute the MAC of a file of at most 1 MiB.

    The output is JSON, which verify-mac reads.
    """
    message = whole(file, invocation, LARGEST, _HINT)
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC, read=(file,)) as target,
        invocation.connect() as client,
        about(file),
        choice.generating(choice.mac_algorithm(client, algorithm), key_version, keyring=keyring),
    ):
        made = client.macs.compute(
            message, algorithm=algorithm, key_version=key_version, keyring=keyring
        )
        target.write(documents.written(made, keyring))


def verify_mac(
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    mac: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The file from mac.", show_default=False),
    ],
) -> None:
    """Verify the MAC of a file. The status is 0 for a correct MAC, and 7 for a wrong one."""
    message = whole(file, invocation, LARGEST, _HINT)
    data = whole(str(mac), invocation, LARGEST_DOCUMENT, "name the original file")
    document, keyring = documents.read(data, Mac, str(mac))
    with invocation.connect() as client, about(file):
        is_right = client.macs.verify(
            message,
            document.mac,
            key_version=document.key_version,
            algorithm=document.algorithm,
            keyring=keyring,
        )
    if not is_right:
        raise Refusal(
            "the MAC is not the file's",
            "name the file that the MAC was computed from",
            NOT_VERIFIED,
        )
    show_facts(
        invocation,
        {"valid": True, "algorithm": document.algorithm, "key_version": document.key_version},
    )
