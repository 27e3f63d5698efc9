"""``pqkeep encapsulate``, ``decapsulate``, ``wrap``, ``unwrap``, ``data-key``: secrets for programs.

Secrets are written as bytes, to files that only the user can read or to a pipe.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pqkeep.algorithms import Algorithm
from pqkeep.cli import choice, documents
from pqkeep.cli.command import command
from pqkeep.cli.destinations import Writer, destination
from pqkeep.cli.failures import Refusal, about
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    AssociatedData,
    Force,
    KeyContext,
    KeyringOption,
    KeyVersion,
    OptionalInputFile,
    To,
)
from pqkeep.cli.sources import whole
from pqkeep.models import Ciphertext, DataKey, WrappedKey
from pqkeep.new_files import PRIVATE, PUBLIC

LARGEST_KEY = 64
LARGEST_DOCUMENT = 64 * 1024


def add_to(app: typer.Typer) -> None:
    """Add the five commands."""
    command(app, "encapsulate")(encapsulate)
    command(app, "decapsulate")(decapsulate)
    command(app, "wrap")(wrap)
    command(app, "unwrap")(unwrap)
    command(app, "data-key")(data_key)


def encapsulate(
    invocation: Invocation,
    *,
    secret: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The file for the shared secret (32 bytes); - is standard output.",
        ),
    ],
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
) -> None:
    """Make a shared secret for another program.

    The output is JSON with the KEM ciphertext, from which decapsulate recovers the secret.
    """
    if secret == STANDARD and to in {None, STANDARD}:
        raise Refusal(
            "standard output cannot take both the secret and the KEM ciphertext",
            "write one of them to a file: --to FILE, or --secret FILE",
        )
    if to is not None and STANDARD not in {secret, to} and _is_same(secret, to):
        raise Refusal("--secret and --to name the same file", "name another file: --to FILE")
    with (
        destination(secret, otherwise=secret, force=force, mode=PRIVATE) as secret_file,
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as target,
        invocation.connect() as client,
    ):
        chosen = choice.kem_algorithm(client, algorithm)
        made = client.kem.encapsulate(
            algorithm=chosen,
            keyring=keyring,
            key_version=choice.key_version(client, chosen, key_version, keyring),
        )
        document = documents.KemCiphertext(
            kem_ciphertext=made.kem_ciphertext,
            key_version=made.key_version,
            algorithm=made.algorithm,
        )
        target.write(documents.written(document, keyring))
        secret_file.write(made.shared_secret)


def _is_same(one: str, other: str) -> bool:
    """Return True if two names are of one file. A device may be written to twice."""
    # Path.resolve raises RuntimeError for a loop of links, before Python 3.13.
    return os.path.realpath(one) == os.path.realpath(other) and not Path(one).is_char_device()


def decapsulate(
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    to: To = None,
    force: Force = False,
) -> None:
    """Recover a shared secret.

    The input is a file from encapsulate. A changed KEM ciphertext gives another secret, not an error.
    """
    document, keyring = _document(invocation, file, documents.KemCiphertext)
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PRIVATE, read=(file,)) as target,
        invocation.connect() as client,
        about(file),
    ):
        target.write(
            client.kem.decapsulate(
                document.kem_ciphertext,
                key_version=document.key_version,
                algorithm=document.algorithm,
                keyring=keyring,
            )
        )


def wrap(
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    associated_data: AssociatedData = None,
) -> None:
    """Wrap a symmetric key.

    The file must have exactly the key's 16, 24, 32, 48 or 64 bytes.
    """
    symmetric_key = whole(file, invocation, LARGEST_KEY, "use pqkeep encrypt for other data")
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC, read=(file,)) as target,
        invocation.connect() as client,
        about(file),
    ):
        chosen = choice.kem_algorithm(client, algorithm)
        wrapped = client.kem.wrap(
            symmetric_key,
            algorithm=chosen,
            keyring=keyring,
            key_version=choice.key_version(client, chosen, key_version, keyring),
            associated_data=None if associated_data is None else associated_data.encode(),
        )
        target.write(documents.written(wrapped, keyring))


def data_key(  # noqa: PLR0913 - an option each
    invocation: Invocation,
    *,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The file for the data key itself; - is standard output. Left out: only the "
            "encrypted key leaves the service.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[int, typer.Option(metavar="BYTES", help="16, 32 or 64.")] = 32,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    keyring: KeyringOption = None,
    associated_data: AssociatedData = None,
    key_context: KeyContext = None,
) -> None:
    """Make a random key for encryption by your program.

    The output is JSON with the encrypted key, which unwrap reads. For ML-KEM-1024 and
    with --context, decrypt reads it.
    """
    if secret == STANDARD and to in {None, STANDARD}:
        raise Refusal(
            "standard output cannot take both the data key and the encrypted key",
            "write one of them to a file: --to FILE, or --secret FILE",
        )
    is_named = to is not None and secret is not None and STANDARD not in {secret, to}
    if is_named and _is_same(secret or "", to or ""):
        raise Refusal("--secret and --to name the same file", "name another file: --to FILE")
    with (
        _secret_file(secret, force=force) as secret_file,
        destination(to, otherwise=STANDARD, force=force, mode=PUBLIC) as target,
        invocation.connect() as client,
        choice.generating(choice.kem_algorithm(client, algorithm), keyring=keyring),
    ):
        made = client.kem.data_key(
            size=size,
            plaintext=secret is not None,
            algorithm=algorithm,
            keyring=keyring,
            associated_data=None if associated_data is None else associated_data.encode(),
            context=None if key_context is None else key_context.encode(),
            format=None if key_context is None else "ciphertext",
        )
        target.write(documents.written(_encrypted(made), keyring))
        if secret_file is not None and made.plaintext is not None:
            secret_file.write(made.plaintext)


def _secret_file(name: str | None, *, force: bool) -> AbstractContextManager[Writer | None]:
    if name is None:
        return nullcontext()
    return destination(name, otherwise=name, force=force, mode=PRIVATE)


def _encrypted(made: DataKey) -> WrappedKey | Ciphertext:
    """Return the content of an encrypted data key's file."""
    if made.wrapped_key is None:
        return Ciphertext(
            ciphertext=made.ciphertext or b"",
            key_version=made.key_version,
            algorithm=made.algorithm,
        )
    is_cipher = made.algorithm == Algorithm.XAES_256_GCM
    return WrappedKey(
        wrapped_key=made.wrapped_key,
        key_version=made.key_version,
        algorithm=made.algorithm,
        wrapping_method=Algorithm.XAES_256_GCM.value if is_cipher else "KEM-DEM",
    )


def unwrap(
    invocation: Invocation,
    file: OptionalInputFile = STANDARD,
    *,
    to: To = None,
    force: Force = False,
    associated_data: AssociatedData = None,
) -> None:
    """Unwrap a symmetric key.

    The input is a file from wrap. The output is the key's bytes.
    """
    document, keyring = _document(invocation, file, WrappedKey)
    with (
        destination(to, otherwise=STANDARD, force=force, mode=PRIVATE, read=(file,)) as target,
        invocation.connect() as client,
        about(file),
    ):
        target.write(
            client.kem.unwrap(
                document.wrapped_key,
                key_version=document.key_version,
                algorithm=document.algorithm,
                keyring=keyring,
                associated_data=None if associated_data is None else associated_data.encode(),
            )
        )


def _document(
    invocation: Invocation, file: str, kind: type[documents.D]
) -> documents.Read[documents.D]:
    data = whole(file, invocation, LARGEST_DOCUMENT, "name the original file")
    return documents.read(data, kind, file)
