"""Every row of the API without services, for tests of the rows' descriptions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pqkeep_gateway.access.entitlements import Plan, Tier
from pqkeep_gateway.api import (
    api_keys,
    approvals,
    audit,
    batch,
    billing,
    campaigns,
    cbom,
    external_keys,
    installation,
    inventory,
    kem,
    key_import,
    key_operation,
    keyless,
    keyrings,
    keys,
    mac,
    notices,
    operators,
    passkeys,
    password_resets,
    plan_limits,
    public_keys,
    re_encryption,
    registration,
    rules,
    search,
    second_factors,
    sign_in,
    signature,
    single_sign_on,
    team,
    tenants,
    usage,
    webhooks,
    workloads,
)
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.tenancy import plans
from pqkeep_gateway.transit import routes


def api_rows(*, open_signup: bool = True) -> tuple[Endpoint, ...]:
    """Return the rows under /api/v1 of a development installation."""
    nothing: Any = None
    no_keys = key_operation.KeyAccess(nothing, nothing, nothing, nothing)
    terms = plans.read(None)
    with_passkeys: Any = SimpleNamespace(disabled="")
    provider: Any = SimpleNamespace(sold=frozenset(Tier) - {Tier.FREE})
    acting = (
        *(key_operation.endpoint(row, nothing) for row in kem.OPERATIONS),
        key_operation.endpoint(re_encryption.OPERATION, nothing),
        *(key_operation.endpoint(row, nothing) for row in signature.OPERATIONS),
        *(key_operation.endpoint(row, nothing) for row in mac.OPERATIONS),
        *keyless.endpoints(nothing),
        *batch.endpoints(no_keys, nothing),
        *keys.endpoints(nothing, terms, nothing, archive_delay_days=0),
        *public_keys.endpoints(nothing),
        *keyrings.endpoints(nothing, nothing, nothing),
        *key_import.endpoints(nothing, terms),
        *campaigns.endpoints(no_keys, nothing, nothing),
        *external_keys.endpoints(nothing, nothing, nothing),
        *webhooks.endpoints(nothing, nothing, nothing, nothing, nothing),
        *workloads.endpoints(nothing, nothing, nothing, nothing, nothing),
        *inventory.endpoints(nothing, nothing, nothing, nothing, nothing),
        *search.endpoints(nothing, nothing, nothing, nothing),
        *cbom.endpoints(no_keys, nothing, ()),
        *rules.endpoints(nothing),
        *tenants.endpoints(
            nothing,
            nothing,
            nothing,
            open_signup=open_signup,
            default_plan=Plan.FREE,
            min_deletion_days=0,
        ),
        *api_keys.endpoints(nothing, nothing, nothing, nothing),
        *audit.endpoints(nothing, nothing, nothing, nothing),
        *notices.endpoints(nothing, nothing, nothing, nothing, nothing, nothing),
        *operators.endpoints(nothing, nothing, nothing),
        *installation.endpoints(nothing),
        *plan_limits.endpoints(nothing, nothing, nothing, nothing, nothing),
        *usage.endpoints(nothing, nothing, nothing, nothing, nothing),
        *sign_in.endpoints(
            nothing, nothing, nothing, nothing, nothing, nothing, nothing, sends_mail=True
        ),
        *passkeys.endpoints(with_passkeys, nothing, nothing, nothing),
        *single_sign_on.endpoints((), nothing),
        *registration.endpoints(nothing, nothing, open_signup=open_signup, sends_mail=True),
        *password_resets.endpoints(nothing, sends_mail=True),
        *second_factors.endpoints(
            nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, sends_mail=True
        ),
        *team.endpoints(nothing, nothing, nothing, nothing, nothing, sends_mail=True),
        *billing.endpoints(terms, provider, nothing, nothing),
    )
    return (*acting, *approvals.endpoints(nothing, acting))


def transit_rows() -> tuple[Endpoint, ...]:
    """Return the rows under /v1/, for clients of Vault Transit."""
    nothing: Any = None
    endpoints = (*api_rows(), installation.health_endpoint(nothing))
    return tuple(routes.face(nothing, endpoints, nothing, nothing, nothing).endpoints)
