"""Small self-describing files: JSON objects with a ``format``.

Each file has everything that verifying, decrypting or unwrapping needs. docs/cli.md has the formats.
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
from pqkeep.models import Ciphertext, HashSignature, Key, Mac, WrappedKey

LARGEST = 2 * 1024 * 1024
"""Bytes of the largest file: 1 MiB encrypted by the service."""
SMALLEST_KEY = 16
"""Bytes of the smallest key that can be wrapped."""
MAC_SIZES = (32, 64)
"""Bytes of a MAC: HMAC-SHA-256, HMAC-SHA-512."""
_KEY_VERSIONS = range(1, 1 << 32)
DEFAULT_KEYRING = "default"
"""The keyring of files that do not name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key and its name: all that encryption without a service needs."""

    public_key: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KemCiphertext:
    """A KEM ciphertext: the owner of the key recovers the shared secret from it."""

    kem_ciphertext: bytes = field(repr=False)
    key_version: int
    algorithm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSignature:
    """A signature over a file and a context. The signer chose the context."""

    signature: bytes = field(repr=False)
    key_version: int
    algorithm: str
    context: str


Document = (
    Ciphertext | ContextSignature | HashSignature | KemCiphertext | Mac | PublicKey | WrappedKey
)
D = TypeVar("D", bound=Document)


class Read(NamedTuple, Generic[D]):
    """A file's content, and the keyring of its key. None is the default keyring."""

    document: D
    keyring: str | None


FORMATS: Mapping[type, str] = {
    Ciphertext: "pqkeep/v1/ciphertext",
    ContextSignature: "pqkeep/v1/context-signature",
    HashSignature: "pqkeep/v1/signature",
    KemCiphertext: "pqkeep/v1/kem-ciphertext",
    Mac: "pqkeep/v1/mac",
    PublicKey: "pqkeep/v1/public-key",
    WrappedKey: "pqkeep/v1/wrapped-key",
}


READ_BY: Mapping[str, str] = {
    FORMATS[Ciphertext]: "pqkeep decrypt",
    FORMATS[ContextSignature]: "pqkeep verify --context TEXT",
    FORMATS[HashSignature]: "pqkeep verify",
    FORMATS[KemCiphertext]: "pqkeep decapsulate",
    FORMATS[Mac]: "pqkeep verify-mac",
    FORMATS[PublicKey]: "pqkeep encrypt --public-key FILE",
    FORMATS[WrappedKey]: "pqkeep unwrap",
}
"""The command that reads each format."""


def public_key(key: Key) -> PublicKey:
    """Return the content of a key's file."""
    return PublicKey(
        public_key=key.public_key, key_version=key.key_version, algorithm=key.algorithm
    )


def written(document: Document, keyring: str | None = None) -> bytes:
    """Return the bytes of a file. It names the keyring, except the default one."""
    values = {"format": FORMATS[type(document)]} | asdict(document)
    if keyring not in {None, DEFAULT_KEYRING}:
        values["keyring"] = keyring
    binary = {name: value for name, value in values.items() if isinstance(value, bytes)}
    for name, value in binary.items():  # last, because long values would hide the others
        del values[name]
        values[name] = base64.b64encode(value).decode("ascii")
    return json.dumps(values, indent=2).encode() + b"\n"


def is_a(data: bytes, kind: type[Document]) -> bool:
    """Return True if a file has the format of a kind."""
    return inputs.format_of(data) == FORMATS[kind]


def read(data: bytes, kind: type[D], name: str) -> Read[D]:
    """Return the content of a file. Raises Refusal for another format."""
    with naming(name):
        other = READ_BY.get(inputs.format_of(data) or "")
        if other is not None and other != READ_BY[FORMATS[kind]]:
            raise UnreadableInputError(
                f"{inputs.describe(data)}; expected {FORMATS[kind]}", f"use {other} for this file"
            )
        values = dict(inputs.read_document(data, FORMATS[kind]))
        keyring = _keyring(values)
        kinds = {member.name: member.type for member in fields(kind)}
        document = kind(**_typed(values, kinds))
        _CHECKS[kind](document)
        return Read(document, keyring)


def _typed(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked values, with base64 decoded to bytes. Raises UnreadableInputError."""
    missing = kinds.keys() - values.keys()
    if missing:
        raise _damaged(f"{', '.join(sorted(missing))} is missing")
    if values.keys() != kinds.keys():
        raise _damaged("it has an unknown member")
    typed = {
        name: _binary(name, value) if kinds[name] is bytes else value
        for name, value in values.items()
    }
    wrong = [name for name, value in typed.items() if type(value) is not kinds[name]]
    if wrong:
        raise _damaged(f"{wrong[0]} has the wrong type")
    if typed["key_version"] not in _KEY_VERSIONS:
        raise _damaged("key_version must be 1 or more")
    return typed


def _keyring(values: dict[str, Any]) -> str | None:
    """Remove the keyring from the values and return it. Raises UnreadableInputError."""
    match values.pop("keyring", DEFAULT_KEYRING):
        case str() as keyring if keyring == DEFAULT_KEYRING:
            return None
        case str() as keyring:
            return keyring
        case _:
            raise _damaged("keyring is not a string")


def _binary(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise _damaged(f"{name} is not a string")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise _damaged(f"{name} is not base64")


def _require_hash_signature(document: HashSignature) -> None:
    if document.hash_algorithm not in set(HashAlgorithm):
        raise UnreadableInputError(
            "a signature over an unknown kind of hash",
            "use a newer version of pqkeep, or ask the signer",
        )
    inputs.require_signature(document.algorithm, document.signature)


def _require_mac(mac: bytes) -> None:
    if len(mac) not in MAC_SIZES:
        raise _damaged(f"a MAC of {len(mac)} bytes")


def _damaged(how: str) -> UnreadableInputError:
    return UnreadableInputError(f"damaged: {how}", "name the original file")


_CHECKS: Mapping[type, Callable[[Any], None]] = {
    Ciphertext: lambda document: inputs.require_sealed(document.algorithm, document.ciphertext),
    ContextSignature: lambda document: inputs.require_signature(
        document.algorithm, document.signature
    ),
    HashSignature: _require_hash_signature,
    KemCiphertext: lambda document: inputs.require_ciphertext(
        document.algorithm, document.kem_ciphertext
    ),
    Mac: lambda document: _require_mac(document.mac),
    PublicKey: lambda document: inputs.require_public_key(document.algorithm, document.public_key),
    WrappedKey: lambda document: inputs.require_sealed(
        document.algorithm, document.wrapped_key, least=SMALLEST_KEY
    ),
}
"""Checks of lengths, by kind. They raise UnreadableInputError."""
