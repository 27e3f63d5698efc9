"""Creates the gateway's audit events. ``pqkeep_protocol.audit_events`` lists their operations."""

import time
from uuid import uuid4

from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import GatewayOperation, Outcome
from pqkeep_protocol.keys import KeyringName, KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution


def event(
    attribution: Attribution,
    tenant: TenantId,
    operation: GatewayOperation,
    *,
    outcome: str = Outcome.SUCCESS,
    policy: str = "",
    algorithm: str | None = None,
    key_version: int | None = None,
    keyring: KeyringName | None = None,
) -> Event:
    """Return an event with the current time. The outcome of a refusal is its error code.

    ``key_version``: of a key or of an API key.
    """
    return Event(
        id=uuid4(),
        at_us=time.time_ns() // 1000,
        tenant=tenant,
        principal=attribution.principal,
        operation=operation,
        algorithm=algorithm,
        key_version=None if key_version is None else KeyVersion(key_version),
        outcome=outcome,
        request_id=attribution.request_id,
        source_address=attribution.source_address,
        policy=policy,
        keyring=keyring,
    )
