"""A tenant's API keys, for its own API keys and for the operator."""

from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from pqkeep._call import Call, change, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import ApiKey, ApiKeyRotation, NewApiKey

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ApiKeys(Generic[T_co]):
    """API keys by tenant and version."""

    _transport: T_co

    @Operation
    def create(self, tenant_id: str) -> Call[NewApiKey]:
        """Make one more API key. Keep it: it is shown this once."""
        return change(_path(tenant_id), _new_api_key)

    @Operation
    def list(self, tenant_id: str) -> Call[tuple[ApiKey, ...]]:
        """Return what can be told of a tenant's API keys, by version."""
        return get(_path(tenant_id), _api_keys)

    @Operation
    def rotate(self, tenant_id: str) -> Call[ApiKeyRotation]:
        """Put a new API key in the place of this client's; as the operator, of the newest.

        The old one is accepted for a short while longer, by default 30 seconds. This client goes
        on with the old one: make a new client.
        """
        return change(_path(tenant_id) + "/rotate", _rotation)

    @Operation
    def revoke(self, tenant_id: str, *, version: int) -> Call[ApiKey]:
        """Revoke an API key, at once and for ever. It can be revoked again."""
        return change(f"{_path(tenant_id)}/{version:d}", _api_key, method="DELETE")


def _path(tenant_id: str) -> str:
    return f"/tenants/{quote(tenant_id, safe='')}/api-keys"


def _api_keys(data: Data) -> tuple[ApiKey, ...]:
    return tuple(map(_api_key, data.objects("api_keys")))


def _api_key(data: Data) -> ApiKey:
    return ApiKey(
        key_last4=data.text("key_last4"),
        version=data.integer("version"),
        status=data.text("status"),
        created_at=data.time("created_at"),
        revoked_at=data.time_or_none("revoked_at"),
    )


def _new_api_key(data: Data) -> NewApiKey:
    return NewApiKey(
        api_key=data.text("api_key"),
        key_last4=data.text("key_last4"),
        version=data.integer("version"),
        status=data.text("status"),
        created_at=data.time("created_at"),
    )


def _rotation(data: Data) -> ApiKeyRotation:
    return ApiKeyRotation(
        new_key=_new_api_key(data.nested("new_key")),
        revoked_version=data.integer_or_none("revoked_version"),
    )
