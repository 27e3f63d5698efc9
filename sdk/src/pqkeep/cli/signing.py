"""``pqkeep sign`` and ``pqkeep verify``: files of any size are hashed here, and the hash is signed.

So the service sees nothing of a file. What is signed is its hash, as POST /signature/sign-hash
does it.
"""

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from pqkeep import verification
from pqkeep.algorithms import HashAlgorithm
from pqkeep.cli import choice, context_signatures, documents
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
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
    KeyringOption,
    KeyVersion,
    SignatureContext,
    To,
)
from pqkeep.cli.printable import printable
from pqkeep.cli.public_keys import read_key
from pqkeep.cli.sources import source, whole
from pqkeep.models import HashSignature
from pqkeep.new_files import PUBLIC

SUFFIX = ".sig"
JWS_SUFFIX = ".jws"
JWS_HEADER = b"eyJ"
"""How a JSON object begins in base64url."""
MAX_PAYLOAD = 1_048_576
"""Bytes of a file that becomes a JWS."""
PIECE = 1024 * 1024


def add_to(app: typer.Typer) -> None:
    """Add both commands."""
    command(app, "sign")(sign)
    command(app, "verify")(verify)


def sign(  # noqa: PLR0913 - as many options as the command has
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    hash_algorithm: Hash = HashAlgorithm.SHA_512,
    jws: Annotated[
        bool, typer.Option("--jws", help="Make a JSON Web Signature; the service sees the file.")
    ] = False,
    detached: Annotated[
        bool, typer.Option("--detached", help="With --jws: leave the file out of it.")
    ] = False,
    use: SignatureContext = None,
) -> None:
    """Sign a file, to FILE.sig. It is hashed here, and the service sees the hash.

    With --context it is a signature of ML-DSA for one use. With --jws a file of at most 1 MiB
    becomes a JWS, FILE.jws, that others can verify.
    """
    if jws and use is not None:
        raise Refusal("--jws and --context exclude each other", "leave one of them out")
    named = choice.Named(algorithm, key_version, keyring)
    if jws:
        _sign_jws(invocation, file, to, named, force=force, detached=detached)
        return
    if detached:
        raise Refusal("--detached is for a JWS", "add --jws")
    otherwise = STANDARD if file == STANDARD else file + SUFFIX
    if use is not None:
        with destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target:
            signed = context_signatures.sign(invocation, file, use, named)
            target.write(documents.written(signed, keyring))
        show_written(
            invocation,
            to or otherwise,
            f"signed with {signed.algorithm} version {signed.key_version}",
            algorithm=signed.algorithm,
            key_version=signed.key_version,
            context=use,
        )
        return
    with (
        destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target,
        invocation.connect() as client,
    ):
        digest = _digest(file, hash_algorithm, invocation)
        chosen = choice.signature_algorithm(client, algorithm)
        with choice.generating(chosen, key_version, keyring=keyring):
            made = client.signatures.sign_hash(
                digest, hash_algorithm=hash_algorithm, **named._asdict()
            )
        target.write(documents.written(made, keyring))
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
    keyring: KeyringOption = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Verify with this key, from pqkeep keys public-key, without a service.",
            show_default=False,
        ),
    ] = None,
    use: SignatureContext = None,
) -> None:
    """Verify a file's signature. Ends with 0 if it is good, and with 7 if it is not.

    --algorithm, --key-version and --keyring say which key must have signed; by themselves any of
    yours may.
    """
    if signature is None:
        if file == STANDARD:
            raise Refusal("standard input has no FILE.sig", "name the signature's file")
        signature = file + SUFFIX
    data = whole(signature, invocation, documents.LARGEST, "name the file as it was written")
    if data.startswith(JWS_HEADER):
        raise Refusal(
            f"{signature} is a JSON Web Signature, which others verify",
            "give them the keys too: pqkeep keys jwks; or sign without --jws",
        )
    kind = _kind(data, use)
    said, by_keyring = documents.read(data, kind, signature)
    is_valid = (
        algorithm in {None, said.algorithm}
        and key_version in {None, said.key_version}
        and keyring in {None, by_keyring or documents.DEFAULT_KEYRING}
        and (
            _is_valid(invocation, file, said, by_keyring, public_key)
            if isinstance(said, HashSignature)
            else context_signatures.is_valid(invocation, file, said, by_keyring, use, public_key)
        )
    )
    if invocation.is_json:
        show_json(
            {
                "valid": is_valid,
                "algorithm": said.algorithm,
                "key_version": said.key_version,
                **(
                    {"hash_algorithm": said.hash_algorithm}
                    if isinstance(said, HashSignature)
                    else {"context": use}
                ),
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


def _kind(
    data: bytes, context: str | None
) -> type[HashSignature] | type[documents.ContextSignature]:
    """Return what a signature's file must be. One without a context is good for none."""
    if context is not None or documents.is_a(data, documents.ContextSignature):
        return documents.ContextSignature
    return HashSignature


def _sign_jws(
    invocation: Invocation,
    file: str,
    to: str | None,
    named: choice.Named,
    *,
    force: bool,
    detached: bool,
) -> None:
    otherwise = STANDARD if file == STANDARD else file + JWS_SUFFIX
    payload = whole(file, invocation, MAX_PAYLOAD, "sign it without --jws")
    with (
        destination(to, otherwise=otherwise, force=force, mode=PUBLIC) as target,
        invocation.connect() as client,
    ):
        made = client.signatures.sign_jws(payload, detached=detached, **named._asdict())
        target.write(made.jws.encode("ascii") + b"\n")
    show_written(
        invocation,
        to or otherwise,
        f"signed with {made.algorithm} version {made.key_version}",
        algorithm=made.algorithm,
        key_version=made.key_version,
    )


def _is_valid(
    invocation: Invocation,
    file: str,
    said: HashSignature,
    keyring: str | None,
    public_key: Path | None,
) -> bool:
    if public_key is not None:
        return _is_valid_offline(invocation, file, said, keyring, public_key)
    with invocation.connect() as client:
        return client.signatures.verify_hash(
            _digest(file, said.hash_algorithm, invocation),
            said.signature,
            hash_algorithm=said.hash_algorithm,
            key_version=said.key_version,
            algorithm=said.algorithm,
            keyring=keyring,
        )


def _is_valid_offline(
    invocation: Invocation,
    file: str,
    said: HashSignature,
    keyring: str | None,
    public_key: Path,
) -> bool:
    """Verify with a public key. What a file says of its key must be what the signature says."""
    key = read_key(invocation, public_key)
    held = rules(invocation)
    held.signature(said.algorithm)
    held.hash(said.hash_algorithm)
    if not isinstance(key, bytes):
        if not key.is_named(said.algorithm, said.key_version, keyring):
            return False
        key = key.public_key
    digest = _digest(file, said.hash_algorithm, invocation)
    try:
        return verification.verify_hash(
            digest,
            said.signature,
            hash_algorithm=said.hash_algorithm,
            public_key=key,
            algorithm=said.algorithm,
        )
    except ValueError as error:  # no algorithm that signs
        raise Refusal(str(error), "ask whoever signed", NOT_VERIFIED) from None


def _digest(file: str, hash_algorithm: str, invocation: Invocation) -> bytes:
    if hash_algorithm not in set(HashAlgorithm):
        raise Refusal(f"there is no hash {hash_algorithm}", "ask whoever signed", NOT_VERIFIED)
    digest = hashlib.new(hash_algorithm.replace("-", ""))
    with source(file, invocation) as opened:
        while piece := opened.read(PIECE):
            digest.update(piece)
    return digest.digest()
