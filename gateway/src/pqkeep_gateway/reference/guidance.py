"""The meaning of each error code and the remedy, for the reference."""

from collections.abc import Mapping
from dataclasses import dataclass

from pqkeep_gateway.http.errors import Code


@dataclass(frozen=True, slots=True)
class Guidance:
    """One error in words."""

    when: str
    what_to_do: str
    field: str | None = None
    """A possible field at fault, for the example."""


GUIDANCE: Mapping[Code, Guidance] = {
    Code.AUTH_001: Guidance(
        "The credential is missing, unknown, revoked or expired, its address is not "
        "allowed, the password is wrong, or the session or mailed token has ended.",
        "Check the header X-API-Key, or sign in again.",
    ),
    Code.AUTH_MFA_001: Guidance(
        "A second factor is required: of this sign-in, or of everybody in the organization.",
        "Send a code with challenge_token to /auth/mfa/verify. Without a challenge, "
        "enroll a second factor.",
    ),
    Code.MFA_001: Guidance(
        "The code is wrong or was used before, or the password at a step-up is wrong.",
        "Wait for the next code, or for the seconds in Retry-After.",
    ),
    Code.MFA_011: Guidance(
        "The plan does not include requiring a second factor.", "Use another plan."
    ),
    Code.MFA_013: Guidance(
        "The request needs a fresh proof of identity, or it was sent with an operator's "
        "session, which only reads.",
        "Get a token from /auth/step-up and send it in X-Step-Up-Token. As the operator, "
        "send the credential in X-API-Key.",
    ),
    Code.FORBIDDEN_001: Guidance(
        "The access table denies this caller, the tenant is suspended, the plan's number "
        "of keys is used up, the request comes from a page of another site, or a part "
        "that it needs is not configured.",
        "Use another credential, or ask the operator.",
    ),
    Code.POLICY_001: Guidance(
        "A policy denies this. The message names it: the plan does not include the "
        "algorithm or operation, the monthly quota is used up, the keyring's purposes "
        "or minimum versions exclude it, or the API key's scopes exclude it.",
        "Use another algorithm or an API key with other scopes. An operator can change the "
        "plan: pqkeep tenants update TENANT --plan PLAN.",
    ),
    Code.KMS_020: Guidance(
        "Keys cannot be archived with an API key or the operator's credential.",
        "Archive the key in the portal, as owner or admin.",
    ),
    Code.NOT_FOUND_001: Guidance(
        "The path, tenant, member, invitation, keyring or key version does not exist, no "
        "key is active, or the key's status excludes this operation.",
        "Check the names in the request, or generate a key.",
    ),
    Code.METHOD_NOT_ALLOWED: Guidance(
        "The path does not support this method.", "Use a method that the Allow header names."
    ),
    Code.UNPROCESSABLE: Guidance("A field has an invalid value.", "Correct the field.", "plan"),
    Code.CONFLICT_001: Guidance(
        "The name or address is taken, the change was made before, the last owner would "
        "be lost, or the Idempotency-Key belongs to another request.",
        "Read the current state before you repeat the request.",
    ),
    Code.RATE_LIMIT_001: Guidance(
        "There were too many requests, failed attempts or e-mails.",
        "Wait for the seconds in Retry-After.",
    ),
    Code.INVALID_001: Guidance(
        "The body is not a JSON object, a field is unknown, missing or malformed, or an "
        "active key exists already.",
        "Correct the request.",
    ),
    Code.INVALID_002: Guidance("salt is not base64.", "Correct the field.", "salt"),
    Code.KEM_001: Guidance(
        "A field of encrypt or encapsulate is missing, malformed, unknown or too large.",
        "Correct the field.",
        "key_version",
    ),
    Code.KEM_002: Guidance(
        "A field of decrypt or decapsulate is missing, malformed or unknown, or the data "
        "does not decrypt with this key.",
        "Check key_version, algorithm and associated_data.",
        "key_version",
    ),
    Code.KEM_007: Guidance(
        "mode is neither standard nor deterministic.", "Correct the field.", "mode"
    ),
    Code.KEM_010: Guidance(
        "A field of wrap or data-key is missing, malformed or unknown, or the key has an unsupported "
        "size.",
        "Send a key of 16, 24, 32, 48 or 64 bytes; for a data key, size 16, 32 or 64.",
        "symmetric_key",
    ),
    Code.KEM_011: Guidance(
        "A field of unwrap is missing, malformed, unknown, too short or too large.",
        "Correct the field.",
        "wrapped_key",
    ),
    Code.KEM_012: Guidance(
        "The wrapped key does not unwrap with this key.",
        "Check key_version, algorithm and associated_data.",
        "wrapped_key",
    ),
    Code.SIG_001: Guidance(
        "A field of a signature operation is missing, malformed or unknown.",
        "Correct the field.",
        "key_version",
    ),
    Code.SIG_002: Guidance(
        "The message or the signature is too large.", "Sign a hash instead.", "message"
    ),
    Code.SIG_010: Guidance(
        "hash_algorithm is missing or not one of SHA-256, SHA-384 and SHA-512.",
        "Correct the field.",
        "hash_algorithm",
    ),
    Code.SIG_011: Guidance(
        "The length of hash is not that of the hash function.", "Correct the field.", "hash"
    ),
    Code.INTERNAL_001: Guidance(
        "The service failed.", "Try again, and report it with the request_id."
    ),
    Code.BAD_GATEWAY_001: Guidance(
        "The key service's result was invalid, or the payment provider refused.", "Try again."
    ),
    Code.SERVICE_001: Guidance(
        "The key service, a database, Redis or the payment provider is unavailable or overloaded.",
        "Wait for the seconds in Retry-After.",
    ),
    Code.TIMEOUT_001: Guidance(
        "The key service or the payment provider did not respond in time.", "Try again."
    ),
}
