"""Small files that say themselves what they are: JSON objects with a ``format``.

What is needed to verify, decrypt or unwrap is all in one. docs/cli.md has the formats.
"""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar

from pqkeep import inputs
from pqkeep.algorithms import HashAlgorithm
from pqkeep.cli.failures import naming
from pqkeep.errors import UnreadableInputError
from pqkeep.models import Ciphertext, HashSignature, Key, WrappedKey

LARGEST = 2 * 1024 * 1024
"""Bytes of the largest: 1 MiB encrypted by the service."""
SMALLEST_KEY = 16
"""Bytes of the smallest key that is wrapped."""
_KEY_VERSIONS = range(1, 1 << 32)
DEFAULT_KEYRING = "default"
"""Of which a file says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """What is needed to encrypt without a service."""

    public_key: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KemCiphertext:
    """What the key's owner recovers a shared secret from."""

    kem_ciphertext: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSignature:
    """A signature over a file and a context. The context is what whoever signed said it is."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str
    context: str


Document = Ciphertext | ContextSignature | HashSignature | KemCiphertext | PublicKey | WrappedKey
D = TypeVar("D", bound=Document)


class Read(NamedTuple, Generic[D]):
    """What a file says, and the keyring of its key; None is the default one."""

    document: D
    keyring: str | None


FORMATS: Mapping[type, str] = {
    Ciphertext: "pqkeep/v1/ciphertext",
    ContextSignature: "pqkeep/v1/context-signature",
    HashSignature: "pqkeep/v1/signature",
    KemCiphertext: "pqkeep/v1/kem-ciphertext",
    PublicKey: "pqkeep/v1/public-key",
    WrappedKey: "pqkeep/v1/wrapped-key",
}


READ_BY: Mapping[str, str] = {
    FORMATS[Ciphertext]: "pqkeep decrypt",
    FORMATS[ContextSignature]: "pqkeep verify --context TEXT",
    FORMATS[HashSignature]: "pqkeep verify",
    FORMATS[KemCiphertext]: "pqkeep decapsulate",
    FORMATS[PublicKey]: "pqkeep encrypt --public-key FILE",
    FORMATS[WrappedKey]: "pqkeep unwrap",
}
"""The command that reads each format."""


def public_key(key: Key) -> PublicKey:
    """Return what a key's file says."""
    return PublicKey(
        public_key=key.public_key, key_version=key.key_version, algorithm=key.algorithm
    )


def written(document: Document, keyring: str | None = None) -> bytes:
    """Return a file's contents. It names the keyring, unless that is the default one."""
    values = {"format": FORMATS[type(document)]} | asdict(document)
    if keyring not in {None, DEFAULT_KEYRING}:
        values["keyring"] = keyring
    binary = {name: value for name, value in values.items() if isinstance(value, bytes)}
    for name, value in binary.items():  # to the end, where they hide nothing else
        del values[name]
        values[name] = base64.b64encode(value).decode("ascii")
    return json.dumps(values, indent=2).encode() + b"\n"


def is_a(data: bytes, kind: type[Document]) -> bool:
    """Return whether a file says that it is of a kind."""
    return inputs.format_of(data) == FORMATS[kind]


def read(data: bytes, kind: type[D], name: str) -> Read[D]:
    """Return what a file says. Raises Refusal if it is anything else."""
    with naming(name):
        other = READ_BY.get(inputs.format_of(data) or "")
        if other is not None and other != READ_BY[FORMATS[kind]]:
            raise UnreadableInputError(
                f"{inputs.describe(data)}; {FORMATS[kind]} is needed", f"read it with {other}"
            )
        values = dict(inputs.read_document(data, FORMATS[kind]))
        keyring = _keyring(values)
        kinds = {member.name: member.type for member in fields(kind)}
        document = kind(**_typed(values, kinds))
        _CHECKS[kind](document)
        return Read(document, keyring)


def _typed(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the right types, bytes from base64. Raises UnreadableInputError."""
    missing = kinds.keys() - values.keys()
    if missing:
        raise _damaged(f"it lacks {', '.join(sorted(missing))}")
    if values.keys() != kinds.keys():
        raise _damaged("it has a member that it must not have")
    typed = {
        name: _binary(name, value) if kinds[name] is bytes else value
        for name, value in values.items()
    }
    wrong = [name for name, value in typed.items() if type(value) is not kinds[name]]
    if wrong:
        raise _damaged(f"its {wrong[0]} is of another type")
    if typed["key_version"] not in _KEY_VERSIONS:
        raise _damaged("its key_version is no version of a key")
    return typed


def _keyring(values: dict[str, Any]) -> str | None:
    """Take the keyring out of the values. Raises UnreadableInputError."""
    match values.pop("keyring", DEFAULT_KEYRING):
        case str() as keyring if keyring == DEFAULT_KEYRING:
            return None
        case str() as keyring:
            return keyring
        case _:
            raise _damaged("its keyring is no string")


def _binary(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise _damaged(f"its {name} is no string")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise _damaged(f"its {name} is no base64")


def _require_hash_signature(document: HashSignature) -> None:
    if document.hash_algorithm not in set(HashAlgorithm):
        raise UnreadableInputError(
            "a signature over a hash that this version does not know", "ask whoever signed"
        )
    inputs.require_signature(document.algorithm, document.signature)


def _damaged(how: str) -> UnreadableInputError:
    return UnreadableInputError(f"damaged: {how}", "name the file as it was written")


_CHECKS: Mapping[type, Callable[[Any], None]] = {
    Ciphertext: lambda document: inputs.require_sealed(document.algorithm, document.ciphertext),
    ContextSignature: lambda document: inputs.require_signature(
        document.algorithm, document.signature
    ),
    HashSignature: _require_hash_signature,
    KemCiphertext: lambda document: inputs.require_ciphertext(
        document.algorithm, document.kem_ciphertext
    ),
    PublicKey: lambda document: inputs.require_public_key(document.algorithm, document.public_key),
    WrappedKey: lambda document: inputs.require_sealed(
        document.algorithm, document.wrapped_key, least=SMALLEST_KEY
    ),
}
"""What must be true of the lengths in each kind. Each raises UnreadableInputError."""
