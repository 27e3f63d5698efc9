"""What the log says about one operation. Never key material, plaintext, message or signature."""

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import Outcome, gateway_operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import AnyRequest, Attribution


def operation_record(
    request: AnyRequest,
    attribution: Attribution,
    version: KeyVersion | None,
    outcome: Outcome | ErrorKind,
) -> NewRecord:
    """Return the record of one operation."""
    return NewRecord(
        tenant=request.tenant,
        principal=attribution.principal,
        operation=request.operation,
        algorithm=request.algorithm,
        key_version=version,
        outcome=outcome,
        request_id=attribution.request_id,
        source_address=attribution.source_address,
        policy=attribution.policy,
    )


def event_record(event: Event) -> NewRecord:
    """Return the record of something the gateway did or refused.

    Raises UNSUPPORTED for what is not in the list of what it can do or refuse.
    """
    operation = gateway_operation(event.operation, event.outcome)
    if operation is None:
        raise KeyServiceError(ErrorKind.UNSUPPORTED)
    return NewRecord(
        tenant=event.tenant,
        principal=event.principal,
        operation=operation,
        algorithm=event.algorithm,
        key_version=event.key_version,
        outcome=event.outcome,
        request_id=event.request_id,
        source_address=event.source_address,
        policy=event.policy,
        event_id=str(event.id),
        happened_at_us=event.at_us,
    )
