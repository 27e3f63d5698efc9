"""How the audit log's outcomes are said to people. The code itself stays beside the words."""

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
    ErrorKind.KEY_EXISTS: "a key is active already",
    ErrorKind.KEYRING_NOT_FOUND: "no such keyring",
    ErrorKind.KEYRING_EXISTS: "the keyring exists already",
    ErrorKind.KEYRING_QUOTA_REACHED: "no more keyrings",
    ErrorKind.SCOPE_DENIED: "not in the API key's scopes",
    ErrorKind.PURPOSE_DENIED: "not what the keyring is for",
    ErrorKind.TARGET_PURPOSE_DENIED: "not what the target is for",
    ErrorKind.NO_PURPOSE: "no purpose for such a key",
    ErrorKind.TENANT_MOVED: "in another shard",
    ErrorKind.STANDBY: "standing by",
    ErrorKind.IMPORT_KEY_NOT_FOUND: "no such import key",
    ErrorKind.KEY_QUOTA_REACHED: "no more keys in the plan",
    ErrorKind.VERSION_LIMIT_REACHED: "no more versions",
    ErrorKind.KEY_STATUS: "not in the key's status",
    ErrorKind.IDEMPOTENCY_KEY_REUSED: "idempotency key reused",
    ErrorKind.RECORD_NOT_FOUND: "no such record",
    ErrorKind.UNSUPPORTED: "not with this algorithm",
    ErrorKind.ALGORITHM_MISMATCH: "another algorithm's",
    ErrorKind.INVALID_PUBLIC_KEY: "invalid public key",
    ErrorKind.PRIVATE_KEY_MALFORMED: "unknown form of private key",
    ErrorKind.PRIVATE_KEY_ALGORITHM: "another algorithm's key file",
    ErrorKind.PRIVATE_KEY_WITHOUT_SEED: "private key without its seed",
    ErrorKind.PRIVATE_KEY_CONTRADICTION: "contradictory private key",
    ErrorKind.DECRYPTION_FAILED: "decryption failed",
    ErrorKind.VERIFICATION_FAILED: "signature not valid",
    ErrorKind.TOO_LARGE: "too large",
    ErrorKind.OVERLOADED: "overloaded",
    ErrorKind.UNAVAILABLE: "unavailable",
    ErrorKind.DEADLINE_EXCEEDED: "took too long",
    ErrorKind.BAD_RESPONSE: "bad answer",
    ErrorKind.INTERNAL: "internal error",
}
_CODES: Mapping[Code, str] = {
    Code.AUTH_001: "no valid credential",
    Code.AUTH_MFA_001: "second factor owed",
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
    Code.BAD_GATEWAY_001: "bad answer",
    Code.SERVICE_001: "unavailable",
    Code.TIMEOUT_001: "took too long",
}
OUTCOME_WORDS: Mapping[str, str] = {
    **{kind.value: text for kind, text in _KINDS.items()},
    **{code.code: text for code, text in _CODES.items()},
}
"""What an outcome means, by what a record has."""


def outcome(recorded: str) -> str:
    """Say an outcome in words; what has none is shown as it was recorded."""
    return OUTCOME_WORDS.get(recorded, recorded)
