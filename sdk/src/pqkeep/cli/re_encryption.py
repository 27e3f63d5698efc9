"""``pqkeep re-encrypt`` and ``pqkeep recipients``: change and list a file's recipients.

Only a file's header is read and written, unless it gets a new file key. The service sees only a KEM
ciphertext from it.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pqkeep.cli.armor import ArmorReader, ArmorWriter
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import Writer, destination
from pqkeep.cli.display import show_rows
from pqkeep.cli.failures import Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD, AlgorithmOption, Force, InputFile, KeyringOption, To
from pqkeep.cli.public_keys import key_in_file
from pqkeep.cli.recovery import Encapsulated, Form, Recovery, binary, first_recipient, require_local
from pqkeep.cli.several import OF_AN_ITEM, Several, together
from pqkeep.cli.sources import Source, source
from pqkeep.new_files import PUBLIC, changeable, replacement

if TYPE_CHECKING:
    from pqkeep.client import Client
    from pqkeep.local import Recipient

COLUMNS = {
    "algorithm": "ALGORITHM",
    "key_version": "VERSION",
    "keyring": "KEYRING",
    "fingerprint": "FINGERPRINT",
}
FINGERPRINT_SIZE = 32


@dataclass(frozen=True, slots=True)
class RecipientRow:
    """A recipient, with the fingerprint for people."""

    algorithm: str
    key_version: int
    keyring: str
    fingerprint: str


class Changes:
    """Changes files. One request recovers the shared secrets of several headers."""

    def __init__(self, invocation: Invocation, client: "Client", wanted: dict[str, Any]) -> None:
        """Take the arguments of client.local.re_encrypt_file. Send no request yet."""
        from pqkeep.local import Local  # noqa: PLC0415 - it loads cryptography

        self._invocation = invocation
        self._wanted = wanted
        self._recovery = Recovery(client)
        self._local = Local(
            self._recovery.decapsulate, cache(client.keys.active), rules(invocation)
        )

    def ask(self, files: Sequence[str]) -> None:
        """Send one request for several files. Unreadable files are left out."""
        encapsulated: list[Encapsulated] = []
        for file in files:
            with suppress(*OF_AN_ITEM), source(file, self._invocation) as opened:
                encapsulated.append(first_recipient(opened, require_local(opened, file)))
        self._recovery.ask(encapsulated)

    def in_place(self, file: str) -> bool:
        """Change a file. Return False if nothing had to change."""
        return self._local.re_encrypt_file(file, **self._wanted)

    def copied(self, opened: Source, form: Form, target: Writer, *, in_place: bool = False) -> None:
        """Copy a file or its text form. Raises Refusal if surrounding text would be lost."""
        if form is Form.LOCAL:
            self._local.re_encrypt_stream(opened, target, **self._wanted)
            return
        text = ArmorWriter(target)
        reader = ArmorReader(opened)
        self._local.re_encrypt_stream(reader, text, **self._wanted)
        if in_place and not reader.is_alone:
            raise Refusal(
                "other text surrounds the encrypted data", "name another output: --to FILE"
            )
        text.end()


def add_to(app: typer.Typer) -> None:
    """Add both commands."""
    command(app, "re-encrypt")(re_encrypt)
    command(app, "recipients")(recipients)


def re_encrypt(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="The files to change; - is standard input."),
    ],
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    keyring: KeyringOption = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Move to this key, from pqkeep keys public-key, instead of the active key.",
            show_default=False,
        ),
    ] = None,
    recipient: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Let the owner of this public key decrypt, too. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FINGERPRINT",
            help="Remove the recipient with this fingerprint (see pqkeep recipients). Can be repeated.",
            show_default=False,
        ),
    ] = None,
    new_file_key: Annotated[
        bool,
        typer.Option(
            "--new-file-key",
            help="Encrypt the data again, with a new file key. Each other recipient needs "
            "--recipient or --remove.",
        ),
    ] = False,
) -> None:
    """Move files to the active key, or change their recipients. The data stays unchanged.

    With only --recipient or --remove, the key stays the same. The file key stays the same, so a
    removed recipient may still have it. An attacker who breaks the old key's algorithm gets the
    file key from an older copy of the file. To prevent this for new copies, use --new-file-key: it
    encrypts the data again.
    """
    if to is not None and len(files) > 1:
        raise Refusal("--to works only with one file", "leave it out: files are changed in place")
    wanted = {
        "algorithm": algorithm,
        "keyring": keyring,
        "to": None if public_key is None else _recipient(invocation, public_key),
        "add": [_recipient(invocation, path) for path in recipient or ()],
        "remove": [_fingerprint(text) for text in remove or ()],
        "new_file_key": new_file_key,
    }
    tally = Several(invocation, files, is_listed=True)
    with invocation.connect() as client:
        changes = Changes(invocation, client, wanted)
        for group in together(files, lambda _: 0):
            if len(group) > 1 and STANDARD not in group:
                changes.ask(group)
            for file in group:
                with tally.each([file]):
                    changed = _change(invocation, changes, file, to, force=force)
                    tally.done(to or file, changed=changed)
    tally.show(as_json=STANDARD not in {to, *files})
    tally.end()


def recipients(invocation: Invocation, file: InputFile) -> None:
    """List the recipients in a file's header. The header is not authenticated."""
    from pqkeep.local import read_header  # noqa: PLC0415 - it loads cryptography

    with source(file, invocation) as opened:
        form = require_local(opened, file)
        with naming(file):
            header = read_header(binary(opened, form))
    rows = [
        RecipientRow(
            recipient.algorithm,
            recipient.key_version,
            recipient.keyring,
            recipient.fingerprint.hex(),
        )
        for recipient in header.recipients
    ]
    show_rows(invocation, "recipients", rows, COLUMNS)


def _change(
    invocation: Invocation, changes: Changes, file: str, to: str | None, *, force: bool
) -> bool:
    """Change a file in place, or copy it to the output. Return False if nothing had to change."""
    target, changed = to or file, True
    try:
        with source(file, invocation) as opened, naming(file):
            form = require_local(opened, file)
            if target == STANDARD or to is not None:
                with destination(
                    target, otherwise=target, force=force, mode=PUBLIC, read=(file,)
                ) as writer:
                    changes.copied(opened, form, writer)
            elif form is Form.TEXT:
                with changeable(file) as locked, replacement(locked) as writer:
                    if not opened.is_same_file(os.fstat(locked.fileno())):
                        raise Refusal(f"{file} was replaced meanwhile", "run the command again")
                    changes.copied(opened, form, writer, in_place=True)
            else:
                changed = changes.in_place(file)
    except ValueError as error:
        raise Refusal(str(error), "list the recipients: pqkeep recipients FILE") from None
    if target != STANDARD and not invocation.is_json:
        invocation.note(f"{target}: {'re-encrypted' if changed else 'nothing to change'}")
    return changed


def _recipient(invocation: Invocation, path: Path) -> "Recipient":
    from pqkeep.local import Recipient  # noqa: PLC0415 - it loads cryptography

    key = key_in_file(invocation, path)
    rules(invocation).kem(key.algorithm)
    return Recipient(**asdict(key))


def _fingerprint(text: str) -> bytes:
    try:
        fingerprint = bytes.fromhex(text)
    except ValueError:
        fingerprint = b""
    if len(fingerprint) != FINGERPRINT_SIZE:
        raise Refusal(
            "--remove must be 64 hexadecimal digits", "list fingerprints: pqkeep recipients FILE"
        )
    return fingerprint
