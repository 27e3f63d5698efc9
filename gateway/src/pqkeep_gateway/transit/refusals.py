"""The paths of Vault that this service refuses, each with its reason and what to do instead."""

from collections.abc import Awaitable, Callable, Mapping

from pqkeep_gateway.http.endpoint import ApiCall, Document
from pqkeep_gateway.transit.responses import TransitError

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
