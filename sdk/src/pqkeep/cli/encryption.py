"""``pqkeep encrypt`` and ``pqkeep decrypt``: data of any size, encrypted here.

The service sees the data only where it is asked to encrypt it itself.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pqkeep.cli import choice, documents
from pqkeep.cli.armor import ArmorReader, ArmorWriter
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import Writer, destination
from pqkeep.cli.display import show_written
from pqkeep.cli.failures import NOT_FOUND, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Armor,
    AssociatedData,
    Force,
    InputFile,
    KeyringOption,
    KeyVersion,
    To,
)
from pqkeep.cli.public_keys import KeyInFile, key_in_file
from pqkeep.cli.sources import Source, source
from pqkeep.models import Ciphertext, Envelope
from pqkeep.new_files import PRIVATE, PUBLIC

SUFFIX = ".pqk"
LARGEST_FOR_SERVICE = 1024 * 1024
ENVELOPE = b"pqk1."
"""How the text of an envelope begins."""

PublicKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Encrypt to this key, from pqkeep keys public-key, without a service. PEM, and bytes "
        "alone, need --algorithm and --key-version.",
        show_default=False,
    ),
]


RecipientFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Let the owner of this public key decrypt too. It may be repeated.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add both commands."""
    command(app, "encrypt")(encrypt)
    command(app, "decrypt")(decrypt)


def encrypt(  # noqa: PLR0913 - as many options as there are ways
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    armor: Armor = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    public_key: PublicKeyFile = None,
    recipient: RecipientFiles = None,
    server_side: Annotated[
        bool,
        typer.Option("--server-side", help="Let the service encrypt: at most 1,048,576 bytes."),
    ] = False,
    envelope: Annotated[
        bool,
        typer.Option("--envelope", help="The same, into one text that names its key."),
    ] = False,
    associated_data: AssociatedData = None,
) -> None:
    """Encrypt a file here, to FILE.pqk. The service sees nothing of it.

    With --server-side or --envelope the service encrypts it, and sees it.
    """
    is_there = server_side or envelope
    if is_there and (public_key is not None or recipient or armor):
        raise Refusal(
            "--server-side and --envelope go with no --public-key, --recipient and --armor",
            "leave one of them out",
        )
    if associated_data is not None and not is_there:
        raise Refusal("--associated-data is for what the service encrypts", "add --envelope")
    otherwise = STANDARD if file == STANDARD else file + SUFFIX
    with (
        source(file, invocation) as opened,
        destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target,
    ):
        used: Ciphertext | Envelope | KeyInFile
        named = choice.Named(algorithm, key_version, keyring)
        if is_there:
            bound = None if associated_data is None else associated_data.encode()
            used = _encrypt_there(invocation, opened, target, named, bound, envelope=envelope)
        else:
            used = _recipient(invocation, public_key, named)
            others = [key_in_file(invocation, path) for path in recipient or ()]
            for each in others:
                rules(invocation).kem(each.algorithm)
            _encrypt_here(opened, target, [used, *others], armor=armor)
    show_written(
        invocation,
        to or otherwise,
        f"encrypted to {used.algorithm} version {used.key_version}",
        algorithm=used.algorithm,
        key_version=used.key_version,
    )


def decrypt(
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    associated_data: AssociatedData = None,
) -> None:
    """Decrypt what pqkeep encrypt wrote: FILE.pqk to FILE.

    What comes out of standard output is genuine, but only the status 0 says that it is all of it.
    """
    bound = None if associated_data is None else associated_data.encode()
    otherwise = _without_suffix(file, to)
    with (
        source(file, invocation) as opened,
        destination(to, otherwise=otherwise, force=force, mode=PRIVATE) as target,
        invocation.connect() as client,
    ):
        match opened.first():
            case b"p" if opened.first(len(ENVELOPE)) == ENVELOPE:
                text = opened.read(documents.LARGEST).decode("ascii", "replace").strip()
                target.write(client.kem.decrypt_envelope(text, associated_data=bound))
            case b"{":
                data = opened.read(documents.LARGEST)
                sealed, keyring = documents.read(data, Ciphertext, file)
                target.write(
                    client.kem.decrypt(
                        sealed.ciphertext,
                        key_version=sealed.key_version,
                        algorithm=sealed.algorithm,
                        keyring=keyring,
                        associated_data=bound,
                    )
                )
            case _ if bound is not None:
                raise Refusal(
                    f"{file} was encrypted here, and is bound to nothing",
                    "leave out --associated-data",
                )
            case b"-":
                client.local.decrypt_stream(ArmorReader(opened), target)
            case _:
                client.local.decrypt_stream(opened, target)
    show_written(invocation, to or otherwise, "decrypted")


def _encrypt_here(
    opened: Source, target: Writer, keys: Sequence[KeyInFile], *, armor: bool
) -> None:
    from pqkeep.local import Recipient, encrypt_stream  # noqa: PLC0415 - it loads cryptography

    text = ArmorWriter(target) if armor else None
    try:
        recipients = [Recipient(**asdict(key)) for key in keys]
        encrypt_stream(opened, text or target, recipients=recipients)
    except ValueError as error:
        raise Refusal(str(error), "name a key that encrypts") from None
    if text is not None:
        text.end()


def _encrypt_there(
    invocation: Invocation,
    opened: Source,
    target: Writer,
    named: choice.Named,
    associated_data: bytes | None,
    *,
    envelope: bool,
) -> Ciphertext | Envelope:
    plaintext = opened.read(LARGEST_FOR_SERVICE + 1)
    if len(plaintext) > LARGEST_FOR_SERVICE:
        raise Refusal(
            f"the service encrypts at most {LARGEST_FOR_SERVICE} bytes",
            "leave out --server-side and --envelope",
        )
    with (
        invocation.connect() as client,
        choice.generating(
            choice.kem_algorithm(client, named.algorithm), named.key_version, keyring=named.keyring
        ),
    ):
        asked: Any = named._asdict() | {"associated_data": associated_data}
        if envelope:
            made = client.kem.encrypt_to_envelope(plaintext, **asked)
            target.write(made.envelope.encode() + b"\n")
            return made
        sealed = client.kem.encrypt(plaintext, **asked)
    target.write(documents.written(sealed, named.keyring))
    return sealed


def _recipient(invocation: Invocation, path: Path | None, named: choice.Named) -> KeyInFile:
    """Return the key to encrypt to: the one in a file, or else the service's active one."""
    if path is not None:
        key = key_in_file(invocation, path, named)
        rules(invocation).kem(key.algorithm)
        return key
    with invocation.connect() as client:
        chosen = choice.kem_algorithm(client, named.algorithm)
        found = choice.key(client, chosen, named.key_version, named.keyring)
    if found.status != "active":
        raise Refusal(
            f"{chosen} version {found.key_version} is {found.status}",
            "leave out --key-version: new data is encrypted to the active key",
            NOT_FOUND,
        )
    return KeyInFile(  # for what was asked for, whatever the answer calls it
        public_key=found.public_key,
        key_version=found.key_version,
        algorithm=chosen,
        keyring=named.keyring or documents.DEFAULT_KEYRING,
    )


def _without_suffix(file: str, to: str | None) -> str:
    if file == STANDARD or to is not None:
        return STANDARD
    name = file.removesuffix(SUFFIX)
    if name == file or not Path(name).name:
        raise Refusal(f"{file} does not end with {SUFFIX}", "name what to write: --to FILE")
    return name
