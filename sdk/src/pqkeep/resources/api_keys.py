"""A tenant's API keys.

An API key manages the API keys of its own tenant, an operator those of all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from pqkeep._call import Call, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import ApiKey, ApiKeyRotation, NewApiKey, OwnApiKey, Scope

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ApiKeys(Generic[T_co]):
    """API keys by tenant and version."""

    _transport: T_co

    @Operation
    def create(
        self,
        tenant_id: str,
        *,
        name: str | None = None,
        scopes: Iterable[Scope] | None = None,
        expires_at: datetime | None = None,
        allowed_addresses: Iterable[str] | None = None,
        allow_absent_keyrings: bool = False,
    ) -> Call[NewApiKey]:
        """Create an API key. Store it: the service shows it only once.

        Without scopes it has all permissions of an API key. For a program that only uses keys:
        ``scopes=[Scope(operations=("use",))]``. Addresses are networks such as ``192.0.2.0/24``.
        Scopes with an unknown keyring are refused, unless ``allow_absent_keyrings`` is true.
        """
        body = _limits(name, scopes, expires_at, allowed_addresses, allow_absent_keyrings)
        return change(_path(tenant_id), _new_api_key, body)

    @Operation
    def own(self) -> Call[OwnApiKey]:
        """Return the tenant of this client's API key, with its limits and scopes."""
        return get("/auth/api-key", _own_api_key)

    @Operation
    def list(  # noqa: PLR0913 - filters, by name
        self,
        tenant_id: str,
        *,
        details: bool = False,
        status: str | None = None,
        name: str | None = None,
        scope: str | None = None,
        may_use: str | None = None,
        created_since: datetime | None = None,
        created_before: datetime | None = None,
        used_since: datetime | None = None,
        unused_since: datetime | None = None,
        expires_before: datetime | None = None,
    ) -> Call[tuple[ApiKey, ...]]:
        """Return a tenant's API keys by version, without the keys themselves.

        ``details`` adds name, limits, time and address of the last use, and the end of an overlap.
        ``status`` is ``active``, ``expired`` or ``revoked``, or several, separated by commas.
        ``name``: words in the name, or the last four characters. ``scope``: the beginning of an
        operation, group, keyring or algorithm in the scopes; API keys without scopes match too.
        ``may_use``: a keyring and an algorithm, such as ``payments/Kyber768``. It selects API keys
        with at least one use of that key, and those without scopes. Times have an offset from UTC.
        """
        times = {
            "created_since": created_since,
            "created_before": created_before,
            "used_since": used_since,
            "unused_since": unused_since,
            "expires_before": expires_before,
        }
        query = {
            "details": "true" if details else None,
            "status": status,
            "name": name,
            "scope": scope,
            "may_use": may_use,
            **{field: None if at is None else at.isoformat() for field, at in times.items()},
        }
        return get(_path(tenant_id), _api_keys, query)

    @Operation
    def rotate(
        self,
        tenant_id: str,
        *,
        name: str | None = None,
        scopes: Iterable[Scope] | None = None,
        expires_at: datetime | None = None,
        allowed_addresses: Iterable[str] | None = None,
        allow_absent_keyrings: bool = False,
        overlap_seconds: int | None = None,
    ) -> Call[ApiKeyRotation]:
        """Replace this client's API key; as the operator, a tenant's newest one.

        The old API key is accepted for ``overlap_seconds`` more. The installation sets the largest
        value, usually 30, which is also the default. This client still uses the old API key: create
        a new client. The new API key has the old one's name, scopes, expiry and addresses, unless
        others are given. An API key can only add limits to itself.
        """
        body = {
            **(_limits(name, scopes, expires_at, allowed_addresses, allow_absent_keyrings) or {}),
            **({} if overlap_seconds is None else {"overlap_seconds": overlap_seconds}),
        }
        return change(_path(tenant_id) + "/rotate", _rotation, body or None)

    @Operation
    def revoke(self, tenant_id: str, *, version: int) -> Call[ApiKey]:
        """Revoke an API key at once. This cannot be undone. Revoking it again does nothing."""
        return change(f"{_path(tenant_id)}/{version:d}", _api_key, method="DELETE")


def _limits(
    name: str | None,
    scopes: Iterable[Scope] | None,
    expires_at: datetime | None,
    allowed_addresses: Iterable[str] | None,
    allow_absent_keyrings: bool,  # noqa: FBT001 - private
) -> Mapping[str, object] | None:
    """Return the limits in the request's body. None if there are no limits."""
    asked = {
        "name": name,
        "scopes": None if scopes is None else [written_scope(scope) for scope in scopes],
        "expires_at": None if expires_at is None else _time(expires_at),
        "allowed_addresses": None if allowed_addresses is None else list(allowed_addresses),
        "allow_absent_keyrings": allow_absent_keyrings or None,
    }
    body = {field: value for field, value in asked.items() if value is not None}
    return body or None


def written_scope(scope: Scope) -> dict[str, object]:
    """Return the text that is sent for a scope."""
    return {name: list(value) for name, value in asdict(scope).items() if value is not None}


def _time(when: datetime) -> str:
    if when.tzinfo is None:
        raise ValueError("expires_at needs a time zone, such as datetime.UTC")
    return when.astimezone(UTC).isoformat()


def _path(tenant_id: str) -> str:
    return f"/tenants/{in_path(tenant_id)}/api-keys"


def _api_keys(data: Data) -> tuple[ApiKey, ...]:
    return tuple(map(_api_key, data.objects("api_keys")))


def _api_key(data: Data) -> ApiKey:
    return ApiKey(
        key_last4=data.text("key_last4"),
        version=data.integer("version"),
        status=data.text("status"),
        created_at=data.time("created_at"),
        revoked_at=data.time_or_none("revoked_at"),
        last_used_at=data.time_or_none("last_used_at"),
        last_used_from=data.text_or_none("last_used_from"),
        overlap_ends_at=data.time_or_none("overlap_ends_at"),
        name=data.text_or_none("name"),
        scopes=read_scopes(data),
        expires_at=data.time_or_none("expires_at"),
        allowed_addresses=data.texts_or_none("allowed_addresses"),
    )


def _own_api_key(data: Data) -> OwnApiKey:
    return OwnApiKey(
        tenant_id=data.text("tenant_id"),
        version=data.integer("version"),
        name=data.text_or_none("name"),
        scopes=read_scopes(data),
        expires_at=data.time_or_none("expires_at"),
        allowed_addresses=data.texts_or_none("allowed_addresses"),
        rotated=data.flag("rotated"),
    )


def read_scopes(data: Data) -> tuple[Scope, ...] | None:
    """Return the scopes of a response; None if it has none."""
    if not data.has("scopes"):
        return None
    return tuple(
        Scope(
            operations=scope.texts_or_none("operations"),
            keyrings=scope.texts_or_none("keyrings"),
            algorithms=scope.texts_or_none("algorithms"),
        )
        for scope in data.objects("scopes")
    )


def _new_api_key(data: Data) -> NewApiKey:
    return NewApiKey(
        api_key=data.text("api_key"),
        key_last4=data.text("key_last4"),
        version=data.integer("version"),
        status=data.text("status"),
        created_at=data.time("created_at"),
        name=data.text_or_none("name"),
        scopes=read_scopes(data),
        expires_at=data.time_or_none("expires_at"),
        allowed_addresses=data.texts_or_none("allowed_addresses"),
    )


def _rotation(data: Data) -> ApiKeyRotation:
    return ApiKeyRotation(
        new_key=_new_api_key(data.nested("new_key")),
        revoked_version=data.integer_or_none("revoked_version"),
    )
