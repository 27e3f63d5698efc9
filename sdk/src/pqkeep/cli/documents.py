"""Small files that say themselves what they are: JSON objects with a ``format``.

What is needed to verify, decrypt or unwrap is all in one. docs/cli.md has the formats.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar

from pqkeep.cli.failures import NOT_VERIFIED, Refusal
from pqkeep.models import Ciphertext, HashSignature, Key, WrappedKey

LARGEST = 2 * 1024 * 1024
"""Bytes of the largest: 1 MiB encrypted by the service."""
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
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("format") == FORMATS[kind]


def read(data: bytes, kind: type[D], name: str) -> Read[D]:
    """Return what a file says. Raises Refusal if it is anything else."""
    try:
        values = json.loads(data)
        if isinstance(values, dict) and values.pop("format", None) == FORMATS[kind]:
            keyring = _keyring(values)
            kinds = {each.name: each.type for each in fields(kind)}
            return Read(kind(**_typed(values, kinds)), keyring)
    except (ValueError, RecursionError):  # whose message may quote the file
        pass
    raise Refusal(
        f"{name} is not {FORMATS[kind]}, or is damaged",
        "name the file as it was written",
        NOT_VERIFIED,
    )


def _typed(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of the right types, bytes from base64. Raises ValueError."""
    if values.keys() != kinds.keys():
        raise ValueError
    typed = {
        name: _binary(value) if kinds[name] is bytes else value for name, value in values.items()
    }
    if any(type(value) is not kinds[name] for name, value in typed.items()):
        raise ValueError
    return typed


def _keyring(values: dict[str, Any]) -> str | None:
    """Take the keyring out of the values. Raises ValueError."""
    match values.pop("keyring", DEFAULT_KEYRING):
        case str() as keyring if keyring == DEFAULT_KEYRING:
            return None
        case str() as keyring:
            return keyring
        case _:
            raise ValueError


def _binary(text: object) -> bytes:
    if not isinstance(text, str):
        raise binascii.Error
    return base64.b64decode(text, validate=True)
