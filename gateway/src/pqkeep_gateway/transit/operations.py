"""The operations of the API, for the rows of the face.

A row does everything through the endpoints of the API. So access table, scopes, policies, quotas
and the audit log are the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from cachetools import LRUCache
from msgspec import structs

from pqkeep_gateway.access.admission import Admission, Admitted
from pqkeep_gateway.access.callers import PERMISSION_OF, may
from pqkeep_gateway.access.scopes import algorithms_in_scope
from pqkeep_gateway.api.errors import key_service_error
from pqkeep_gateway.api.keyrings import TRANSIT_TYPES
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Existing, Outcome, Warned
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.pipeline import Pipeline
from pqkeep_gateway.shards import TenantKeyService
from pqkeep_gateway.transit.fields import NAME
from pqkeep_gateway.transit.key_types import KeyType
from pqkeep_gateway.transit.responses import TransitError
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyringName, TenantId
from pqkeep_protocol.messages import MAX_ITEMS, GetKeyring
from pqkeep_protocol.rules import RuleNotice

POLICY = "transit-key-type"
"""The policy in the record of a look-up that the gateway makes for a caller."""
REMEMBERED_TYPES = 100_000
_BY_API_KEY: Mapping[bytes, bytes] = {b"x-api-key": b""}
ABSENT = frozenset({ErrorKind.KEYRING_NOT_FOUND, ErrorKind.KEY_NOT_FOUND})
"""The reasons of the key service for a key that is not there."""
NOT_OURS = (
    "the keyring has no key type, because another interface created it: use its own interface, or"
    " a key with another name"
)


class Operations:
    """Reaches the endpoints of the API, and remembers the types of keys."""

    def __init__(
        self, pipeline: Pipeline, endpoints: Iterable[Endpoint], keys: TenantKeyService
    ) -> None:
        """Take the endpoints of the API, and the key service for look-ups of types."""
        self._pipeline = pipeline
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._keys = keys
        self._types: LRUCache[tuple[TenantId, KeyringName], KeyType] = LRUCache(REMEMBERED_TYPES)

    def __getitem__(self, name: str) -> Endpoint:
        """Return an endpoint of the API."""
        return self._endpoints[name]

    @property
    def admission(self) -> Admission:
        """The admission of credentials."""
        return self._pipeline.admission

    async def run(self, name: str, call: ApiCall, values: Mapping[str, object]) -> Any:
        """Return the data of an operation's response. ``values``: its fields; None is left out.

        A refusal is recorded as a refusal of that operation. Raises ApiError.
        """
        return (await self.run_warned(name, call, values))[0]

    async def run_warned(
        self, name: str, call: ApiCall, values: Mapping[str, object]
    ) -> tuple[Any, Sequence[RuleNotice]]:
        """Return the result of ``run``, and the rule that will end the operation, or None."""
        endpoint = self._endpoints[name]
        inner = structs.replace(call, values=values)
        try:
            self._pipeline.check_access(endpoint, call.principal, _BY_API_KEY)
            await self._pipeline.count_items(endpoint, inner)
            response = await self._pipeline.handle(endpoint, inner)
        except Exception as raised:  # noqa: BLE001 - the error table knows all
            raise await self._error(raised, endpoint, call, values) from None
        notices: tuple[RuleNotice, ...] = ()
        if isinstance(response, Warned):
            notices, response = (response.notice,), response.response
        return (response.data if isinstance(response, Existing) else response), notices

    async def _error(
        self, raised: Exception, endpoint: Endpoint, call: ApiCall, values: Mapping[str, object]
    ) -> ApiError:
        """Return the recorded error for an exception of an operation."""
        error = await self._pipeline.error_for(
            raised, endpoint, call.principal, values, call.attribution
        )
        error.is_recorded = True
        return error

    async def run_items(
        self, name: str, call: ApiCall, key_type: KeyType, items: Sequence[Mapping[str, object]]
    ) -> Sequence[Outcome]:
        """Run an operation with the call's key for each item; return their outcomes.

        ``name``: the endpoint for one item. The quota counts each item once. The caller counts
        items against the rate limit. Raises ApiError.
        """
        endpoint = self._endpoints[f"{name}_batch"]
        if endpoint.outcomes is None:
            raise LookupError(name)
        outcomes: list[Outcome] = []
        values: Mapping[str, object] = {}
        try:
            self._pipeline.check_access(endpoint, call.principal, _BY_API_KEY)
            for first in range(0, len(items), MAX_ITEMS):
                values = {
                    "items": items[first : first + MAX_ITEMS],
                    "algorithm": key_type.algorithm.value,
                    "keyring": call[NAME],
                }
                outcomes += await endpoint.outcomes(structs.replace(call, values=values))
        except Exception as raised:  # noqa: BLE001 - the error table knows all
            raise await self._error(raised, endpoint, call, values) from None
        absent = [done for done in outcomes if isinstance(done, ApiError) and is_absent(done)]
        if absent and self.forget_type(call):  # another gateway may have created the key again
            with suppress(ApiError):
                now = await self.key_type(call, Operation(endpoint.audit_operation))
                if len(absent) == len(outcomes) and now.algorithm is not key_type.algorithm:
                    return await self.run_items(name, call, now, items)
        return outcomes

    async def count_further_request(self, call: ApiCall) -> None:
        """Count one more request, for a call that needs several. Raises RateLimitedError."""
        await self.admission.count_items(call.tenant, 2)

    async def key_type(self, call: ApiCall, operation: Operation) -> KeyType:
        """Return the type of the call's key, for an operation that the caller may do with it.

        Raises ScopeDeniedError before the look-up, because only permitted callers may know whether
        the key exists. Raises ApiError; its kind is KEYRING_NOT_FOUND without the key.
        """
        name = call[NAME]
        algorithms_in_scope(call.principal.scopes, operation, name, Algorithm)
        tenant = call.tenant
        known = self._types.get((tenant.tenant, name))
        if known is not None:
            return known
        request = GetKeyring(tenant=tenant.tenant, keyring=name)
        try:
            found = await self._keys.execute(
                request, call.attribution.under(POLICY), tenant.placement
            )
        except KeyServiceError as refusal:
            raise key_service_error(refusal.kind) from None
        stored = found.keyring.transit_type
        if stored not in TRANSIT_TYPES:
            raise TransitError(NOT_OURS)
        key_type = KeyType(stored, found.keyring.derived)
        self._types[tenant.tenant, name] = key_type
        return key_type

    def forget_type(self, call: ApiCall) -> bool:
        """Forget the type of the call's key; return whether it was remembered."""
        return self._types.pop((call.tenant.tenant, call[NAME]), None) is not None

    def may_create(self, call: ApiCall, algorithm: Algorithm) -> bool:
        """Return whether the caller may create the call's key."""
        scopes, caller, name = call.principal.scopes, call.principal.caller, call[NAME]
        needed = ((Operation.CREATE_KEYRING, None), (Operation.GENERATE_KEY, algorithm))
        return all(
            may(caller, PERMISSION_OF[operation])
            and (scopes is None or scopes.allow(operation, name, of))
            for operation, of in needed
        )

    async def log_in(self, call: ApiCall, credential: str) -> Admitted:
        """Admit a credential that a body contains. Raises the errors of Admission."""
        if call.head is None:
            raise RuntimeError("the endpoint is not of a face")
        client = call.head.client
        return await self.admission.admit(credential, client.address, is_known=client.is_known)


def is_absent(error: ApiError) -> bool:
    """Return whether an error says that the key is not there."""
    return error.kind in ABSENT
