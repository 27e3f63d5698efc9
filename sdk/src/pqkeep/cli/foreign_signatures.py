"""Signatures that do not name pqkeep's key: JSON Web Signatures and raw signatures.

The key is found by its id or by options. A raw signature signs the file itself, with the context of
``--context`` or an empty one, as in FIPS 204 and FIPS 205.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pqkeep import inputs, verification
from pqkeep.algorithms import Algorithm
from pqkeep.cli import choice, documents
from pqkeep.cli.configuration import rules
from pqkeep.cli.failures import NOT_FOUND, Refusal, naming
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.public_keys import KeyInFile, read_key, require_key_of
from pqkeep.cli.sources import source, whole
from pqkeep.errors import PqkeepError
from pqkeep.models import Key
from pqkeep.mu import LONGEST_CONTEXT, compute_mu

if TYPE_CHECKING:
    from pqkeep.client import Client

LARGEST = 1_048_576
"""The most bytes of a message that the service verifies, and of a JWS's payload."""
WITH_MU = {Algorithm.ML_DSA_65.value, Algorithm.ML_DSA_87.value}
LARGEST_HERE = 256 * 1024 * 1024
"""The most bytes of a file for algorithms that need it in memory."""
THUMBPRINT = 43
"""Characters of a thumbprint: the key id in pqkeep's JWS."""
MOST_KEYS = 32
"""The most keys to try, the newest first."""
PIECE = 1024 * 1024


class Signed(NamedTuple):
    """A signature, the name of its file, and the expected context."""

    signature: inputs.Jws | inputs.RawSignature
    name: str
    context: str | None


class Checked(NamedTuple):
    """The result for a signature, the key that made it, and the facts for JSON output."""

    is_valid: bool
    by: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """A signature to verify."""

    algorithm: str
    signature: bytes
    context: bytes
    message: bytes | None
    """The message, or None for the file itself, of any size."""
    kid: str | None
    facts: dict[str, Any]


def check(
    invocation: Invocation,
    file: str,
    signed: Signed,
    named: choice.Named,
    public_key: Path | None,
) -> Checked:
    """Verify a signature. Raises Refusal if it cannot be verified."""
    if signed.context is not None and len(signed.context.encode()) > LONGEST_CONTEXT:
        raise Refusal(f"a context has at most {LONGEST_CONTEXT} bytes", "name a shorter one")
    read = (
        _jws(invocation, file, signed, signed.signature)
        if isinstance(signed.signature, inputs.Jws)
        else _alone(signed, signed.signature)
    )
    if named.algorithm is not None and inputs.canonical(named.algorithm) != read.algorithm:
        raise Refusal(
            f"{signed.name} is {signed.signature.what} of {inputs.title(read.algorithm)}"
            if isinstance(signed.signature, inputs.Jws)
            else f"{signed.name} is {signed.signature.what}",
            "leave out --algorithm, or name the file of another signature",
        )
    if public_key is not None:
        is_valid, by = _is_valid_offline(invocation, file, read, named, public_key)
    else:
        is_valid, by = _is_valid_there(invocation, file, signed, read, named)
    facts = {"valid": is_valid, "algorithm": read.algorithm, **by, **read.facts}
    version = f" version {by['key_version']}" if "key_version" in by else ""
    return Checked(is_valid, f"{read.algorithm}{version}", facts)


def _alone(signed: Signed, raw: inputs.RawSignature) -> _Signature:
    return _Signature(
        algorithm=raw.algorithm,
        signature=raw.signature,
        context=(signed.context or "").encode(),
        message=None,
        kid=None,
        facts={} if signed.context is None else {"context": signed.context},
    )


def _jws(invocation: Invocation, file: str, signed: Signed, jws: inputs.Jws) -> _Signature:
    """Return a JWS over a file. If it has a payload, this must be the file's content."""
    if signed.context is not None:
        raise Refusal(
            f"{signed.name} is a JSON Web Signature, which has no context", "leave out --context"
        )
    with naming(signed.name):
        algorithm = inputs.jws_algorithm(jws)
    content = whole(file, invocation, LARGEST, "verify a smaller file")
    if jws.payload and jws.content == content:
        payload = jws.payload.encode("ascii")
    else:
        payload = urlsafe_b64encode(content).rstrip(b"=")
    kid = jws.header.get("kid")
    return _Signature(
        algorithm=algorithm,
        signature=jws.signature,
        context=b"",
        message=jws.protected.encode("ascii") + b"." + payload,
        kid=kid if isinstance(kid, str) else None,
        facts={"detached": not jws.payload},
    )


def _is_valid_offline(
    invocation: Invocation,
    file: str,
    read: _Signature,
    named: choice.Named,
    public_key: Path,
) -> tuple[bool, dict[str, Any]]:
    """Verify with a public key. Return the result and the facts in the key's file."""
    rules(invocation).signature(read.algorithm)
    key = read_key(invocation, public_key, read.algorithm, read.kid)
    require_key_of(key, read.algorithm, public_key)
    if isinstance(key, KeyInFile):
        is_right = named.key_version in {None, key.key_version} and named.keyring in {
            None,
            key.keyring,
        }
        said: dict[str, Any] = {"key_version": key.key_version}
    elif named.key_version is not None or named.keyring is not None:
        raise Refusal(
            f"{public_key} does not name a key version or a keyring",
            "leave out --key-version and --keyring",
        )
    else:
        is_right, said = True, {"fingerprint": sha256(key.public_key).hexdigest()}
    return is_right and _holds(invocation, file, read, key.public_key), said


def _holds(invocation: Invocation, file: str, read: _Signature, public_key: bytes) -> bool:
    if read.algorithm in WITH_MU:
        mu = _mu(invocation, file, read, public_key)
        return verification.verify_mu(
            mu, read.signature, public_key=public_key, algorithm=read.algorithm
        )
    return verification.verify(
        _message(invocation, file, read, LARGEST_HERE),
        read.signature,
        public_key=public_key,
        algorithm=read.algorithm,
        context=read.context,
    )


def _is_valid_there(
    invocation: Invocation, file: str, signed: Signed, read: _Signature, named: choice.Named
) -> tuple[bool, dict[str, Any]]:
    """Verify in the service with the tenant's matching keys, the newest first."""
    with invocation.connect() as client:
        keys = _candidates(client, read, named)
        if not keys:
            where = named.keyring or documents.DEFAULT_KEYRING
            raise Refusal(
                f"no {inputs.title(read.algorithm)} key in the keyring {where} can have made {signed.name}",
                "name the signer's public key: --public-key FILE",
                NOT_FOUND,
            )
        common = {"algorithm": read.algorithm, "keyring": named.keyring}
        if read.algorithm in WITH_MU:
            items: list[dict[str, Any]] = [
                {"mu": _mu(invocation, file, read, key.public_key)} for key in keys
            ]
            many = client.signatures.verify_mu_many
        else:
            message = _message(invocation, file, read, LARGEST)
            items = [{"message": message, "context": read.context or None}] * len(keys)
            many = client.signatures.verify_many
        responses = many(
            [
                {**item, "signature": read.signature, "key_version": key.key_version}
                for item, key in zip(items, keys, strict=True)
            ],
            **common,
        )
        failures: list[PqkeepError] = []
        for key, response in zip(keys, responses, strict=True):
            if isinstance(response, PqkeepError):
                failures.append(response)
            elif response:
                return True, {"key_version": key.key_version}
    if len(failures) == len(keys):  # for example, a disabled key
        raise failures[0]
    return False, {"key_version": keys[0].key_version} if len(keys) == 1 else {}


def _candidates(client: "Client", read: _Signature, named: choice.Named) -> list[Key]:
    """Return the keys that may have made a signature, the newest first."""
    keys = client.keys.list(algorithm=read.algorithm, keyring=named.keyring)
    found = [
        key
        for key in sorted(keys, key=lambda key: key.key_version, reverse=True)
        if named.key_version in {None, key.key_version}
    ]
    if read.kid is not None and len(read.kid) == THUMBPRINT:  # other programs choose their own ids
        found = [
            key for key in found if read.kid == inputs.thumbprint(key.algorithm, key.public_key)
        ]
    return found[:MOST_KEYS]


def _mu(invocation: Invocation, file: str, read: _Signature, public_key: bytes) -> bytes:
    pieces = _pieces(invocation, file) if read.message is None else iter([read.message])
    return compute_mu(public_key, pieces, context=read.context)


def _pieces(invocation: Invocation, file: str) -> Iterator[bytes]:
    with source(file, invocation) as opened:
        while piece := opened.read(PIECE):
            yield piece


def _message(invocation: Invocation, file: str, read: _Signature, largest: int) -> bytes:
    if read.message is not None:
        return read.message
    return whole(file, invocation, largest, "verify it with --public-key, or sign its hash")
