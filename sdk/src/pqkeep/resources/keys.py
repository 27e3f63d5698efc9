"""Keyrings, and the lifecycle of keys. Private keys never leave the service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from pqkeep._call import API, Call, Page, Pages, change, get, in_path
from pqkeep._data import Data, encoded
from pqkeep._operation import Operation, WholeListing
from pqkeep.compliance import Rules
from pqkeep.models import ImportKey, Key, Keyring, KeyUsage, ListPage, PublicKey, Rotation

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keys(Generic[T_co]):
    """Versions of a tenant's keys, by algorithm."""

    _transport: T_co
    _rules: Rules

    @Operation
    def generate(
        self, algorithm: str, *, keyring: str | None = None, if_absent: bool = False
    ) -> Call[Key]:
        """Make a new active key. Raises InvalidRequestError if the algorithm has one already.

        With ``if_absent``, return the key that is active already.
        """
        body = {**self._named(algorithm, keyring), "if_absent": if_absent or None}
        return change("/kms/keys/generate", _key, body)

    @Operation
    def rotate(self, algorithm: str, *, keyring: str | None = None) -> Call[Rotation]:
        """Retire the active key and make a new one, in one step."""
        return change("/kms/keys/rotate", _rotation, self._named(algorithm, keyring))

    @Operation
    def get_import_key(self, algorithm: str, *, keyring: str | None = None) -> Call[ImportKey]:
        """Return a new public key, which wraps one private key: see ``pqkeep.key_import.wrap``.

        It is valid for ten minutes and one ``import_key``.
        """
        return get("/kms/keys/import-key", import_key_in, self._named(algorithm, keyring))

    @Operation
    def import_key(self, import_key: ImportKey, wrapped_private_key: bytes) -> Call[Key]:
        """Make an imported private key the active key of the import key's keyring.

        Raises InvalidRequestError if there is an active key, or the private key is not of the
        algorithm.
        """
        return change(
            "/kms/keys/import",
            _key,
            {
                **self._named(import_key.algorithm, import_key.keyring),
                "import_key_id": import_key.import_key_id,
                "wrapped_private_key": encoded(wrapped_private_key),
            },
        )

    @Operation
    def retire(self, algorithm: str, *, key_version: int, keyring: str | None = None) -> Call[Key]:
        """Retire a key. It can no longer encrypt or sign, but still decrypt and verify."""
        return self._change("retire", algorithm, key_version, keyring)

    @Operation
    def disable(
        self,
        algorithm: str,
        *,
        key_version: int,
        keyring: str | None = None,
        until: datetime | None = None,
    ) -> Call[Key]:
        """Refuse all uses of a key until it is enabled again, or until a time.

        ``until`` needs an offset from UTC. A key that was disabled without a time stays disabled.
        """
        at = None if until is None else until.isoformat()
        return self._change("disable", algorithm, key_version, keyring, until=at)

    @Operation
    def enable(self, algorithm: str, *, key_version: int, keyring: str | None = None) -> Call[Key]:
        """Give a disabled key its earlier status back."""
        return self._change("enable", algorithm, key_version, keyring)

    @Operation
    def cancel_archive(
        self, algorithm: str, *, key_version: int, keyring: str | None = None
    ) -> Call[Key]:
        """Cancel the scheduled destruction of a key. People schedule it, in the portal."""
        return self._change("archive/cancel", algorithm, key_version, keyring)

    @Operation
    def active(self, algorithm: str, *, keyring: str | None = None) -> Call[Key]:
        """Return the active key."""
        return get("/kms/keys/active", _key, self._named(algorithm, keyring))

    @Operation
    def get(self, algorithm: str, *, key_version: int, keyring: str | None = None) -> Call[Key]:
        """Return one version in any status."""
        return get(f"/kms/keys/{key_version:d}", _key, self._named(algorithm, keyring))

    @Operation
    def public_key(
        self,
        algorithm: str,
        *,
        key_version: int,
        format: str = "pem",  # noqa: A002 - the API's
        keyring: str | None = None,
    ) -> Call[PublicKey]:
        """Return a public key as ``raw``, ``pem``, ``der``, ``jwk`` or ``age``, in any status.

        Only ML-DSA and 128-bit SLH-DSA have a JWK, and only X-Wing is a recipient of age. Others
        raise InvalidRequestError.
        """
        return get(
            f"/kms/keys/{key_version:d}/public-key",
            _public_key,
            {**self._named(algorithm, keyring), "format": format},
        )

    @Operation
    def jwks(self, *, keyring: str | None = None) -> Call[tuple[dict[str, str], ...]]:
        """Return the JWK Set of the keys that verify signatures: active and retired ones."""
        return Call(
            method="GET",
            path=API + "/kms/jwks",
            read=lambda data: data.text_objects("keys"),
            query={"keyring": keyring},
            form="json",
        )

    @Operation
    def usage(
        self, algorithm: str, *, key_version: int, keyring: str | None = None
    ) -> Call[KeyUsage]:
        """Return the number of a version's uses, and the time of the last.

        Look before you retire it.
        """
        return get(f"/kms/keys/{key_version:d}/usage", _usage, self._named(algorithm, keyring))

    @WholeListing
    def list_usage(
        self, *, algorithm: str | None = None, keyring: str | None = None, legacy: bool = False
    ) -> Pages[KeyUsage]:
        """Return the usage of every version that was ever used, optionally of one algorithm.

        With ``legacy``, legacy keys are listed too.
        """
        named = None if algorithm is None else self._rules.key(algorithm)
        query = {"algorithm": named, "keyring": keyring, "legacy": "true" if legacy else None}
        return lambda place: get("/kms/keys/usage", _usages, {**query, "after": place})

    @WholeListing
    def list(
        self,
        *,
        algorithm: str | None = None,
        status: str | None = None,
        keyring: str | None = None,
        all_keyrings: bool = False,
        scheduled: bool = False,
        legacy: bool = False,
    ) -> Pages[Key]:
        """Return the keys of a keyring, optionally of one algorithm or one status.

        With ``all_keyrings``, return the keys of every keyring, ordered by its name; ``keyring``
        must be None. With ``scheduled``, return keys with a scheduled destruction, at
        ``archive_at``. With ``legacy``, legacy keys are listed too.
        """
        named = None if algorithm is None else self._rules.key(algorithm)
        return lambda place: get(
            "/kms/keys",
            _keys,
            {
                "algorithm": named,
                "status": status,
                "keyring": keyring,
                "all_keyrings": "true" if all_keyrings else None,
                "scheduled": "true" if scheduled else None,
                "legacy": "true" if legacy else None,
                "after": place,
            },
        )

    @Operation
    def list_page(
        self,
        *,
        limit: int | None = None,
        after: int | str | None = None,
        algorithm: str | None = None,
        status: str | None = None,
        keyring: str | None = None,
        all_keyrings: bool = False,
        scheduled: bool = False,
        legacy: bool = False,
    ) -> Call[ListPage[Key]]:
        """Return a part of the list: at most ``limit`` items after a position from an earlier part."""
        named = None if algorithm is None else self._rules.key(algorithm)
        query = {
            "algorithm": named,
            "status": status,
            "keyring": keyring,
            "all_keyrings": "true" if all_keyrings else None,
            "scheduled": "true" if scheduled else None,
            "legacy": "true" if legacy else None,
            "limit": limit,
            "after": after,
        }
        return get("/kms/keys", _part, query)

    def _named(self, algorithm: str, keyring: str | None) -> dict[str, str | None]:
        return {"algorithm": self._rules.key(algorithm), "keyring": keyring}

    def _change(
        self,
        what: str,
        algorithm: str,
        key_version: int,
        keyring: str | None,
        *,
        until: str | None = None,
    ) -> Call[Key]:
        body = {**self._named(algorithm, keyring), "key_version": key_version, "until": until}
        return change(f"/kms/keys/{what}", _key, body)


def _keys(data: Data) -> Page[Key]:
    named = data.text_or_none("keyring")
    return Page(
        items=tuple(_key(key, named) for key in data.objects("keys")),
        next=data.text_or_none("next"),
    )


def _part(data: Data) -> ListPage[Key]:
    page = _keys(data)
    return ListPage(items=page.items, next=page.next)


def _key(data: Data, named: str | None = None) -> Key:
    """Return a key. ``named`` is the keyring of a list, if its keys have no field ``keyring``."""
    return Key(
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        status=data.text("status"),
        public_key=_public_part(data),
        created_at=data.time("created_at"),
        archive_at=data.time_or_none("archive_at"),
        disabled_until=data.time_or_none("disabled_until"),
        imported=data.has("imported") and data.flag("imported"),
        keyring=data.text_or_none("keyring") or named,
        fingerprint=data.text_or_none("fingerprint"),
        legacy=data.has("legacy") and data.flag("legacy"),
    )


def _public_part(data: Data) -> bytes:
    """Return a key's public key. It is empty for a symmetric key, which has a fingerprint instead."""
    return b"" if data.has("fingerprint") else data.binary("public_key")


def import_key_in(data: Data) -> ImportKey:
    """Return the import key in a response. Raises MalformedResponseError."""
    return ImportKey(
        import_key_id=data.text("import_key_id"),
        public_key=data.binary("public_key"),
        suite=data.text("suite"),
        info=data.binary("info"),
        algorithm=data.text("algorithm"),
        expires_at=data.time("expires_at"),
    )


def _public_key(data: Data) -> PublicKey:
    written = data.text("format")
    public_key: bytes | str | dict[str, str]
    match written:
        case "jwk":
            public_key = data.texts("public_key")
        case "pem" | "age":
            public_key = data.text("public_key")
        case _:
            public_key = data.binary("public_key")
    return PublicKey(
        format=written,
        public_key=public_key,
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
    )


def _rotation(data: Data) -> Rotation:
    return Rotation(
        public_key=_public_part(data),
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        old_key_version=data.integer("old_key_version"),
        fingerprint=data.text_or_none("fingerprint"),
    )


def _usages(data: Data) -> Page[KeyUsage]:
    return Page(items=tuple(map(_usage, data.objects("usage"))), next=data.text_or_none("next"))


def _usage(data: Data) -> KeyUsage:
    return KeyUsage(
        key_version=data.integer("key_version"),
        algorithm=data.text("algorithm"),
        uses=data.integer("uses"),
        last_used_at=data.time_or_none("last_used_at"),
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keyrings(Generic[T_co]):
    """A tenant's keyrings. The keyring ``default`` always exists."""

    _transport: T_co

    @Operation
    def create(  # noqa: PLR0913 - a keyword for each setting
        self,
        name: str,
        *,
        description: str | None = None,
        labels: Mapping[str, str] | None = None,
        purposes: Sequence[str] | None = None,
        rotation_days: int | None = None,
        archive_after_days: int | None = None,
        minimum_decryption_version: int | None = None,
        minimum_encryption_version: int | None = None,
        first_version: int | None = None,
        derived: bool | None = None,
        deletion_allowed: bool | None = None,
        retired_public_keys_allowed: bool | None = None,
        transit_type: str | None = None,
    ) -> Call[Keyring]:
        """Create a keyring without keys. Without ``purposes``, its keys are for all purposes.

        ``first_version`` is the lowest version number of its keys, at most 100,000. With
        ``derived`` they encrypt and decrypt only, each call with a context. ``transit_type`` is
        the key type that clients of Vault Transit see, such as ``aes256-gcm96``. None of these can
        be changed.
        """
        body = _settings(
            description,
            labels,
            purposes,
            rotation_days,
            archive_after_days,
            minimum_decryption_version,
            minimum_encryption_version,
            deletion_allowed=deletion_allowed,
            retired_public_keys_allowed=retired_public_keys_allowed,
        )
        new = {
            "name": name,
            "first_version": first_version,
            "derived": derived,
            "transit_type": transit_type,
        }
        return change("/kms/keyrings", _keyring, {**new, **body})

    @Operation
    def update(  # noqa: PLR0913 - a keyword for each setting
        self,
        name: str,
        *,
        description: str | None = None,
        labels: Mapping[str, str] | None = None,
        label_changes: Mapping[str, str | None] | None = None,
        purposes: Sequence[str] | None = None,
        rotation_days: int | None = None,
        archive_after_days: int | None = None,
        minimum_decryption_version: int | None = None,
        minimum_encryption_version: int | None = None,
        deletion_allowed: bool | None = None,
        retired_public_keys_allowed: bool | None = None,
    ) -> Call[Keyring]:
        """Change the named fields.

        Given labels or purposes replace all labels or purposes. ``label_changes`` sets some labels,
        and removes those with the value None. 0 days mean never. A minimum version of 0 allows all
        versions except disabled ones.
        """
        body = _settings(
            description,
            labels,
            purposes,
            rotation_days,
            archive_after_days,
            minimum_decryption_version,
            minimum_encryption_version,
            deletion_allowed=deletion_allowed,
            retired_public_keys_allowed=retired_public_keys_allowed,
        )
        body["label_changes"] = None if label_changes is None else dict(label_changes)
        return change(f"/kms/keyrings/{in_path(name)}", _keyring, body, method="PATCH")

    @Operation
    def delete(self, name: str, *, delay_days: int | None = None) -> Call[Keyring]:
        """Delete a keyring. Its private keys are destroyed after the delay: by default 7 days or more.

        The API key needs a scope that names ``delete-keyring``, and the keyring
        ``deletion_allowed``. Raises NotFoundError.
        """
        path, query = f"/kms/keyrings/{in_path(name)}", {"delay_days": delay_days}
        return change(path, _keyring, method="DELETE", query=query)

    @Operation
    def restore(self, name: str) -> Call[Keyring]:
        """Restore a deleted keyring with its keys, until its private keys are destroyed."""
        return change(f"/kms/keyrings/{in_path(name)}/restore", _keyring)

    @Operation
    def get(self, name: str) -> Call[Keyring]:
        """Return a keyring. Raises NotFoundError."""
        return get(f"/kms/keyrings/{in_path(name)}", _keyring)

    @WholeListing
    def list(
        self, *, prefix: str | None = None, label: str | None = None, deleted: bool = False
    ) -> Pages[Keyring]:
        """Return all keyrings by name, optionally with a prefix or a label: ``team:payments``.

        With ``deleted``, return the deleted keyrings that can be restored.
        """
        query = {"prefix": prefix, "label": label, "deleted": "true" if deleted else None}
        return lambda place: get("/kms/keyrings", _keyrings, {**query, "after": place})

    @Operation
    def list_page(
        self,
        *,
        limit: int | None = None,
        after: int | str | None = None,
        prefix: str | None = None,
        label: str | None = None,
        deleted: bool = False,
    ) -> Call[ListPage[Keyring]]:
        """Return a part of the list: at most ``limit`` items after a position from an earlier part."""
        query = {
            "prefix": prefix,
            "label": label,
            "deleted": "true" if deleted else None,
            "limit": limit,
            "after": after,
        }
        return get("/kms/keyrings", _keyring_part, query)


def _settings(  # noqa: PLR0913 - a parameter for each setting
    description: str | None,
    labels: Mapping[str, str] | None,
    purposes: Sequence[str] | None,
    rotation_days: int | None,
    archive_after_days: int | None,
    minimum_decryption_version: int | None,
    minimum_encryption_version: int | None,
    *,
    deletion_allowed: bool | None,
    retired_public_keys_allowed: bool | None,
) -> dict[str, object]:
    return {
        "description": description,
        "labels": None if labels is None else dict(labels),
        "purposes": None if purposes is None else list(purposes),
        "rotation_days": rotation_days,
        "archive_after_days": archive_after_days,
        "minimum_decryption_version": minimum_decryption_version,
        "minimum_encryption_version": minimum_encryption_version,
        "deletion_allowed": deletion_allowed,
        "retired_public_keys_allowed": retired_public_keys_allowed,
    }


def _keyrings(data: Data) -> Page[Keyring]:
    return Page(
        items=tuple(map(_keyring, data.objects("keyrings"))), next=data.text_or_none("next")
    )


def _keyring_part(data: Data) -> ListPage[Keyring]:
    page = _keyrings(data)
    return ListPage(items=page.items, next=page.next)


def _keyring(data: Data) -> Keyring:
    return Keyring(
        name=data.text("name"),
        description=data.text("description"),
        labels=data.texts("labels"),
        purposes=data.texts_or_none("purposes") or (),
        rotation_days=data.integer_or_none("rotation_days"),
        archive_after_days=data.integer_or_none("archive_after_days"),
        created_at=data.time_or_none("created_at"),
        minimum_decryption_version=data.integer("minimum_decryption_version"),
        minimum_encryption_version=data.integer("minimum_encryption_version"),
        first_version=data.integer("first_version"),
        derived=data.flag("derived"),
        deletion_allowed=data.flag("deletion_allowed"),
        retired_public_keys_allowed=data.flag("retired_public_keys_allowed"),
        transit_type=data.text_or_none("transit_type"),
        archive_at=data.time_or_none("archive_at"),
        last_used_at=data.time_or_none("last_used_at"),
    )
