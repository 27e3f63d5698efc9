"""What the log says about one operation. Never key material, plaintext, message or signature."""

import time

from pqkeep_keyservice.storage.store import AuditRow
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import AnyRequest, Attribution

SUCCESS = "success"


def record(
    request: AnyRequest, attribution: Attribution, version: KeyVersion | None, outcome: str
) -> AuditRow:
    """Return the row for one operation. The outcome is SUCCESS or an ErrorKind."""
    return AuditRow(
        recorded_at_us=time.time_ns() // 1000,
        tenant_id=str(request.tenant),
        principal=attribution.principal,
        operation=request.operation,
        algorithm=request.algorithm,
        key_version=version,
        outcome=outcome,
        request_id=attribution.request_id,
        source_address=attribution.source_address,
        policy=attribution.policy,
    )
