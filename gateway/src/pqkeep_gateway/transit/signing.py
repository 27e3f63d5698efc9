"""transit/sign, verify and hmac."""

from collections.abc import Mapping, Sequence
from typing import Any

from pqkeep_gateway.api.key_fields import MAX_MAC, MAX_MESSAGE, MAX_SIGNATURE
from pqkeep_gateway.api.mac import ComputedMac
from pqkeep_gateway.http.endpoint import ApiCall, Document, Warned
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field
from pqkeep_gateway.http.text import base64_size
from pqkeep_gateway.transit.batches import (
    BATCH,
    BATCH_INPUT,
    NO_KEY,
    OF_ALL,
    Reader,
    Task,
    items_of,
    parts_of,
    respond,
    text_form,
    told,
)
from pqkeep_gateway.transit.fields import binary, boolean, text, version
from pqkeep_gateway.transit.key_types import KeyType
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import TransitError
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind

_INPUT = binary("input", at_most=MAX_MESSAGE)
_SIGNATURE = text("signature", at_most=base64_size(MAX_SIGNATURE) + 32)
_HMAC = text("hmac", at_most=base64_size(MAX_MAC) + 32)
_CMAC = text("cmac")
_KEY_VERSION = version("key_version")
_PREHASHED = boolean("prehashed")
_HASH_ALGORITHM = text("hash_algorithm")
"""In the path or the body. The path has priority."""
_ALGORITHM = text("algorithm")
_SIGNATURE_ALGORITHM = text("signature_algorithm")
_MARSHALING = text("marshaling_algorithm")
_CONTEXT = text("context")

_NAMES: tuple[Field[Any], ...] = (_HASH_ALGORITHM, _ALGORITHM)
SIGN: tuple[Field[Any], ...] = (
    *(_INPUT, _KEY_VERSION, _PREHASHED, _SIGNATURE_ALGORITHM, _MARSHALING, _CONTEXT),
    *_NAMES,
    *BATCH,
)
VERIFY: tuple[Field[Any], ...] = (*SIGN, _SIGNATURE, _HMAC, _CMAC)
HMAC: tuple[Field[Any], ...] = (_INPUT, _KEY_VERSION, *_NAMES, *BATCH)

_DIGESTS = {"sha2-256": "SHA-256", "sha2-384": "SHA-384", "sha2-512": "SHA-512"}
"""The hash functions of digests that can be signed."""
_HASHES = frozenset({*_DIGESTS, "sha1", "sha2-224", "sha3-224", "sha3-256", "sha3-384", "sha3-512"})
_DEFAULT_HASH = "sha2-256"
_MACS = {Algorithm.HMAC_SHA_256: "sha2-256", Algorithm.HMAC_SHA_512: "sha2-512"}
_BAD_INPUT = "unable to decode input as base64: "
_NOT_LATEST = "requested version for signing is not the latest key version, which alone signs"
_SIGNING = {
    **OF_ALL,
    ErrorKind.KEYRING_NOT_FOUND: "signing key not found",
    ErrorKind.KEY_NOT_FOUND: f"{_NOT_LATEST}; leave out key_version",
    ErrorKind.VERSION_BELOW_MINIMUM: (
        "requested version for signing is less than the minimum encryption key version"
    ),
}


def _reading(what: str) -> dict[ErrorKind, str]:
    message = f"invalid {what}: version is too new, or this key version is disabled or archived"
    return {**OF_ALL, ErrorKind.KEY_NOT_FOUND: message}


class TransitSigning:
    """The handlers."""

    def __init__(self, operations: Operations) -> None:
        """Take the operations of the API."""
        self._operations = operations

    async def sign(self, call: ApiCall) -> Document | Warned:
        """Sign inputs, or the digests that they are if the request says prehashed."""
        items = await items_of(self._operations, call)
        hash_algorithm = _hash_of(call)
        operation = Operation.SIGN_HASH if hash_algorithm else Operation.SIGN
        key_type = await self._type(call, operation, "signing key not found")
        if not key_type.signs:
            raise TransitError(f"key type {key_type.name} does not support signing")
        _check_signing(call, key_type)

        def prepare(item: Reader, _: KeyType) -> Mapping[str, object]:
            named = {"key_version": item[_KEY_VERSION] or call[_KEY_VERSION] or None}
            return {**_signed_fields(item, hash_algorithm), **named}

        name = "sign_hash" if hash_algorithm else "sign"
        task = Task(name, prepare, _signature, _SIGNING, {"key_version": 0})
        return await respond(self._operations, call, task, key_type, items)

    async def verify(self, call: ApiCall) -> Document | Warned:
        """Verify signatures, or MACs of HMAC keys. An invalid one is a result, not an error."""
        items = await items_of(self._operations, call)
        fields = (_SIGNATURE, _HMAC, _CMAC)
        given = {field.name for item in items for field in fields if item[field]}
        if call[BATCH_INPUT] is not None and (
            len(given) > 1 or not all(any(item[field] for field in fields) for item in items)
        ):
            message = "elements of batch_input must all provide 'signature' or all provide 'hmac'"
            raise TransitError(message)
        if not given:
            raise TransitError("neither a 'signature' nor an 'hmac' were given to verify")
        if len(given) > 1:
            raise TransitError("provide one of 'signature' and 'hmac'")
        if _CMAC.name in given:
            raise TransitError("cmac is refused: this service has no CMAC keys; use hmac")
        if _HMAC.name in given:
            return await self._verify_mac(call, items)
        return await self._verify_signature(call, items)

    async def _verify_signature(self, call: ApiCall, items: Sequence[Reader]) -> Document | Warned:
        hash_algorithm = _hash_of(call)
        operation = Operation.VERIFY_HASH if hash_algorithm else Operation.VERIFY
        key_type = await self._type(call, operation, "signature verification key not found")
        if not key_type.signs:
            raise TransitError(f"key type {key_type.name} does not support verification")
        _check_signing(call, key_type)

        def prepare(item: Reader, _: KeyType) -> Mapping[str, object]:
            used, signature = parts_of(item[_SIGNATURE] or "", "signature")
            signed = _signed_fields(item, hash_algorithm)
            return {**signed, "signature": signature, "key_version": used}

        name = "verify_hash" if hash_algorithm else "verify"
        task = Task(name, prepare, _validity, _reading("signature"), {"valid": False})
        return await respond(self._operations, call, task, key_type, items)

    async def _verify_mac(self, call: ApiCall, items: Sequence[Reader]) -> Document | Warned:
        key_type = await self._mac_type(call, Operation.VERIFY_MAC)

        def prepare(item: Reader, _: KeyType) -> Mapping[str, object]:
            used, mac = parts_of(item[_HMAC] or "", "HMAC", verify=" to verify")
            return {"message": _input(item), "mac": mac, "key_version": used}

        task = Task("verify_mac", prepare, _validity, _reading("HMAC"), {"valid": False})
        return await respond(self._operations, call, task, key_type, items)

    async def hmac(self, call: ApiCall) -> Document | Warned:
        """Compute MACs of inputs."""
        items = await items_of(self._operations, call)
        key_type = await self._mac_type(call, Operation.COMPUTE_MAC)

        def prepare(item: Reader, _: KeyType) -> Mapping[str, object]:
            named = item[_KEY_VERSION] or call[_KEY_VERSION] or None
            return {"message": _input(item, "missing input for HMAC"), "key_version": named}

        words = {**_SIGNING, ErrorKind.KEYRING_NOT_FOUND: NO_KEY}
        task = Task("compute_mac", prepare, _mac, words)
        return await respond(self._operations, call, task, key_type, items)

    async def _type(self, call: ApiCall, operation: Operation, absent: str) -> KeyType:
        """Return the type of the call's key. ``absent``: the message without it. Raises ApiError."""
        try:
            return await self._operations.key_type(call, operation)
        except ApiError as error:
            raise told(error, {**OF_ALL, ErrorKind.KEYRING_NOT_FOUND: absent}) from None

    async def _mac_type(self, call: ApiCall, operation: Operation) -> KeyType:
        """Return the type of the call's key, which must make MACs with the named hash function."""
        key_type = await self._type(call, operation, NO_KEY)
        own = _MACS.get(key_type.algorithm)
        if own is None:
            raise TransitError(
                f"key type {key_type.name} has no HMAC key: a key has one use here; create a key"
                " of type hmac"
            )
        named = call[_HASH_ALGORITHM] or call[_ALGORITHM]
        if named and named != own:
            raise TransitError(
                f"algorithm {_shown(named)} is refused: this key makes MACs with {own}; create a key"
                f" of type hmac with key_size {32 if named == _DEFAULT_HASH else 64} for"
                " sha2-256 or sha2-512"
                if named in _MACS.values()
                else f"algorithm {_shown(named)} is refused: this key makes MACs with {own}"
            )
        return key_type


def _shown(name: str) -> str:
    """Return a name for a message, if it is a known one."""
    return name if name in _HASHES or name == "none" else "of this name"


def _hash_of(call: ApiCall) -> str:
    """Return the hash function of digests; empty if the inputs are messages. Raises TransitError."""
    name = call[_HASH_ALGORITHM] or call[_ALGORITHM] or _DEFAULT_HASH
    if name == "none":
        raise TransitError(
            "hash_algorithm none is for RSA keys: leave it out, and send the message as input"
        )
    if name not in _HASHES:
        raise TransitError(f"invalid hash algorithm; the names are: {', '.join(sorted(_HASHES))}")
    if not call[_PREHASHED]:
        return ""
    if name not in _DIGESTS:
        raise TransitError(
            f"prehashed input of {name} is not offered; use one of: {', '.join(_DIGESTS)}"
        )
    return _DIGESTS[name]


def _check_signing(call: ApiCall, key_type: KeyType) -> None:
    """Refuse parameters that request another kind of signature. Raises TransitError."""
    if call[_SIGNATURE_ALGORITHM]:
        raise TransitError(
            f"signature_algorithm is refused: it is for RSA keys, and this key is of type"
            f" {key_type.name}; leave it out"
        )
    if call[_MARSHALING] not in {None, "", "asn1"}:
        raise TransitError(
            f"marshaling_algorithm is refused: it is for ECDSA keys, and this key is of type"
            f" {key_type.name}; leave it out"
        )
    if call[_CONTEXT]:
        raise TransitError("context is refused: keys that sign are not derived; leave it out")


def _input(item: Reader, missing: str = "missing input") -> str:
    """Return the input of an item. Raises TransitError."""
    value = item.binary(_INPUT, _BAD_INPUT)
    if value is None:
        raise TransitError(missing)
    return value


def _signed_fields(item: Reader, hash_algorithm: str) -> dict[str, object]:
    """Return the fields of the API for the message or the digest that is signed."""
    if item[_CONTEXT]:
        raise TransitError("context is refused: keys that sign are not derived; leave it out")
    if not hash_algorithm:
        return {"message": _input(item)}
    return {"hash": _input(item), "hash_algorithm": hash_algorithm}


def _signature(data: Any) -> Mapping[str, object]:
    shown = text_form(data.key_version, data.signature)
    return {"signature": shown, "key_version": data.key_version}


def _mac(data: ComputedMac) -> Mapping[str, object]:
    return {"hmac": text_form(data.key_version, data.mac)}


def _validity(data: Any) -> Mapping[str, object]:
    return {"valid": data.valid}
