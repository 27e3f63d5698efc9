"""/api/v1/kms/keys: the lifecycle of keys, and looking them up."""

from msgspec import structs

from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, error_for
from pqkeep_gateway.http.fields import Fields
from pqkeep_gateway.http.key_operation import (
    KeyAccess,
    KeyCall,
    KeyOperation,
    attribute,
    endpoint,
    tenant_of,
)
from pqkeep_gateway.tenancy.plans import Plans, bound
from pqkeep_protocol.algorithms import Operation
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import KeyInfo
from pqkeep_protocol.messages import (
    GenerateKey,
    GetActiveKey,
    GetKey,
    ListKeys,
    RetireKey,
    RotateKey,
)


def endpoints(access: KeyAccess, plans: Plans) -> tuple[Endpoint, ...]:
    """Return the endpoints of key management."""

    async def generate(call: KeyCall) -> Data:
        quota = bound(plans[call.principal.standing.tier_in_force].pqc_keys)
        made = await call.execute(
            GenerateKey(tenant=call.tenant, algorithm=call.algorithm, quota=quota, once=call.once)
        )
        return _key(made.key)

    async def list_keys(call: ApiCall) -> Data:
        principal = tenant_of(call)
        fields = Fields(Operation.LIST_KEYS, call.query)
        request = ListKeys(
            tenant=principal.tenant,
            algorithm=fields.optional_algorithm(),
            status=fields.optional_status(),
        )
        decision = access.decide(principal, request.operation, request.algorithm)
        listed: list[KeyInfo] = []
        try:
            while True:
                page = await access.keys.execute(request, attribute(call, decision))
                listed += page.keys
                if not page.keys or len(listed) >= page.total:
                    break
                request = structs.replace(request, skip=len(listed))
        except KeyServiceError as refusal:
            raise error_for(request.operation, refusal.kind) from None
        return {"keys": tuple(_key(key) for key in listed), "total": len(listed)}

    rows = (
        KeyOperation(
            "POST",
            "/kms/keys/generate",
            Operation.GENERATE_KEY,
            generate,
            status=201,
            minds_idempotency_key=True,
        ),
        KeyOperation(
            "POST",
            "/kms/keys/rotate",
            Operation.ROTATE_KEY,
            rotate,
            status=201,
            minds_idempotency_key=True,
        ),
        KeyOperation("POST", "/kms/keys/retire", Operation.RETIRE_KEY, retire),
        KeyOperation("GET", "/kms/keys/active", Operation.GET_ACTIVE_KEY, get_active),
        KeyOperation("GET", "/kms/keys/{key_version}", Operation.GET_KEY, get),
    )
    return (
        Endpoint("GET", "/kms/keys", list_keys),
        Endpoint("POST", "/kms/keys/archive", archive),
        *(endpoint(row, access) for row in rows),
    )


async def rotate(call: KeyCall) -> Data:
    """Put a new key in the active one's place."""
    rotated = await call.execute(
        RotateKey(tenant=call.tenant, algorithm=call.algorithm, once=call.once)
    )
    return {
        "public_key": rotated.key.public_key,
        "key_version": rotated.key.version,
        "algorithm": rotated.key.algorithm,
        "old_key_version": rotated.old_version,
    }


async def retire(call: KeyCall) -> Data:
    """Allow no new use of a key."""
    version = call.fields.version()
    retired = await call.execute(
        RetireKey(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return _key(retired.key)


async def get(call: KeyCall) -> Data:
    """Return one version, whatever its status."""
    version = call.fields.version_in_path()
    found = await call.execute(
        GetKey(tenant=call.tenant, algorithm=call.algorithm, version=version)
    )
    return _key(found.key)


async def get_active(call: KeyCall) -> Data:
    """Return the active key."""
    found = await call.execute(GetActiveKey(tenant=call.tenant, algorithm=call.algorithm))
    return _key(found.key)


async def archive(call: ApiCall) -> Data:
    """Refuse: a program may not destroy a key, whatever it asks for."""
    tenant_of(call)
    raise ApiError(Code.KMS_020, "keys are archived in the portal, not over the API")


def _key(key: KeyInfo) -> Data:
    return {
        "key_version": key.version,
        "algorithm": key.algorithm,
        "status": key.status,
        "public_key": key.public_key,
        "created_at": key.created_at,
    }
