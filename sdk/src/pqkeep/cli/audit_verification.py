"""``pqkeep audit verify``: what can be done with the audit log without the service."""

import codecs
import json
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pqkeep import inputs
from pqkeep.cli.command import given_before
from pqkeep.cli.failures import UNREADABLE
from pqkeep.cli.printable import printable
from pqkeep.errors import how_to_install

if TYPE_CHECKING:
    from pqkeep.audit import Anchor, Continued, Portion, Report

FAILED = 7
BEGINNING = 64 * 1024
"""Bytes of a file that are looked at first."""
_OTHERS = {"kty", "protected", "encryption", "import_key_id"}
"""Names of JSON objects that are never of an audit log: keys and signatures."""
UNTRUSTED = (
    "this shows only that the files agree with themselves: whoever made them could have made the "
    "keys; name keys that you kept with --keys"
)


class Output(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify_command)


def verify_command(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Exports of the log, and JSON lines with checkpoints, consistency proofs and keys "
            "that were kept, also as the API answered with them.",
            show_default=False,
        ),
    ],
    *,
    keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The keys to trust, kept from GET /api/v1/audit/keys. Without it the keys in the "
            "files are taken, which shows only that the files agree with themselves.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Output, typer.Option(help="How to write the result.")] = Output.TEXT,
) -> None:
    """Verify exports of the audit log, offline.

    Ends with 0 if everything is verified, 7 if anything is wrong, 1 if a file cannot be read, and 2
    if the command is called wrongly.
    """
    from pqkeep.audit import verify  # noqa: PLC0415 - no other command needs it

    if given_before(context).get("output") == Output.JSON.value:
        output = Output.JSON
    try:
        for file in (*files, *(() if keys is None else (keys,))):
            _require_lines(file)
        report = verify(files, keys)
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


def _require_lines(file: Path) -> None:
    """Raise Exit for a file that has nothing of an audit log: it is read, and named.

    A file with one line of JSON is evidence, and whatever is wrong with it a finding.
    """
    if not file.is_file():
        return  # the verification says why it cannot be read
    with file.open("rb") as opened:
        begin = opened.read(BEGINNING)
    if _has_json(begin):
        return
    is_whole = len(begin) < BEGINNING
    what = inputs.describe(begin) if is_whole else "in no form that the service writes"
    typer.echo(printable(f"pqkeep: {file} is {what}, and no JSON lines of an audit log"), err=True)
    typer.echo("        name an export, or what was saved from the API", err=True)
    raise typer.Exit(UNREADABLE)


def _has_json(begin: bytes) -> bool:
    """Return whether a file that begins so has a JSON object: on a line, or over several."""
    text = begin.removeprefix(codecs.BOM_UTF8)
    if len(begin) == BEGINNING and text.lstrip()[:1] in {b"{", b"["}:
        return True
    for candidate in (*text.splitlines(), text):
        if candidate.strip()[:1] in {b"{", b"["}:
            try:
                values = json.loads(candidate)
            except (ValueError, RecursionError):
                continue
            if not (isinstance(values, dict) and _is_other(values)):
                return True
    return False


def _is_other(values: dict[str, Any]) -> bool:
    """Return whether a JSON object is one of the client's own, a key, or a signature."""
    is_document = isinstance(values.get("format"), str) and "type" not in values
    return is_document or bool(_OTHERS & values.keys())


def _as_json(report: "Report") -> dict[str, Any]:
    values = asdict(report)
    for each in (values, *values["earlier"]):
        for checkpoint in each["checkpoints"]:
            checkpoint["root"] = checkpoint["root"].hex()
    return {"verified": report.is_verified, **values}


def _show(report: "Report") -> None:
    from rich.console import Console  # noqa: PLC0415 - as above

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for each in (*report.earlier, report) if report.is_verified else ():
        for name, value in _facts(each):
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
    """Yield what was shown, by name."""
    yield "log", report.log_id or "unknown"
    for each in reversed(report.continued):
        yield "continues", _continued(each)
    for portion in report.portions:
        yield "records", _records(portion)
    sizes = {portion.size for portion in report.portions}
    others = [anchor for anchor in report.checkpoints if anchor.size not in sizes]
    for anchor in report.checkpoints:
        if anchor.size in sizes:
            yield "checkpoint", _checkpoint(anchor)
    if others:
        yield "checkpoint", f"{len(others)} more, of {others[0].size} to {others[-1].size} records"
    trust = "trusted" if report.are_keys_trusted else "not trusted"
    for key in report.keys:
        yield "key", f"{key.algorithm} version {key.key_version}, {key.fingerprint}, {trust}"
    for note in report.notes:
        yield "note", note
    if not report.are_keys_trusted:
        yield "note", UNTRUSTED


def _continued(log: "Continued") -> str:
    lost = f", and lost the next {log.lost}" if log.lost else ""
    return f"log {log.log_id} after its first {log.records} records{lost}"


def _records(portion: "Portion") -> str:
    whose = "all" if portion.tenant_id is None else f"those of tenant {portion.tenant_id}"
    if portion.after:
        whose = f"all after number {portion.after}"
    when = f", from {portion.first_at} to {portion.last_at}" if portion.first_at else ""
    return f"{portion.records}, {whose} of the log's first {portion.size}{when}, in {portion.file}"


def _checkpoint(anchor: "Anchor") -> str:
    signer = f"{anchor.algorithm} version {anchor.key_version}"
    return f"{anchor.size} records at {anchor.at}, root {anchor.root.hex()}, signed with {signer}"
