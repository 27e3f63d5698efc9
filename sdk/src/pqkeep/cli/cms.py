"""``pqkeep cms``: messages in CMS, for programs that do not know pqkeep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pqkeep import cms, verification
from pqkeep.cli import choice
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import destination
from pqkeep.cli.display import show_facts, show_written
from pqkeep.cli.failures import NOT_FOUND, NOT_VERIFIED, Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Force,
    InputFile,
    KeyringOption,
    KeyVersion,
    To,
)
from pqkeep.cli.public_keys import KeyInFile, read_key, require_key_of
from pqkeep.cli.sources import whole
from pqkeep.errors import DecryptionError
from pqkeep.new_files import PRIVATE, PUBLIC

if TYPE_CHECKING:
    from pqkeep.client import Client

SUFFIX = ".p7m"
DETACHED_SUFFIX = ".p7s"
_SMALLER = "encrypt and sign larger files with pqkeep encrypt and pqkeep sign"
_LARGEST_MESSAGE = cms.LARGEST + cms.LARGEST // 64

app = typer.Typer(
    name="cms", help="Encrypt, decrypt, sign and verify CMS messages.", no_args_is_help=True
)

_PublicKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        help="Encrypt to this key or certificate, without a service. Can be repeated.",
        show_default=False,
    ),
]


@command(app, "encrypt")
def encrypt(
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    public_key: _PublicKeys = None,
) -> None:
    """Encrypt a file of at most 32 MiB on this machine, to FILE.p7m: AuthEnvelopedData in DER.

    By default, it is for the active key of Kyber768 (ML-KEM-768) or the named algorithm.
    """
    data = whole(file, invocation, cms.LARGEST, _SMALLER)
    recipients: list[cms.Recipient] = []
    for path in public_key or ():
        key = read_key(invocation, path, algorithm)
        named = key.algorithm if isinstance(key, KeyInFile) else key.algorithms[0]
        rules(invocation).kem(named)
        recipients.append(cms.Recipient(key.public_key, named))
    if not recipients:
        with invocation.connect() as client:
            chosen = choice.kem_algorithm(client, algorithm)
            found = choice.key(client, chosen, key_version, keyring)
        recipients = [cms.Recipient(found.public_key, chosen)]
    try:
        message = cms.encrypt(data, recipients)
    except ValueError as error:
        raise Refusal(str(error), "name a key of Kyber768 or ML-KEM-1024") from None
    _write(invocation, file, to, SUFFIX, message, "encrypted", force=force)


@command(app, "decrypt")
def decrypt(
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
) -> None:
    """Decrypt a CMS message that names one of your ML-KEM keys: AuthEnvelopedData with AES-256-GCM.

    The message names a key by its identifier. If it names a certificate, name the key with
    --algorithm and --key-version. By default, the output is FILE without .p7m.
    """
    data = whole(file, invocation, _LARGEST_MESSAGE, "it is too large for a message")
    with naming(file):
        message = cms.read_encrypted(data)
    otherwise = file.removesuffix(SUFFIX)
    if to is None and otherwise in {file, ""}:
        otherwise = STANDARD
    with (
        destination(to, otherwise=otherwise, force=force, mode=PRIVATE, read=(file,)) as target,
        invocation.connect() as client,
    ):
        wrapped, version = _own(client, message, choice.Named(algorithm, key_version, keyring))
        secret = client.kem.decapsulate(
            wrapped.kem_ciphertext,
            key_version=version,
            algorithm=wrapped.algorithm,
            keyring=keyring,
        )
        try:
            target.write(cms.decrypt(message, wrapped, secret))
        except DecryptionError as error:
            raise Refusal(
                f"{file}: {error}", "get the original file, or name another key", NOT_VERIFIED
            ) from None


@command(app, "sign")
def sign(  # noqa: PLR0913 - as many options as the command has
    invocation: Invocation,
    file: InputFile,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Put the key's certificate into the message.", show_default=False
        ),
    ] = None,
    detached: Annotated[
        bool, typer.Option("--detached", help="Leave the content out, and write FILE.p7s.")
    ] = False,
) -> None:
    """Sign a file of at most 32 MiB, to FILE.p7m: SignedData in DER. The service sees a digest.

    The signature is by ML-DSA or SLH-DSA. Without a certificate, it names the signer by the key's
    identifier.
    """
    data = whole(file, invocation, cms.LARGEST, _SMALLER)
    encoded = None if certificate is None else _certificate(invocation, certificate)
    with invocation.connect() as client:
        chosen = choice.signature_algorithm(client, algorithm)
        key = choice.key(client, chosen, key_version, keyring)

        def by_service(attributes: bytes) -> bytes:
            return client.signatures.sign(
                attributes, algorithm=chosen, key_version=key.key_version, keyring=keyring
            ).signature

        try:
            message = cms.sign(
                data,
                key.public_key,
                chosen,
                by_service,
                certificate=encoded,
                detached=detached,
            )
        except ValueError as error:
            raise Refusal(str(error), "name another key or certificate") from None
    suffix = DETACHED_SUFFIX if detached else SUFFIX
    _write(invocation, file, to, suffix, message, "signed", force=force)


@command(app, "verify")
def verify(
    invocation: Invocation,
    file: InputFile,
    *,
    public_key: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The signer's key or certificate, which you trust. The message's own certificate "
            "is not used.",
        ),
    ],
    content: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The signed file of a detached signature.", show_default=False
        ),
    ] = None,
    to: To = None,
    force: Force = False,
) -> None:
    """Verify SignedData with one signer, without a service. The status is 7 if it is not good.

    With --to, write the content, if the signature is good.
    """
    data = whole(file, invocation, _LARGEST_MESSAGE, "it is too large for a message")
    with naming(file):
        message = cms.read_signed(data)
    if (message.content is None) == (content is None):
        raise Refusal(
            "the content must be either in the message or in --content",
            "name the signed file of a detached signature: --content FILE",
        )
    signed = message.content
    if signed is None:
        signed = whole(content or "", invocation, cms.LARGEST, _SMALLER)
    rules(invocation).signature(message.algorithm)
    key = read_key(invocation, public_key, message.algorithm)
    require_key_of(key, message.algorithm, public_key)
    covered = cms.signed_bytes(message, signed)
    is_valid = covered is not None and verification.verify(
        covered, message.signature, public_key=key.public_key, algorithm=message.algorithm
    )
    if not is_valid:
        raise Refusal(
            f"{file}: the signature is not good",
            "the content or the signature was changed, or another key made the signature",
            NOT_VERIFIED,
        )
    if to is not None:
        with destination(to, otherwise=STANDARD, force=force, mode=PRIVATE, read=(file,)) as target:
            target.write(signed)
    if to != STANDARD:
        show_facts(invocation, {"valid": True, "algorithm": message.algorithm})


def _own(client: "Client", message: cms.Encrypted, named: choice.Named) -> tuple[cms.Wrapped, int]:
    """Return the recipient that is one of the caller's keys, and its version. Raises Refusal."""
    for wrapped in message.recipients:
        if named.algorithm not in {None, wrapped.algorithm}:
            continue
        if named.key_version is not None:
            return wrapped, named.key_version
        for key in client.keys.list(algorithm=wrapped.algorithm, keyring=named.keyring):
            if cms.identifier_of(key.public_key) == wrapped.identifier:
                return wrapped, key.key_version
    raise Refusal(
        "the message names none of these keys",
        "name the key with --keyring, --algorithm and --key-version",
        NOT_FOUND,
    )


def _certificate(invocation: Invocation, path: Path) -> bytes:
    import ssl  # noqa: PLC0415 - only for a certificate

    data = whole(str(path), invocation, 64 * 1024, "name one certificate")
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        return data
    try:
        return ssl.PEM_cert_to_DER_cert(text)
    except ValueError:
        raise Refusal(f"{path} is not a certificate", "name a certificate in PEM or DER") from None


def _write(
    invocation: Invocation,
    file: str,
    to: str | None,
    suffix: str,
    message: bytes,
    done: str,
    *,
    force: bool,
) -> None:
    name = STANDARD if file == STANDARD else file + suffix
    with destination(to, otherwise=name, force=force, mode=PUBLIC, read=(file,)) as target:
        target.write(message)
    show_written(invocation, to or name, done)
