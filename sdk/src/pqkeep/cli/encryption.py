"""``pqkeep encrypt`` and ``pqkeep decrypt``: data of any size, encrypted on this machine.

The service sees the data only with --server-side and --envelope.

The beginning of a file shows its format. One request decrypts, or recovers shared secrets, for
several files.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pqkeep import inputs
from pqkeep.algorithms import Algorithm
from pqkeep.cli import choice, documents
from pqkeep.cli.armor import ArmorWriter
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import Output, Writer, destination
from pqkeep.cli.failures import NOT_FOUND, Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Armor,
    AssociatedData,
    Force,
    InputFiles,
    KeyContext,
    KeyringOption,
    KeyVersion,
    To,
)
from pqkeep.cli.public_keys import KeyInFile, key_in_file
from pqkeep.cli.recovery import (
    Arguments,
    Encapsulated,
    Form,
    Recovery,
    ask,
    binary,
    first_recipient,
    form_of,
)
from pqkeep.cli.several import OF_AN_ITEM, Asking, Several, several, size_of, succeeded, together
from pqkeep.cli.sources import Source, source, whole
from pqkeep.errors import PqkeepError
from pqkeep.models import Ciphertext, Envelope
from pqkeep.new_files import PRIVATE, PUBLIC

if TYPE_CHECKING:
    from pqkeep.cli.invocation import Invocation
    from pqkeep.client import Client


LARGEST = 1024 * 1024
"""The most bytes that the service encrypts in one request."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request to the service."""

    named: choice.Named
    bound: Arguments
    is_envelope: bool


def encrypt_by_service(tally: Several, wanted: Wanted, output: Output) -> None:
    """Encrypt files in the service, and write the results."""
    with tally.invocation.connect() as client:
        named = wanted.named
        chosen = choice.kem_algorithm(client, named.algorithm)
        kem = client.kem
        asking: Asking[Any] = Asking(
            kem.encrypt_to_envelope if wanted.is_envelope else kem.encrypt,
            kem.encrypt_to_envelope_many if wanted.is_envelope else kem.encrypt_many,
            named._asdict() | wanted.bound,
            partial(choice.generating, chosen, named.key_version, keyring=named.keyring),
        )

        def prepare(file: str) -> dict[str, Any]:
            output.require_free(file)
            plaintext = whole(
                file, tally.invocation, LARGEST, "leave out --server-side and --envelope"
            )
            return {"plaintext": plaintext}

        def finish(file: str, made: Ciphertext | Envelope) -> None:
            _write(tally, file, made, wanted, output)

        for group in together(tally.files, size_of):
            asking.ask(tally, group, prepare, finish)


def _write(
    tally: Several, file: str, made: Ciphertext | Envelope, wanted: Wanted, output: Output
) -> None:
    if isinstance(made, Envelope):
        data = made.envelope.encode() + b"\n"
    else:
        data = documents.written(made, wanted.named.keyring)
    output.write(file, data)
    tally.written(
        output.of(file),
        f"encrypted to {made.algorithm} version {made.key_version}",
        algorithm=made.algorithm,
        key_version=made.key_version,
    )


class Decryption:
    """Decrypts files. It can ask the service for several files in one request first."""

    def __init__(self, invocation: "Invocation", client: "Client", bound: Arguments) -> None:
        """Send no request yet. ``bound``: what the data is bound to, by argument."""
        self._invocation = invocation
        self._client = client
        self._bound = bound
        self._plaintexts: dict[str, bytes | PqkeepError] = {}
        self._recovery = Recovery(client)

    def ask(self, files: Sequence[str]) -> None:
        """Send one request for all these files.

        Files that cannot be read, and refused requests, are left to ``write``.
        """
        ciphertexts: dict[str, Arguments] = {}
        envelopes: dict[str, Arguments] = {}
        encapsulated: list[Encapsulated] = []
        for file in files:
            with suppress(*OF_AN_ITEM), source(file, self._invocation) as opened:
                form = form_of(opened, file)
                if form is Form.ENVELOPE:
                    envelopes[file] = self._envelope(opened, file)
                elif form is Form.DOCUMENT:
                    ciphertexts[file] = self._ciphertext(opened, file)
                else:
                    encapsulated.append(first_recipient(opened, form))
        kem = self._client.kem
        ask(kem.decrypt_many, ciphertexts, self._plaintexts)
        ask(kem.decrypt_envelope_many, envelopes, self._plaintexts)
        self._recovery.ask(encapsulated)

    def write(self, file: str, opened: Source, target: Writer) -> None:
        """Decrypt a file. Raises PqkeepError and Refusal."""
        kem = self._client.kem
        if file in self._plaintexts:
            target.write(succeeded(self._plaintexts[file]))
            return
        form = form_of(opened, file)
        if form is Form.ENVELOPE:
            target.write(kem.decrypt_envelope(**self._envelope(opened, file)))
        elif form is Form.DOCUMENT:
            target.write(kem.decrypt(**self._ciphertext(opened, file)))
        elif any(value is not None for value in self._bound.values()):
            raise Refusal(
                f"{file} was encrypted locally and has no associated data and no context",
                "leave out --associated-data and --context",
            )
        else:
            from pqkeep.local import decrypt_stream  # noqa: PLC0415 - it loads cryptography

            with naming(file):
                source_file = binary(opened, form)
                decrypt_stream(source_file, target, decapsulate=self._recovery.decapsulate)

    def _envelope(self, opened: Source, file: str) -> Arguments:
        with naming(file):
            text = inputs.read_envelope(opened.read(documents.LARGEST))
        return {"envelope": text, **self._bound}

    def _ciphertext(self, opened: Source, file: str) -> Arguments:
        sealed, keyring = documents.read(opened.read(documents.LARGEST), Ciphertext, file)
        return {
            "ciphertext": sealed.ciphertext,
            "key_version": sealed.key_version,
            "algorithm": sealed.algorithm,
            "keyring": keyring,
            **self._bound,
        }


SUFFIX = ".pqk"

PublicKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Encrypt to this key, from pqkeep keys public-key, without a service. PEM and DER "
        "need --key-version, raw bytes also --algorithm.",
        show_default=False,
    ),
]


RecipientFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Let the owner of this public key decrypt, too. Can be repeated.",
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
        typer.Option(
            "--server-side", help="Let the service encrypt the file, of at most 1,048,576 bytes."
        ),
    ] = False,
    envelope: Annotated[
        bool,
        typer.Option(
            "--envelope",
            help="Let the service encrypt the file into an envelope: one text that names its key.",
        ),
    ] = False,
    associated_data: AssociatedData = None,
    key_context: KeyContext = None,
) -> None:
    """Encrypt files on this machine, each to FILE.pqk. The service does not see them.

    With --server-side or --envelope, the service sees the files and encrypts them.
    """
    is_there = server_side or envelope
    if is_there and (public_key is not None or recipient or armor):
        raise Refusal(
            "--server-side and --envelope cannot be combined with --public-key, --recipient or --armor",
            "leave one of them out",
        )
    if associated_data is not None and not is_there:
        raise Refusal("--associated-data works only if the service encrypts", "add --envelope")
    if key_context is not None and not is_there:
        raise Refusal("--context works only if the service encrypts", "add --envelope")
    named = choice.Named(algorithm, key_version, keyring)
    with several(invocation, files, to) as tally:
        if is_there:
            wanted = Wanted(named, _bound(associated_data, key_context), is_envelope=envelope)
            output = Output(to, SUFFIX, is_replaced=force)
            encrypt_by_service(tally, wanted, output)
            return
        keys = _Keys(invocation, public_key, named, recipient or ())
        if tally.is_listed:
            keys.all()
        for file in files:
            with tally.each([file]):
                _encrypt_here(tally, file, keys, to, force=force, armor=armor)


def _bound(associated_data: str | None, context: str | None) -> Arguments:
    """Return the arguments for what the data is bound to."""
    return {
        "associated_data": None if associated_data is None else associated_data.encode(),
        "context": None if context is None else context.encode(),
    }


def decrypt(
    invocation: Invocation,
    files: InputFiles,
    *,
    to: To = None,
    force: Force = False,
    associated_data: AssociatedData = None,
    key_context: KeyContext = None,
) -> None:
    """Decrypt files from pqkeep encrypt: FILE.pqk to FILE.

    Standard output gets only authenticated data. The output is complete only if the status is 0.
    """
    bound = _bound(associated_data, key_context)
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
                                to, otherwise=otherwise, force=force, mode=PRIVATE, read=(file,)
                            ) as target,
                        ):
                            decryption.write(file, opened, target)
                        tally.written(to or otherwise, "decrypted")


class _Keys:
    """The keys to encrypt to, read once when they are first needed."""

    def __init__(
        self,
        invocation: Invocation,
        public_key: Path | None,
        named: choice.Named,
        recipients: Sequence[Path],
    ) -> None:
        """Take the keys that the options name."""
        self._invocation = invocation
        self._public_key = public_key
        self._named = named
        self._recipients = recipients
        self._found: Sequence[KeyInFile] = ()

    @property
    def files(self) -> Sequence[str]:
        """The files of the keys."""
        first = () if self._public_key is None else (self._public_key,)
        return [str(path) for path in (*first, *self._recipients)]

    def all(self) -> Sequence[KeyInFile]:
        """Return the keys, the encrypting user's first."""
        if not self._found:
            used = _recipient(self._invocation, self._public_key, self._named)
            others = [key_in_file(self._invocation, path) for path in self._recipients]
            for recipient in others:
                rules(self._invocation).kem(recipient.algorithm)
            self._found = (used, *others)
        return self._found


def _encrypt_here(
    tally: Several, file: str, keys: _Keys, to: str | None, *, force: bool, armor: bool
) -> None:
    otherwise = STANDARD if file == STANDARD else file + SUFFIX
    with (
        source(file, tally.invocation) as opened,
        destination(
            to, otherwise=otherwise, force=force, mode=PUBLIC, read=(file, *keys.files)
        ) as target,
    ):
        found = keys.all()
        _encrypt_stream(opened, target, found, keys.files, armor=armor)
    used = found[0]
    tally.written(
        to or otherwise,
        f"encrypted to {used.algorithm} version {used.key_version}",
        algorithm=used.algorithm,
        key_version=used.key_version,
    )


def _encrypt_stream(
    opened: Source,
    target: Writer,
    keys: Sequence[KeyInFile],
    files: Sequence[str],
    *,
    armor: bool,
) -> None:
    from pqkeep.local import Recipient, encrypt_stream  # noqa: PLC0415 - it loads cryptography

    text = ArmorWriter(target) if armor else None
    recipients = [Recipient(**asdict(key)) for key in keys]
    try:
        encrypt_stream(opened, text or target, recipients=recipients)
    except ValueError as error:
        names = files if len(files) == len(keys) else ("the service", *files)
        for recipient, name in zip(recipients, names, strict=True):
            with _naming_key(name):
                encrypt_stream(BytesIO(), BytesIO(), recipients=[recipient])
        raise Refusal(str(error), "name other keys") from None
    if text is not None:
        text.end()


@contextmanager
def _naming_key(file: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise Refusal(f"{file}: {error}", "name a key that encrypts") from None


def _recipient(invocation: Invocation, path: Path | None, named: choice.Named) -> KeyInFile:
    """Return the key to encrypt to: the one in a file, or the service's active key."""
    if path is not None:
        key = key_in_file(invocation, path, named)
        rules(invocation).kem(key.algorithm)
        return key
    with invocation.connect() as client:
        chosen = choice.kem_algorithm(client, named.algorithm)
        if chosen == Algorithm.XAES_256_GCM:
            raise Refusal(
                f"{chosen} encrypts in the service only", "add --envelope or --server-side"
            )
        found = choice.key(client, chosen, named.key_version, named.keyring)
    if found.status != "active":
        raise Refusal(
            f"{chosen} version {found.key_version} is {found.status}",
            "leave out --key-version: new data is encrypted to the active key",
            NOT_FOUND,
        )
    return KeyInFile(  # with the requested name, whatever the response calls the algorithm
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
        raise Refusal(f"{file} does not end with {SUFFIX}", "name the output: --to FILE")
    return name
