"""What the log says about one operation. Never key material, plaintext, message or signature."""

from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_protocol.audit import Event
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import AnyRequest, Attribution

SUCCESS = "success"


def operation_record(
    request: AnyRequest, attribution: Attribution, version: KeyVersion | None, outcome: str
) -> NewRecord:
    """Return the record of one operation. The outcome is SUCCESS or an ErrorKind."""
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
    """Return the record of something the gateway did or refused."""
    return NewRecord(
        tenant=event.tenant,
        principal=event.principal,
        operation=event.operation,
        algorithm=event.algorithm,
        key_version=event.key_version,
        outcome=event.outcome,
        request_id=event.request_id,
        source_address=event.source_address,
        policy=event.policy,
        event_id=str(event.id),
        happened_at_us=event.at_us,
    )
