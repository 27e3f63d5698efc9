"""``pqkeep keyrings``: create keyrings and set the purposes of their keys."""

from dataclasses import asdict
from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_rows
from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.models import Keyring

COLUMNS = {
    "name": "NAME",
    "description": "DESCRIPTION",
    "rotation_days": "ROTATED AFTER DAYS",
    "created_at": "CREATED",
    "archive_at": "DESTROYED AT",
}

Name = Annotated[str, typer.Argument(metavar="KEYRING", help="A keyring, such as payments.cards.")]
Description = Annotated[
    str | None, typer.Option(metavar="TEXT", help="A description for people.", show_default=False)
]
Labels = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A label. Can be repeated.", show_default=False),
]
Purposes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PURPOSE",
        help="Allow only this use of the keys: encrypt, decrypt, wrap, unwrap, encapsulate, "
        "decapsulate, sign, verify or mac. By default all are allowed. Can be repeated.",
        show_default=False,
    ),
]
RotationDays = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Rotate active keys automatically after this many days; 0 turns it off.",
        show_default=False,
    ),
]

MinimumDecryption = Annotated[
    int | None,
    typer.Option(
        "--minimum-decryption-version",
        metavar="VERSION",
        min=0,
        help="Refuse to decrypt and verify with lower key versions; 0 allows all.",
        show_default=False,
    ),
]
MinimumEncryption = Annotated[
    int | None,
    typer.Option(
        "--minimum-encryption-version",
        metavar="VERSION",
        min=0,
        help="Refuse to encrypt and sign with lower key versions; 0 allows all.",
        show_default=False,
    ),
]
DeletionAllowed = Annotated[
    bool | None,
    typer.Option(
        "--deletion-allowed/--no-deletion-allowed",
        help="Whether API keys with the permission may delete it.",
        show_default=False,
    ),
]

RetiredPublicKeysAllowed = Annotated[
    bool | None,
    typer.Option(
        "--retired-public-keys-allowed/--no-retired-public-keys-allowed",
        help="Allow new data to be encrypted to a retired version, by its public key.",
        show_default=False,
    ),
]

Derived = Annotated[
    bool,
    typer.Option(
        "--derived",
        help="Derive a key from the context of each call. The keys encrypt and decrypt only.",
    ),
]

app = typer.Typer(
    name="keyrings",
    help="Create keyrings and set the purposes of their keys.",
    no_args_is_help=True,
)


@command(app, "list")
def list_keyrings(
    invocation: Invocation,
    *,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="List only names with this beginning.", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:VALUE", help="List keyrings with this label.", show_default=False
        ),
    ] = None,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="List deleted keyrings that can be restored.")
    ] = False,
) -> None:
    """List keyrings."""
    with invocation.connect() as client:
        keyrings = client.keyrings.list(prefix=prefix, label=label, deleted=deleted)
    show_rows(invocation, "keyrings", keyrings, COLUMNS)


@command(app, "show")
def show(invocation: Invocation, keyring: Name) -> None:
    """Show a keyring."""
    with invocation.connect() as client:
        _show(invocation, client.keyrings.get(keyring))


@command(app, "delete")
def delete(
    invocation: Invocation,
    keyring: Name,
    *,
    delay_days: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Destroy the private keys after this many days. By default: 7, or the least delay if it is longer.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Delete a keyring. It can be restored until its private keys are destroyed."""
    with invocation.connect() as client:
        _show(invocation, client.keyrings.delete(keyring, delay_days=delay_days))


@command(app, "restore")
def restore(invocation: Invocation, keyring: Name) -> None:
    """Restore a deleted keyring with its keys."""
    with invocation.connect() as client:
        _show(invocation, client.keyrings.restore(keyring))


@command(app, "create")
def create(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    keyring: Name,
    *,
    description: Description = None,
    label: Labels = None,
    purpose: Purposes = None,
    rotation_days: RotationDays = None,
    minimum_decryption_version: MinimumDecryption = None,
    minimum_encryption_version: MinimumEncryption = None,
    first_version: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION",
            min=1,
            help="The number of the first version, for keys that continue another service's versions.",
            show_default=False,
        ),
    ] = None,
    derived: Derived = False,
    deletion_allowed: DeletionAllowed = None,
    retired_public_keys_allowed: RetiredPublicKeysAllowed = None,
    transit_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Let clients of Vault Transit use it as a key of this type, such as aes256-gcm96, "
            "x-wing or ml-dsa/65.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create a keyring without keys."""
    labels = _labels(label)
    with invocation.connect() as client:
        made = client.keyrings.create(
            keyring,
            description=description,
            labels=labels,
            purposes=purpose,
            rotation_days=rotation_days,
            minimum_decryption_version=minimum_decryption_version,
            minimum_encryption_version=minimum_encryption_version,
            first_version=first_version,
            derived=derived or None,
            deletion_allowed=deletion_allowed,
            retired_public_keys_allowed=retired_public_keys_allowed,
            transit_type=transit_type,
        )
    _show(invocation, made)


@command(app, "update")
def update(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    keyring: Name,
    *,
    description: Description = None,
    label: Labels = None,
    purpose: Purposes = None,
    rotation_days: RotationDays = None,
    minimum_decryption_version: MinimumDecryption = None,
    minimum_encryption_version: MinimumEncryption = None,
    deletion_allowed: DeletionAllowed = None,
    retired_public_keys_allowed: RetiredPublicKeysAllowed = None,
) -> None:
    """Change a keyring. Given labels or purposes replace all labels or purposes."""
    labels = _labels(label)
    with invocation.connect() as client:
        changed = client.keyrings.update(
            keyring,
            description=description,
            labels=labels,
            purposes=purpose,
            rotation_days=rotation_days,
            minimum_decryption_version=minimum_decryption_version,
            minimum_encryption_version=minimum_encryption_version,
            deletion_allowed=deletion_allowed,
            retired_public_keys_allowed=retired_public_keys_allowed,
        )
    _show(invocation, changed)


def _labels(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    if not all("=" in label for label in given):
        raise Refusal("--label must be NAME=VALUE", "for example --label team=payments")
    return dict(label.split("=", 1) for label in given)


def _show(invocation: Invocation, keyring: Keyring) -> None:
    if invocation.is_json:
        show_facts(invocation, keyring)
        return
    labels = ", ".join(f"{name}={value}" for name, value in keyring.labels.items())
    facts = asdict(keyring) | {"labels": labels, "purposes": ", ".join(keyring.purposes)}
    show_facts(invocation, facts)
