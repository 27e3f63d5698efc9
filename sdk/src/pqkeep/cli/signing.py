"""``pqkeep sign`` and ``pqkeep verify``: files of any size are hashed here, and the service signs the hash.

So the service does not see the files. POST /signature/sign-hash defines the signatures.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pqkeep import inputs, verification
from pqkeep.algorithms import LEGACY_VERIFYING, HashAlgorithm
from pqkeep.cli import choice, context_signatures, documents, foreign_signatures
from pqkeep.cli.command import command
from pqkeep.cli.configuration import rules
from pqkeep.cli.destinations import Output
from pqkeep.cli.display import show_json
from pqkeep.cli.failures import NOT_VERIFIED, UNREADABLE, Refusal, naming, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import (
    STANDARD,
    AlgorithmOption,
    Force,
    Hash,
    InputFiles,
    KeyringOption,
    KeyVersion,
    SignatureContext,
    To,
)
from pqkeep.cli.public_keys import KeyInFile, read_key, require_key_of
from pqkeep.cli.several import (
    IN_A_REQUEST,
    OF_AN_ITEM,
    OF_ONE_FILE,
    SLOW_IN_A_REQUEST,
    Asking,
    Several,
    several,
    succeeded,
    together,
)
from pqkeep.cli.sources import source, whole
from pqkeep.errors import PqkeepError
from pqkeep.models import HashSignature

if TYPE_CHECKING:
    from pqkeep.client import Client

SUFFIX = ".sig"
JWS_SUFFIX = ".jws"
MAX_PAYLOAD = 1_048_576
"""The most bytes of a file that becomes a JWS."""
SLOW = "SLH-DSA"
"""The beginning of the names of slow algorithms, which sign a few times a second."""
PIECE = 1024 * 1024

_Said = tuple[HashSignature | documents.ContextSignature, str | None]
"""The content of a signature's file, and its keyring."""


class _Asked(NamedTuple):
    """The content of a signature's file at the time of the request, and the result."""

    said: HashSignature | documents.ContextSignature
    keyring: str | None
    is_valid: bool | PqkeepError


def add_to(app: typer.Typer) -> None:
    """Add both commands."""
    command(app, "sign")(sign)
    command(app, "verify")(verify)


def sign(  # noqa: PLR0913 - as many options as the command has
    invocation: Invocation,
    files: InputFiles,
    *,
    to: To = None,
    force: Force = False,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    hash_algorithm: Hash = HashAlgorithm.SHA_512,
    jws: Annotated[
        bool, typer.Option("--jws", help="Make a JSON Web Signature. The service sees the file.")
    ] = False,
    detached: Annotated[
        bool,
        typer.Option(
            "--detached", help="With --jws, make a detached signature without the file's content."
        ),
    ] = False,
    typ: Annotated[
        str | None,
        typer.Option(
            "--typ",
            metavar="TYPE",
            help="With --jws, the media type in the header, such as JWT.",
            show_default=False,
        ),
    ] = None,
    use: SignatureContext = None,
) -> None:
    """Sign files, each to FILE.sig. Files are hashed here, and the service sees only the hashes.

    With --context, the signature is an ML-DSA signature for one use. With --jws, a file of at most
    1 MiB becomes a JWS, FILE.jws, that other programs can verify.
    """
    if jws and use is not None:
        raise Refusal("--jws and --context cannot be combined", "leave one of them out")
    for option, is_given in (("--detached", detached), ("--typ", typ is not None)):
        if is_given and not jws:
            raise Refusal(f"{option} works only with --jws", "add --jws")
    named = choice.Named(algorithm, key_version, keyring)
    output = Output(to, JWS_SUFFIX if jws else SUFFIX, is_replaced=force)
    with several(invocation, files, to) as tally, invocation.connect() as client:
        if jws:
            for file in files:
                with tally.each([file]):
                    _sign_jws(tally, client, file, named, output, detached=detached, typ=typ)
        elif use is not None:
            context_signatures.sign(tally, client, use, named, output)
        else:
            _sign_hashes(tally, client, hash_algorithm, named, output)


def _sign_hashes(
    tally: Several,
    client: "Client",
    hash_algorithm: HashAlgorithm,
    named: choice.Named,
    output: Output,
) -> None:
    chosen = choice.signature_algorithm(client, named.algorithm)
    asking: Asking[HashSignature] = Asking(
        client.signatures.sign_hash,
        client.signatures.sign_hash_many,
        {"hash_algorithm": hash_algorithm, **named._asdict()},
        partial(choice.generating, chosen, named.key_version, keyring=named.keyring),
    )

    def prepare(file: str) -> dict[str, Any]:
        output.require_free(file)
        return {"digest": _digest(file, hash_algorithm, tally.invocation)}

    def finish(file: str, made: HashSignature) -> None:
        output.write(file, documents.written(made, named.keyring))
        tally.written(
            output.of(file),
            f"signed with {made.algorithm} version {made.key_version}",
            algorithm=made.algorithm,
            key_version=made.key_version,
            hash_algorithm=made.hash_algorithm,
        )

    most = SLOW_IN_A_REQUEST if chosen.startswith(SLOW) else IN_A_REQUEST
    for group in together(tally.files, lambda _: 0, most):
        asking.ask(tally, group, prepare, finish)


def verify(
    invocation: Invocation,
    files: InputFiles,
    *,
    signature: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The signature's file, by default FILE.sig or FILE.jws. It may also be a raw "
            "signature as bytes, base64 or hexadecimal digits.",
            show_default=False,
        ),
    ] = None,
    algorithm: AlgorithmOption = None,
    key_version: KeyVersion = None,
    keyring: KeyringOption = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Verify with this public key, without a service: a file from pqkeep keys public-key, "
            "PEM, DER, a JWK, a JWK Set or a certificate.",
            show_default=False,
        ),
    ] = None,
    use: SignatureContext = None,
) -> None:
    """Verify the signatures of files. The status is 0 if all are good, and 7 if any is not.

    --algorithm, --key-version and --keyring name the key that must have signed. By default, any of
    your keys may have signed.
    """
    if len(files) > 1 and signature is not None:
        raise Refusal(
            "--signature works only with one file", "leave it out: each file has its own FILE.sig"
        )
    named = choice.Named(algorithm, key_version, keyring)
    with several(invocation, files) as tally:
        for group in together(files, lambda _: 0):
            is_asked = len(group) > 1 and public_key is None
            asked = _asked_together(invocation, group, use) if is_asked else {}
            for file in group:
                with tally.each([file], OF_AN_ITEM if file in asked else OF_ONE_FILE):
                    _verify(tally, file, signature, named, public_key, use, asked)


def _asked_together(
    invocation: Invocation, files: Sequence[str], use: str | None
) -> Mapping[str, _Asked]:
    """Return the results for the signatures of several files, with one request.

    Unreadable files, other kinds of signatures and refused requests have no result here. Those
    files are verified one by one.
    """
    with suppress(PqkeepError), invocation.connect() as client:
        signatures = client.signatures
        many = signatures.verify_hash_many if use is None else signatures.verify_mu_many
        keys = context_signatures.Keys(client)
        read: dict[str, _Said] = {}
        items: dict[str, dict[str, Any]] = {}
        for file in files:
            with suppress(*OF_AN_ITEM):
                read[file] = said, keyring = _said(invocation, file + SUFFIX, use)
                if isinstance(said, HashSignature):
                    items[file] = _hash_verification(invocation, file, said, keyring)
                elif use is not None:
                    items[file] = keys.verification(invocation, file, said, keyring, use)
        found = tuple(many(items.values())) if items else ()
        return {
            file: _Asked(*read[file], is_valid) for file, is_valid in zip(items, found, strict=True)
        }
    return {}


def _said(invocation: Invocation, signature: str, use: str | None) -> _Said:
    found, data = _found(invocation, signature)
    if not isinstance(found, inputs.Document):
        raise Refusal(f"{signature} is {found.what}", "verify this file in a command of its own")
    return documents.read(data, _kind(found, use, signature), signature)


def _found(
    invocation: Invocation, signature: str, algorithm: str | None = None
) -> tuple[inputs.Document | inputs.Jws | inputs.RawSignature, bytes]:
    """Return the signature in a file, and the file's content. Raises Refusal."""
    data = whole(signature, invocation, documents.LARGEST, "name the original file")
    with naming(signature):
        if algorithm in LEGACY_VERIFYING:
            return inputs.read_other_signature(data, algorithm), data
        return inputs.read_signature(data), data


def _verify(
    tally: Several,
    file: str,
    signature: str | None,
    named: choice.Named,
    public_key: Path | None,
    use: str | None,
    asked: Mapping[str, _Asked],
) -> None:
    invocation = tally.invocation
    if signature is None:
        if file == STANDARD:
            raise Refusal("standard input has no FILE.sig", "name the signature: --signature FILE")
        signature = _signature_file(file)
    response = asked.get(file)  # read once: the file may have been replaced by now
    if response is None:
        found, data = _found(invocation, signature, named.algorithm)
        if not isinstance(found, inputs.Document):
            checked = foreign_signatures.check(
                invocation,
                file,
                foreign_signatures.Signed(found, signature, use),
                named,
                public_key,
            )
            _show_verified(tally, file, checked.by, checked.facts, is_valid=checked.is_valid)
            return
        said, by_keyring = documents.read(data, _kind(found, use, signature), signature)
    else:
        said, by_keyring = response[:2]
    is_valid = (
        named.algorithm in {None, said.algorithm}
        and named.key_version in {None, said.key_version}
        and named.keyring in {None, by_keyring or documents.DEFAULT_KEYRING}
        and (
            succeeded(response.is_valid)
            if response is not None
            else _is_valid(invocation, file, said, by_keyring, public_key)
            if isinstance(said, HashSignature)
            else context_signatures.is_valid(invocation, file, said, by_keyring, use, public_key)
        )
    )
    facts = {
        "valid": is_valid,
        "algorithm": said.algorithm,
        "key_version": said.key_version,
        **(
            {"hash_algorithm": said.hash_algorithm}
            if isinstance(said, HashSignature)
            else {"context": use}
        ),
    }
    by = f"{said.algorithm} version {said.key_version}"
    _show_verified(tally, file, by, facts, is_valid=is_valid)


def _show_verified(
    tally: Several, file: str, by: str, facts: Mapping[str, Any], *, is_valid: bool
) -> None:
    """Show that a signature is good, and its key. Raises Refusal if it is not good."""
    invocation = tally.invocation
    if invocation.is_json and not tally.is_listed:
        show_json(facts)
    if not is_valid:
        raise Refusal(
            f"{file}: the signature is not good",
            "the file or the signature was changed, or another key made the signature: name that key "
            "with --keyring, --algorithm and --key-version",
            NOT_VERIFIED,
        )
    tally.done(file, **facts)
    if not invocation.is_json:
        typer.echo(printable(f"{file}: the signature is good, by {by}"))


def _signature_file(file: str) -> str:
    """Return the name of a file's signature: FILE.sig, or FILE.jws if only FILE.jws exists."""
    jws = file + JWS_SUFFIX
    return jws if not Path(file + SUFFIX).exists() and Path(jws).exists() else file + SUFFIX


def _kind(
    found: inputs.Document, context: str | None, signature: str
) -> type[HashSignature] | type[documents.ContextSignature]:
    """Return the kind of a signature's file. Raises Refusal if it lacks the expected context."""
    if found.format == documents.FORMATS[documents.ContextSignature]:
        return documents.ContextSignature
    if context is not None and found.format == documents.FORMATS[HashSignature]:
        raise Refusal(
            f"{signature} is a signature without a context",
            "leave out --context, or get a signature with this context",
            NOT_VERIFIED,
        )
    return HashSignature


def _sign_jws(
    tally: Several,
    client: "Client",
    file: str,
    named: choice.Named,
    output: Output,
    *,
    detached: bool,
    typ: str | None,
) -> None:
    payload = whole(file, tally.invocation, MAX_PAYLOAD, "sign it without --jws")
    output.require_free(file)
    made = client.signatures.sign_jws(payload, detached=detached, typ=typ, **named._asdict())
    output.write(file, made.jws.encode("ascii") + b"\n")
    tally.written(
        output.of(file),
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
        return client.signatures.verify_hash(**_hash_verification(invocation, file, said, keyring))


def _hash_verification(
    invocation: Invocation, file: str, said: HashSignature, keyring: str | None
) -> dict[str, Any]:
    """Return the arguments of ``signatures.verify_hash`` for a file."""
    return {
        "digest": _digest(file, said.hash_algorithm, invocation),
        "signature": said.signature,
        "hash_algorithm": said.hash_algorithm,
        "key_version": said.key_version,
        "algorithm": said.algorithm,
        "keyring": keyring,
    }


def _is_valid_offline(
    invocation: Invocation,
    file: str,
    said: HashSignature,
    keyring: str | None,
    public_key: Path,
) -> bool:
    """Verify with a public key. The key's file and the signature must name the same key."""
    key = read_key(invocation, public_key, said.algorithm)
    held = rules(invocation)
    held.signature(said.algorithm)
    held.hash(said.hash_algorithm)
    require_key_of(key, said.algorithm, public_key)
    if isinstance(key, KeyInFile) and not key.is_named(said.algorithm, said.key_version, keyring):
        return False
    digest = _digest(file, said.hash_algorithm, invocation)
    try:
        return verification.verify_hash(
            digest,
            said.signature,
            hash_algorithm=said.hash_algorithm,
            public_key=key.public_key,
            algorithm=said.algorithm,
        )
    except ValueError as error:  # not a signature algorithm
        raise Refusal(str(error), "ask the signer for a new signature", UNREADABLE) from None


def _digest(file: str, hash_algorithm: str, invocation: Invocation) -> bytes:
    digest = hashlib.new(hash_algorithm.replace("-", ""))
    with source(file, invocation) as opened:
        while piece := opened.read(PIECE):
            digest.update(piece)
    return digest.digest()
