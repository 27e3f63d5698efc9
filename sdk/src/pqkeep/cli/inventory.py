"""``pqkeep inventory``: the tenant's keys as a cryptographic bill of materials."""

import json
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pqkeep import inputs
from pqkeep.cli import choice, foreign_signatures
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_json, show_rows
from pqkeep.cli.failures import NOT_VERIFIED, Refusal, naming, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import Force
from pqkeep.cli.sources import whole
from pqkeep.errors import MalformedResponseError
from pqkeep.new_files import PUBLIC

if TYPE_CHECKING:
    from pqkeep.models import Cbom

JWS_SUFFIX = ".jws"
LARGEST = 1_048_576
"""The most bytes of a document of keys elsewhere."""

app = typer.Typer(
    name="inventory", help="Show the inventory of all keys, for audits.", no_args_is_help=True
)


@command(app, "cbom")
def cbom(
    invocation: Invocation,
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write. If the tenant has more than 500 key versions, further "
            "documents get a number: FILE.2, FILE.3.",
        ),
    ],
    version: Annotated[
        Literal["1.6", "1.7"],
        typer.Option("--cyclonedx", help="The version of CycloneDX."),
    ] = "1.7",
    signed_by: Annotated[
        str | None,
        typer.Option(
            "--signed-by",
            metavar="KEYRING/ALGORITHM",
            help="Sign each document with this key, such as default/ML-DSA-65. The JWS goes to "
            "FILE.jws.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Verify the signatures of the written files afterwards."),
    ] = False,
    force: Force = False,
) -> None:
    """Save the cryptographic bill of materials (CycloneDX) of all keys."""
    if verify and signed_by is None:
        raise Refusal("--verify needs a signature", "add --signed-by KEYRING/ALGORITHM")
    written: list[Path] = []
    after: str | None = None
    with invocation.connect() as client:
        for number in count(1):
            made = client.inventory.cbom(version=version, signed_by=signed_by, after=after)
            file = out if number == 1 else out.with_name(f"{out.name}.{number}")
            _write(file, made, force=force)
            written.append(file)
            if made.next is None:
                break
            if made.next == after:
                raise MalformedResponseError("the documents repeat", field="next")
            after = made.next
    if verify and signed_by is not None:
        for file in written:
            _verify(invocation, file, signed_by)
    if invocation.is_json:
        show_json({"files": [str(file) for file in written], "verified": verify})
        return
    said = ": the signature is good" if verify else ""
    for file in written:
        typer.echo(printable(f"{file}{said}"), err=True)


COLUMNS = {
    "source": "SOURCE",
    "moved": "MOVED",
    "total": "KEYS",
    "imported_at": "IMPORTED",
    "imported_by": "BY",
}
Text = Annotated[
    str, typer.Option(metavar="TEXT", help="For each certificate.", show_default=False)
]


@command(app, "import")
def import_(
    invocation: Invocation,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A bill of materials of CycloneDX as JSON, or certificates in PEM or DER.",
        ),
    ],
    *,
    source: Annotated[
        str, typer.Option("--source", metavar="NAME", help="The name of the list to replace.")
    ],
    place: Text = "",
    owner: Text = "",
    successor: Text = "",
) -> None:
    """Import a list of keys elsewhere. Certificates are read on this machine."""
    data = whole(str(file), invocation, LARGEST, "divide it into several sources")
    if data.lstrip()[:1] == b"{":
        if place or owner or successor:
            raise Refusal(
                "--place, --owner and --successor are for certificates",
                "state them in the document: see docs/migration.md",
            )
        text = data.decode("utf-8", "replace")
    else:
        from pqkeep.certificates import (  # noqa: PLC0415 - it loads cryptography
            bill_of_materials,
        )

        with naming(str(file)):
            text = bill_of_materials(data, place=place, owner=owner, successor=successor)
    with invocation.connect() as client:
        made = client.inventory.import_external(source, text)
    show_rows(invocation, "sources", (made,), COLUMNS)


@command(app, "external")
def external(
    invocation: Invocation,
    *,
    remove: Annotated[
        str | None,
        typer.Option("--remove", metavar="NAME", help="Remove this list.", show_default=False),
    ] = None,
) -> None:
    """List the keys elsewhere, by source."""
    with invocation.connect() as client:
        if remove is not None:
            client.inventory.remove_external(remove)
        found = client.inventory.external()
    show_rows(invocation, "sources", found, COLUMNS)


def _write(file: Path, made: "Cbom", *, force: bool) -> None:
    """Write a document, and its JWS beside it."""
    if made.jws is None:
        text = json.dumps(made.document, ensure_ascii=False, separators=(",", ":")).encode()
    else:
        signed = inputs.read_signature(made.jws.encode())
        if not isinstance(signed, inputs.Jws) or not signed.payload:
            raise MalformedResponseError("the response has no JWS with a document", field="jws")
        text = signed.content
        with destination(f"{file}{JWS_SUFFIX}", otherwise="", force=force, mode=PUBLIC) as target:
            target.write(made.jws.encode("ascii") + b"\n")
    with destination(str(file), otherwise="", force=force, mode=PUBLIC) as target:
        target.write(text)


def _verify(invocation: Invocation, file: Path, signed_by: str) -> None:
    """Verify a written document with the tenant's key. Raises Refusal."""
    keyring, _, algorithm = signed_by.rpartition("/")
    name = f"{file}{JWS_SUFFIX}"
    found = inputs.read_signature(Path(name).read_bytes())
    is_valid = False
    if isinstance(found, inputs.Jws):
        signed = foreign_signatures.Signed(found, name, None)
        named = choice.Named(algorithm=algorithm, keyring=keyring, key_version=None)
        is_valid = foreign_signatures.check(invocation, str(file), signed, named, None).is_valid
    if not is_valid:
        raise Refusal(
            f"{file}: the signature is not good", "save it again from the service", NOT_VERIFIED
        )
