"""``pqkeep age``: age decrypts with keys that stay in the service."""

import typer

from pqkeep.algorithms import Algorithm
from pqkeep.cli import choice
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.documents import DEFAULT_KEYRING
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD, Force, KeyringOption, KeyVersion, To
from pqkeep.new_files import PUBLIC

app = typer.Typer(name="age", help="Let age decrypt with keys of X-Wing.", no_args_is_help=True)


@app.callback()
def age() -> None:
    """Let age decrypt with keys of X-Wing."""


@command(app, "identity")
def identity(
    invocation: Invocation,
    *,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    to: To = None,
    force: Force = False,
) -> None:
    """Write an identity for age: the name of an X-Wing key, by default the active one.

    With it, age -d asks the service by age-plugin-pqkeep. It is no secret: decryption needs your
    credential. To encrypt: age -r, with pqkeep keys public-key X-Wing --format age.
    """
    from pqkeep.age import Identity, recipient  # noqa: PLC0415 - it loads the client

    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as file,
        invocation.connect() as client,
    ):
        key = choice.key(client, Algorithm.X_WING, key_version, keyring)
        named = Identity(
            url=client.url,
            keyring=keyring or DEFAULT_KEYRING,
            algorithm=Algorithm.X_WING.value,
            key_version=key.key_version,
        )
        lines = (f"# {named}", f"# recipient: {recipient(key.public_key)}", named.encoded(), "")
        file.write("\n".join(lines).encode())
