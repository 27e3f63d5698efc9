"""``pqkeep encrypt`` and ``pqkeep decrypt``: data of any size, encrypted here.

The service sees the data only where it is asked to encrypt it itself.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

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
    Force,
    InputFile,
    KeyVersion,
    To,
)
from pqkeep.cli.sources import Source, source, whole
from pqkeep.models import Ciphertext
from pqkeep.new_files import PRIVATE, PUBLIC

SUFFIX = ".pqk"
LARGEST_FOR_SERVICE = 1024 * 1024
LARGEST_PUBLIC_KEY = 64 * 1024

PublicKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Encrypt to this key, from pqkeep keys public-key, without a service. Bytes alone "
        "need --algorithm and --key-version.",
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
    public_key: PublicKeyFile = None,
    server_side: Annotated[
        bool,
        typer.Option("--server-side", help="Let the service encrypt: at most 1,048,576 bytes."),
    ] = False,
) -> None:
    """Encrypt a file here, to FILE.pqk. The service sees nothing of it."""
    if server_side and public_key is not None:
        raise Refusal("--server-side and --public-key exclude each other", "leave one of them out")
    otherwise = STANDARD if file == STANDARD else file + SUFFIX
    with (
        source(file, invocation) as opened,
        destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target,
    ):
        used: Ciphertext | documents.PublicKey
        if server_side:
            used = _encrypt_there(invocation, opened, target, algorithm, key_version)
        else:
            used = _recipient(invocation, public_key, algorithm, key_version)
            _encrypt_here(opened, target, used, armor=armor)
    show_written(
        invocation,
        to or otherwise,
        f"encrypted to {used.algorithm} version {used.key_version}",
        algorithm=used.algorithm,
        key_version=used.key_version,
    )


def decrypt(
    invocation: Invocation, file: InputFile, *, to: To = None, force: Force = False
) -> None:
    """Decrypt what pqkeep encrypt wrote: FILE.pqk to FILE.

    What comes out of standard output is genuine, but only the status 0 says that it is all of it.
    """
    otherwise = _without_suffix(file, to)
    with (
        source(file, invocation) as opened,
        destination(to, otherwise=otherwise, force=force, mode=PRIVATE) as target,
        invocation.connect() as client,
    ):
        match opened.first():
            case b"{":
                data = opened.read(documents.LARGEST)
                sealed = documents.read(data, Ciphertext, file)
                target.write(
                    client.kem.decrypt(
                        sealed.ciphertext,
                        key_version=sealed.key_version,
                        algorithm=sealed.algorithm,
                    )
                )
            case b"-":
                client.local.decrypt_stream(ArmorReader(opened), target)
            case _:
                client.local.decrypt_stream(opened, target)
    show_written(invocation, to or otherwise, "decrypted")


def _encrypt_here(opened: Source, target: Writer, key: documents.PublicKey, *, armor: bool) -> None:
    from pqkeep.local import encrypt_stream  # noqa: PLC0415 - it loads cryptography

    text = ArmorWriter(target) if armor else None
    try:
        encrypt_stream(opened, text or target, **asdict(key))
    except ValueError as error:
        raise Refusal(str(error), "name a key that encrypts") from None
    if text is not None:
        text.end()


def _encrypt_there(
    invocation: Invocation,
    opened: Source,
    target: Writer,
    algorithm: str | None,
    key_version: int | None,
) -> Ciphertext:
    plaintext = opened.read(LARGEST_FOR_SERVICE + 1)
    if len(plaintext) > LARGEST_FOR_SERVICE:
        raise Refusal(
            f"the service encrypts at most {LARGEST_FOR_SERVICE} bytes", "leave out --server-side"
        )
    with invocation.connect() as client:
        sealed = client.kem.encrypt(plaintext, algorithm=algorithm, key_version=key_version)
    target.write(documents.written(sealed))
    return sealed


def _recipient(
    invocation: Invocation, path: Path | None, algorithm: str | None, key_version: int | None
) -> documents.PublicKey:
    """Return the key to encrypt to: the one in a file, or else the service's active one."""
    if path is not None:
        key = _key_in_file(invocation, path, algorithm, key_version)
        rules(invocation).kem(key.algorithm)
        return key
    with invocation.connect() as client:
        chosen = choice.kem_algorithm(client, algorithm)
        found = choice.key(client, chosen, key_version)
    if found.status != "active":
        raise Refusal(
            f"{chosen} version {found.key_version} is {found.status}",
            "leave out --key-version: new data is encrypted to the active key",
            NOT_FOUND,
        )
    return documents.PublicKey(  # for what was asked for, whatever the answer calls it
        public_key=found.public_key, key_version=found.key_version, algorithm=chosen
    )


def _key_in_file(
    invocation: Invocation, path: Path, algorithm: str | None, key_version: int | None
) -> documents.PublicKey:
    data = whole(str(path), invocation, LARGEST_PUBLIC_KEY, "name a file with one public key")
    if not data.startswith(b"{"):
        if algorithm is None or key_version is None:
            raise Refusal(f"{path} does not say which key it is", "add --algorithm, --key-version")
        return documents.PublicKey(public_key=data, key_version=key_version, algorithm=algorithm)
    key = documents.read(data, documents.PublicKey, str(path))
    if algorithm not in {None, key.algorithm} or key_version not in {None, key.key_version}:
        raise Refusal(
            f"{path} is the key of {key.algorithm} version {key.key_version}",
            "leave out --algorithm and --key-version, or name another file",
        )
    return key


def _without_suffix(file: str, to: str | None) -> str:
    if file == STANDARD or to is not None:
        return STANDARD
    name = file.removesuffix(SUFFIX)
    if name == file or not Path(name).name:
        raise Refusal(f"{file} does not end with {SUFFIX}", "name what to write: --to FILE")
    return name
