"""POST /api/v1/tools/*: operations of the key service that use no key.

They are counted like uses of keys. The audit log has their refusals only.
"""

from typing import Annotated, Any, TypeVar

from msgspec import Meta

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.errors import (
    BAD_REQUEST_FIELDS,
    CHANGE_PLAN,
    KEYLESS_CODES,
    denied_by,
)
from pqkeep_gateway.api.key_fields import MAX_MESSAGE
from pqkeep_gateway.api.key_operation import KeyAccess
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import base64_field, choice_field, integer_field
from pqkeep_gateway.http.text import Base64, base64
from pqkeep_gateway.tenancy.quota import QuotaUsedUpError
from pqkeep_protocol.algorithms import MAX_RANDOM, HashFunction
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.messages import GenerateRandom, HashData, Request

R = TypeVar("R")

_DATA = base64_field(
    "data", f"The data to hash: at most {MAX_MESSAGE:,} bytes.", "aGVsbG8=", at_most=MAX_MESSAGE
)
_FUNCTION = choice_field(
    "hash_algorithm", "The hash function.", tuple(HashFunction), HashFunction.SHA_256
).or_default(HashFunction.SHA_256)
_SIZE = integer_field(
    "size",
    f"The number of random bytes: at most {MAX_RANDOM:,}. Left out: 32.",
    32,
    at_least=1,
    at_most=MAX_RANDOM,
).or_default(32)


class HashedData(Data, frozen=True, kw_only=True):
    """The digest of some data."""

    hash: Annotated[Base64, Meta(description="The digest.")]
    hash_algorithm: Annotated[HashFunction, Meta(description="The hash function.")]


class RandomData(Data, frozen=True, kw_only=True):
    """New random bytes."""

    random: Annotated[Base64, Meta(description="The random bytes. The service does not keep them.")]


def endpoints(access: KeyAccess) -> tuple[Endpoint, ...]:
    """Return the endpoints."""

    async def execute(call: ApiCall, event: AuditEvent, request: Request[R]) -> R:
        async def work() -> R:
            return await access.keys.execute(request, call.attribution, call.tenant.placement)

        try:
            return await access.quotas.spend(call.tenant, event, work)
        except QuotaUsedUpError:
            hint = f"the monthly quota is used up; {CHANGE_PLAN}"
            raise denied_by("monthly-allowance", None, hint) from None

    async def hash_(call: ApiCall) -> HashedData:
        """Hash data with SHA-2 or SHA-3. No key takes part."""
        function = call[_FUNCTION]
        request = HashData(tenant=call.tenant.tenant, function=function, data=call[_DATA])
        done = await execute(call, AuditEvent.HASH, request)
        return HashedData(hash=base64(done.digest), hash_algorithm=function)

    async def generate_random(call: ApiCall) -> RandomData:
        """Make random bytes with the key service's random generator. No key takes part."""
        request = GenerateRandom(tenant=call.tenant.tenant, size=call[_SIZE])
        return RandomData(
            random=base64((await execute(call, AuditEvent.GENERATE_RANDOM, request)).data)
        )

    of_both: dict[str, Any] = {
        "method": "POST",
        "permission": Permission.USE_KEYS,
        "field_codes": BAD_REQUEST_FIELDS,
        "codes": KEYLESS_CODES,
    }
    example = base64(bytes(range(32)))
    return (
        Endpoint(
            path="/tools/hash",
            name="hash",
            handler=hash_,
            example=HashedData(hash=example, hash_algorithm=HashFunction.SHA_256),
            fields=(_DATA, _FUNCTION),
            **of_both,
        ),
        Endpoint(
            path="/tools/random",
            name="generate_random",
            handler=generate_random,
            example=RandomData(random=example),
            fields=(_SIZE,),
            body_optional=True,
            **of_both,
        ),
    )
