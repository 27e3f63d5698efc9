"""``pqkeep inventory``: the tenant's keys with their uses, and as a bill of materials."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pqkeep import inputs
from pqkeep.cli import choice, foreign_signatures
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_json, show_json_line, show_rows, show_table
from pqkeep.cli.failures import NOT_VERIFIED, Refusal, naming, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import AlgorithmArgument, AlgorithmOption, Force, KeyVersion, PastTime
from pqkeep.cli.sources import whole
from pqkeep.errors import MalformedResponseError
from pqkeep.new_files import PUBLIC

if TYPE_CHECKING:
    from pqkeep.models import Cbom, InventoryKey

JWS_SUFFIX = ".jws"
LARGEST = 1_048_576
"""The most bytes of a document of keys elsewhere."""
MAX_DOCUMENTS = 10_000
"""The most documents of one bill of materials. A hostile service could otherwise fill the disk."""
MOST_NAMES = 3
"""The most principals that a line of the table names."""

app = typer.Typer(
    name="inventory", help="Show the inventory of all keys, for audits.", no_args_is_help=True
)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key version, as a line of the table."""

    keyring: str
    algorithm: str
    key_version: int
    status: str
    age_days: int
    private_key: str
    uses: int
    last_used_at: datetime | None
    principals: str
    rules: str


KEYS = {
    "keyring": "KEYRING",
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "status": "STATUS",
    "age_days": "DAYS",
    "private_key": "PRIVATE KEY",
    "uses": "USES",
    "last_used_at": "LAST USED",
    "principals": "PRINCIPALS",
    "rules": "RULES",
}
USES = {
    "principal": "PRINCIPAL",
    "operation": "OPERATION",
    "uses": "USES",
    "first_used_at": "FIRST USED",
    "last_used_at": "LAST USED",
}
UNATTRIBUTED = {"algorithm": "ALGORITHM", **{name: USES[name] for name in list(USES)[1:]}}


@command(app, "list")
def list_(  # noqa: PLR0913 - filters, by name
    invocation: Invocation,
    *,
    since: PastTime = None,
    keyring: Annotated[
        str | None,
        typer.Option("--keyring", metavar="NAME", help="Only this keyring.", show_default=False),
    ] = None,
    algorithm: AlgorithmOption = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS", help="Only this status, such as active.", show_default=False
        ),
    ] = None,
    used_by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only keys that this API key or principal used.",
            show_default=False,
        ),
    ] = None,
    used_since: PastTime = None,
    unused_since: PastTime = None,
    created_since: PastTime = None,
    created_before: PastTime = None,
) -> None:
    """List key versions with their uses. JSON output has one page per line.

    To list keys older than a year that checkout used last month: --created-before 365d --used-by
    checkout --used-since 30d.
    """
    with invocation.connect() as client:
        pages = client.inventory.pages(
            since=since,
            keyring=keyring,
            algorithm=algorithm,
            status=status,
            used_by=used_by,
            used_since=used_since,
            unused_since=unused_since,
            created_since=created_since,
            created_before=created_before,
        )
        if invocation.is_json:
            for page in pages:
                show_json_line(page)
            return
        found = list(pages)
    show_table((_row(key) for page in found for key in page.keys), KEYS)
    last = found[-1]
    if last.unattributed:
        typer.echo("\nUses of public keys that are not the tenant's own:")
        show_table(last.unattributed, UNATTRIBUTED)
    log = last.as_of
    typer.echo(
        f"\nCounted: the first {log.size} records of log {log.log_id}, root {log.root.hex()}"
    )
    if last.external:
        total = sum(source.total for source in last.external)
        moved = sum(source.moved for source in last.external)
        typer.echo(f"Keys elsewhere: {moved} of {total} moved")
    if any(page.merged_principals for page in found):
        typer.echo("Principals beyond 10,000 in a month are shown as other.")
    for sentence in last.not_seen:
        typer.echo(printable(f"Not seen: {sentence}"))


@command(app, "uses")
def uses(
    invocation: Invocation,
    *,
    algorithm: AlgorithmArgument,
    keyring: Annotated[
        str | None,
        typer.Option(
            "--keyring",
            metavar="NAME",
            help="The key's keyring. The default is the keyring named default.",
            show_default=False,
        ),
    ] = None,
    key_version: KeyVersion = None,
    since: PastTime = None,
) -> None:
    """List all uses of a key version by principal. JSON output has one use per line.

    Without a version, list the uses of public keys that are not the tenant's own.
    """
    if keyring is not None and key_version is None:
        raise Refusal("--keyring needs a version", "add --key-version N")
    with invocation.connect() as client:
        found = client.inventory.uses(
            algorithm, keyring=keyring, key_version=key_version, since=since
        )
        if not invocation.is_json:
            show_table(found, USES)
            return
        for use in found:
            show_json_line(use)


def _row(key: "InventoryKey") -> KeyRow:
    names = list(dict.fromkeys(use.principal or "" for use in key.principals))
    shown = ", ".join(names[:MOST_NAMES])
    is_cut = len(names) > MOST_NAMES or key.more_principals
    return KeyRow(
        key.keyring,
        key.algorithm,
        key.key_version,
        key.status,
        key.age_days,
        key.private_key,
        key.uses,
        key.last_used_at,
        f"{shown}, …" if is_cut else shown,
        "unknown"
        if key.rules is None
        else ", ".join(f"{rule.rule}: {rule.state}" for rule in key.rules),
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
            help="The file to write. Further documents of a tenant with many key "
            "versions get a number: FILE.2, FILE.3.",
        ),
    ],
    version: Annotated[
        Literal["1.6", "1.7"],
        typer.Option("--cyclonedx", help="The version of CycloneDX."),
    ] = "1.7",
    uses: Annotated[
        Literal["none", "counts", "principals"],
        typer.Option("--uses", help="Also state the uses of each key version."),
    ] = "none",
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
        for number in range(1, MAX_DOCUMENTS):
            made = client.inventory.cbom(
                version=version, uses=uses, signed_by=signed_by, after=after
            )
            file = out if number == 1 else out.with_name(f"{out.name}.{number}")
            _write(file, made, force=force)
            written.append(file)
            if made.next is None:
                break
            if made.next == after:
                raise MalformedResponseError("the documents repeat", field="next")
            after = made.next
        else:
            raise MalformedResponseError("the documents do not end", field="next")
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
