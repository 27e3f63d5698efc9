"""``pqkeep keyrings``: create keyrings, and say what their keys are for."""

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
}

Name = Annotated[str, typer.Argument(metavar="KEYRING", help="A keyring, such as payments.cards.")]
Description = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What it is for.", show_default=False)
]
Labels = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A label. It may be repeated.", show_default=False),
]
Purposes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PURPOSE",
        help="What its keys may be used for, and nothing else: encrypt, decrypt, wrap, unwrap, "
        "encapsulate, decapsulate, sign, verify; without it all. It may be repeated.",
        show_default=False,
    ),
]
RotationDays = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Rotate an active key by itself after so many days; 0: never.",
        show_default=False,
    ),
]

app = typer.Typer(
    name="keyrings", help="Create keyrings, and say what their keys are for.", no_args_is_help=True
)


@command(app, "list")
def list_keyrings(invocation: Invocation) -> None:
    """List all keyrings."""
    with invocation.connect() as client:
        keyrings = client.keyrings.list()
    show_rows(invocation, "keyrings", keyrings, COLUMNS)


@command(app, "show")
def show(invocation: Invocation, keyring: Name) -> None:
    """Show a keyring."""
    with invocation.connect() as client:
        _show(invocation, client.keyrings.get(keyring))


@command(app, "create")
def create(
    invocation: Invocation,
    keyring: Name,
    *,
    description: Description = None,
    label: Labels = None,
    purpose: Purposes = None,
    rotation_days: RotationDays = None,
) -> None:
    """Create a keyring, which has no keys yet."""
    labels = _labels(label)
    with invocation.connect() as client:
        made = client.keyrings.create(
            keyring,
            description=description,
            labels=labels,
            purposes=purpose,
            rotation_days=rotation_days,
        )
    _show(invocation, made)


@command(app, "update")
def update(
    invocation: Invocation,
    keyring: Name,
    *,
    description: Description = None,
    label: Labels = None,
    purpose: Purposes = None,
    rotation_days: RotationDays = None,
) -> None:
    """Change what is named. Labels and purposes replace all that there were."""
    labels = _labels(label)
    with invocation.connect() as client:
        changed = client.keyrings.update(
            keyring,
            description=description,
            labels=labels,
            purposes=purpose,
            rotation_days=rotation_days,
        )
    _show(invocation, changed)


def _labels(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    if not all("=" in label for label in given):
        raise Refusal("a label is NAME=VALUE", "for example --label team=payments")
    return dict(label.split("=", 1) for label in given)


def _show(invocation: Invocation, keyring: Keyring) -> None:
    if invocation.is_json:
        show_facts(invocation, keyring)
        return
    labels = ", ".join(f"{name}={value}" for name, value in keyring.labels.items())
    facts = asdict(keyring) | {"labels": labels, "purposes": ", ".join(keyring.purposes)}
    show_facts(invocation, facts)
