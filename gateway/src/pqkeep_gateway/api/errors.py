"""The tables of all error codes and messages of the API.

The code depends on the operation and the problem: malformed base64 alone has five codes. So there
are tables by (operation, field problem), by (operation, error kind of the key service) and by
domain exception.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pqkeep_gateway.access.admission import (
    AddressNotAllowedError,
    BatchOverLimitError,
    RateLimitedError,
    SuspendedError,
    UnknownCredentialError,
)
from pqkeep_gateway.access.api_key_limits import BeyondOwnLimitsError
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.entitlements import MfaNotInPlanError, TenantNotFoundError
from pqkeep_gateway.access.idempotency import IdempotencyKeyReusedError
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.access.scopes import ScopeDeniedError
from pqkeep_gateway.delivery.mail_delivery import MailDisabledError
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import ApiError, Code, forbidden, invalid, too_many, unavailable
from pqkeep_gateway.http.field import (
    IT_IS_HEXADECIMAL,
    FieldCodes,
    FieldError,
    Problem,
    text_form_of,
)
from pqkeep_gateway.people.challenges import (
    AuthenticatorRequiredError,
    InvalidChallengeError,
    SecondFactorRequiredError,
)
from pqkeep_gateway.people.passkeys import (
    InvalidPasskeyError,
    InvalidRegistrationError,
    NewerFactorError,
    PasskeyProblem,
    WrongPasskeyError,
)
from pqkeep_gateway.people.passwords import InvalidPasswordError, PasswordsDisabledError
from pqkeep_gateway.people.second_factors import (
    NotEnrolledError,
    UsedCodeError,
    WrongCodeError,
    WrongPresentPasswordError,
)
from pqkeep_gateway.people.sign_in import WrongPasswordError
from pqkeep_gateway.people.step_up import StepUpRequiredError
from pqkeep_gateway.shards import ShardFullError, ShardNotFoundError
from pqkeep_gateway.signed_tokens import InvalidTokenError, RefusedTokenError
from pqkeep_gateway.storage.api_keys import (
    AlreadyRotatedError,
    ApiKeyNotFoundError,
    QuotaReachedError,
)
from pqkeep_gateway.storage.approvals import (
    MAX_A_DAY,
    AlreadyDecidedError,
    ApprovalNotFoundError,
    NoOtherApproverError,
    TooManyApprovalsError,
)
from pqkeep_gateway.storage.billing import BilledElsewhereError
from pqkeep_gateway.storage.campaigns import (
    MAX_CAMPAIGNS,
    MAX_PLACES,
    CampaignClosedError,
    CampaignExistsError,
    CampaignNotFoundError,
    CanaryRunsError,
    NoCanaryError,
    NotInCampaignError,
    OlderScanError,
    TooManyCampaignsError,
    TooManyPlacesError,
)
from pqkeep_gateway.storage.deletion import NoDeletionError, NotSuspendedError
from pqkeep_gateway.storage.external_keys import (
    MAX_SOURCES,
    SourceNotFoundError,
    TooManySourcesError,
)
from pqkeep_gateway.storage.invitations import InvalidInvitationTokenError, InvitationNotFoundError
from pqkeep_gateway.storage.notices import NotDismissibleError, NoticeNotFoundError
from pqkeep_gateway.storage.pages import PositionNotFoundError
from pqkeep_gateway.storage.passkeys import (
    MAX_PASSKEYS,
    PasskeyExistsError,
    PasskeyNotFoundError,
    TooManyPasskeysError,
)
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError
from pqkeep_gateway.storage.second_factors import AlreadyEnrolledError
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError, SessionNotFoundError
from pqkeep_gateway.storage.team import (
    MIN_OWNERS,
    LastOwnerError,
    MemberNotFoundError,
    NotPermittedError,
    OwnersOnlyError,
    TooFewOwnersError,
)
from pqkeep_gateway.storage.tenants import DeletionScheduledError, NameTakenError
from pqkeep_gateway.storage.users import (
    AccountChangedError,
    EmailTakenError,
    LastFactorError,
    UserNotFoundError,
)
from pqkeep_gateway.storage.webhooks import (
    MAX_WEBHOOKS,
    DeliveryNotFoundError,
    TooManyWebhooksError,
    WebhookDisabledError,
    WebhookNameTakenError,
    WebhookNotFoundError,
)
from pqkeep_gateway.storage.workloads import (
    MAX_EXCHANGES,
    MAX_ISSUERS,
    MAX_LIVE,
    MAX_ROLES,
    IssuerNotFoundError,
    RoleNotFoundError,
    TooManyExchangesError,
    TooManyIssuersError,
    TooManyRolesError,
)
from pqkeep_gateway.tenancy.api_keys import ExpiryPassedError
from pqkeep_gateway.tenancy.approvals import (
    ExecutionRefusedError,
    NotAnApproverError,
    NotTheRequesterError,
    OwnRequestError,
    RequestOutdatedError,
)
from pqkeep_gateway.tenancy.billing import (
    InvalidNoticeError,
    InvalidNoticeSignatureError,
    NotSubscribedError,
    PaymentProviderError,
    PaymentTimeoutError,
)
from pqkeep_gateway.tenancy.contracts import AlreadySubscribedError
from pqkeep_gateway.tenancy.workloads import UntrustedTokenError
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    LEGACY,
    LIFECYCLE,
    ON_KEYRINGS,
    ON_RULES,
    Algorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import MAX_LABELS
from pqkeep_protocol.keys import MAX_VERSIONS
from pqkeep_protocol.rules import MAX_RULES, RuleNotice

# --- By field -------------------------------------------------------------------------------

_MALFORMED: Mapping[Operation, Code] = {
    Operation.ENCRYPT: Code.KEM_001,
    Operation.ENCAPSULATE: Code.KEM_001,
    Operation.DECRYPT: Code.KEM_002,
    Operation.DECAPSULATE: Code.KEM_002,
    Operation.WRAP: Code.KEM_010,
    Operation.UNWRAP: Code.KEM_011,
    Operation.RE_ENCRYPT: Code.KEM_002,
    Operation.GENERATE_DATA_KEY: Code.KEM_010,
    Operation.COMPUTE_MAC: Code.INVALID_001,
    Operation.VERIFY_MAC: Code.INVALID_001,
    Operation.SIGN: Code.SIG_001,
    Operation.VERIFY: Code.SIG_001,
    Operation.SIGN_HASH: Code.SIG_001,
    Operation.VERIFY_HASH: Code.SIG_001,
    Operation.SIGN_JWS: Code.SIG_001,
    Operation.SIGN_MU: Code.SIG_001,
    Operation.VERIFY_MU: Code.SIG_001,
    **dict.fromkeys(LIFECYCLE | ON_KEYRINGS | ON_RULES, Code.INVALID_001),
}
_TOO_LARGE: Mapping[Operation, Code] = {
    Operation.SIGN: Code.SIG_002,
    Operation.VERIFY: Code.SIG_002,
    Operation.SIGN_JWS: Code.SIG_002,
}
_OF_KEY_FIELDS: Mapping[tuple[str, Problem], Code] = {
    ("algorithm", Problem.MISSING): Code.INVALID_001,
    ("algorithm", Problem.MALFORMED): Code.INVALID_001,
    ("keyring", Problem.MALFORMED): Code.INVALID_001,
    ("campaign", Problem.MALFORMED): Code.INVALID_001,
    ("hash_algorithm", Problem.MISSING): Code.SIG_010,
    ("hash_algorithm", Problem.MALFORMED): Code.SIG_010,
    ("hash", Problem.WRONG_SIZE): Code.SIG_011,
    ("hash", Problem.TOO_LARGE): Code.SIG_011,
    ("mode", Problem.MALFORMED): Code.KEM_007,
    ("salt", Problem.MISSING): Code.INVALID_001,
    ("salt", Problem.MALFORMED): Code.INVALID_002,
    ("salt", Problem.TOO_LARGE): Code.INVALID_002,
}
_NOT_FOUND: Mapping[Problem, Code] = {Problem.NOT_FOUND: Code.NOT_FOUND_001}

KEY_FIELDS: Mapping[Operation, FieldCodes] = {
    operation: FieldCodes(
        malformed=malformed,
        unknown=malformed,
        by_problem={**_NOT_FOUND, Problem.TOO_LARGE: _TOO_LARGE.get(operation, malformed)},
        by_field={**_OF_KEY_FIELDS, ("context", Problem.TOO_LARGE): malformed},
    )
    for operation, malformed in _MALFORMED.items()
}
"""The errors of fields in operations with keys, as the specification requires."""

BAD_REQUEST_FIELDS = FieldCodes(
    malformed=Code.INVALID_001, unknown=Code.INVALID_001, by_problem=_NOT_FOUND, by_field={}
)
"""For endpoints that return 400 for a bad value, as the specification requires."""

UNPROCESSABLE_FIELDS = FieldCodes(
    malformed=Code.UNPROCESSABLE, unknown=Code.INVALID_001, by_problem=_NOT_FOUND, by_field={}
)
"""The errors of fields in all other endpoints. The status is 422."""


def codes_of_fields(endpoint: Endpoint) -> frozenset[Code]:
    """Return the codes with which an endpoint can refuse its fields."""
    codes = endpoint.field_codes
    found = {
        codes.code(field.name, problem) for field in endpoint.fields for problem in field.problems
    }
    found |= {
        codes.code(field.name, Problem.MISSING) for field in endpoint.fields if field.required
    }
    return frozenset(found | {codes.unknown})


# --- By the key service's error kind ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Code, message, and candidate fields: the error names the first that the request has."""

    code: Code
    message: str
    fields: tuple[str, ...] = ()

    def error(self, values: Mapping[str, object], *, is_recorded: bool = False) -> ApiError:
        """Return the error for a request with these values."""
        field = next((name for name in self.fields if values.get(name) is not None), None)
        return ApiError(self.code, self.message, field, is_recorded=is_recorded)


_UNDECRYPTABLE: Mapping[Operation, ErrorResponse] = {
    Operation.DECRYPT: ErrorResponse(
        Code.KEM_002, "the ciphertext cannot be decrypted with this key", ("ciphertext", "envelope")
    ),
    Operation.DECAPSULATE: ErrorResponse(
        Code.KEM_002, "kem_ciphertext cannot be decapsulated with this key", ("kem_ciphertext",)
    ),
    Operation.UNWRAP: ErrorResponse(
        Code.KEM_012, "wrapped_key cannot be unwrapped with this key", ("wrapped_key",)
    ),
    Operation.IMPORT_KEY: ErrorResponse(
        Code.INVALID_001,
        "the private key was not wrapped for this import key, algorithm and keyring",
        ("wrapped_private_key",),
    ),
}
"""The form is right, but decryption with this key fails."""
_LEAST_CIPHERTEXT = min(spec.overhead for spec in ALGORITHMS.values() if spec.kind is Kind.KEM)
_LEAST_OF_CIPHER = ALGORITHMS[Algorithm.XAES_256_GCM].overhead

CHANGE_PLAN = "an operator can change the plan with pqkeep tenants update TENANT --plan PLAN"
"""The hint where the plan is the reason."""

KEY_SERVICE_ERRORS: Mapping[ErrorKind, tuple[Code, str, str | None]] = {
    ErrorKind.KEY_NOT_FOUND: (
        Code.NOT_FOUND_001,
        "no such key, or its status does not allow this",
        None,
    ),
    ErrorKind.TARGET_NOT_FOUND: (
        Code.NOT_FOUND_001,
        "there is no active key to re-encrypt to",
        "to",
    ),
    ErrorKind.KEY_EXISTS: (
        Code.INVALID_001,
        "the algorithm has an active key: rotate it, or retire it first",
        "algorithm",
    ),
    ErrorKind.KEYRING_NOT_FOUND: (Code.NOT_FOUND_001, "no such keyring", "keyring"),
    ErrorKind.KEYRING_EXISTS: (
        Code.CONFLICT_001,
        "a keyring with this name already exists",
        "name",
    ),
    ErrorKind.KEYRING_DELETED: (
        Code.CONFLICT_001,
        (
            "a deleted keyring has this name: restore it, or create it again once its private keys "
            "are destroyed"
        ),
        "name",
    ),
    ErrorKind.KEYRING_QUOTA_REACHED: (
        Code.FORBIDDEN_001,
        f"the plan allows no more keyrings: {CHANGE_PLAN}",
        None,
    ),
    ErrorKind.PURPOSE_DENIED: (
        Code.POLICY_001,
        "denied by policy keyring-purposes: the keyring's purposes do not include this operation",
        None,
    ),
    ErrorKind.TARGET_PURPOSE_DENIED: (
        Code.POLICY_001,
        (
            "denied by policy keyring-purposes: the target keyring's purposes do not include this "
            "operation"
        ),
        "to",
    ),
    ErrorKind.VERSION_BELOW_MINIMUM: (
        Code.POLICY_001,
        (
            "denied by policy keyring-minimum-version: the key version is below the keyring's "
            "minimum version for this operation"
        ),
        "key_version",
    ),
    ErrorKind.TARGET_VERSION_BELOW_MINIMUM: (
        Code.POLICY_001,
        (
            "denied by policy keyring-minimum-version: the active key to re-encrypt to is below "
            "its keyring's minimum version; rotate it"
        ),
        "to",
    ),
    ErrorKind.CONTEXT_REQUIRED: (
        Code.INVALID_001,
        "the keyring has derived keys: send the context that derives the key",
        "context",
    ),
    ErrorKind.CONTEXT_REFUSED: (
        Code.INVALID_001,
        (
            "the keyring has no derived keys: send no context, or use a keyring that was created "
            "with derived true"
        ),
        "context",
    ),
    ErrorKind.RULE_DENIED: (
        Code.POLICY_001,
        (
            "denied by policy algorithm-rule: a rule ends the algorithm for this use; GET "
            "/api/v1/rules/algorithms shows its dates and its successor"
        ),
        "algorithm",
    ),
    ErrorKind.RULE_WEAKENED: (
        Code.POLICY_001,
        (
            "denied by policy rules-only-stricter: the change would weaken a rule; an operator can "
            "do that with pqkeepd rules"
        ),
        None,
    ),
    ErrorKind.RULE_NOT_FOUND: (Code.NOT_FOUND_001, "no such rule", "name"),
    ErrorKind.RULE_LIMIT_REACHED: (
        Code.FORBIDDEN_001,
        f"a tenant has at most {MAX_RULES} rules: replace one, or ask an operator to delete one",
        None,
    ),
    ErrorKind.LABEL_LIMIT_REACHED: (
        Code.FORBIDDEN_001,
        f"a keyring has at most {MAX_LABELS} labels: remove some",
        "label_changes",
    ),
    ErrorKind.DELETION_DENIED: (
        Code.POLICY_001,
        (
            "denied by policy keyring-deletion: the keyring does not allow programs to delete it; "
            "set its deletion_allowed first, or delete it in the portal"
        ),
        None,
    ),
    ErrorKind.KEYRING_PROTECTED: (
        Code.POLICY_001,
        (
            "denied by policy keyring-protection: the keyring has the label protected; its value is "
            "the reason; remove the label first"
        ),
        None,
    ),
    ErrorKind.SCOPE_DENIED: (
        Code.POLICY_001,
        (
            "denied by policy api-key-scope: the public key belongs to a keyring outside the API "
            "key's scopes"
        ),
        "public_key",
    ),
    ErrorKind.NO_PURPOSE: (
        Code.POLICY_001,
        "denied by policy keyring-purposes: the keyring's purposes exclude keys of this algorithm",
        "algorithm",
    ),
    ErrorKind.IMPORT_KEY_NOT_FOUND: (
        Code.NOT_FOUND_001,
        "no such import key, or it was used or has expired; get a new one",
        "import_key_id",
    ),
    ErrorKind.PRIVATE_KEY_MALFORMED: (
        Code.INVALID_001,
        (
            "the private key is not in a supported PKCS#8 format; for a legacy key that verifies, "
            "wrap its public key as SubjectPublicKeyInfo in DER"
        ),
        "wrapped_private_key",
    ),
    ErrorKind.PRIVATE_KEY_ALGORITHM: (
        Code.INVALID_001,
        "the private key and the import key have different algorithms",
        "wrapped_private_key",
    ),
    ErrorKind.PRIVATE_KEY_WITHOUT_SEED: (
        Code.INVALID_001,
        "the private key is expanded and has no seed; export it with its seed and import that",
        "wrapped_private_key",
    ),
    ErrorKind.PRIVATE_KEY_CONTRADICTION: (
        Code.INVALID_001,
        "the private key is inconsistent: its parts do not match each other; export it again",
        "wrapped_private_key",
    ),
    ErrorKind.PRIVATE_KEY_PARAMETERS: (
        Code.INVALID_001,
        (
            "the RSA key must have 2048 to 4096 bits and an odd public exponent above 1 of at most "
            "64 bits"
        ),
        "wrapped_private_key",
    ),
    ErrorKind.KEY_QUOTA_REACHED: (
        Code.FORBIDDEN_001,
        f"the plan allows no more active keys: {CHANGE_PLAN}",
        None,
    ),
    ErrorKind.VERSION_LIMIT_REACHED: (
        Code.FORBIDDEN_001,
        f"a key has at most {MAX_VERSIONS} versions; use another keyring",
        None,
    ),
    ErrorKind.KEY_STATUS: (
        Code.INVALID_001,
        "the key's status does not allow this",
        "key_version",
    ),
    ErrorKind.IDEMPOTENCY_KEY_REUSED: (
        Code.CONFLICT_001,
        "the Idempotency-Key belongs to another request",
        "Idempotency-Key",
    ),
    ErrorKind.RECORD_NOT_FOUND: (
        Code.NOT_FOUND_001,
        "the audit log has no such record or size",
        None,
    ),
    ErrorKind.UNSUPPORTED: (
        Code.INVALID_001,
        "the algorithm does not support this operation",
        "algorithm",
    ),
    ErrorKind.ALGORITHM_MISMATCH: (
        Code.INVALID_001,
        "the ciphertext is for a key of another algorithm",
        "algorithm",
    ),
    ErrorKind.TOO_LARGE: (
        Code.INVALID_001,
        "the items together are too large; send fewer items",
        "items",
    ),
    ErrorKind.OVERLOADED: (Code.SERVICE_001, "the key service is overloaded", None),
    ErrorKind.STANDBY: (Code.SERVICE_001, "the key service is unavailable", None),
    ErrorKind.UNAVAILABLE: (Code.SERVICE_001, "the key service is unavailable", None),
    ErrorKind.TENANT_MOVED: (
        Code.SERVICE_001,
        "the tenant's keys are being moved; try again in a moment",
        None,
    ),
    ErrorKind.DEADLINE_EXCEEDED: (
        Code.TIMEOUT_001,
        "the key service did not respond in time",
        None,
    ),
    ErrorKind.BAD_RESPONSE: (
        Code.BAD_GATEWAY_001,
        "the key service sent an invalid response",
        None,
    ),
    ErrorKind.INTERNAL: (Code.INTERNAL_001, "internal error", None),
}
"""The error for each refusal of the key service: code, message, field."""

_NO_KEYRING = ErrorResponse(Code.NOT_FOUND_001, "no such keyring", ("keyring", "name", "envelope"))
_OWN_PUBLIC_KEY = ErrorResponse(
    Code.NOT_FOUND_001,
    "public_key belongs to one of your key versions, and its status does not allow this; send the public "
    "key of the active version",
    ("public_key",),
)
_OUTAGES = (
    ErrorKind.OVERLOADED,
    ErrorKind.STANDBY,
    ErrorKind.UNAVAILABLE,
    ErrorKind.TENANT_MOVED,
    ErrorKind.DEADLINE_EXCEEDED,
    ErrorKind.BAD_RESPONSE,
    ErrorKind.INTERNAL,
)
_TAKES_PUBLIC_KEY = frozenset(
    {
        Operation.ENCRYPT,
        Operation.ENCAPSULATE,
        Operation.VERIFY,
        Operation.VERIFY_HASH,
        Operation.VERIFY_MU,
    }
)
"""Operations that accept a caller's public key. An invalid one has the endpoint's own code."""
_NAMES_NO_KEYRING = frozenset({Operation.CREATE_KEYRING, Operation.LIST_KEYRINGS, *ON_RULES})
_OF_CONTEXT = (ErrorKind.CONTEXT_REQUIRED, ErrorKind.CONTEXT_REFUSED)
_KINDS: Mapping[Operation, tuple[ErrorKind, ...]] = {
    Operation.GENERATE_KEY: (
        ErrorKind.KEY_EXISTS,
        ErrorKind.KEY_QUOTA_REACHED,
        ErrorKind.VERSION_LIMIT_REACHED,
    ),
    Operation.ROTATE_KEY: (ErrorKind.VERSION_LIMIT_REACHED,),
    Operation.IMPORT_KEY: (
        ErrorKind.IMPORT_KEY_NOT_FOUND,
        ErrorKind.PRIVATE_KEY_MALFORMED,
        ErrorKind.PRIVATE_KEY_ALGORITHM,
        ErrorKind.PRIVATE_KEY_WITHOUT_SEED,
        ErrorKind.PRIVATE_KEY_CONTRADICTION,
        ErrorKind.PRIVATE_KEY_PARAMETERS,
        ErrorKind.KEY_EXISTS,
        ErrorKind.KEY_QUOTA_REACHED,
        ErrorKind.VERSION_LIMIT_REACHED,
    ),
    Operation.RETIRE_KEY: (ErrorKind.KEY_STATUS,),
    Operation.DISABLE_KEY: (ErrorKind.KEY_STATUS,),
    Operation.ENABLE_KEY: (ErrorKind.KEY_STATUS,),
    Operation.SCHEDULE_ARCHIVE: (ErrorKind.KEY_STATUS,),
    Operation.CANCEL_ARCHIVE: (ErrorKind.KEY_STATUS,),
    Operation.ARCHIVE_KEY: (ErrorKind.KEY_STATUS,),
    Operation.ENCRYPT: _OF_CONTEXT,
    Operation.GENERATE_DATA_KEY: _OF_CONTEXT,
    Operation.DECRYPT: (ErrorKind.ALGORITHM_MISMATCH, *_OF_CONTEXT),
    Operation.DECAPSULATE: (ErrorKind.ALGORITHM_MISMATCH,),
    Operation.UNWRAP: (ErrorKind.ALGORITHM_MISMATCH,),
    Operation.RE_ENCRYPT: (
        ErrorKind.ALGORITHM_MISMATCH,
        ErrorKind.TARGET_NOT_FOUND,
        *_OF_CONTEXT,
    ),
    Operation.CREATE_KEYRING: (
        ErrorKind.KEYRING_EXISTS,
        ErrorKind.KEYRING_DELETED,
        ErrorKind.KEYRING_QUOTA_REACHED,
    ),
    Operation.UPDATE_KEYRING: (ErrorKind.LABEL_LIMIT_REACHED,),
    Operation.PUT_RULE: (ErrorKind.RULE_LIMIT_REACHED,),
    Operation.DELETE_RULE: (ErrorKind.RULE_NOT_FOUND,),
}

KEY_SERVICE_OUTAGE = frozenset(KEY_SERVICE_ERRORS[kind][0] for kind in _OUTAGES)
"""Codes of every endpoint that calls the key service."""
KEYLESS_CODES = KEY_SERVICE_OUTAGE | {Code.POLICY_001}
"""Codes of every endpoint that asks the key service for something without a key."""
AUDIT_CODES = KEY_SERVICE_OUTAGE | {Code.NOT_FOUND_001}
"""Codes of every endpoint that reads the audit log."""


def codes_of_operation(operation: Operation) -> frozenset[Code]:
    """Return the codes with which the key service can refuse an operation."""
    kinds = _OUTAGES + _KINDS.get(operation, ())
    if operation not in _NAMES_NO_KEYRING:
        kinds += (ErrorKind.KEY_NOT_FOUND, ErrorKind.KEYRING_NOT_FOUND)
    codes = {Code.POLICY_001, *(KEY_SERVICE_ERRORS[kind][0] for kind in kinds)}
    if operation in _UNDECRYPTABLE:
        codes.add(_UNDECRYPTABLE[operation].code)
    if operation in _TAKES_PUBLIC_KEY:
        codes.add(_MALFORMED[operation])
    return frozenset(codes)


def error_for(
    operation: Operation,
    refusal: KeyServiceError,
    values: Mapping[str, object] = MappingProxyType({}),
) -> ApiError:
    """Return the error for the key service's refusal of an operation with these values."""
    kind = refusal.kind
    if kind is ErrorKind.RULE_DENIED and refusal.notice is not None:
        return _of(kind, _denied_by_rule(operation, refusal.notice))
    if kind is ErrorKind.KEYRING_NOT_FOUND:
        return _of(kind, _NO_KEYRING.error(values, is_recorded=True))
    if kind is ErrorKind.DECRYPTION_FAILED and operation in _UNDECRYPTABLE:
        return _of(kind, _undecryptable(operation, values))
    if kind is ErrorKind.KEY_NOT_FOUND and values.get("public_key") is not None:
        return _of(kind, _OWN_PUBLIC_KEY.error(values, is_recorded=True))
    if kind is ErrorKind.INVALID_PUBLIC_KEY and operation in _TAKES_PUBLIC_KEY:
        message = "public_key is not a public key of the algorithm"
        return ApiError(_MALFORMED[operation], message, "public_key", is_recorded=True)
    return key_service_error(kind)


def _denied_by_rule(operation: Operation, notice: RuleNotice) -> ApiError:
    """Return the error of a rule, with its name, its date and the successor."""
    since = "" if notice.sunset is None else f" from {notice.sunset:%Y-%m-%dT%H:%M:%SZ} on"
    instead = notice.successor or "another algorithm"
    message = (
        f"denied by policy algorithm-rule: the rule {notice.rule} ends the algorithm for this "
        f"use{since}; use {instead}"
    )
    field = "to" if operation is Operation.RE_ENCRYPT else "algorithm"
    return ApiError(Code.POLICY_001, message, field, is_recorded=True)


def key_service_error(kind: ErrorKind) -> ApiError:
    """Return the error for a refusal; a kind without a row is an invalid response."""
    unexpected = KEY_SERVICE_ERRORS[ErrorKind.BAD_RESPONSE]
    code, message, field = KEY_SERVICE_ERRORS.get(kind, unexpected)
    if code is Code.SERVICE_001:
        return unavailable(message)
    return _of(kind, ApiError(code, message, field, is_recorded=True))


def _of(kind: ErrorKind, error: ApiError) -> ApiError:
    error.kind = kind
    return error


def denied_by(policy: str, algorithm: str | None, hint: str, field: str | None = None) -> ApiError:
    """Return the error of a policy that denies an operation, with a hint what to do."""
    message = f"denied by policy {policy}: {hint}"
    return ApiError(Code.POLICY_001, message, field, policy=policy, algorithm=algorithm)


SCOPE_POLICY = "api-key-scope"
ADDRESS_POLICY = "api-key-address"


def archived_in_portal() -> ApiError:
    """Return the error for a program that tries to archive a key."""
    return ApiError(Code.KMS_020, "keys can be archived only in the portal")


# --- By domain exception ------------------------------------------------------------------------

NO_MAIL = "e-mail is not configured in this installation"

_NO_CREDENTIAL = "missing or invalid credential"


def _expired(thing: str, field: str) -> ErrorResponse:
    return ErrorResponse(Code.AUTH_001, f"no such {thing}, or it has expired", (field,))


DOMAIN_ERRORS: Mapping[type[Exception], ErrorResponse] = {
    UnknownCredentialError: ErrorResponse(Code.AUTH_001, _NO_CREDENTIAL),
    UserNotFoundError: ErrorResponse(Code.AUTH_001, _NO_CREDENTIAL),
    SuspendedError: ErrorResponse(Code.FORBIDDEN_001, "the tenant is suspended"),
    StepUpRequiredError: ErrorResponse(
        Code.MFA_013,
        "a step-up is required: get a token at /auth/step-up and send it in X-Step-Up-Token",
    ),
    WrongPasswordError: ErrorResponse(Code.AUTH_001, "wrong e-mail address or password"),
    SessionNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such session", ("id", "session")),
    AccountChangedError: ErrorResponse(Code.AUTH_001, "the account has changed; sign in again"),
    InvalidRefreshTokenError: ErrorResponse(Code.AUTH_001, "the session has ended; sign in again"),
    InvalidInvitationTokenError: _expired("invitation", "token"),
    InvalidRegistrationTokenError: _expired("registration", "token"),
    InvalidPasswordResetTokenError: _expired("password reset", "token"),
    InvalidChallengeError: _expired("challenge", "challenge_token"),
    WrongCodeError: ErrorResponse(
        Code.MFA_001,
        "the code is wrong or was already used",
        ("email_code", "recovery_code", "totp_code"),
    ),
    WrongPresentPasswordError: ErrorResponse(Code.MFA_001, "the password is wrong", ("password",)),
    InvalidPasskeyError: ErrorResponse(
        Code.AUTH_001,
        "the passkey is not accepted: it is unknown here, or its response is invalid or too old",
    ),
    WrongPasskeyError: ErrorResponse(
        Code.MFA_001, "the passkey is not accepted: use one of your own, and begin again"
    ),
    PasskeyNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such passkey", ("id",)),
    PasskeyExistsError: ErrorResponse(
        Code.CONFLICT_001, "this passkey was added before", ("credential_id",)
    ),
    TooManyPasskeysError: ErrorResponse(
        Code.CONFLICT_001, f"a person has at most {MAX_PASSKEYS} passkeys: remove one first"
    ),
    NewerFactorError: ErrorResponse(
        Code.FORBIDDEN_001,
        "a factor less than seven days old cannot remove an older passkey: step up with an older"
        " factor, or with the passkey itself",
    ),
    LastFactorError: ErrorResponse(
        Code.CONFLICT_001,
        "your organization requires a second factor: add another one before you remove this",
    ),
    PasswordsDisabledError: ErrorResponse(
        Code.FORBIDDEN_001,
        "people of this tenant sign in through its identity provider, without passwords",
    ),
    MfaNotInPlanError: ErrorResponse(
        Code.MFA_011, f"the plan does not let you require a second factor: {CHANGE_PLAN}"
    ),
    MailDisabledError: ErrorResponse(Code.FORBIDDEN_001, NO_MAIL),
    AlreadyEnrolledError: ErrorResponse(
        Code.CONFLICT_001, "a second factor of this kind already exists"
    ),
    NotEnrolledError: ErrorResponse(Code.CONFLICT_001, "no such second factor"),
    AuthenticatorRequiredError: ErrorResponse(
        Code.CONFLICT_001, "the code of the authenticator app is required"
    ),
    EmailTakenError: ErrorResponse(
        Code.CONFLICT_001, "an account with this e-mail address already exists", ("email", "token")
    ),
    NotPermittedError: ErrorResponse(Code.FORBIDDEN_001, "your role does not allow this"),
    OwnersOnlyError: ErrorResponse(Code.FORBIDDEN_001, "only an owner can change owners"),
    PositionNotFoundError: ErrorResponse(
        Code.NOT_FOUND_001, "no entry with the id in after", ("after",)
    ),
    MemberNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such member", ("id",)),
    InvitationNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such invitation", ("id",)),
    LastOwnerError: ErrorResponse(
        Code.CONFLICT_001, "the last owner cannot be removed; make another member an owner first"
    ),
    NameTakenError: ErrorResponse(
        Code.CONFLICT_001, "a tenant with this name already exists", ("name",)
    ),
    ShardNotFoundError: ErrorResponse(
        Code.INVALID_001, "no such shard in the settings", ("shard",)
    ),
    ShardFullError: ErrorResponse(
        Code.CONFLICT_001, "the shard is being drained and accepts no new tenants", ("shard",)
    ),
    TenantNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such tenant", ("tenant_id",)),
    NotSuspendedError: ErrorResponse(
        Code.CONFLICT_001, "only a suspended tenant can be deleted; suspend it first"
    ),
    NoDeletionError: ErrorResponse(
        Code.CONFLICT_001, "no deletion is scheduled, or it has already begun"
    ),
    DeletionScheduledError: ErrorResponse(
        Code.CONFLICT_001, "the tenant's deletion is scheduled: cancel it first", ("status",)
    ),
    QuotaReachedError: ErrorResponse(
        Code.INVALID_001, f"the plan allows no more active API keys: {CHANGE_PLAN}"
    ),
    ApprovalNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such request", ("id",)),
    AlreadyDecidedError: ErrorResponse(
        Code.CONFLICT_001, "the request was decided or withdrawn, or has expired"
    ),
    OwnRequestError: ErrorResponse(
        Code.FORBIDDEN_001, "you made this request: another person must decide it"
    ),
    NotAnApproverError: ErrorResponse(
        Code.FORBIDDEN_001,
        "you may not decide this request: it needs a person with its permission who was a member"
        " before it was made",
    ),
    NotTheRequesterError: ErrorResponse(
        Code.FORBIDDEN_001, "only the person that made the request can withdraw it"
    ),
    NoOtherApproverError: ErrorResponse(
        Code.CONFLICT_001,
        "a second person must approve this, and no other member may: make another member an owner, or"
        " ask the operator to invite one",
    ),
    TooManyApprovalsError: ErrorResponse(
        Code.FORBIDDEN_001,
        f"a tenant makes at most {MAX_A_DAY} requests for approval in 24 hours: try again later",
    ),
    TooFewOwnersError: ErrorResponse(
        Code.CONFLICT_001,
        f"approval by a second person needs {MIN_OWNERS} owners: make another member an owner first",
    ),
    RequestOutdatedError: ErrorResponse(
        Code.CONFLICT_001,
        "the request has ended: what it concerns, or the requester's role, has changed; ask again",
    ),
    CampaignNotFoundError: ErrorResponse(
        Code.NOT_FOUND_001, "no such campaign", ("campaign", "name")
    ),
    CampaignClosedError: ErrorResponse(
        Code.CONFLICT_001, "the campaign is closed: put it with state open", ("campaign", "name")
    ),
    NotInCampaignError: ErrorResponse(
        Code.INVALID_001,
        "the campaign does not have this source and target: see its sources and its target",
        ("campaign",),
    ),
    CampaignExistsError: ErrorResponse(
        Code.CONFLICT_001, "a campaign has this name: send replace as true, or choose another name"
    ),
    TooManyCampaignsError: ErrorResponse(
        Code.FORBIDDEN_001,
        f"a tenant has at most {MAX_CAMPAIGNS} campaigns: use the name of a closed one",
    ),
    TooManyPlacesError: ErrorResponse(
        Code.FORBIDDEN_001, f"a campaign has scans of at most {MAX_PLACES} places", ("place",)
    ),
    CanaryRunsError: ErrorResponse(
        Code.CONFLICT_001, "a canary runs: end it before the sources change", ("sources",)
    ),
    NoCanaryError: ErrorResponse(Code.CONFLICT_001, "no canary of the campaign runs"),
    OlderScanError: ErrorResponse(
        Code.CONFLICT_001, "the campaign has a newer scan of this place", ("scanned_at",)
    ),
    NoticeNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such open notice", ("id",)),
    NotDismissibleError: ErrorResponse(
        Code.CONFLICT_001,
        "this notice cannot be dismissed: it closes when its cause is gone",
        ("id",),
    ),
    SourceNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such source", ("source",)),
    TooManySourcesError: ErrorResponse(
        Code.FORBIDDEN_001,
        f"a tenant has at most {MAX_SOURCES} sources: remove one, or replace it",
        ("source",),
    ),
    UntrustedTokenError: ErrorResponse(
        Code.AUTH_001,
        "the token is not accepted: there is no such role, or its issuer, algorithm or signature does"
        " not fit the role",
    ),
    TooManyExchangesError: ErrorResponse(
        Code.FORBIDDEN_001,
        f"the token was exchanged {MAX_EXCHANGES} times, or the role has {MAX_LIVE:,} valid keys: get"
        " a new token",
    ),
    IssuerNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such issuer", ("issuer",)),
    RoleNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such role", ("role",)),
    TooManyIssuersError: ErrorResponse(
        Code.FORBIDDEN_001, f"a tenant has at most {MAX_ISSUERS} issuers: remove one first"
    ),
    TooManyRolesError: ErrorResponse(
        Code.FORBIDDEN_001, f"a tenant has at most {MAX_ROLES} roles: remove one first"
    ),
    WebhookNotFoundError: ErrorResponse(Code.NOT_FOUND_001, "no such webhook", ("webhook",)),
    WebhookNameTakenError: ErrorResponse(
        Code.CONFLICT_001, "a webhook with this name already exists", ("name",)
    ),
    WebhookDisabledError: ErrorResponse(
        Code.CONFLICT_001, "the webhook is disabled: enable it first"
    ),
    TooManyWebhooksError: ErrorResponse(
        Code.FORBIDDEN_001, f"a tenant has at most {MAX_WEBHOOKS} webhooks: remove one first"
    ),
    DeliveryNotFoundError: ErrorResponse(
        Code.NOT_FOUND_001, "no such delivery, or it is no longer kept", ("delivery", "after")
    ),
    ExpiryPassedError: ErrorResponse(
        Code.INVALID_001, "expires_at must be in the future", ("expires_at",)
    ),
    ApiKeyNotFoundError: ErrorResponse(
        Code.NOT_FOUND_001, "no such API key", ("version", "key_id")
    ),
    AlreadyRotatedError: ErrorResponse(
        Code.CONFLICT_001, "the API key was rotated or revoked, or has expired", ("key_id",)
    ),
    AlreadySubscribedError: ErrorResponse(
        Code.CONFLICT_001, "you already have this tier", ("tier",)
    ),
    NotSubscribedError: ErrorResponse(Code.CONFLICT_001, "there is no subscription to cancel"),
    BilledElsewhereError: ErrorResponse(Code.CONFLICT_001, "the subscription is billed elsewhere"),
    PaymentProviderError: ErrorResponse(Code.BAD_GATEWAY_001, "the payment provider refused"),
    PaymentTimeoutError: ErrorResponse(
        Code.TIMEOUT_001, "the payment provider did not respond in time"
    ),
    InvalidNoticeError: ErrorResponse(Code.UNPROCESSABLE, "the event has an unknown form"),
}
"""The error for each exception of the rules, at every endpoint."""


def _wrong_field(error: FieldError, endpoint: Endpoint) -> ApiError:
    code = endpoint.field_codes.code(error.field, error.problem)
    return ApiError(code, error.message, error.field or None)


def _with_hint(error: ApiError, values: Mapping[str, object]) -> ApiError:
    """Return an error about binary data with a hint about its text format."""
    form = text_form_of(values.get(error.field or ""))
    if form and IT_IS_HEXADECIMAL not in error.message:
        error.message += f"; {form}"
    return error


def _undecryptable(operation: Operation, values: Mapping[str, object]) -> ApiError:
    """Return the error for a failed decryption; for a ciphertext below the least size, its size."""
    error = _UNDECRYPTABLE[operation].error(values, is_recorded=True)
    text = values.get("ciphertext")
    if operation is Operation.DECRYPT and isinstance(text, str):
        size = len(text) // 4 * 3 - text.count("=")
        is_cipher = values.get("algorithm") == Algorithm.XAES_256_GCM
        least = _LEAST_OF_CIPHER if is_cipher else _LEAST_CIPHERTEXT
        if size < least and values.get("algorithm") not in LEGACY:
            error.message = (
                f"ciphertext has {size:,} bytes; a ciphertext has at least {least:,} bytes"
            )
    return _with_hint(error, values)


def _challenged(error: SecondFactorRequiredError, endpoint: Endpoint) -> ApiError:
    challenge = error.token, error.factor
    return ApiError(Code.AUTH_MFA_001, "a second factor is required", challenge=challenge)


def _invalid_password(error: InvalidPasswordError, endpoint: Endpoint) -> ApiError:
    names = [field.name for field in endpoint.fields if field.name in ("password", "new_password")]
    return ApiError(Code.UNPROCESSABLE, f"{names[0]} {error}", names[0])


_REGISTRATION_PROBLEMS: Mapping[PasskeyProblem, tuple[str, str]] = {
    PasskeyProblem.CHALLENGE: ("client_data", "its challenge has expired or was used: begin again"),
    PasskeyProblem.ORIGIN: ("client_data", "it belongs to a page of another address"),
    PasskeyProblem.CLIENT_DATA: ("client_data", "it is not client data of a new credential"),
    PasskeyProblem.RELYING_PARTY: ("authenticator_data", "it belongs to another service"),
    PasskeyProblem.USER_VERIFICATION: (
        "authenticator_data",
        "the authenticator did not verify you: set up its PIN, fingerprint or face",
    ),
    PasskeyProblem.PUBLIC_KEY: ("public_key", "it is not a public key of the algorithm"),
    PasskeyProblem.ALGORITHM: ("algorithm", "it is not supported"),
}


def _invalid_registration(error: InvalidRegistrationError, endpoint: Endpoint) -> ApiError:
    field, problem = _REGISTRATION_PROBLEMS.get(
        error.problem, ("authenticator_data", "it is not authenticator data of the credential")
    )
    return ApiError(Code.UNPROCESSABLE, f"{field} is not accepted: {problem}", field)


def _used_code(error: UsedCodeError, endpoint: Endpoint) -> ApiError:
    """Return 401, not 429: clients repeat a request after 429, and the code remains used."""
    message = f"this code or a later one was already used; a new code works in {error.wait} seconds"
    headers = {"Retry-After": str(error.wait)}
    names = {field.name for field in endpoint.fields}
    field = "totp_code" if "totp_code" in names else None
    return ApiError(Code.MFA_001, message, field, headers=headers)


def _bad_signature(error: InvalidNoticeSignatureError, endpoint: Endpoint) -> ApiError:
    message = "the signature is invalid or too old"
    return ApiError(Code.INVALID_001, message, endpoint.signature_header)


def _outside_scopes(error: ScopeDeniedError, endpoint: Endpoint) -> ApiError:
    hint = (
        f"the API key's scopes do not allow {error.operation or 'the operation'} for this request"
    )
    if error.must_name is not None:
        hint = f"only an API key with a scope that names {error.must_name} may do this"
    denied = denied_by(SCOPE_POLICY, error.algorithm, hint)
    denied.keyring = error.keyring
    return denied


def _beyond_limits(error: BeyondOwnLimitsError, endpoint: Endpoint) -> ApiError:
    hint = f"an API key can grant only its own permissions: its own {error.field} must cover these"
    return denied_by(SCOPE_POLICY, None, hint, error.field)


def _from_elsewhere(error: AddressNotAllowedError, endpoint: Endpoint) -> ApiError:
    """Return the same error as for an unknown credential; only the audit log has the reason."""
    return ApiError(
        Code.AUTH_001, _NO_CREDENTIAL, policy=ADDRESS_POLICY, is_recorded=error.is_recorded
    )


def _rate_limited(error: RateLimitedError, endpoint: Endpoint) -> ApiError:
    message = "too many requests"
    if error.busiest is not None:
        version, name, _ = error.busiest
        shown = f"API key {version}{f' ({name})' if name else ''}" if version else f"role {name}"
        message += f"; most of them from {shown}"
    return too_many(message, error.limit, error.wait)


_WITH_DETAILS: Mapping[type[Exception], tuple[Code, Callable[[Any, Endpoint], ApiError]]] = {
    FieldError: (Code.INVALID_001, _wrong_field),
    SecondFactorRequiredError: (Code.AUTH_MFA_001, _challenged),
    ScopeDeniedError: (Code.POLICY_001, _outside_scopes),
    BeyondOwnLimitsError: (Code.POLICY_001, _beyond_limits),
    AddressNotAllowedError: (Code.AUTH_001, _from_elsewhere),
    InvalidPasswordError: (Code.UNPROCESSABLE, _invalid_password),
    InvalidTokenError: (
        Code.INVALID_001,
        lambda error, _: invalid(f"subject_token {error}", "subject_token"),
    ),
    RefusedTokenError: (
        Code.FORBIDDEN_001,
        lambda error, _: forbidden(f"the token is not accepted: {error}"),
    ),
    UsedCodeError: (Code.MFA_001, _used_code),
    InvalidRegistrationError: (Code.UNPROCESSABLE, _invalid_registration),
    InvalidNoticeSignatureError: (Code.INVALID_001, _bad_signature),
    RateLimitedError: (
        Code.RATE_LIMIT_001,
        _rate_limited,
    ),
    BatchOverLimitError: (
        Code.INVALID_001,
        lambda error, _: invalid(
            f"at most {error.limit.events} items: the requests allowed in"
            f" {error.limit.seconds} seconds",
            "items",
        ),
    ),
    ExecutionRefusedError: (
        Code.CONFLICT_001,
        lambda error, _: ApiError(Code.CONFLICT_001, f"the request cannot be executed: {error}"),
    ),
    TooManyAttemptsError: (
        Code.RATE_LIMIT_001,
        lambda error, _: too_many("too many attempts", error.limit, error.wait),
    ),
    TooManyUnknownCredentialsError: (
        Code.RATE_LIMIT_001,
        lambda error, _: too_many(
            "too many unknown credentials from this address", error.limit, error.wait
        ),
    ),
    UnavailableError: (Code.SERVICE_001, lambda error, _: unavailable()),
    IdempotencyKeyReusedError: (
        Code.CONFLICT_001,
        lambda error, _: key_service_error(ErrorKind.IDEMPOTENCY_KEY_REUSED),
    ),
    KeyServiceError: (Code.SERVICE_001, lambda error, _: key_service_error(error.kind)),
}
"""Exceptions with details in their error, and the code."""


def answer_to(
    error: Exception, endpoint: Endpoint, values: Mapping[str, object]
) -> ApiError | None:
    """Return the error for an exception; None if no table has the error, which is a defect."""
    for kind in type(error).__mro__:
        if kind in DOMAIN_ERRORS:
            return DOMAIN_ERRORS[kind].error(values)
        if kind in _WITH_DETAILS:
            _, make = _WITH_DETAILS[kind]
            response = make(error, endpoint)
            is_binary = any(
                field.is_base64 for field in endpoint.fields if field.name == response.field
            )
            return _with_hint(response, values) if is_binary else response
    return None


def code_of(error: type[Exception]) -> Code:
    """Return the code of an exception, for the reference."""
    for kind in error.__mro__:
        if kind in DOMAIN_ERRORS:
            return DOMAIN_ERRORS[kind].code
        if kind in _WITH_DETAILS:
            return _WITH_DETAILS[kind][0]
    raise LookupError(f"{error.__name__} has no error code")
