"""``pqkeep audit``: show, save and verify the audit log.

docs/audit.md says which facts a saved file proves without the service.
"""

import codecs
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from pqkeep import inputs
from pqkeep.cli.command import command, given_before
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_json_line, show_rows, show_table, show_written
from pqkeep.cli.failures import UNREADABLE, Refusal, printable
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
from pqkeep.errors import MalformedResponseError, how_to_install
from pqkeep.models import RecordFilters
from pqkeep.new_files import PRIVATE, PUBLIC

if TYPE_CHECKING:
    from pqkeep.audit import Anchor, Continued, Portion, ProvenRecord, Report
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


class CountBy(StrEnum):
    """The values by which records are counted."""

    PRINCIPAL = "principal"
    KEY = "key"
    ADDRESS = "address"
    OUTCOME = "outcome"
    OPERATION = "operation"
    HOUR = "hour"
    DAY = "day"


COUNTS = {"value": "VALUE", "count": "RECORDS"}
CHECKPOINTS = {
    "size": "RECORDS",
    "at": "SIGNED",
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "root": "ROOT",
}
WITNESSES = {
    "name": "WITNESS",
    "origin": "LOG",
    "size": "RECORDS",
    "at": "COSIGNED",
    "problem": "PROBLEM",
}
KEYS = {"algorithm": "ALGORITHM", "key_version": "VERSION", "fingerprint": "FINGERPRINT"}
LARGEST_PAGE = 200
LAST_LINES = 256
"""Bytes of an export's last two lines, if the second last is not a record."""

app = typer.Typer(name="audit", help="Show, save and verify the audit log.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of the log, with the fingerprint for people."""

    algorithm: str
    key_version: int
    fingerprint: str


OperationFilter = Annotated[
    str | None,
    typer.Option(
        "--operation",
        metavar="NAME",
        help="Only this operation, such as encrypt or rotate-key; or several with commas between them.",
        show_default=False,
    ),
]
Outcome = Annotated[
    str | None,
    typer.Option(
        "--outcome",
        metavar="OUTCOME",
        help="Only this outcome: success, refused (any refusal), or one error code.",
        show_default=False,
    ),
]
Principal = Annotated[
    str | None,
    typer.Option(
        "--principal",
        metavar="PRINCIPAL",
        help="Only this caller: an e-mail address, a name of an API key or operator, or api-key:1.",
        show_default=False,
    ),
]
SourceAddress = Annotated[
    str | None,
    typer.Option(
        "--source-address",
        metavar="ADDRESS",
        help="Only this client address, or this network, such as 192.0.2.0/24.",
        show_default=False,
    ),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="ID",
        help="Only this request, by the id in its response.",
        show_default=False,
    ),
]
RuleFilter = Annotated[
    str | None,
    typer.Option(
        "--rule",
        metavar="NAME",
        help="Only what this rule with a date warned of or refused.",
        show_default=False,
    ),
]
CampaignFilter = Annotated[
    str | None,
    typer.Option(
        "--campaign",
        metavar="NAME",
        help="Only this campaign's re-encryptions.",
        show_default=False,
    ),
]
TenantFilter = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="TENANT",
        help="Only this tenant, by id or name. Operator only.",
        show_default=False,
    ),
]
PageViews = Annotated[
    bool,
    typer.Option(
        "--page-views/--no-page-views", help="Whether to list reads by the portal's pages, too."
    ),
]


@command(app, "records")
def records(  # noqa: PLR0913 - as many filters as the log has
    invocation: Invocation,
    *,
    since: PastTime = None,
    until: PastTime = None,
    operation: OperationFilter = None,
    keyring: KeyringOption = None,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    outcome: Outcome = None,
    principal: Principal = None,
    source_address: SourceAddress = None,
    request_id: RequestId = None,
    rule: RuleFilter = None,
    campaign: CampaignFilter = None,
    tenant: TenantFilter = None,
    page_views: PageViews = True,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="List the oldest records first.")
    ] = False,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="The most records to list; 0 lists all.")
    ] = 20,
    group_by: Annotated[
        CountBy | None,
        typer.Option(
            "--group-by", help="Count the newest 10,000 records by this, and list no records."
        ),
    ] = None,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """List audit records, the newest first. JSON output has one record per line."""
    filters = RecordFilters(
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
        rule=rule,
        campaign=campaign,
        tenant=tenant,
        page_views=page_views,
        log=log,
        shard=shard,
    )
    with invocation.connect() as client:
        if group_by is not None:
            counts = client.audit.counts(by=group_by.value, limit=limit or None, **filters)
            show_rows(invocation, "counts", counts.counts, COUNTS)
            return
        found = client.audit.records(
            order="asc" if oldest_first else "desc",
            page_size=min(limit or LARGEST_PAGE, LARGEST_PAGE),
            **filters,
        )
        chosen = islice(found, limit or None)
        if not invocation.is_json:
            show_table(chosen, RECORDS)
            return
        for record in chosen:
            show_json_line(record)


@command(app, "export")
def export(  # noqa: PLR0913 - as many filters as the log has
    invocation: Invocation,
    *,
    to: Annotated[
        str,
        typer.Option("--to", "-o", metavar="FILE", help="The file to write; - is standard output."),
    ],
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            min=0,
            metavar="ID",
            help="Only records after this one, or 0 for all, without proofs. Operator only.",
        ),
    ] = None,
    since: PastTime = None,
    until: PastTime = None,
    operation: OperationFilter = None,
    keyring: KeyringOption = None,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    outcome: Outcome = None,
    principal: Principal = None,
    source_address: SourceAddress = None,
    request_id: RequestId = None,
    rule: RuleFilter = None,
    campaign: CampaignFilter = None,
    tenant: TenantFilter = None,
    page_views: PageViews = True,
    force: Force = False,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Save the audit log with its proofs, for pqkeep audit verify.

    With a filter, the file is evidence. It has the matching records, with signed statements that no
    other record matches.
    """
    with (
        destination(to, otherwise=to, force=force, mode=PRIVATE) as target,
        tempfile.TemporaryDirectory() as directory,
        invocation.connect() as client,
    ):
        saved = Path(directory) / "export.jsonl"
        count = client.audit.export(
            saved,
            after=after,
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
            rule=rule,
            campaign=campaign,
            tenant=tenant,
            page_views=page_views,
            log=log,
            shard=shard,
        )
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
        bool, typer.Option("--sign", help="Sign a new checkpoint. Operator only.")
    ] = False,
    algorithm: AlgorithmOption = None,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Show the newest checkpoint of each algorithm.

    JSON output has one checkpoint per line. Append it to a file that the service's operator cannot
    change.
    """
    if sign and log is not None:
        raise Refusal("--sign and --log cannot be combined", "name the log by --shard")
    with invocation.connect() as client:
        found = (
            (client.audit.sign_checkpoint(algorithm=algorithm, shard=shard),)
            if sign
            else client.audit.checkpoints(algorithm=algorithm, log=log, shard=shard)
        )
    if not invocation.is_json:
        show_table(found, CHECKPOINTS)
        return
    for checkpoint in found:
        show_json_line(checkpoint)


@command(app, "note")
def note(
    invocation: Invocation,
    *,
    to: To = None,
    force: Force = False,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Write the newest checkpoint as a signed note, for witnesses to cosign."""
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as file,
        invocation.connect() as client,
    ):
        file.write(client.audit.note(log=log, shard=shard).encode())


@command(app, "proof")
def proof(
    invocation: Invocation,
    record: Annotated[
        int, typer.Argument(metavar="RECORD", min=1, help="The record's id.", show_default=False)
    ],
    *,
    to: To = None,
    force: Force = False,
    log: Log = None,
    shard: Shard = None,
) -> None:
    """Save a proof that a record is in the log, cosigned by the log's witnesses.

    The file is a C2SP tlog-proof. pqkeep audit verify verifies it with saved keys.
    """
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PRIVATE) as file,
        invocation.connect() as client,
    ):
        file.write(client.audit.tlog_proof(record, log=log, shard=shard).encode())


@command(app, "witnesses")
def witnesses(invocation: Invocation, *, log: Log = None, shard: Shard = None) -> None:
    """Show the witnesses of the log. JSON output has one witness per line."""
    with invocation.connect() as client:
        found = client.audit.witnesses(log=log, shard=shard)
    if not invocation.is_json:
        show_table(found, WITNESSES)
        return
    for one in found:
        show_json_line(one)


@command(app, "keys")
def keys(invocation: Invocation, *, log: Log = None, shard: Shard = None) -> None:
    """Show the keys that verify checkpoints. Save them as JSON for audit verify."""
    with invocation.connect() as client:
        newest = client.audit.keys(log=log, shard=shard)
        others = (
            [] if log is not None else [log_id for log_id in newest.logs if log_id != newest.log_id]
        )
        earlier = [client.audit.keys(log=log_id) for log_id in others]
    for audit_keys in (*earlier, newest):
        if invocation.is_json:
            values = asdict(audit_keys)
            show_json_line({name: value for name, value in values.items() if name != "logs"})
        else:
            show_table(map(_row, audit_keys.keys), KEYS)


def _newer(file: BinaryIO) -> str:
    """Return a note on the export's records after its checkpoint, or an empty text."""
    file.seek(-min(LAST_LINES, file.seek(0, os.SEEK_END)), os.SEEK_END)
    for line in file.read().splitlines()[-2:-1]:
        if line.startswith(b'{"type":"newer"'):
            return f"; records {_range(line)} are newer than its checkpoint"
    return ""


def _range(line: bytes) -> str:
    """Return the range of records in a line. Raises MalformedResponseError."""
    from pqkeep.audit import MalformedError, parse  # noqa: PLC0415 - few exports have such a line

    with suppress(MalformedError):
        match parse(line):
            case {"first": int() as first, "last": int() as last}:
                return f"{first} to {last}"
            case _:
                pass
    raise MalformedResponseError("the last line of the export is damaged")


def _row(key: "AuditKey") -> KeyRow:
    return KeyRow(key.algorithm, key.key_version, sha256(key.public_key).hexdigest())


FAILED = 7
BEGINNING = 64 * 1024
"""Bytes that are read first, to recognize a file."""
_PROOF = b"c2sp.org/tlog-proof@v1\n"
_OTHERS = {"kty", "protected", "encryption", "import_key_id"}
"""Names in JSON objects of keys and signatures. No object of an audit log has them."""
UNTRUSTED = (
    "the keys come from the files themselves, so this proves only that the files are consistent; "
    "name your own saved keys with --keys"
)


class Output(StrEnum):
    """The form of a result."""

    TEXT = "text"
    JSON = "json"


@app.command("verify")
def verify_command(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Exports of the audit log, saved JSON lines or API responses with checkpoints, "
            "consistency proofs and keys, proofs of records, or a migration report: its directory, or the "
            "ZIP file from the portal.",
            show_default=False,
        ),
    ],
    *,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your saved keys from GET /api/v1/audit/keys. Without them, the keys in the files are "
            "used, which proves only that the files are consistent.",
            show_default=False,
        ),
    ] = None,
    witness: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A verifier key of a witness that must have cosigned the log, or a file with one on "
            "each line. Repeat it for each witness. Needs --keys.",
            show_default=False,
        ),
    ] = None,
    least_witnesses: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="How many of these witnesses must have cosigned; by default all.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Output, typer.Option(help="The form of the result.")] = Output.TEXT,
) -> None:
    """Verify exports of the audit log, and proofs of its records, offline.

    The status is 0 if everything is verified, and 7 if anything is wrong. It is 1 if a file cannot
    be read, and 2 for a usage error.
    """
    from pqkeep.audit import verify, verify_report  # noqa: PLC0415 - no other command needs it

    if given_before(context).get("output") == Output.JSON.value:
        output = Output.JSON
    try:
        reports = [file for file in files if _is_report(file)]
        others = [file for file in files if file not in reports]
        for file in (*others, *(() if keys is None else (keys,))):
            _require_lines(file)
        if len(reports) > 1:
            raise Refusal("several reports are named", "verify each report by itself")
        check = (
            partial(verify_report, reports[0], keys, others)
            if reports
            else partial(verify, files, keys)
        )
        report = check(
            witnesses=[key for given in witness or () for key in _witness_keys(given)],
            least_witnesses=least_witnesses,
        )
    except ValueError as error:
        raise typer.BadParameter(printable(str(error)), param_hint="--witness") from None
    except OSError as error:
        message = f"pqkeep: cannot read {error.filename}: {error.strerror}"
        typer.echo(printable(message), err=True)
        raise typer.Exit(UNREADABLE) from None
    except ImportError:
        needed = how_to_install("audit")
        typer.echo(f"pqkeep: verification is not installed: {needed}", err=True)
        raise typer.Exit(UNREADABLE) from None
    if output is Output.JSON:
        typer.echo(json.dumps(_as_json(report), indent=2))
    else:
        _show(report)
    raise typer.Exit(0 if report.is_verified else FAILED)


def _is_report(file: Path) -> bool:
    """Return True for a migration report. Raises OSError for another directory."""
    from pqkeep.audit import is_archive  # noqa: PLC0415 - no other command needs it

    if not file.is_dir():
        return is_archive(file)
    if not (file / "manifest.json").exists():
        reason = "it is a directory without the manifest.json of a report"
        raise IsADirectoryError(errno.EISDIR, reason, str(file))
    return True


def _witness_keys(given: str) -> list[str]:
    """Return a verifier key, or those in a file. Raises OSError."""
    if given.count("+") > 1 and "\n" not in given:
        return [given]
    return Path(given).read_text(encoding="utf-8").split()


def _require_lines(file: Path) -> None:
    """Raise Exit for a file without data of an audit log, and name the file.

    A file with one line of JSON is evidence, so its errors are findings.
    """
    if not file.is_file():
        return  # the verification says why it cannot be read
    with file.open("rb") as opened:
        begin = opened.read(BEGINNING)
    if _has_json(begin) or begin.startswith(_PROOF):
        return
    is_whole = len(begin) < BEGINNING
    what = inputs.describe(begin) if is_whole else "in an unknown form"
    typer.echo(printable(f"pqkeep: {file} is {what}, not JSON lines of an audit log"), err=True)
    typer.echo("        name an export, or JSON saved from the API or with --output json", err=True)
    raise typer.Exit(UNREADABLE)


def _has_json(begin: bytes) -> bool:
    """Return True if a file with this beginning has a JSON object, on one line or several."""
    from pqkeep.audit import MalformedError, NoJsonError, parse  # noqa: PLC0415 - see above

    text = begin.removeprefix(codecs.BOM_UTF8)
    if len(begin) == BEGINNING and text.lstrip()[:1] in {b"{", b"["}:
        return True
    for candidate in (*text.splitlines(), text):
        if candidate.strip()[:1] in {b"{", b"["}:
            try:
                values = parse(candidate)
            except NoJsonError:
                continue
            except MalformedError:  # a finding, and what it is in the verification says
                return True
            if not (isinstance(values, dict) and _is_other(values)):
                return True
    return False


def _is_other(values: dict[str, Any]) -> bool:
    """Return True if a JSON object is a key, a signature, or another object of this client."""
    is_document = isinstance(values.get("format"), str) and "type" not in values
    return is_document or bool(_OTHERS & values.keys())


def _as_json(report: "Report") -> dict[str, Any]:
    values = asdict(report)
    for log in (values, *values["earlier"]):
        for checkpoint in log["checkpoints"]:
            checkpoint["root"] = checkpoint["root"].hex()
    return {"verified": report.is_verified, **values}


def _show(report: "Report") -> None:
    from rich.console import Console  # noqa: PLC0415 - as above

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for verified in (*report.earlier, report) if report.is_verified else ():
        for name, value in _facts(verified):
            console.print(f"{name:12}{printable(value)}")
    for finding in report.findings:
        console.print(printable(str(finding)))
    if report.further:
        console.print(f"and {report.further} more")
    if report.is_verified:
        console.print("verified", style="bold green")
        return
    count = len(report.findings) + report.further
    console.print(f"NOT VERIFIED: {count} finding{'' if count == 1 else 's'}", style="bold red")


def _facts(report: "Report") -> Iterator[tuple[str, str]]:
    """Yield the verified facts, by name."""
    for proof in report.proofs:
        yield "record", _proven(proof)
    if report.log_id is None and report.proofs:
        return
    yield "log", report.log_id or "unknown"
    for log_id in reversed(report.continued):
        yield "continues", _continued(log_id)
    for portion in report.portions:
        yield "records", _records(portion)
    yield from (("checkpoint", text) for text in _checkpoints(report))
    for one in report.witnessed:
        yield "witnessed", f"{one.size} records at {one.at} by {one.witness}, as {one.origin}"
    trust = "trusted" if report.are_keys_trusted else "not trusted"
    for key in report.keys:
        yield "key", f"{key.algorithm} version {key.key_version}, {key.fingerprint}, {trust}"
    if report.counts is not None:
        yield from _counts(report.counts)
    for note in report.notes:
        yield "note", note
    if not report.are_keys_trusted:
        yield "note", UNTRUSTED


def _counts(counts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the records of a migration report show."""
    for row in counts["moved"]:
        yield "moved", f"{row['count']} by {row['campaign']}, {row['source']} to {row['target']}"
    for name in ("denied", "warned"):
        for row in counts[name]:
            what = f"{row['operation']} with {row['key']} by {row['principal']}"
            yield name, f"{row['count']} by {row['rule']}: {what}"


def _checkpoints(report: "Report") -> Iterator[str]:
    """Yield the checkpoints of exports, then the number of the others."""
    sizes = {portion.size for portion in report.portions}
    others = [anchor for anchor in report.checkpoints if anchor.size not in sizes]
    for anchor in report.checkpoints:
        if anchor.size in sizes:
            yield _checkpoint(anchor)
    if others:
        yield f"{len(others)} more, of {others[0].size} to {others[-1].size} records"


def _proven(proof: "ProvenRecord") -> str:
    names = ", ".join(f"{one.witness} at {one.at}" for one in proof.witnessed)
    return (
        f"{proof.id}, {proof.operation} at {proof.recorded_at}, is in the first {proof.size} records"
        f" of {proof.origin}, {f'cosigned by {names}' if names else 'without a witness'}"
    )


def _continued(log: "Continued") -> str:
    lost = f", and lost the next {log.lost}" if log.lost else ""
    return f"log {log.log_id} after its first {log.records} records{lost}"


def _records(portion: "Portion") -> str:
    whose = "all" if portion.tenant_id is None else f"those of tenant {portion.tenant_id}"
    if portion.query is not None:
        whose = f"{whose} that match {_query(portion.query)},"
    if portion.after:
        whose = f"all after number {portion.after}"
    when = f", from {portion.first_at} to {portion.last_at}" if portion.first_at else ""
    return f"{portion.records}, {whose} of the log's first {portion.size}{when}, in {portion.file}"


def _query(query: Mapping[str, Any]) -> str:
    """Return the filters of evidence."""
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in query.items()
    }
    return " ".join(f"{name}:{text}" for name, text in texts.items()) or "anything"


def _checkpoint(anchor: "Anchor") -> str:
    signer = f"{anchor.algorithm} version {anchor.key_version}"
    return f"{anchor.size} records at {anchor.at}, root {anchor.root.hex()}, signed with {signer}"
