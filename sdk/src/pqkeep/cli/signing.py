"""``pqkeep sign`` and ``pqkeep verify``: files of any size are hashed here, and the hash is signed.

So the service sees nothing of a file. What is signed is its hash, as POST /signature/sign-hash
does it.
"""

import hashlib
from typing import Annotated

import typer

from pqkeep.algorithms import HashAlgorithm
from pqkeep.cli import documents
from pqkeep.cli.command import command
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_json, show_written
from pqkeep.cli.failures import NOT_VERIFIED, Refusal
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Force,
    Hash,
    InputFile,
    KeyVersion,
    To,
)
from pqkeep.cli.printable import printable
from pqkeep.cli.sources import source, whole
from pqkeep.models import HashSignature
from pqkeep.new_files import PUBLIC

SUFFIX = ".sig"
PIECE = 1024 * 1024


def add_to(app: typer.Typer) -> None:
    """Add both commands."""
    command(app, "sign")(sign)
    command(app, "verify")(verify)


def sign(
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    hash_algorithm: Hash = HashAlgorithm.SHA_512,
) -> None:
    """Sign a file, to FILE.sig. It is hashed here, and the service sees the hash."""
    otherwise = STANDARD if file == STANDARD else file + SUFFIX
    with (
        destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target,
        invocation.connect() as client,
    ):
        made = client.signatures.sign_hash(
            _digest(file, hash_algorithm, invocation),
            hash_algorithm=hash_algorithm,
            algorithm=algorithm,
            key_version=key_version,
        )
        target.write(documents.written(made))
    show_written(
        invocation,
        to or otherwise,
        f"signed with {made.algorithm} version {made.key_version}",
        algorithm=made.algorithm,
        key_version=made.key_version,
        hash_algorithm=made.hash_algorithm,
    )


def verify(
    invocation: Invocation,
    file: InputFile,
    signature: Annotated[
        str | None,
        typer.Argument(
            metavar="[SIGNATURE]",
            help="The signature's file; without it FILE.sig.",
            show_default=False,
        ),
    ] = None,
    *,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
) -> None:
    """Verify a file's signature. Ends with 0 if it is good, and with 7 if it is not.

    --algorithm and --key-version say which key must have signed; by themselves any of yours may.
    """
    if signature is None:
        if file == STANDARD:
            raise Refusal("standard input has no FILE.sig", "name the signature's file")
        signature = file + SUFFIX
    data = whole(signature, invocation, documents.LARGEST, "name the file as it was written")
    said = documents.read(data, HashSignature, signature)
    is_valid = (
        algorithm in {None, said.algorithm}
        and key_version in {None, said.key_version}
        and _is_valid(invocation, file, said)
    )
    if invocation.is_json:
        show_json(
            {
                "valid": is_valid,
                "algorithm": said.algorithm,
                "key_version": said.key_version,
                "hash_algorithm": said.hash_algorithm,
            }
        )
    if not is_valid:
        raise Refusal(
            f"{file}: the signature is not good",
            "the file or the signature was changed, or another key made the signature",
            NOT_VERIFIED,
        )
    if not invocation.is_json:
        by = f"{said.algorithm} version {said.key_version}"
        typer.echo(printable(f"{file}: the signature is good, by {by}"))


def _is_valid(invocation: Invocation, file: str, said: HashSignature) -> bool:
    with invocation.connect() as client:
        return client.signatures.verify_hash(
            _digest(file, said.hash_algorithm, invocation),
            said.signature,
            hash_algorithm=said.hash_algorithm,
            key_version=said.key_version,
            algorithm=said.algorithm,
        )


def _digest(file: str, hash_algorithm: str, invocation: Invocation) -> bytes:
    if hash_algorithm not in set(HashAlgorithm):
        raise Refusal(f"there is no hash {hash_algorithm}", "ask whoever signed", NOT_VERIFIED)
    digest = hashlib.new(hash_algorithm.replace("-", ""))
    with source(file, invocation) as opened:
        while piece := opened.read(PIECE):
            digest.update(piece)
    return digest.digest()
