"""The table of the face: paths, and the operations of the API that they are; and the paths that are refused."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS
from pqkeep_gateway.http.endpoint import ApiCall, Document, Endpoint, Warned
from pqkeep_gateway.http.field import Field
from pqkeep_gateway.http.pipeline import Headers, Pipeline
from pqkeep_gateway.http.road import Face
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.storage.tenants import Tenant
from pqkeep_gateway.transit import encryption, keys, signing, system
from pqkeep_gateway.transit.encryption import TransitEncryption
from pqkeep_gateway.transit.fields import NAME
from pqkeep_gateway.transit.keys import TransitKeys
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import TransitError, error_response
from pqkeep_gateway.transit.signing import TransitSigning
from pqkeep_gateway.transit.system import System, TransitTools
from pqkeep_protocol.keys import TenantId

_EXPORT = "export is refused: private keys never leave the key service"
_IMPORT = "import is refused: import a key with POST /api/v1/kms/keys/import, or rotate this one"
_RESTORE = "restore is refused: it needs a backup that Vault made; use pqkeep transit migrate"
_CERTIFICATES = "certificates are refused: this service has none for its keys"
_ONE_MOUNT = "there is one mount, transit/: it cannot be changed, and there is no other one"
_NO_CHILD = (
    "a token is an API key, which an owner creates in the portal; set skip_child_token in Terraform"
)
REFUSALS: Mapping[tuple[str, str], str] = {
    ("GET", "transit/export/{type}/{name}"): _EXPORT,
    ("GET", "transit/export/{type}/{name}/{version}"): _EXPORT,
    ("GET", "transit/byok-export/{target}/{name}"): _EXPORT,
    ("GET", "transit/byok-export/{target}/{name}/{version}"): _EXPORT,
    ("GET", "transit/backup/{name}"): (
        "backup is refused: private keys never leave the key service; pqkeepd backup makes"
        " encrypted backups"
    ),
    ("POST", "transit/restore"): _RESTORE,
    ("POST", "transit/restore/{name}"): _RESTORE,
    ("POST", "transit/keys/{name}/trim"): (
        "trim is refused: set min_decryption_version, and let an owner archive key versions in the"
        " portal"
    ),
    ("POST", "transit/keys/{name}/import"): _IMPORT,
    ("POST", "transit/keys/{name}/import_version"): _IMPORT,
    ("POST", "transit/keys/{name}/csr"): _CERTIFICATES,
    ("POST", "transit/keys/{name}/set-certificate"): _CERTIFICATES,
    ("GET", "transit/wrapping_key"): _IMPORT,
    ("POST", "auth/token/create"): _NO_CHILD,
    ("POST", "sys/mounts/{path:path}"): _ONE_MOUNT,
    ("DELETE", "sys/mounts/{path:path}"): _ONE_MOUNT,
}
"""The reason by method and path."""


def refuse(reason: str) -> Callable[[ApiCall], Awaitable[Document]]:
    """Return a handler that refuses every call."""

    async def handler(call: ApiCall) -> Document:
        raise TransitError(reason)

    return handler


PREFIX = "/v1/"
TOKEN, NAMESPACE, WRAP_TTL = b"x-vault-token", b"x-vault-namespace", b"x-vault-wrap-ttl"
_BEARER = b"bearer "
_REPLACED = frozenset({b"cookie", b"x-api-key"})
FindTenant = Callable[[TenantId], Awaitable[Tenant]]
"""Returns a tenant. Raises TenantNotFoundError, UnavailableError."""
OWN_API_KEY = "get_own_api_key"
"""The operation of everything that any API key may ask."""


@dataclass(frozen=True, slots=True)
class Row:
    """One path and method."""

    method: str
    path: str
    operation: str
    """The name of the API's endpoint, which has the permission and the scopes' name."""
    handler: Callable[[ApiCall], Awaitable[Document | Warned]]
    fields: tuple[Field[Any], ...] = ()
    """The fields of the body or query."""
    is_public: bool = False
    """Whether it needs no credential."""


def rows(
    operations: Operations, clock: Clock, check_head: Callable[[ApiCall], Awaitable[None]]
) -> tuple[Row, ...]:
    """Return the table. ``check_head``: as ``_check_head``, for the caller that a login finds."""
    transit_keys = TransitKeys(operations)
    encryption_ = TransitEncryption(operations, transit_keys)
    signing_, tools_ = TransitSigning(operations), TransitTools(operations)
    system_ = System(operations, clock, check_head)
    return (
        Row("GET", "sys/health", "check_health", system_.health, is_public=True),
        Row("GET", "sys/seal-status", "check_health", system_.seal_status, is_public=True),
        Row("GET", "sys/leader", "check_health", system_.leader, is_public=True),
        Row("GET", "sys/init", "check_health", system_.is_initialised, is_public=True),
        Row("GET", "sys/mounts", OWN_API_KEY, system_.mounts),
        Row("GET", "sys/internal/ui/mounts", OWN_API_KEY, system_.ui_mounts),
        Row("GET", "sys/internal/ui/mounts/transit", OWN_API_KEY, system_.ui_mount),
        Row("GET", "sys/internal/ui/mounts/transit/{path:path}", OWN_API_KEY, system_.ui_mount),
        Row("GET", "auth/token/lookup-self", OWN_API_KEY, system_.look_up_self),
        Row("POST", "auth/token/renew-self", OWN_API_KEY, system_.renew_self),
        Row("POST", "auth/token/revoke-self", OWN_API_KEY, system_.revoke_self),
        Row(
            "POST", "auth/approle/login", OWN_API_KEY, system_.log_in, system.LOGIN, is_public=True
        ),
        *(
            Row(
                *("POST", f"auth/{method}/login", "exchange_token", system_.log_in_by_token),
                system.TOKEN_LOGIN,
                is_public=True,
            )
            for method in ("jwt", "kubernetes")
        ),
        Row("LIST", "transit/keys", "list_keyrings", transit_keys.list_, keys.LIST),
        Row("GET", "transit/keys", "list_keyrings", transit_keys.read_list, keys.READ_LIST),
        Row("POST", "transit/keys/{name}", "create_keyring", transit_keys.create, keys.NEW_KEY),
        Row("GET", "transit/keys/{name}", "get_keyring", transit_keys.read),
        Row("DELETE", "transit/keys/{name}", "delete_keyring", transit_keys.delete),
        Row(
            "POST",
            "transit/keys/{name}/config",
            "update_keyring",
            transit_keys.configure,
            keys.CONFIG,
        ),
        Row("POST", "transit/keys/{name}/rotate", "rotate_key", transit_keys.rotate),
        Row(
            "DELETE", "transit/keys/{name}/soft-delete", "delete_keyring", transit_keys.soft_delete
        ),
        Row(
            "POST",
            "transit/keys/{name}/soft-delete-restore",
            "restore_keyring",
            transit_keys.restore,
        ),
        Row("POST", "transit/encrypt/{name}", "encrypt", encryption_.encrypt, encryption.ENCRYPT),
        Row("POST", "transit/decrypt/{name}", "decrypt", encryption_.decrypt, encryption.DECRYPT),
        *(
            Row(method, path, OWN_API_KEY, refuse(reason))
            for (method, path), reason in REFUSALS.items()
        ),
        Row("POST", "transit/rewrap/{name}", "re_encrypt", encryption_.rewrap, encryption.REWRAP),
        Row(
            "POST",
            "transit/datakey/{kind}/{name}",
            "generate_data_key",
            encryption_.data_key,
            encryption.DATA_KEY,
        ),
        *_with_algorithm("transit/sign/{name}", OWN_API_KEY, signing_.sign, signing.SIGN),
        *_with_algorithm("transit/verify/{name}", OWN_API_KEY, signing_.verify, signing.VERIFY),
        *_with_algorithm("transit/hmac/{name}", "compute_mac", signing_.hmac, signing.HMAC),
        *_with_algorithm("transit/hash", "hash", tools_.hash, system.HASH),
        Row("POST", "transit/random", "generate_random", tools_.random, system.RANDOM),
        Row("POST", "transit/random/{source}", "generate_random", tools_.random, system.RANDOM),
        Row(
            "POST",
            "transit/random/{source}/{bytes}",
            "generate_random",
            tools_.random,
            system.RANDOM,
        ),
    )


def _with_algorithm(
    path: str,
    operation: str,
    handler: Callable[[ApiCall], Awaitable[Document | Warned]],
    fields: tuple[Field[Any], ...],
) -> tuple[Row, Row]:
    """Return the rows of a path, which can end with the name of a hash function."""
    return (
        Row("POST", path, operation, handler, fields),
        Row("POST", f"{path}/{{hash_algorithm}}", operation, handler, fields),
    )


def face(
    pipeline: Pipeline,
    endpoints: Iterable[Endpoint],
    look_ups: TenantKeyService,
    find_tenant: FindTenant,
    clock: Clock,
) -> Face:
    """Return the face for the API's endpoints. ``look_ups``: the key service, for types."""
    operations = Operations(pipeline, endpoints, look_ups)
    check_head = partial(_check_head, find_tenant=find_tenant)

    def endpoint(row: Row) -> Endpoint:
        base = operations[row.operation]

        async def handler(call: ApiCall) -> Document | Warned:
            await check_head(call)
            return await row.handler(call)

        has_name = "{name}" in row.path
        return Endpoint(
            method=row.method,
            path=row.path,
            name=f"{row.method} {PREFIX}{row.path}",
            handler=handler,
            permission=Permission.PUBLIC if row.is_public else base.permission,
            example=None,
            fields=((NAME,) if has_name else ()) + row.fields,
            field_codes=BAD_REQUEST_FIELDS,
            recorded_as=base.audit_operation,
            body_optional=True,
            disabled=base.disabled,
            keyring_of=NAME.read if has_name else None,
        )

    return Face(
        prefix=PREFIX,
        endpoints=tuple(endpoint(row) for row in rows(operations, clock, check_head)),
        read_credential=read_credential,
        error_response=error_response,
    )


def read_credential(headers: Headers, permission: Permission) -> dict[bytes, bytes]:
    """Return headers with the token in X-API-Key. Public requests have none."""
    read = {name: value for name, value in headers.items() if name not in _REPLACED}
    if permission is not Permission.PUBLIC:
        read[b"x-api-key"] = headers.get(TOKEN) or _bearer(headers)
    return read


def _bearer(headers: Mapping[bytes, bytes]) -> bytes:
    given = headers.get(b"authorization", b"")
    return given[len(_BEARER) :] if given[: len(_BEARER)].lower() == _BEARER else b""


async def _check_head(call: ApiCall, find_tenant: FindTenant) -> None:
    """Refuse headers that request a missing feature. Raises TransitError."""
    headers = {} if call.head is None else call.head.headers
    if headers.get(WRAP_TTL, b"0").strip() not in {b"", b"0"}:
        raise TransitError(
            "X-Vault-Wrap-TTL is refused: responses are not wrapped in another token"
        )
    given = headers.get(NAMESPACE, b"").decode("latin-1").strip("/ ")
    tenant = call.principal.tenant
    if not given or tenant is None or given == str(tenant):
        return
    if given != (await find_tenant(tenant)).name:
        raise TransitError(
            "X-Vault-Namespace is refused: a token belongs to one tenant; leave it out, or send"
            " that tenant's name or id"
        )
