"""Operations of the key service as endpoints.

algorithm -> policy -> allowance -> the other fields -> the key service -> answer
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import Struct

from pqkeep_gateway.access.allowance import Allowances, AllowanceUsedUpError
from pqkeep_gateway.access.callers import PERMISSION_OF
from pqkeep_gateway.access.policy import Allowed, Policy
from pqkeep_gateway.access.principals import TenantPrincipal
from pqkeep_gateway.api.errors import KEY_FIELDS, codes_of_operation, denied_by, error_for
from pqkeep_gateway.api.key_fields import algorithm_field
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.field import Field
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Idempotency,
    KeyService,
    RedactedRepr,
    Request,
)

R = TypeVar("R")
T = TypeVar("T")


class KeyCall(RedactedRepr, Struct, frozen=True, kw_only=True):
    """One call that policy allows, for one tenant and one algorithm."""

    tenant: TenantId
    principal: TenantPrincipal
    algorithm: Algorithm
    call: ApiCall
    attribution: Attribution
    keys: KeyService
    idempotency: Idempotency | None = None
    """What is kept of the Idempotency-Key, where the operation takes one."""

    def __getitem__(self, field: Field[T]) -> T:
        """Return a field's value. Raises FieldError."""
        return field.read(self.call.values)

    async def execute(self, request: Request[R]) -> R:
        """Have the key service carry a request out. Raises KeyServiceError."""
        return await self.keys.execute(request, self.attribution)


@dataclass(frozen=True, slots=True)
class KeyOperation:
    """One row: an operation of the key service over HTTP."""

    method: str
    path: str
    operation: Operation
    handler: Callable[[KeyCall], Awaitable[Data]]
    default: Algorithm | None = None
    """The algorithm where the call names none; None: it must name one."""
    status: int = 200
    idempotent: bool = False
    needs_step_up: bool = False
    denial: Callable[[], ApiError] | None = None
    name: str = field(kw_only=True)
    example: Data = field(kw_only=True)
    fields: tuple[Field[Any], ...] = field(kw_only=True)
    """What it reads beside ``algorithm``."""

    @property
    def algorithm(self) -> Field[Algorithm]:
        """The field ``algorithm``."""
        named = algorithm_field(self.operation)
        return named if self.default is None else named.or_default(self.default)


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """What stands between a request and the keys, and the keys' service."""

    policy: Policy
    allowances: Allowances
    keys: KeyService

    def attribute(
        self, call: ApiCall, operation: Operation, algorithm: Algorithm | None
    ) -> Attribution:
        """Ask the policy, and return who asks and what allows it. Raises ApiError if it denies."""
        decision = self.policy.decide(call.tenant.entitlements, operation, algorithm)
        if not isinstance(decision, Allowed):
            plans = ", ".join(self.policy.plans_that_allow(operation, algorithm)) or "none"
            raise denied_by(decision.policy, algorithm, f"plans that allow it: {plans}")
        asked = call.attribution
        return Attribution(asked.request_id, asked.principal, asked.source_address, decision.policy)


def endpoint(row: KeyOperation, access: KeyAccess) -> Endpoint:
    """Return the endpoint of a row."""
    algorithm_of = row.algorithm

    async def handler(call: ApiCall) -> Data:
        principal = call.tenant
        algorithm = call[algorithm_of]
        key_call = KeyCall(
            tenant=principal.tenant,
            principal=principal,
            algorithm=algorithm,
            call=call,
            attribution=access.attribute(call, row.operation, algorithm),
            keys=access.keys,
            idempotency=call.idempotency,
        )
        try:
            return await access.allowances.spend(
                principal, row.operation, lambda: row.handler(key_call)
            )
        except AllowanceUsedUpError:
            raise denied_by("monthly-allowance", algorithm, "it is used up") from None
        except KeyServiceError as refusal:
            raise error_for(row.operation, refusal.kind) from None

    handler.__doc__ = row.handler.__doc__
    return Endpoint(
        method=row.method,
        path=row.path,
        name=row.name,
        handler=handler,
        permission=PERMISSION_OF[row.operation],
        example=row.example,
        fields=(*row.fields, algorithm_of),
        field_codes=KEY_FIELDS[row.operation],
        codes=codes_of_operation(row.operation),
        status=row.status,
        recorded_as=row.operation,
        idempotent=row.idempotent,
        needs_step_up=row.needs_step_up,
        default_algorithm=row.default,
        denial=row.denial,
    )
