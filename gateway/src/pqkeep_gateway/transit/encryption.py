"""transit/encrypt and transit/decrypt."""

from collections.abc import Mapping
from typing import Any

from pqkeep_gateway.api.kem import Decrypted, Encrypted
from pqkeep_gateway.api.key_fields import MAX_CIPHERTEXT, MAX_PLAINTEXT
from pqkeep_gateway.http.endpoint import ApiCall, Document
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field
from pqkeep_gateway.http.text import base64_size
from pqkeep_gateway.transit.fields import binary, text, version
from pqkeep_gateway.transit.key_types import KeyType, stored_type
from pqkeep_gateway.transit.keys import TransitKeys
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import TransitError, success
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import MAX_KEY_VERSION

PREFIX = "vault:v"
"""The beginning of a ciphertext. The version follows, then a colon and base64."""
_PARTS = 3
_MAX_DIGITS = len(str(MAX_KEY_VERSION))

_PLAINTEXT = binary("plaintext", at_most=MAX_PLAINTEXT)
_CIPHERTEXT = text("ciphertext", at_most=base64_size(MAX_CIPHERTEXT) + 32)
_KEY_VERSION = version("key_version")
_TYPE = text("type")

ENCRYPT: tuple[Field[Any], ...] = (_PLAINTEXT, _KEY_VERSION, _TYPE)
DECRYPT: tuple[Field[Any], ...] = (_CIPHERTEXT,)

NO_KEY = "encryption key not found"
_ABSENT: Mapping[ErrorKind | None, str] = {
    ErrorKind.KEYRING_NOT_FOUND: NO_KEY,
    ErrorKind.KEY_NOT_FOUND: "no such key version",
}


class TransitEncryption:
    """The handlers."""

    def __init__(self, operations: Operations, keys: TransitKeys) -> None:
        """Take the operations of the API, and the creation of keys."""
        self._operations = operations
        self._keys = keys

    async def encrypt(self, call: ApiCall) -> Document:
        """Encrypt a plaintext. A key that does not exist is created, if the caller may do that."""
        if call[_PLAINTEXT] is None:
            raise TransitError("missing plaintext to encrypt")
        values = {"plaintext": call[_PLAINTEXT], "key_version": call[_KEY_VERSION] or None}
        try:
            encrypted: Encrypted = await self._operations.run_on_key("encrypt", call, values)
        except ApiError as error:
            if error.kind is not ErrorKind.KEYRING_NOT_FOUND:
                raise _told(error) from None
            await self._create(call)
            encrypted = await self._operations.run_on_key("encrypt", call, values)
        text_ = ciphertext_text(encrypted.key_version, encrypted.ciphertext)
        return success(call, {"ciphertext": text_, "key_version": encrypted.key_version})

    async def decrypt(self, call: ApiCall) -> Document:
        """Decrypt a ciphertext of encrypt."""
        used, ciphertext = parts_of(call[_CIPHERTEXT])
        values = {"ciphertext": ciphertext, "key_version": used}
        try:
            decrypted: Decrypted = await self._operations.run_on_key("decrypt", call, values)
        except ApiError as error:
            raise _told(error) from None
        return success(call, {"plaintext": decrypted.plaintext})

    async def _create(self, call: ApiCall) -> None:
        """Create the call's key, if the caller may do that. Raises ApiError."""
        wanted = KeyType(stored_type(call[_TYPE], None, None, (None, None)), derived=False)
        if not self._operations.may_create(call, wanted.algorithm):
            raise TransitError(NO_KEY, is_recorded=True)
        await self._keys.ensure(call, wanted)


def _told(error: ApiError) -> ApiError:
    """Return the error of an operation in the words of Vault."""
    message = _ABSENT.get(error.kind)
    return error if message is None else TransitError(message, is_recorded=True)


def ciphertext_text(used: object, ciphertext: object) -> str:
    """Return a ciphertext as clients of Vault Transit store it."""
    if not isinstance(used, int) or not isinstance(ciphertext, str):
        raise TypeError("the ciphertext has no version")
    return f"{PREFIX}{used}:{ciphertext}"


def parts_of(ciphertext: str | None) -> tuple[int, str]:
    """Return the version and the base64 of a ciphertext. Raises TransitError."""
    if not ciphertext:
        raise TransitError("missing ciphertext to decrypt")
    if not ciphertext.startswith(PREFIX):
        raise TransitError("invalid ciphertext: no prefix")
    parts = ciphertext.split(":")
    if len(parts) != _PARTS:
        raise TransitError("invalid ciphertext: wrong number of fields")
    digits = parts[1].removeprefix("v")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if not is_number or digits.startswith("0") or int(digits) > MAX_KEY_VERSION:
        raise TransitError("invalid ciphertext: version number could not be decoded")
    return int(digits), parts[2]
