"""Operations of the key service as endpoints.

algorithm -> policy -> allowance -> the other fields -> the key service -> data
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct

from pqkeep_gateway.access.allowance import Allowances, AllowanceUsedUpError
from pqkeep_gateway.access.idempotency import idempotency_of
from pqkeep_gateway.access.policy import Allowed, Policy
from pqkeep_gateway.access.principals import TenantPrincipal
from pqkeep_gateway.access.roles import PERMISSION_OF
from pqkeep_gateway.api.fields import Fields
from pqkeep_gateway.api.parameters import algorithm_for
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code, codes_of, error_for
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Idempotency, KeyService, RedactedRepr, Request

R = TypeVar("R")


class KeyCall(RedactedRepr, Struct, frozen=True, kw_only=True):
    """One call that policy allows, for one tenant and one algorithm."""

    tenant: TenantId
    principal: TenantPrincipal
    algorithm: Algorithm
    fields: Fields
    attribution: Attribution
    keys: KeyService
    idempotency: Idempotency | None = None
    """What is kept of the Idempotency-Key, where the operation minds it."""

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
    name: str = field(kw_only=True)
    example: Data = field(kw_only=True)
    parameters: tuple[Parameter, ...] = field(kw_only=True)
    """What it reads beside ``algorithm``."""


@dataclass(frozen=True, slots=True)
class KeyAccess:
    """What stands between a request and the keys, and the keys' service."""

    policy: Policy
    allowances: Allowances
    keys: KeyService

    def decide(
        self, principal: TenantPrincipal, operation: Operation, algorithm: Algorithm | None
    ) -> Allowed:
        """Ask the policy, and refuse unless it allows."""
        decision = self.policy.decide(principal.entitlements, operation, algorithm)
        if not isinstance(decision, Allowed):
            raise ApiError(
                Code.POLICY_001,
                f"denied by policy {decision.policy}",
                policy=decision.policy,
                algorithm=algorithm,
            )
        return decision


def endpoint(row: KeyOperation, access: KeyAccess) -> Endpoint:
    """Return the endpoint of a row."""
    takes_body = row.method == "POST"

    async def handler(call: ApiCall) -> Data:
        principal = tenant_of(call)
        fields = Fields(row.operation, call.body if takes_body else {**call.query, **call.path})
        algorithm = fields.algorithm(row.default)
        decision = access.decide(principal, row.operation, algorithm)
        key_call = KeyCall(
            tenant=principal.tenant,
            principal=principal,
            algorithm=algorithm,
            fields=fields,
            attribution=attribute(call, decision),
            keys=access.keys,
            idempotency=idempotency_of(call.idempotency_key),
        )
        try:
            return await access.allowances.spend(
                principal, row.operation, lambda: row.handler(key_call)
            )
        except AllowanceUsedUpError:
            raise ApiError(
                Code.POLICY_001,
                "denied by policy monthly-allowance: it is used up",
                policy="monthly-allowance",
                algorithm=algorithm,
            ) from None
        except KeyServiceError as refusal:
            raise error_for(row.operation, refusal.kind) from None

    handler.__doc__ = row.handler.__doc__
    return Endpoint(
        row.method,
        row.path,
        handler,
        row.status,
        takes_body=takes_body,
        idempotent=row.idempotent,
        needs_step_up=row.operation is Operation.ROTATE_KEY,
        permission=PERMISSION_OF[row.operation],
        recorded_as=row.operation,
        about=about(
            row.name,
            row.operation,
            row.example,
            (*row.parameters, algorithm_for(row.operation, row.default)),
        ),
    )


def about(
    name: str, operation: Operation, example: Data | None, parameters: tuple[Parameter, ...]
) -> About:
    """Return what an operation says of itself."""
    return About(
        name=name,
        caller=Caller.TENANT,
        example=example,
        parameters=parameters,
        codes=codes_of(operation),
    )


def tenant_of(call: ApiCall) -> TenantPrincipal:
    """Return the tenant's principal; the operator has no keys to use."""
    if not isinstance(call.principal, TenantPrincipal):
        raise ApiError(Code.FORBIDDEN_001, "the operator's credential uses no keys")
    return call.principal


def attribute(call: ApiCall, decision: Allowed) -> Attribution:
    """Return who is asking, for the audit log."""
    return Attribution(
        request_id=call.request_id,
        principal=str(call.principal),
        source_address=call.source_address,
        policy=decision.policy,
    )
