"""``pqkeep re-encrypt`` and ``pqkeep recipients``: who can decrypt a file.

Only the header of a file is read and written. The service sees a KEM ciphertext from it.
"""

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
from pqkeep.cli.destinations import Writer, destination, file_at
from pqkeep.cli.display import show_rows
from pqkeep.cli.failures import Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD, AlgorithmOption, Force, InputFile, KeyringOption, To
from pqkeep.cli.public_keys import key_in_file
from pqkeep.cli.recovery import Encapsulated, Form, Recovery, binary, first_recipient, require_local
from pqkeep.cli.several import OF_AN_ITEM, Several, together
from pqkeep.cli.sources import Source, source
from pqkeep.new_files import PUBLIC

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
    """A recipient, as people compare it."""

    algorithm: str
    key_version: int
    keyring: str
    fingerprint: str


class Changes:
    """What is done to each file. The secrets of several files' headers are one request."""

    def __init__(self, invocation: Invocation, client: "Client", wanted: dict[str, Any]) -> None:
        """Take the arguments of client.local.re_encrypt_file; ask nothing yet."""
        from pqkeep.local import Local  # noqa: PLC0415 - it loads cryptography

        self._invocation = invocation
        self._wanted = wanted
        self._recovery = Recovery(client)
        self._local = Local(
            self._recovery.decapsulate, cache(client.keys.active), rules(invocation)
        )

    def ask(self, files: Sequence[str]) -> None:
        """Ask the service for what several files need of it. What cannot be read is left out."""
        encapsulated: list[Encapsulated] = []
        for file in files:
            with suppress(*OF_AN_ITEM), source(file, self._invocation) as opened:
                encapsulated.append(first_recipient(opened, require_local(opened, file)))
        self._recovery.ask(encapsulated)

    def in_place(self, file: str) -> bool:
        """Change a file; return whether it had to be."""
        return self._local.re_encrypt_file(file, **self._wanted)

    def copied(self, opened: Source, form: Form, target: Writer, *, in_place: bool = False) -> None:
        """Copy a file, or text that stands for one. Raises Refusal for other text that were lost."""
        if form is Form.LOCAL:
            self._local.re_encrypt_stream(opened, target, **self._wanted)
            return
        text = ArmorWriter(target)
        reader = ArmorReader(opened)
        self._local.re_encrypt_stream(reader, text, **self._wanted)
        if in_place and not reader.is_alone:
            raise Refusal(
                "there is other text around the encrypted data", "name another file: --to FILE"
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
        typer.Argument(metavar="FILE...", help="What to change; - is standard input."),
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
            help="Move to this key, from pqkeep keys public-key, and not to the active one.",
            show_default=False,
        ),
    ] = None,
    recipient: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Let the owner of this public key decrypt too. It may be repeated.",
            show_default=False,
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FINGERPRINT",
            help="Remove a recipient, as pqkeep recipients shows it. It may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Move files to the active key, or change who can decrypt them. The data stays as it is.

    With --recipient or --remove alone, no key takes another's place. Whoever could decrypt a file may have kept its file key, which stays the same.
    """
    if to is not None and len(files) > 1:
        raise Refusal("--to is for one file", "leave it out: files are changed in place")
    wanted = {
        "algorithm": algorithm,
        "keyring": keyring,
        "to": None if public_key is None else _recipient(invocation, public_key),
        "add": [_recipient(invocation, path) for path in recipient or ()],
        "remove": [_fingerprint(text) for text in remove or ()],
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
    """List who can decrypt a file, as its header says, which is not authenticated."""
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
    """Change a file in place, or copy what is none; return whether it had to be changed."""
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
                with file_at(Path(file).resolve(), force=True, mode=PUBLIC) as writer:
                    changes.copied(opened, form, writer, in_place=True)
            else:
                changed = changes.in_place(file)
    except ValueError as error:
        raise Refusal(str(error), "see who can decrypt it: pqkeep recipients FILE") from None
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
        raise Refusal("a fingerprint has 64 hexadecimal digits", "see them: pqkeep recipients FILE")
    return fingerprint
