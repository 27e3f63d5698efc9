"""``pqkeep transit``: move from a Transit secrets engine of Vault or OpenBao."""

import json
import os
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_facts, show_json
from pqkeep.cli.failures import NOT_VERIFIED, OTHER, Refusal, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD, OptionalInputFile
from pqkeep.cli.sources import source, whole
from pqkeep.cli.transit_files import FORM_OF, Columns, Form, Records, Written, opened_output
from pqkeep.cli.transit_policy import LARGEST_POLICY, Translation, translate

ALGORITHM = "XAES-256-GCM"
TIMEOUT = 30.0
"""The time limit of a request in seconds."""
_DELIMITERS = (",", ";", "|", "\t")

app = typer.Typer(
    name="transit",
    help="Move from a Transit secrets engine of Vault or OpenBao.",
    no_args_is_help=True,
)


@command(app, "migrate")
def migrate(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    from_: Annotated[
        str, typer.Option("--from", metavar="URL", help="The address of Vault or OpenBao.")
    ],
    key: Annotated[str, typer.Option("--key", metavar="NAME", help="The key there.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "-o",
            metavar="FILE",
            help="The output: each record with its new ciphertext. A later run goes on with it.",
        ),
    ],
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="The form of the input. By default the file's name decides; other names mean lines.",
            show_default=False,
        ),
    ] = None,
    column: Annotated[
        str,
        typer.Option(metavar="NAME", help="The column of the ciphertexts (CSV and JSON lines)."),
    ] = "ciphertext",
    context_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The column of the context, if the key is derived.",
            show_default=False,
        ),
    ] = None,
    associated_data_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The column of the associated data.", show_default=False),
    ] = None,
    base64_columns: Annotated[
        bool,
        typer.Option(
            "--base64-columns", help="Context and associated data are base64 in their columns."
        ),
    ] = False,
    delimiter: Annotated[
        str, typer.Option(metavar="CHARACTER", help="What separates the columns of CSV.")
    ] = ",",
    write: Annotated[
        Written,
        typer.Option(
            help="The form of new ciphertexts: for clients of Transit, as base64, or as envelopes."
        ),
    ] = Written.TRANSIT,
    keyring: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The keyring here. By default it has the name of the key there.",
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", metavar="NAME", help="The algorithm here.")
    ] = ALGORITHM,
    latest_version: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The latest version of the key there, if the token may not read the key.",
            show_default=False,
        ),
    ] = None,
    mount: Annotated[
        str, typer.Option(metavar="PATH", help="The mount of the Transit engine.")
    ] = "transit",
    namespace: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="VAULT_NAMESPACE",
            help="The namespace there.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, help="The most seconds of a request there."),
    ] = TIMEOUT,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file of the token. By default VAULT_TOKEN, BAO_TOKEN or ~/.vault-token.",
            show_default=False,
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="VAULT_CACERT",
            help="The certificate authority of the old service.",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
) -> None:
    """Decrypt ciphertexts at Vault or OpenBao, and encrypt them here.

    The input is a file of ciphertexts: a line each, a column of CSV, or a member of JSON lines. The
    output has the same records in the same order, with the new ciphertext. Run the same command
    again after an interruption: records that are in the output are not moved again.

    The keyring is made if it is missing. Its versions begin one above those of the old key.
    Plaintexts are in memory only.
    """
    if delimiter not in _DELIMITERS:
        raise Refusal("--delimiter must be one of , ; | and a tab", "name one of them")
    columns = Columns(column, context_column, associated_data_column)
    chosen = form or FORM_OF.get(Path(file).suffix.lower(), Form.LINES)
    if chosen is Form.LINES and (context_column or associated_data_column):
        raise Refusal("lines have no columns", "name the form with --format csv or jsonl")
    from pqkeep.cli.transit_move import Move, forbid_core_dumps, refusing  # noqa: PLC0415 - HTTP
    from pqkeep.vault_transit import TransitSource, read_token  # noqa: PLC0415 - it loads HTTP

    forbid_core_dumps()
    token = read_token(token_file, os.environ)
    with (
        source(file, invocation) as opened,
        TransitSource(
            from_,
            token,
            key=key,
            mount=mount,
            namespace=namespace,
            ca_file=ca_file,
            timeout=timeout,
        ) as old,
        invocation.connect() as client,
        opened_output(to, opened) as output,
        refusing(),
    ):
        records = Records(opened, chosen, columns, delimiter)
        move = Move(old, client, columns, write, is_base64=base64_columns)
        missing = output.missing(records)
        first = next(missing, None)
        if first is not None:
            move.prepare(keyring or key, algorithm, latest_version)
            move.run(chain((first,), missing), output, records)
    failed = move.failed + output.failed
    facts = {
        "moved": move.moved,
        "moved_before": output.done,
        "unchanged": move.unchanged,
        "failed": failed,
    }
    show_facts(invocation, facts)
    if failed:
        step = "see the column pqkeep_error in the output; put these ciphertexts into a new file, and move them"
        if form is None and chosen is Form.LINES and not move.moved + output.done:
            step = f"if the input is CSV or JSON lines, name it with --format; otherwise {step}"
        raise Refusal(f"{failed} ciphertexts were not moved", step, NOT_VERIFIED)


@command(app, "translate-policy")
def translate_policy(
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    mount: Annotated[
        str, typer.Option(metavar="PATH", help="The mount of the Transit engine.")
    ] = "transit",
) -> None:
    """Print the scopes that the Transit paths of a Vault policy mean.

    The scopes never allow more than the policy. Rules without an equivalent scope are reported with
    their line on standard error, and the status is then 1. Paths outside the mount are left out.
    """
    data = whole(file, invocation, LARGEST_POLICY, "name the file of one policy")
    translation = translate(data, mount.strip("/"))
    _show(invocation, translation)


def _show(invocation: Invocation, translation: Translation) -> None:
    if invocation.is_json:
        show_json(
            {
                "scopes": translation.scopes,
                "untranslated": [
                    {"line": line, "path": path, "reason": reason}
                    for line, path, reason in translation.untranslated
                ],
            }
        )
    else:
        lines = ",\n ".join(json.dumps(scope) for scope in translation.scopes)
        typer.echo(f"[{lines}]")
    for line, path, reason in translation.untranslated:
        typer.echo(printable(f"pqkeep: line {line}: {path}: {reason}"), err=True)
    if translation.skipped:
        invocation.note(f"{translation.skipped} paths outside the mount are left out")
    if translation.untranslated:
        raise typer.Exit(OTHER)
