"""``pqkeep encrypt`` and ``pqkeep decrypt``: data of any size, encrypted here.

The service sees the data only where it is asked to encrypt it itself.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pqkeep.cli import choice, documents, service_encryption
from pqkeep.cli.armor import ArmorWriter
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.decryption import Decryption
from pqkeep.cli.destinations import Output, Writer, destination
from pqkeep.cli.failures import NOT_FOUND, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Armor,
    AssociatedData,
    Force,
    InputFiles,
    KeyringOption,
    KeyVersion,
    To,
)
from pqkeep.cli.public_keys import KeyInFile, key_in_file
from pqkeep.cli.several import OF_AN_ITEM, Several, several, size_of, together
from pqkeep.cli.sources import Source, source
from pqkeep.new_files import PRIVATE, PUBLIC

SUFFIX = ".pqk"

PublicKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Encrypt to this key, from pqkeep keys public-key, without a service. PEM and DER "
        "need --key-version, and bytes alone --algorithm too.",
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
    files: InputFiles,
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
    """Encrypt files here, each to FILE.pqk. The service sees nothing of them.

    With --server-side or --envelope the service encrypts them, and sees them.
    """
    is_there = server_side or envelope
    if is_there and (public_key is not None or recipient or armor):
        raise Refusal(
            "--server-side and --envelope go with no --public-key, --recipient and --armor",
            "leave one of them out",
        )
    if associated_data is not None and not is_there:
        raise Refusal("--associated-data is for what the service encrypts", "add --envelope")
    named = choice.Named(algorithm, key_version, keyring)
    with several(invocation, files, to) as tally:
        if is_there:
            bound = None if associated_data is None else associated_data.encode()
            wanted = service_encryption.Wanted(named, bound, is_envelope=envelope)
            output = Output(to, SUFFIX, is_replaced=force)
            service_encryption.encrypt(tally, wanted, output)
            return
        keys = _Keys(invocation, public_key, named, recipient or ())
        if tally.is_listed:
            keys.all()
        for file in files:
            with tally.each([file]):
                _encrypt_here(tally, file, keys, to, force=force, armor=armor)


def decrypt(
    invocation: Invocation,
    files: InputFiles,
    *,
    to: To = None,
    force: Force = False,
    associated_data: AssociatedData = None,
) -> None:
    """Decrypt what pqkeep encrypt wrote: FILE.pqk to FILE.

    What comes out of standard output is genuine, but only the status 0 says that it is all of it.
    """
    bound = None if associated_data is None else associated_data.encode()
    with several(invocation, files, to) as tally:
        outputs: dict[str, str] = {}
        for file in files:
            with tally.each([file]):
                outputs[file] = _without_suffix(file, to)
        named = [file for file in files if file in outputs]
        if not named:
            return
        with invocation.connect() as client:
            for group in together(named, lambda file: min(size_of(file), documents.LARGEST)):
                decryption = Decryption(invocation, client, bound)
                if len(group) > 1:
                    decryption.ask(group)
                for file in group:
                    otherwise = outputs[file]
                    with tally.each([file], OF_AN_ITEM):
                        with (
                            source(file, invocation) as opened,
                            destination(
                                to, otherwise=otherwise, force=force, mode=PRIVATE
                            ) as target,
                        ):
                            decryption.write(file, opened, target)
                        tally.written(to or otherwise, "decrypted")


class _Keys:
    """The keys to encrypt to, which are read once, and when they are needed."""

    def __init__(
        self,
        invocation: Invocation,
        public_key: Path | None,
        named: choice.Named,
        recipients: Sequence[Path],
    ) -> None:
        """Take what the options name."""
        self._invocation = invocation
        self._public_key = public_key
        self._named = named
        self._recipients = recipients
        self._found: Sequence[KeyInFile] = ()

    def all(self) -> Sequence[KeyInFile]:
        """Return them, the first one of whoever encrypts."""
        if not self._found:
            used = _recipient(self._invocation, self._public_key, self._named)
            others = [key_in_file(self._invocation, path) for path in self._recipients]
            for each in others:
                rules(self._invocation).kem(each.algorithm)
            self._found = (used, *others)
        return self._found


def _encrypt_here(
    tally: Several, file: str, keys: _Keys, to: str | None, *, force: bool, armor: bool
) -> None:
    otherwise = STANDARD if file == STANDARD else file + SUFFIX
    with (
        source(file, tally.invocation) as opened,
        destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target,
    ):
        found = keys.all()
        _encrypt_stream(opened, target, found, armor=armor)
    used = found[0]
    tally.written(
        to or otherwise,
        f"encrypted to {used.algorithm} version {used.key_version}",
        algorithm=used.algorithm,
        key_version=used.key_version,
    )


def _encrypt_stream(
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
