"""transit/keys: keyrings, each with the keys of one type."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pqkeep_gateway.api.keyrings import MAX_ON_PAGE, TRANSIT_TYPES, Keyring, Keyrings
from pqkeep_gateway.api.keys import Key, Keys
from pqkeep_gateway.http.endpoint import ApiCall, Document, Warned
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field, decode_base64
from pqkeep_gateway.transit.fields import (
    DAY_SECONDS,
    NAME,
    boolean,
    duration,
    integer,
    text,
    version,
)
from pqkeep_gateway.transit.key_types import KeyType, stored_type
from pqkeep_gateway.transit.operations import NOT_OURS, Operations, is_absent
from pqkeep_gateway.transit.responses import (
    TransitError,
    no_content,
    not_found,
    noticed,
    success,
    unsupported,
)
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Kind, Operation
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyStatus
from pqkeep_protocol.public_keys import to_pem
from pqkeep_protocol.rules import RuleNotice

_TYPE = text("type")
_PARAMETER_SET = text("parameter_set")
_KEY_SIZE = integer("key_size")
_HYBRID = text("hybrid_key_type_pqc"), text("hybrid_key_type_ec")
_DERIVED = boolean("derived")
CONVERGENT = boolean("convergent_encryption")
_EXPORTABLE = boolean("exportable")
_PLAINTEXT_BACKUP = boolean("allow_plaintext_backup")
_DELETION_ALLOWED = boolean("deletion_allowed")
_AUTO_ROTATE_PERIOD = duration("auto_rotate_period")
_MIN_DECRYPTION_VERSION = version("min_decryption_version")
_MIN_ENCRYPTION_VERSION = version("min_encryption_version")
_AFTER = text("after")
_LIMIT = integer("limit")
_LIST = boolean("list")

NEW_KEY: tuple[Field[Any], ...] = (
    _TYPE,
    _PARAMETER_SET,
    _KEY_SIZE,
    *_HYBRID,
    _DERIVED,
    CONVERGENT,
    _EXPORTABLE,
    _PLAINTEXT_BACKUP,
    _AUTO_ROTATE_PERIOD,
)
CONFIG: tuple[Field[Any], ...] = (
    _MIN_DECRYPTION_VERSION,
    _MIN_ENCRYPTION_VERSION,
    _DELETION_ALLOWED,
    _EXPORTABLE,
    _PLAINTEXT_BACKUP,
    _AUTO_ROTATE_PERIOD,
)
LIST: tuple[Field[Any], ...] = (_AFTER, _LIMIT)
READ_LIST: tuple[Field[Any], ...] = (_LIST, *LIST)

NOT_CONVERGENT = (
    "convergent_encryption is refused: it shows which plaintexts are equal; use hmac for an index of"
    " equal values"
)
_NEVER: Sequence[tuple[Field[bool | None], str]] = (
    (_EXPORTABLE, "exportable is refused: private keys never leave the key service"),
    (
        _PLAINTEXT_BACKUP,
        (
            "allow_plaintext_backup is refused: private keys never leave the key service; pqkeepd"
            " backup makes encrypted backups"
        ),
    ),
    (
        CONVERGENT,
        NOT_CONVERGENT,
    ),
)
"""What a request may not ask for, and why."""
_NO_SUCH_KEY = "no existing key of this name could be found"


class Ensured(NamedTuple):
    """A key that exists."""

    key_type: KeyType
    notices: Sequence[RuleNotice]
    """The rule that will end the creation of such keys, if a key was created."""


class TransitKeys:
    """The handlers of transit/keys."""

    def __init__(self, operations: Operations) -> None:
        """Take the operations of the API."""
        self._operations = operations

    async def create(self, call: ApiCall) -> Document | Warned:
        """Create a key of a type. A repetition changes nothing."""
        _refuse_never(call)
        stored = stored_type(
            call[_TYPE], call[_PARAMETER_SET], call[_KEY_SIZE], (call[_HYBRID[0]], call[_HYBRID[1]])
        )
        wanted = KeyType(stored, derived=bool(call[_DERIVED]))
        key_type, notices = await self.ensure(call, wanted, _days(call[_AUTO_ROTATE_PERIOD]))
        if (call[_TYPE] and key_type.stored != wanted.stored) or (
            call[_DERIVED] is not None and key_type.derived != wanted.derived
        ):
            derived = ", derived" if key_type.derived else ""
            raise TransitError(
                f"this key already exists with type {key_type.stored}{derived}; a key's type cannot"
                " be changed: use another name"
            )
        return await self._shown(call, notices)

    async def ensure(
        self, call: ApiCall, wanted: KeyType, rotation_days: int | None = None
    ) -> Ensured:
        """Create the call's key unless it exists. Raises ApiError."""
        if wanted.derived and wanted.algorithm is not Algorithm.XAES_256_GCM:
            raise TransitError(f"derived is not offered for type {wanted.name}; use aes256-gcm96")
        name = call[NAME]
        try:
            await self._operations.run(
                "create_keyring",
                call,
                {
                    "name": name,
                    "transit_type": wanted.stored,
                    "derived": wanted.derived,
                    "rotation_days": rotation_days,
                },
            )
        except ApiError as error:
            if error.kind is not ErrorKind.KEYRING_EXISTS:
                raise
            self._operations.forget_type(call)
            wanted = await self._operations.key_type(call, Operation.CREATE_KEYRING)
        _, notices = await self._operations.run_warned(
            "generate_key",
            call,
            {"algorithm": wanted.algorithm.value, "keyring": name, "if_absent": True},
        )
        return Ensured(wanted, notices)

    async def read(self, call: ApiCall) -> Document | Warned:
        """Return a key's settings and versions; 404 without a message if there is no such key."""
        return await self._read(call, ())

    async def _read(self, call: ApiCall, notices: Sequence[RuleNotice]) -> Document | Warned:
        keyring = await self._keyring(call)
        return noticed(call, _data(keyring, await self._versions(call, keyring)), notices)

    async def configure(self, call: ApiCall) -> Document | Warned:
        """Change the settings that are sent."""
        _refuse_never(call)
        try:
            keyring = await self._keyring(call)
        except ApiError as error:
            raise _told(error, _NO_SUCH_KEY) from None
        decryption, encryption = call[_MIN_DECRYPTION_VERSION], call[_MIN_ENCRYPTION_VERSION]
        if decryption is not None or encryption is not None:
            await self._check_minimums(call, keyring, decryption, encryption)
        await self._operations.run(
            "update_keyring",
            call,
            {
                "name": keyring.name,
                "minimum_decryption_version": decryption,
                "minimum_encryption_version": encryption,
                "deletion_allowed": call[_DELETION_ALLOWED],
                "rotation_days": _days(call[_AUTO_ROTATE_PERIOD]),
            },
        )
        return await self._shown(call)

    async def rotate(self, call: ApiCall) -> Document | Warned:
        """Replace the active version with a new one."""
        try:
            key_type = await self._operations.key_type(call, Operation.ROTATE_KEY)
            _, notices = await self._operations.run_warned(
                "rotate_key", call, {"algorithm": key_type.algorithm.value, "keyring": call[NAME]}
            )
        except ApiError as error:
            raise _told(error, "key not found") from None
        return await self._shown(call, notices)

    async def delete(self, call: ApiCall) -> Document:
        """Delete a key softly: its private keys are destroyed after the delay."""
        try:
            await self._operations.run("delete_keyring", call, {"name": call[NAME]})
        except ApiError as error:
            raise _told(error, "could not delete key; not found") from None
        self._operations.forget_type(call)
        return no_content()

    async def soft_delete(self, call: ApiCall) -> Document:
        """Delete a key; without it, nothing needs to be done."""
        try:
            keyring = await self._keyring(call)
        except ApiError as error:
            if is_absent(error):
                return no_content()
            raise
        data = _data(keyring, await self._versions(call, keyring))
        await self.delete(call)
        return success(call, {**data, "soft_deleted": True})

    async def restore(self, call: ApiCall) -> Document | Warned:
        """Restore a deleted key, until its private keys are destroyed."""
        try:
            await self._operations.run("restore_keyring", call, {"name": call[NAME]})
        except ApiError as error:
            raise _told(error, f"{_NO_SUCH_KEY}, or its private keys are destroyed") from None
        return await self._shown(call)

    async def list_(self, call: ApiCall) -> Document:
        """List the names of the keys, in order; 404 if there are none."""
        limit, after = call[_LIMIT] or 0, call[_AFTER] or None
        names: list[str] = []
        while True:
            page: Keyrings = await self._operations.run(
                "list_keyrings", call, {"limit": MAX_ON_PAGE, "after": after}
            )
            names += [keyring.name for keyring in page.keyrings if _is_ours(keyring)]
            if not isinstance(page.next, str) or 0 < limit <= len(names):
                break
            after = page.next
            await self._operations.count_further_request(call)
        if not names:
            raise not_found()
        return success(call, {"keys": names[:limit] if limit > 0 else names})

    async def read_list(self, call: ApiCall) -> Document:
        """List the names of the keys, if the query asks for a list."""
        if not call[_LIST]:
            raise unsupported()
        return await self.list_(call)

    async def _check_minimums(
        self, call: ApiCall, keyring: Keyring, decryption: int | None, encryption: int | None
    ) -> None:
        """Refuse a minimum version above the latest version, and contradictory ones."""
        latest = max((key.key_version for key in await self._versions(call, keyring)), default=1)
        for name, minimum in (("decryption", decryption), ("encryption", encryption)):
            if minimum is not None and minimum > latest:
                raise TransitError(
                    f"cannot set min {name} version of {minimum}, latest key version is {latest}"
                )
        least = keyring.minimum_decryption_version if decryption is None else decryption
        chosen = keyring.minimum_encryption_version if encryption is None else encryption
        if 0 < chosen < least:
            raise TransitError(
                "cannot set min encryption/decryption values; min encryption version of"
                f" {chosen} must be greater than or equal to min decryption version of {least}"
            )

    async def _shown(self, call: ApiCall, notices: Sequence[RuleNotice] = ()) -> Document | Warned:
        """Return a changed key, if the caller may see it."""
        scopes, name = call.principal.scopes, call[NAME]
        needed = (Operation.GET_KEYRING, Operation.LIST_KEYS)
        if scopes is not None and not all(scopes.allow(each, name, None) for each in needed):
            return no_content()
        return await self._read(call, notices)

    async def _keyring(self, call: ApiCall) -> Keyring:
        """Return the call's keyring. Raises ApiError."""
        keyring: Keyring = await self._operations.run("get_keyring", call, {"name": call[NAME]})
        if not _is_ours(keyring):
            raise not_found(NOT_OURS)
        return keyring

    async def _versions(self, call: ApiCall, keyring: Keyring) -> Sequence[Key]:
        """Return the key versions that are not archived."""
        algorithm = _type_of(keyring).algorithm
        listed: Keys = await self._operations.run(
            "list_keys", call, {"algorithm": algorithm.value, "keyring": keyring.name}
        )
        return [key for key in listed.keys if key.status is not KeyStatus.ARCHIVED]


def _told(error: ApiError, absent: str) -> ApiError:
    """Return an error; if the key is not there, 400 with a message."""
    return TransitError(absent, is_recorded=True) if is_absent(error) else error


def _is_ours(keyring: Keyring) -> bool:
    return keyring.transit_type in TRANSIT_TYPES


def _type_of(keyring: Keyring) -> KeyType:
    """Return the type of a keyring that has one."""
    return KeyType(str(keyring.transit_type), derived=keyring.derived)


def _refuse_never(call: ApiCall) -> None:
    for field, message in _NEVER:
        if call[field]:
            raise TransitError(message)


def _days(seconds: int | None) -> int | None:
    """Return a period in days. Raises TransitError."""
    if seconds is None:
        return None
    days, rest = divmod(seconds, DAY_SECONDS)
    if rest:
        raise TransitError("auto_rotate_period must be whole days, such as 720h; 0 for never")
    return days


def _data(keyring: Keyring, versions: Sequence[Key]) -> dict[str, object]:
    """Return a key as clients of Vault Transit see it."""
    key_type = _type_of(keyring)
    kind = ALGORITHMS[key_type.algorithm].kind
    shown = [key for key in versions if key.key_version >= keyring.minimum_decryption_version]
    data: dict[str, object] = {
        "allow_plaintext_backup": False,
        "auto_rotate_period": DAY_SECONDS * (keyring.rotation_days or 0),
        "deletion_allowed": keyring.deletion_allowed,
        "derived": key_type.derived,
        "exportable": False,
        "imported_key": any(key.imported is True for key in versions),
        "keys": {str(key.key_version): _version(key, key_type) for key in shown},
        "latest_version": max((key.key_version for key in versions), default=0),
        "min_available_version": 0,
        "min_decryption_version": max(keyring.minimum_decryption_version, 1),
        "min_encryption_version": keyring.minimum_encryption_version,
        "name": keyring.name,
        "soft_deleted": False,
        "supports_decryption": key_type.encrypts,
        "supports_derivation": key_type.algorithm is Algorithm.XAES_256_GCM,
        "supports_encryption": key_type.encrypts,
        "supports_signing": kind is Kind.SIGNATURE,
        "type": key_type.name,
    }
    if key_type.derived:
        data |= {"kdf": "hkdf_sha256", "convergent_encryption": False}
    if key_type.name == "hmac":
        data["key_size"] = key_type.key_size
    if key_type.parameter_set:
        data["parameter_set"] = key_type.parameter_set
    if key_type.name == "hybrid":
        data |= {"hybrid_key_type_pqc": "ml-dsa", "hybrid_key_type_ec": "ecdsa-p256"}
    return data


def _version(key: Key, key_type: KeyType) -> object:
    """Return one version: the time of a symmetric key, or a public key."""
    created_at = datetime.fromisoformat(key.created_at)
    if not isinstance(key.public_key, str):
        return int(created_at.timestamp())
    return {
        "certificate_chain": "",
        "creation_time": key.created_at,
        "name": key_type.name,
        "public_key": to_pem(key_type.algorithm, decode_base64(key.public_key)),
    }
