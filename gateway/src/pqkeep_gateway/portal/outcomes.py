"""Words for the audit log's outcomes. Pages show them together with the code."""

from collections.abc import Mapping

from pqkeep_gateway.http.errors import Code
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind

_KINDS: Mapping[Outcome | ErrorKind, str] = {
    Outcome.SUCCESS: "success",
    Outcome.BEGUN: "begun",
    Outcome.HANDED_OUT: "handed out",
    Outcome.CANCELLED: "cancelled",
    Outcome.COMPLETED: "completed",
    ErrorKind.KEY_NOT_FOUND: "no such key",
    ErrorKind.TARGET_NOT_FOUND: "no such target key",
    ErrorKind.KEY_EXISTS: "a key is already active",
    ErrorKind.KEYRING_NOT_FOUND: "no such keyring",
    ErrorKind.KEYRING_EXISTS: "the keyring already exists",
    ErrorKind.KEYRING_QUOTA_REACHED: "keyring quota used up",
    ErrorKind.SCOPE_DENIED: "not in the API key's scopes",
    ErrorKind.PURPOSE_DENIED: "not a purpose of the keyring",
    ErrorKind.RULE_DENIED: "denied by a rule",
    ErrorKind.RULE_WEAKENED: "would weaken a rule",
    ErrorKind.RULE_NOT_FOUND: "no such rule",
    ErrorKind.RULE_LIMIT_REACHED: "too many rules",
    ErrorKind.LABEL_LIMIT_REACHED: "too many labels",
    ErrorKind.DELETION_DENIED: "deletion not allowed",
    ErrorKind.KEYRING_PROTECTED: "keyring protected",
    ErrorKind.KEYRING_DELETED: "keyring deleted",
    ErrorKind.CONTEXT_REQUIRED: "context missing",
    ErrorKind.CONTEXT_REFUSED: "context not allowed",
    ErrorKind.VERSION_BELOW_MINIMUM: "below the minimum version",
    ErrorKind.TARGET_VERSION_BELOW_MINIMUM: "target below its minimum",
    ErrorKind.TARGET_PURPOSE_DENIED: "not a purpose of the target",
    ErrorKind.NO_PURPOSE: "no purpose in this keyring",
    ErrorKind.TENANT_MOVED: "in another shard",
    ErrorKind.STANDBY: "key service on standby",
    ErrorKind.IMPORT_KEY_NOT_FOUND: "no such import key",
    ErrorKind.KEY_QUOTA_REACHED: "key quota used up",
    ErrorKind.VERSION_LIMIT_REACHED: "version limit reached",
    ErrorKind.KEY_STATUS: "not allowed in this status",
    ErrorKind.IDEMPOTENCY_KEY_REUSED: "idempotency key reused",
    ErrorKind.RECORD_NOT_FOUND: "no such record",
    ErrorKind.UNSUPPORTED: "not with this algorithm",
    ErrorKind.ALGORITHM_MISMATCH: "for another algorithm",
    ErrorKind.INVALID_PUBLIC_KEY: "invalid public key",
    ErrorKind.PRIVATE_KEY_MALFORMED: "unknown private key format",
    ErrorKind.PRIVATE_KEY_ALGORITHM: "key of another algorithm",
    ErrorKind.PRIVATE_KEY_WITHOUT_SEED: "private key without seed",
    ErrorKind.PRIVATE_KEY_CONTRADICTION: "contradictory private key",
    ErrorKind.PRIVATE_KEY_PARAMETERS: "unsupported size or exponent",
    ErrorKind.DECRYPTION_FAILED: "decryption failed",
    ErrorKind.VERIFICATION_FAILED: "signature or MAC not valid",
    ErrorKind.TOO_LARGE: "too large",
    ErrorKind.OVERLOADED: "overloaded",
    ErrorKind.UNAVAILABLE: "unavailable",
    ErrorKind.DEADLINE_EXCEEDED: "took too long",
    ErrorKind.BAD_RESPONSE: "invalid response",
    ErrorKind.INTERNAL: "internal error",
}
_CODES: Mapping[Code, str] = {
    Code.AUTH_001: "no valid credential",
    Code.AUTH_MFA_001: "second factor required",
    Code.MFA_001: "wrong code or password",
    Code.MFA_011: "not in the plan",
    Code.MFA_013: "not confirmed",
    Code.FORBIDDEN_001: "not allowed",
    Code.POLICY_001: "denied by policy",
    Code.KMS_020: "only in the portal",
    Code.NOT_FOUND_001: "not found",
    Code.CONFLICT_001: "conflict",
    Code.RATE_LIMIT_001: "too many requests",
    Code.INVALID_001: "invalid request",
    Code.INVALID_002: "invalid request",
    Code.KEM_001: "invalid request",
    Code.KEM_002: "invalid, or not decrypted",
    Code.KEM_007: "invalid request",
    Code.KEM_010: "invalid request",
    Code.KEM_011: "invalid request",
    Code.KEM_012: "not unwrapped",
    Code.SIG_001: "invalid request",
    Code.SIG_002: "too large",
    Code.SIG_010: "invalid request",
    Code.SIG_011: "invalid request",
    Code.INTERNAL_001: "internal error",
    Code.BAD_GATEWAY_001: "invalid response",
    Code.SERVICE_001: "unavailable",
    Code.TIMEOUT_001: "took too long",
}
OUTCOME_WORDS: Mapping[str, str] = {
    **{kind.value: text for kind, text in _KINDS.items()},
    **{code.code: text for code, text in _CODES.items()},
}
"""The words by recorded outcome."""


def outcome(recorded: str) -> str:
    """Return an outcome's words, or the recorded code if it has none."""
    return OUTCOME_WORDS.get(recorded, recorded)
