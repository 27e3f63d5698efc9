"""``pqkeep audit``: look at the audit log, and save it and what it is verified with.

What a file shows without the service is in docs/audit.md.
"""

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from pqkeep.cli import audit_verification
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_json_line, show_table, show_written
from pqkeep.cli.failures import Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Force,
    KeyringOption,
    KeyVersion,
    Log,
    PastTime,
    Shard,
    To,
)
from pqkeep.new_files import PRIVATE, PUBLIC

if TYPE_CHECKING:
    from pqkeep.models import AuditKey

RECORDS = {
    "id": "ID",
    "recorded_at": "RECORDED",
    "operation": "OPERATION",
    "keyring": "KEYRING",
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "outcome": "OUTCOME",
    "principal": "PRINCIPAL",
    "source_address": "FROM",
}
CHECKPOINTS = {
    "size": "RECORDS",
    "at": "SIGNED",
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "root": "ROOT",
}
KEYS = {"algorithm": "ALGORITHM", "key_version": "VERSION", "fingerprint": "FINGERPRINT"}
LARGEST_PAGE = 200
LAST_LINES = 256
"""Bytes of an export's last two lines, if the last but one is no record."""

app = typer.Typer(
    name="audit", help="Look at the audit log, save it, verify it.", no_args_is_help=True
)
audit_verification.add_to(app)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of the log, as people compare it."""

    algorithm: str
    key_version: int
    fingerprint: str


@command(app, "records")
def records(  # noqa: PLR0913 - as many filters as the log has
    invocation: Invocation,
    *,
    since: PastTime = None,
    until: PastTime = None,
    operation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Such as encrypt or rotate-key.", show_default=False),
    ] = None,
    keyring: KeyringOption = None,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            metavar="OUTCOME",
            help="success, refused (all refusals), or the code of one.",
            show_default=False,
        ),
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            metavar="PRINCIPAL",
            help="Who: an e-mail address, an API key's or operator's name, or such as api-key:1.",
            show_default=False,
        ),
    ] = None,
    source_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where it came from.", show_default=False),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Of the request, as its answer has it.", show_default=False
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="TENANT",
            help="Whose records, by id or name. Operator only.",
            show_default=False,
        ),
    ] = None,
    page_views: Annotated[
        bool,
        typer.Option(
            "--page-views/--no-page-views",
            help="Whether to list what the portal's pages read too.",
        ),
    ] = True,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="Begin with the oldest one.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="How many; 0 is all.")] = 20,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """List records, the newest first. As JSON there is one to a line."""
    with invocation.connect() as client:
        found = client.audit.records(
            order="asc" if oldest_first else "desc",
            since=since,
            until=until,
            operation=operation,
            keyring=keyring,
            algorithm=algorithm,
            key_version=key_version,
            outcome=outcome,
            principal=principal,
            source_address=source_address,
            request_id=request_id,
            tenant=tenant,
            page_views=page_views,
            page_size=min(limit or LARGEST_PAGE, LARGEST_PAGE),
            log=log,
            shard=shard,
        )
        chosen = islice(found, limit or None)
        if not invocation.is_json:
            show_table(chosen, RECORDS)
            return
        for record in chosen:
            show_json_line(record)


@command(app, "export")
def export(
    invocation: Invocation,
    *,
    to: Annotated[
        str, typer.Option("--to", "-o", metavar="FILE", help="What to write; - is standard output.")
    ],
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            min=0,
            metavar="ID",
            help="Records after this one, 0 for all, without proofs. Operator only.",
        ),
    ] = None,
    force: Force = False,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Save the log with its proofs, for pqkeep audit verify."""
    with (
        destination(to, otherwise=to, force=force, mode=PRIVATE) as target,
        tempfile.TemporaryDirectory() as directory,
        invocation.connect() as client,
    ):
        saved = Path(directory) / "export.jsonl"
        count = client.audit.export(saved, after=after, log=log, shard=shard)
        with saved.open("rb") as file:
            newer = _newer(file)
            file.seek(0)
            shutil.copyfileobj(file, target)
    show_written(invocation, to, f"{count} records{newer}", records=count)


@command(app, "checkpoint")
def checkpoint(
    invocation: Invocation,
    *,
    sign: Annotated[
        bool, typer.Option("--sign", help="Have a new one signed. Operator only.")
    ] = False,
    algorithm: AlgorithmOption = None,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Show the newest checkpoint of each algorithm.

    As JSON there is one to a line: append them to a file that the service's operator cannot write.
    """
    if sign and log is not None:
        raise Refusal("--sign and --log exclude each other", "name the log by --shard")
    with invocation.connect() as client:
        found = (
            (client.audit.sign_checkpoint(algorithm=algorithm, shard=shard),)
            if sign
            else client.audit.checkpoints(algorithm=algorithm, log=log, shard=shard)
        )
    if not invocation.is_json:
        show_table(found, CHECKPOINTS)
        return
    for each in found:
        show_json_line(each)


@command(app, "note")
def note(
    invocation: Invocation,
    *,
    to: To = None,
    force: Force = False,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Write the newest checkpoint as a signed note, which witnesses of logs can cosign."""
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as file,
        invocation.connect() as client,
    ):
        file.write(client.audit.note(log=log, shard=shard).encode())


@command(app, "keys")
def keys(invocation: Invocation, *, log: Log = None, shard: Shard = None) -> None:
    """Show the keys that checkpoints are verified with. Keep them, as JSON, for audit verify."""
    with invocation.connect() as client:
        newest = client.audit.keys(log=log, shard=shard)
        others = [] if log is not None else [each for each in newest.logs if each != newest.log_id]
        earlier = [client.audit.keys(log=each) for each in others]
    for found in (*earlier, newest):
        if invocation.is_json:
            show_json_line({name: value for name, value in asdict(found).items() if name != "logs"})
        else:
            show_table(map(_row, found.keys), KEYS)


def _newer(file: BinaryIO) -> str:
    """Return what an export says of records that came after its checkpoint."""
    file.seek(-min(LAST_LINES, file.seek(0, os.SEEK_END)), os.SEEK_END)
    for line in file.read().splitlines()[-2:-1]:
        if line.startswith(b'{"type":"newer"'):
            newer = json.loads(line)
            return f"; records {newer['first']} to {newer['last']} are newer than its checkpoint"
    return ""


def _row(key: "AuditKey") -> KeyRow:
    return KeyRow(key.algorithm, key.key_version, sha256(key.public_key).hexdigest())
