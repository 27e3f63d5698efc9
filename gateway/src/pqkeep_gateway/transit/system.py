"""Requests that need no key of the client: sys/*, auth/*, transit/hash and transit/random."""

import base64
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import structs

from pqkeep_gateway.access.admission import UnknownCredentialError
from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.access.principals import ApiKeyPrincipal
from pqkeep_gateway.api.api_keys import OwnApiKey
from pqkeep_gateway.api.key_fields import MAX_MESSAGE
from pqkeep_gateway.api.keyless import HashedData, RandomData
from pqkeep_gateway.api.workloads import ExchangedToken, GrantType
from pqkeep_gateway.http.endpoint import ApiCall, Document
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field
from pqkeep_gateway.transit.batches import Reader
from pqkeep_gateway.transit.fields import binary, integer, text
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import TransitError, document, no_content, success
from pqkeep_protocol.algorithms import MAX_RANDOM, HashFunction

VERSION = "1.19.0+pqkeep"
"""The version of Vault that clients see: newer ones expect nothing more of Transit."""
UNHEALTHY = 503
_NAME = "pqkeep"
_MOUNT: Mapping[str, object] = {
    "accessor": "transit_pqkeep",
    "config": {"default_lease_ttl": 0, "force_no_cache": False, "max_lease_ttl": 0},
    "description": "keys of pqkeep",
    "external_entropy_access": False,
    "local": False,
    "options": {},
    "plugin_version": "",
    "running_plugin_version": "",
    "running_sha256": "",
    "seal_wrap": False,
    "type": "transit",
    "uuid": "",
}
MOUNT = "transit"

_ROLE_ID = text("role_id")
_SECRET_ID = text("secret_id")
LOGIN: tuple[Field[Any], ...] = (_ROLE_ID, _SECRET_ID)
_ROLE = text("role")
_JWT = text("jwt")
TOKEN_LOGIN: tuple[Field[Any], ...] = (_ROLE, _JWT)


class System:
    """The handlers."""

    def __init__(
        self,
        operations: Operations,
        clock: Clock,
        check_head: Callable[[ApiCall], Awaitable[None]],
    ) -> None:
        """Take the operations of the API, the clock for remaining times, and a check of headers."""
        self._operations = operations
        self._clock = clock
        self._check_head = check_head

    async def health(self, call: ApiCall) -> Document:
        """Tell whether requests can be served: 200, or 503 as a sealed Vault."""
        is_healthy = await self._is_healthy(call)
        return document(
            {
                "initialized": True,
                "sealed": not is_healthy,
                "standby": False,
                "performance_standby": False,
                "replication_performance_mode": "disabled",
                "replication_dr_mode": "disabled",
                "server_time_utc": int(self._clock()),
                "version": VERSION,
                "cluster_name": _NAME,
                "cluster_id": "",
            },
            200 if is_healthy else UNHEALTHY,
        )

    async def seal_status(self, call: ApiCall) -> Document:
        """Tell whether requests can be served, as the state of a seal."""
        return document(
            {
                "type": "shamir",
                "initialized": True,
                "sealed": not await self._is_healthy(call),
                "t": 1,
                "n": 1,
                "progress": 0,
                "nonce": "",
                "version": VERSION,
                "build_date": "",
                "migration": False,
                "cluster_name": _NAME,
                "cluster_id": "",
                "recovery_seal": False,
                "storage_type": _NAME,
            }
        )

    async def leader(self, call: ApiCall) -> Document:
        """Say that there is no other node."""
        return document(
            {
                "ha_enabled": False,
                "is_self": False,
                "active_time": "0001-01-01T00:00:00Z",
                "leader_address": "",
                "leader_cluster_address": "",
            }
        )

    async def is_initialised(self, call: ApiCall) -> Document:
        """Report the server as initialised. It is initialised before it listens."""
        return document({"initialized": True})

    async def mounts(self, call: ApiCall) -> Document:
        """List the one mount."""
        return success(call, {f"{MOUNT}/": _MOUNT})

    async def ui_mounts(self, call: ApiCall) -> Document:
        """List the only mount, as the user interface requests it."""
        return success(call, {"auth": {}, "secret": {f"{MOUNT}/": _MOUNT}})

    async def ui_mount(self, call: ApiCall) -> Document:
        """Return the only mount, which contains the path."""
        return success(call, {**_MOUNT, "path": f"{MOUNT}/"})

    async def look_up_self(self, call: ApiCall) -> Document:
        """Return the calling API key as a token."""
        own = await self._own(call)
        seconds = self._seconds(own)
        return success(
            call,
            {
                "accessor": _accessor(own),
                "creation_time": 0,
                "creation_ttl": seconds,
                "display_name": own.name or _NAME,
                "entity_id": "",
                "expire_time": own.expires_at,
                "explicit_max_ttl": 0,
                "id": _token(call),
                "meta": _meta(own),
                "num_uses": 0,
                "orphan": True,
                "path": "auth/token/create",
                "policies": ["default"],
                "renewable": False,
                "ttl": seconds,
                "type": "service",
            },
        )

    async def renew_self(self, call: ApiCall) -> Document:
        """Return the API key that calls. Its expiry does not change."""
        return success(call, None, auth=self._auth(await self._own(call), _token(call)))

    async def revoke_self(self, call: ApiCall) -> Document:
        """Do nothing: programs revoke their token when they end, and start again with the same."""
        await self._own(call)
        return no_content()

    async def log_in(self, call: ApiCall) -> Document:
        """Return the API key in secret_id as the token. role_id is its name, if it has one."""
        secret_id = call[_SECRET_ID] or ""
        try:
            principal = (await self._operations.log_in(call, secret_id)).principal
        except UnknownCredentialError:
            raise TransitError("invalid role or secret ID") from None
        is_named = isinstance(principal, ApiKeyPrincipal) and principal.name is not None
        if not isinstance(principal, ApiKeyPrincipal) or (
            is_named and principal.name != call[_ROLE_ID]
        ):
            raise TransitError("invalid role or secret ID")
        admitted = _as(call, principal)
        await self._check_head(admitted)
        return success(call, None, auth=self._auth(await self._own(admitted), secret_id))

    async def log_in_by_token(self, call: ApiCall) -> Document:
        """Return a workload's short-lived API key for its token, as a token."""
        fields = {
            "grant_type": GrantType.TOKEN_EXCHANGE.value,
            "subject_token": call[_JWT],
            "role": call[_ROLE],
        }
        made: ExchangedToken = await self._operations.run("exchange_token", call, fields)
        principal = (await self._operations.log_in(call, made.access_token)).principal
        if not isinstance(principal, ApiKeyPrincipal):
            raise TransitError("invalid role or JWT")
        own = await self._own(_as(call, principal))
        return success(call, None, auth=self._auth(own, made.access_token))

    async def _own(self, call: ApiCall) -> OwnApiKey:
        own: OwnApiKey = await self._operations.run("get_own_api_key", call, {})
        return own

    async def _is_healthy(self, call: ApiCall) -> bool:
        try:
            await self._operations.run("check_health", call, {})
        except ApiError:
            return False
        return True

    def _auth(self, own: OwnApiKey, token: str) -> Mapping[str, object]:
        return {
            "client_token": token,
            "accessor": _accessor(own),
            "policies": ["default"],
            "token_policies": ["default"],
            "metadata": _meta(own),
            "lease_duration": self._seconds(own),
            "renewable": False,
            "entity_id": "",
            "token_type": "service",
            "orphan": True,
            "mfa_requirement": None,
            "num_uses": 0,
        }

    def _seconds(self, own: OwnApiKey) -> int:
        """Return the seconds until the API key expires; 0: it does not."""
        if own.expires_at is None:
            return 0
        return max(int(datetime.fromisoformat(own.expires_at).timestamp() - self._clock()), 1)


def _as(call: ApiCall, principal: ApiKeyPrincipal) -> ApiCall:
    """Return the call as one of another principal."""
    return structs.replace(
        call, principal=principal, attribution=call.attribution.by(str(principal))
    )


def _accessor(own: OwnApiKey) -> str:
    return f"{own.tenant_id}.{own.version}"


def _meta(own: OwnApiKey) -> Mapping[str, str]:
    return {"tenant_id": own.tenant_id, "version": str(own.version)}


def _token(call: ApiCall) -> str:
    """Return the credential of the call, for its sender."""
    return "" if call.head is None else call.head.headers.get(b"x-api-key", b"").decode("latin-1")


_INPUT = binary("input", at_most=MAX_MESSAGE)
_ALGORITHM = text("algorithm")
_HASH_ALGORITHM = text("hash_algorithm")
"""The hash algorithm in a request's path."""
_FORMAT = text("format")
_BYTES = integer("bytes")
_SOURCE = text("source")
"""Alone in the path, it can be the number of bytes."""

HASH: tuple[Field[Any], ...] = (_HASH_ALGORITHM, _INPUT, _ALGORITHM, _FORMAT)
RANDOM: tuple[Field[Any], ...] = (_BYTES, _SOURCE, _FORMAT)

_FUNCTIONS = {function.lower().replace("sha-", "sha2-"): function for function in HashFunction}
_SOURCES = ("platform", "seal", "all")
_DEFAULT_SIZE = 32
_NO_SEAL = "no seal/entropy augmentation available, using platform entropy source"


class TransitTools:
    """The handlers."""

    def __init__(self, operations: Operations) -> None:
        """Take the operations of the API."""
        self._operations = operations

    async def hash(self, call: ApiCall) -> Document:
        """Hash an input with SHA-2 or SHA-3."""
        name = call[_HASH_ALGORITHM] or call[_ALGORITHM] or "sha2-256"
        function = _FUNCTIONS.get(name)
        if function is None:
            raise TransitError(f"unsupported algorithm; the names are: {', '.join(_FUNCTIONS)}")
        form = _form(call, "hex")
        data = Reader(call.values).binary(_INPUT, "unable to decode input as base64: ")
        if data is None:
            raise TransitError("input missing")
        fields = {"data": data, "hash_algorithm": function.value}
        done: HashedData = await self._operations.run("hash", call, fields)
        return success(call, {"sum": _encoded(done.hash, form)})

    async def random(self, call: ApiCall) -> Document:
        """Return random bytes of the key service."""
        source, size = _source_and_size(call)
        if size < 1:
            raise TransitError('"bytes" cannot be less than 1')
        if size > MAX_RANDOM:
            raise TransitError(f'"bytes" should be less than {MAX_RANDOM}')
        form = _form(call, "base64")
        made: RandomData = await self._operations.run("generate_random", call, {"size": size})
        warnings = [_NO_SEAL] if source == "seal" else None
        return success(call, {"random_bytes": _encoded(made.random, form)}, warnings=warnings)


def _source_and_size(call: ApiCall) -> tuple[str, int]:
    """Return the source and the number of bytes. Raises TransitError."""
    source, size = call[_SOURCE] or _SOURCES[0], call[_BYTES]
    if source.isascii() and source.isdigit() and len(source) <= len(str(MAX_RANDOM)):
        return _SOURCES[0], int(source)
    if source not in _SOURCES:
        raise TransitError('unsupported entropy source; must be "platform" or "seal", or "all"')
    return source, _DEFAULT_SIZE if size is None else size


def _form(call: ApiCall, default: str) -> str:
    form = call[_FORMAT] or default
    if form not in {"hex", "base64"}:
        raise TransitError('unsupported encoding format; must be "hex" or "base64"')
    return form


def _encoded(data: str, form: str) -> str:
    return data if form == "base64" else base64.b64decode(data).hex()
