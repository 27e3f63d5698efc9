"""What each error code means to a caller, and what to do about it: for the reference."""

from collections.abc import Mapping
from dataclasses import dataclass

from pqkeep_gateway.http.errors import Code


@dataclass(frozen=True, slots=True)
class Guidance:
    """One error, in words."""

    when: str
    what_to_do: str
    field: str | None = None
    """A field that can be at fault, for the example."""


GUIDANCE: Mapping[Code, Guidance] = {
    Code.AUTH_001: Guidance(
        "There is no credential, or not a valid one.", "Check the X-API-Key header."
    ),
    Code.AUTH_MFA_001: Guidance(
        "A second factor is owed before anything else.",
        "Send a code with challenge_token to /auth/mfa/verify; without a challenge, enroll one.",
    ),
    Code.MFA_001: Guidance(
        "The code, or the password instead of one, is wrong or was used already.",
        "Wait for the next code.",
    ),
    Code.MFA_011: Guidance(
        "The plan does not let an organization require a second factor.", "Use another plan."
    ),
    Code.MFA_013: Guidance(
        "A signed-in person has to prove again who they are; an operator's session changes"
        " nothing.",
        "Get a token at /auth/step-up and send it in X-Step-Up-Token. As the operator, send the"
        " credential in X-API-Key.",
    ),
    Code.FORBIDDEN_001: Guidance(
        "The tenant is suspended, the plan allows no more, or this credential may not do this.",
        "Ask the operator.",
    ),
    Code.POLICY_001: Guidance(
        "The plan does not include this, its monthly allowance is used up, or the API key's scopes"
        " do not allow it.",
        "Use another algorithm or an API key with other scopes, or have the operator change the plan:"
        " pqkeep tenants update TENANT --plan PLAN.",
    ),
    Code.KMS_020: Guidance("Keys are not archived over the API.", "Archive it in the portal."),
    Code.NOT_FOUND_001: Guidance(
        "There is no such tenant, API key or key version, or the key's status does not allow this.",
        "Check what the request names. Where no key is active, generate one.",
    ),
    Code.METHOD_NOT_ALLOWED: Guidance(
        "The path does not have this method.", "Use one that the Allow header names."
    ),
    Code.UNPROCESSABLE: Guidance("A field has a bad value.", "Mend the request.", "plan"),
    Code.CONFLICT_001: Guidance(
        "Something has it already, or it was done already.",
        "Look at what there is before asking again.",
    ),
    Code.RATE_LIMIT_001: Guidance(
        "There were too many requests.", "Wait for as many seconds as Retry-After says."
    ),
    Code.INVALID_001: Guidance("The request is not as it must be.", "Mend the request."),
    Code.INVALID_002: Guidance("salt is not base64.", "Mend the request.", "salt"),
    Code.KEM_001: Guidance(
        "A field is missing, malformed or too large.", "Mend the request.", "key_version"
    ),
    Code.KEM_002: Guidance(
        "A field is missing, malformed or too large, or it does not open with this key.",
        "Check key_version and algorithm.",
        "key_version",
    ),
    Code.KEM_007: Guidance(
        "mode is neither standard nor deterministic.", "Mend the request.", "mode"
    ),
    Code.KEM_010: Guidance(
        "A field is missing or malformed, or the key's size is none that can be wrapped.",
        "Mend the request.",
        "symmetric_key",
    ),
    Code.KEM_011: Guidance(
        "A field is missing, malformed, too short or too large.",
        "Mend the request.",
        "wrapped_key",
    ),
    Code.KEM_012: Guidance(
        "The wrapped key does not open with this key.",
        "Check key_version and algorithm.",
        "wrapped_key",
    ),
    Code.SIG_001: Guidance("A field is missing or malformed.", "Mend the request.", "key_version"),
    Code.SIG_002: Guidance(
        "The message or the signature is too large.", "Sign a hash instead.", "message"
    ),
    Code.SIG_010: Guidance(
        "hash_algorithm is none of the three.", "Mend the request.", "hash_algorithm"
    ),
    Code.SIG_011: Guidance(
        "hash does not have the size of the hash function's digests.", "Mend the request.", "hash"
    ),
    Code.INTERNAL_001: Guidance("A fault of the service.", "Try again; report it."),
    Code.BAD_GATEWAY_001: Guidance(
        "The key service, or whoever takes payments, refused or gave no proper answer.",
        "Try again.",
    ),
    Code.SERVICE_001: Guidance(
        "A part of the service is away, or has too much to do.",
        "Wait for as many seconds as Retry-After says.",
    ),
    Code.TIMEOUT_001: Guidance(
        "The key service, or whoever takes payments, did not answer in time.", "Try again."
    ),
}
