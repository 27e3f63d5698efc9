"""transit/encrypt, decrypt, rewrap and datakey."""

from collections.abc import Mapping, Sequence
from typing import Any

from pqkeep_gateway.api.kem import DataKey, Decrypted, Encrypted
from pqkeep_gateway.api.key_fields import MAX_CIPHERTEXT, MAX_PLAINTEXT
from pqkeep_gateway.api.re_encryption import ReEncrypted
from pqkeep_gateway.http.endpoint import ApiCall, Document, Warned
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field, FieldError
from pqkeep_gateway.http.text import base64_size
from pqkeep_gateway.transit.batches import (
    BATCH,
    BATCH_INPUT,
    NO_KEY,
    OF_ALL,
    Reader,
    Task,
    check_status,
    items_of,
    parts_of,
    respond,
    text_form,
    told,
)
from pqkeep_gateway.transit.fields import binary, integer, text, version
from pqkeep_gateway.transit.key_types import KeyType, stored_type
from pqkeep_gateway.transit.keys import CONVERGENT, NOT_CONVERGENT, TransitKeys
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import TransitError
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    MAX_ASSOCIATED_DATA,
    MAX_DERIVATION_CONTEXT,
    Operation,
)
from pqkeep_protocol.errors import ErrorKind

_PLAINTEXT = binary("plaintext", at_most=MAX_PLAINTEXT)
_CIPHERTEXT = text("ciphertext", at_most=base64_size(MAX_CIPHERTEXT) + 32)
_KEY_VERSION = version("key_version")
_CONTEXT = binary("context", at_most=MAX_DERIVATION_CONTEXT)
_ASSOCIATED_DATA = binary("associated_data", at_most=MAX_ASSOCIATED_DATA)
_TYPE = text("type")
_NONCE = text("nonce")
_BITS = integer("bits")
KIND = text("kind")
"""In the path of a data key: plaintext or wrapped."""

_BOUND: tuple[Field[Any], ...] = (_CONTEXT, _ASSOCIATED_DATA, _NONCE)
ENCRYPT: tuple[Field[Any], ...] = (_PLAINTEXT, _KEY_VERSION, _TYPE, CONVERGENT, *_BOUND, *BATCH)
DECRYPT: tuple[Field[Any], ...] = (_CIPHERTEXT, *_BOUND, *BATCH)
REWRAP: tuple[Field[Any], ...] = (_CIPHERTEXT, _KEY_VERSION, *_BOUND, *BATCH)
DATA_KEY: tuple[Field[Any], ...] = (KIND, _BITS, _KEY_VERSION, *_BOUND)

_SIZES = {128: 16, 256: 32, 512: 64}
_READING = {
    **OF_ALL,
    ErrorKind.KEY_NOT_FOUND: (
        "invalid ciphertext: version is too new, or this key version is disabled or archived"
    ),
}
_WRITING = {
    **OF_ALL,
    ErrorKind.KEY_NOT_FOUND: (
        "requested version for encryption is not the latest key version, which alone encrypts; leave"
        " out key_version"
    ),
    ErrorKind.VERSION_BELOW_MINIMUM: (
        "requested version for encryption is less than the minimum encryption key version"
    ),
    ErrorKind.TARGET_NOT_FOUND: "the key has no version that encrypts; rotate it",
    ErrorKind.TARGET_VERSION_BELOW_MINIMUM: (
        "the latest version is less than the minimum encryption key version; rotate the key"
    ),
}


class TransitEncryption:
    """The handlers."""

    def __init__(self, operations: Operations, keys: TransitKeys) -> None:
        """Take the operations of the API, and the creation of keys."""
        self._operations = operations
        self._keys = keys

    async def encrypt(self, call: ApiCall) -> Document | Warned:
        """Encrypt plaintexts. A key that does not exist is created, if the caller may do that."""
        check_status(call)
        if call[CONVERGENT]:
            raise TransitError(NOT_CONVERGENT)
        items = await items_of(self._operations, call)
        has_context = _contexts(call, items)
        try:
            key_type = await self._operations.key_type(call, Operation.ENCRYPT)
        except ApiError as error:
            if error.kind is not ErrorKind.KEYRING_NOT_FOUND:
                raise
            key_type = await self._create(call, items, derived=has_context)
        _require_encryption(key_type)
        task = Task("encrypt", _to_encrypt, _encrypted, _WRITING, tells_failures=True)
        return await respond(self._operations, call, task, key_type, items)

    async def decrypt(self, call: ApiCall) -> Document | Warned:
        """Decrypt ciphertexts of encrypt."""
        check_status(call)
        items = await items_of(self._operations, call)
        _contexts(call, items)
        key_type = await self._type(call, Operation.DECRYPT, "decryption")
        failed = {"plaintext": ""}
        task = Task("decrypt", _to_decrypt, _decrypted, _READING, failed, tells_failures=True)
        return await respond(self._operations, call, task, key_type, items)

    async def rewrap(self, call: ApiCall) -> Document | Warned:
        """Encrypt the content of ciphertexts again, with the key's latest version."""
        items = await items_of(self._operations, call)
        _contexts(call, items)
        key_type = await self._type(call, Operation.RE_ENCRYPT, "encryption")
        words = {**_WRITING, **_READING}
        task = Task("re_encrypt", _to_rewrap, _rewrapped, words)
        return await respond(self._operations, call, task, key_type, items)

    async def data_key(self, call: ApiCall) -> Document | Warned:
        """Make a data key, and return it encrypted, and in the clear if the path says so."""
        key_type = await self._type(call, Operation.GENERATE_DATA_KEY, "encryption")
        if call[KIND] not in {"plaintext", "wrapped"}:
            raise TransitError("Invalid path, must be 'plaintext' or 'wrapped'")
        task = Task("generate_data_key", _to_make, _made, _WRITING)
        return await respond(self._operations, call, task, key_type, (Reader(call.values),))

    async def _type(self, call: ApiCall, operation: Operation, what: str) -> KeyType:
        """Return the type of the call's key, which must encrypt. Raises ApiError."""
        try:
            key_type = await self._operations.key_type(call, operation)
        except ApiError as error:
            raise told(error, OF_ALL) from None
        _require_encryption(key_type, what)
        return key_type

    async def _create(self, call: ApiCall, items: Sequence[Reader], *, derived: bool) -> KeyType:
        """Create the call's key, if the caller may do that; return its type. Raises ApiError.

        A request with refused items only creates nothing.
        """
        wanted = KeyType(stored_type(call[_TYPE], None, None, (None, None)), derived=derived)
        _require_encryption(wanted)
        if not self._operations.may_create(call, wanted.algorithm):
            raise TransitError(NO_KEY, is_recorded=True)
        if not any(_can_be_encrypted(item, wanted) for item in items):
            return wanted
        return (await self._keys.ensure(call, wanted)).key_type


def _require_encryption(key_type: KeyType, what: str = "encryption") -> None:
    if not key_type.encrypts:
        raise TransitError(f"message {what} not supported for key type {key_type.name}")


def _contexts(call: ApiCall, items: Sequence[Reader]) -> bool:
    """Return whether the items have a context: all or none. Raises TransitError."""
    with_context = sum(bool(item[_CONTEXT]) for item in items)
    if call[BATCH_INPUT] is not None and with_context not in {0, len(items)}:
        raise TransitError("context should be set either in all the request blocks or in none")
    return with_context > 0


def _bound(item: Reader) -> dict[str, object]:
    """Return the fields of the API for what a ciphertext is bound to."""
    if item[_NONCE]:
        raise TransitError("nonce is refused: nonces are random; leave it out")
    bad_data = "unable to decode associated_data: "
    return {
        "context": item.binary(_CONTEXT) or None,
        "associated_data": item.binary(_ASSOCIATED_DATA, bad_data) or None,
    }


def _to_encrypt(item: Reader, _: KeyType) -> Mapping[str, object]:
    plaintext = item.binary(_PLAINTEXT)
    if plaintext is None:
        raise TransitError("missing plaintext to encrypt")
    return {"plaintext": plaintext, "key_version": item[_KEY_VERSION] or None, **_bound(item)}


def _can_be_encrypted(item: Reader, key_type: KeyType) -> bool:
    try:
        _to_encrypt(item, key_type)
    except (FieldError, TransitError):
        return False
    return True


def _encrypted(data: Encrypted) -> Mapping[str, object]:
    return _ciphertext(data.key_version, data.ciphertext)


def _ciphertext(used: object, ciphertext: object) -> dict[str, object]:
    return {"ciphertext": text_form(used, ciphertext), "key_version": used}


def _to_decrypt(item: Reader, key_type: KeyType) -> Mapping[str, object]:
    ciphertext = item[_CIPHERTEXT]
    if not ciphertext:
        raise TransitError("missing ciphertext to decrypt")
    used, data = parts_of(ciphertext, "ciphertext")
    if len(data) * 3 // 4 - data.count("=") < ALGORITHMS[key_type.algorithm].overhead:
        raise TransitError("invalid ciphertext length")
    return {"ciphertext": data, "key_version": used, **_bound(item)}


def _decrypted(data: Decrypted) -> Mapping[str, object]:
    return {"plaintext": data.plaintext}


def _to_rewrap(item: Reader, key_type: KeyType) -> Mapping[str, object]:
    if item[_KEY_VERSION]:
        raise TransitError(
            "key_version is refused: rewrap encrypts with the latest version; leave it out"
        )
    return _to_decrypt(item, key_type)


def _rewrapped(data: ReEncrypted) -> Mapping[str, object]:
    return _ciphertext(data.key_version, data.ciphertext)


def _to_make(item: Reader, _: KeyType) -> Mapping[str, object]:
    bits = item[_BITS]
    size = _SIZES.get(256 if bits is None else bits)
    if size is None:
        raise TransitError("invalid bit length")
    return {
        "size": size,
        "plaintext": item[KIND] == "plaintext",
        "format": "ciphertext",
        "key_version": item[_KEY_VERSION] or None,
        **_bound(item),
    }


def _made(data: DataKey) -> Mapping[str, object]:
    shown = _ciphertext(data.key_version, data.ciphertext)
    return {**shown, "plaintext": data.plaintext} if isinstance(data.plaintext, str) else shown
