"""Small files that say themselves what they are: JSON objects with a ``format``.

What is needed to verify, decrypt or unwrap is all in one. docs/cli.md has the formats.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from pqkeep.cli.failures import NOT_VERIFIED, Refusal
from pqkeep.models import Ciphertext, HashSignature, Key, WrappedKey

LARGEST = 2 * 1024 * 1024
"""Bytes of the largest: 1 MiB encrypted by the service."""


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


Document = Ciphertext | HashSignature | KemCiphertext | PublicKey | WrappedKey
D = TypeVar("D", bound=Document)

FORMATS: Mapping[type, str] = {
    Ciphertext: "pqkeep/v1/ciphertext",
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


def written(document: Document) -> bytes:
    """Return a file's contents."""
    values = {"format": FORMATS[type(document)]} | asdict(document)
    binary = {name: value for name, value in values.items() if isinstance(value, bytes)}
    for name, value in binary.items():  # to the end, where they hide nothing else
        del values[name]
        values[name] = base64.b64encode(value).decode("ascii")
    return json.dumps(values, indent=2).encode() + b"\n"


def read(data: bytes, kind: type[D], name: str) -> D:
    """Return what a file says. Raises Refusal if it is anything else."""
    try:
        values = json.loads(data)
        if isinstance(values, dict) and values.pop("format", None) == FORMATS[kind]:
            return kind(**_typed(values, {each.name: each.type for each in fields(kind)}))
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


def _binary(text: object) -> bytes:
    if not isinstance(text, str):
        raise binascii.Error
    return base64.b64decode(text, validate=True)
