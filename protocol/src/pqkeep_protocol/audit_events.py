"""The closed lists of operations and outcomes in the audit log. docs/audit.md explains them.

The gateway records its AuditEvents, and its refusals of an Operation. The key service refuses every
other name from the gateway. It records each Operation and its own KeyServiceEvents itself.
"""

import re
from collections.abc import Mapping
from enum import StrEnum

from pqkeep_protocol.algorithms import Operation


class Outcome(StrEnum):
    """Outcomes other than a refusal. A refusal's outcome is an ErrorKind or an ERR_* code."""

    SUCCESS = "success"
    BEGUN = "begun"
    HANDED_OUT = "handed-out"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class KeyServiceEvent(StrEnum):
    """Events of the key service that are not an Operation."""

    ROTATE_ROOT_KEY = "rotate-root-key"
    """BEGUN, a SUCCESS for each resealed key, COMPLETED."""
    CONTINUE_LOG = "continue-log"
    """The first record of a log that succeeds another; see ``keyservice/succession.py``."""
    DESTROY_TENANT = "destroy-tenant"
    """BEGUN when a tenant's destruction is due; COMPLETED when its last private key is gone."""
    DESTROY_KEYRING = "destroy-keyring"
    """BEGUN when a deleted keyring is due; COMPLETED when its last private key is gone."""
    WITNESS_CONFLICT = "witness-conflict"
    """BEGUN when a witness has cosigned another history of the log; COMPLETED when it cosigns
    again."""
    MOVE_RULES = "move-rules"
    """A SUCCESS for the rules of a tenant that leaves this shard or arrives in it."""
    TENANT_MOVED_OUT = "tenant-moved-out"
    """A SUCCESS for each key and keyring that leaves, then BEGUN; HANDED_OUT before the bundle can
    be read; COMPLETED once the target shard has it. In the target's log, CANCELLED is a
    renunciation."""
    TENANT_MOVED_IN = "tenant-moved-in"
    """A SUCCESS for each key and keyring that arrives, then COMPLETED; see ``ledger/moves.py``."""


class AuditEvent(StrEnum):
    """Events of the gateway.

    A refusal is recorded under the name of the refused action, so read-only endpoints are here too.
    Endpoints that use keys are recorded and refused under their Operation's name.
    """

    # Operators
    ADD_OPERATOR = "add-operator"
    ROTATE_OPERATOR = "rotate-operator"
    REMOVE_OPERATOR = "remove-operator"
    LIST_OPERATORS = "list-operators"
    OPERATOR_ME = "operator-me"
    END_OPERATOR_SESSIONS = "end-operator-sessions"
    END_OPERATOR_SESSION = "end-operator-session"
    LIST_OPERATOR_SESSIONS = "list-operator-sessions"
    REMOVE_SHARD = "remove-shard"
    ACKNOWLEDGE_EVENTS = "acknowledge-events"
    OPERATOR_LOGIN = "operator-login"
    OPERATOR_SIGN_IN = "operator-sign-in"
    OPERATOR_LOGOUT = "operator-logout"
    OPERATOR_SIGN_OUT = "operator-sign-out"

    # Tenants
    CREATE_TENANT = "create-tenant"
    LIST_TENANTS = "list-tenants"
    GET_TENANT = "get-tenant"
    CHANGE_TENANT = "change-tenant"
    SET_TIER_FREE = "set-tier-free"
    SET_TIER_STARTER = "set-tier-starter"
    SET_TIER_GROWTH = "set-tier-growth"
    SET_TIER_PROFESSIONAL = "set-tier-professional"
    SET_TIER_ENTERPRISE = "set-tier-enterprise"
    SET_TIER_ENTERPRISE_PLUS = "set-tier-enterprise-plus"
    SET_RATE_LIMIT = "set-rate-limit"
    SUSPEND_TENANT = "suspend-tenant"
    RESUME_TENANT = "resume-tenant"
    DELETE_TENANT = "delete-tenant"
    CANCEL_TENANT_DELETION = "cancel-tenant-deletion"
    TENANT_DELETED = "tenant-deleted"
    GET_ORGANIZATION = "get-organization"
    CHANGE_ORGANIZATION = "change-organization"
    REQUIRE_MFA = "require-mfa"
    DO_NOT_REQUIRE_MFA = "do-not-require-mfa"

    # API keys
    CREATE_API_KEY = "create-api-key"
    GET_OWN_API_KEY = "get-own-api-key"
    LIST_API_KEYS = "list-api-keys"
    ROTATE_API_KEY = "rotate-api-key"
    REVOKE_API_KEY = "revoke-api-key"

    # Workloads
    LIST_WORKLOADS = "list-workloads"
    PUT_WORKLOAD_ISSUER = "put-workload-issuer"
    REMOVE_WORKLOAD_ISSUER = "remove-workload-issuer"
    PUT_WORKLOAD_ROLE = "put-workload-role"
    REMOVE_WORKLOAD_ROLE = "remove-workload-role"
    EXCHANGE_TOKEN = "exchange-token"  # noqa: S105 - an event

    # Subscriptions
    LIST_PLANS = "list-plans"
    GET_SUBSCRIPTION = "get-subscription"
    GET_LIMITS = "get-limits"
    LIST_INVOICES = "list-invoices"
    CHECK_OUT = "check-out"
    BEGIN_CHECKOUT = "begin-checkout"
    BEGIN_CANCELLATION = "begin-cancellation"
    SUBSCRIBE_STARTER = "subscribe-starter"
    SUBSCRIBE_GROWTH = "subscribe-growth"
    SUBSCRIBE_PROFESSIONAL = "subscribe-professional"
    SUBSCRIBE_ENTERPRISE = "subscribe-enterprise"
    SUBSCRIBE_ENTERPRISE_PLUS = "subscribe-enterprise-plus"
    CANCEL_SUBSCRIPTION = "cancel-subscription"
    RESUME_SUBSCRIPTION = "resume-subscription"
    RENEW_SUBSCRIPTION = "renew-subscription"
    SUSPEND_SUBSCRIPTION = "suspend-subscription"
    END_SUBSCRIPTION = "end-subscription"
    RECORD_INVOICE = "record-invoice"
    RECEIVE_STRIPE_WEBHOOK = "receive-stripe-webhook"

    # Registration and passwords
    REGISTER = "register"
    CONFIRM_REGISTRATION = "confirm-registration"
    SIGN_UP = "sign-up"
    FORGOT_PASSWORD = "forgot-password"  # noqa: S105 - an event
    RESET_PASSWORD = "reset-password"  # noqa: S105 - an event
    CHANGE_PASSWORD = "change-password"  # noqa: S105 - an event

    # Signing in, and sessions
    LOGIN = "login"
    SIGN_IN = "sign-in"
    SIGN_IN_FAILED = "sign-in-failed"
    REFRESH = "refresh"
    REFRESH_TOKEN_REUSED = "refresh-token-reused"  # noqa: S105 - an event
    LOGOUT = "logout"
    SIGN_OUT = "sign-out"
    LIST_SESSIONS = "list-sessions"
    END_SESSION = "end-session"
    ME = "me"
    CHANGE_ME = "change-me"
    CHANGE_FIRST_DAY = "change-first-day"

    # Single sign-on
    SINGLE_SIGN_ON = "single-sign-on"
    LINK_IDENTITY = "link-identity"
    CREATE_MEMBER = "create-member"
    ASSIGN_ROLE = "assign-role"
    REAUTHENTICATE = "reauthenticate"
    LIST_PROVIDERS = "list-providers"
    LIST_STEP_UP_METHODS = "list-step-up-methods"

    # Second factors
    ENROLL_MFA = "enroll-mfa"
    CONFIRM_MFA = "confirm-mfa"
    ENABLE_MFA = "enable-mfa"
    DISABLE_MFA = "disable-mfa"
    VERIFY_MFA = "verify-mfa"
    SECOND_FACTOR_FAILED = "second-factor-failed"
    USE_RECOVERY_CODE = "use-recovery-code"
    SEND_EMAIL_CODE = "send-email-code"
    ENABLE_EMAIL_CODES = "enable-email-codes"
    DISABLE_EMAIL_CODES = "disable-email-codes"
    BEGIN_PASSKEY = "begin-passkey"
    ADD_PASSKEY = "add-passkey"
    LIST_PASSKEYS = "list-passkeys"
    RENAME_PASSKEY = "rename-passkey"
    REMOVE_PASSKEY = "remove-passkey"
    BEGIN_PASSKEY_SIGN_IN = "begin-passkey-sign-in"
    SIGN_IN_WITH_PASSKEY = "sign-in-with-passkey"
    BEGIN_PASSKEY_STEP_UP = "begin-passkey-step-up"
    PASSKEY_CLONED = "passkey-cloned"
    """A signature counter that is not higher than the last one."""
    STEP_UP = "step-up"
    STEP_UP_FAILED = "step-up-failed"

    # Teams
    LIST_MEMBERS = "list-members"
    CHANGE_ROLE = "change-role"
    ROLE_IS_OWNER = "role-is-owner"
    ROLE_IS_ADMIN = "role-is-admin"
    ROLE_IS_DEVELOPER = "role-is-developer"
    ROLE_IS_VIEWER = "role-is-viewer"
    REMOVE_MEMBER = "remove-member"
    MEMBERSHIP_ENDED = "membership-ended"
    LIST_INVITATIONS = "list-invitations"
    INVITE = "invite"
    INVITE_OWNER = "invite-owner"
    INVITE_ADMIN = "invite-admin"
    INVITE_DEVELOPER = "invite-developer"
    INVITE_VIEWER = "invite-viewer"
    WITHDRAW_INVITATION = "withdraw-invitation"
    ACCEPT_INVITATION = "accept-invitation"

    # Approval by a second person
    REQUIRE_APPROVAL = "require-approval"
    DO_NOT_REQUIRE_APPROVAL = "do-not-require-approval"
    LIST_APPROVALS = "list-approvals"
    GET_APPROVAL = "get-approval"
    REQUEST_APPROVAL = "request-approval"
    APPROVE_REQUEST = "approve-request"
    REFUSE_REQUEST = "refuse-request"
    WITHDRAW_REQUEST = "withdraw-request"
    EXECUTE_REQUEST = "execute-request"
    REQUEST_EXPIRED = "request-expired"
    REQUEST_INTERRUPTED = "request-interrupted"

    # Campaigns
    PUT_CAMPAIGN = "put-campaign"
    CLOSE_CAMPAIGN = "close-campaign"
    LIST_CAMPAIGNS = "list-campaigns"
    GET_CAMPAIGN = "get-campaign"
    ADD_CAMPAIGN_SCAN = "add-campaign-scan"
    BEGIN_CANARY = "begin-canary"
    END_CANARY = "end-canary"

    # Webhooks
    CREATE_WEBHOOK = "create-webhook"
    CHANGE_WEBHOOK = "change-webhook"
    ROTATE_WEBHOOK_SECRET = "rotate-webhook-secret"  # noqa: S105 - an event
    REMOVE_WEBHOOK = "remove-webhook"
    DISABLE_WEBHOOK = "disable-webhook"
    LIST_WEBHOOKS = "list-webhooks"
    LIST_WEBHOOK_DELIVERIES = "list-webhook-deliveries"
    TEST_WEBHOOK = "test-webhook"
    RESEND_WEBHOOK_DELIVERY = "resend-webhook-delivery"

    # Hashes and random bytes, without a key
    HASH = "hash"
    GENERATE_RANDOM = "generate-random"

    # Notices
    LIST_NOTICES = "list-notices"
    SEE_NOTICES = "see-notices"
    DISMISS_NOTICE = "dismiss-notice"
    LIST_NOTICE_SETTINGS = "list-notice-settings"
    CHANGE_NOTICE_SETTING = "change-notice-setting"
    CHANGE_NOTICE_MAIL = "change-notice-mail"

    # Search, usage, the audit log, and health
    SEARCH = "search"
    GET_INSTALLATION = "get-installation"
    GET_USAGE = "get-usage"
    LIST_AUDIT_RECORDS = "list-audit-records"
    COUNT_AUDIT_RECORDS = "count-audit-records"
    PROVE_AUDIT_RECORD = "prove-audit-record"
    LIST_AUDIT_CHECKPOINTS = "list-audit-checkpoints"
    SIGN_AUDIT_CHECKPOINT = "sign-audit-checkpoint"
    GET_AUDIT_NOTE = "get-audit-note"
    GET_AUDIT_TLOG_PROOF = "get-audit-tlog-proof"
    LIST_AUDIT_WITNESSES = "list-audit-witnesses"
    PROVE_AUDIT_CONSISTENCY = "prove-audit-consistency"
    LIST_AUDIT_KEYS = "list-audit-keys"
    EXPORT_AUDIT_LOG = "export-audit-log"
    CHECK_HEALTH = "check-health"

    # The inventory
    LIST_INVENTORY = "list-inventory"
    LIST_USES = "list-uses"
    GET_CBOM = "get-cbom"
    PREVIEW_RULES = "preview-rules"
    LIST_EXTERNAL_KEYS = "list-external-keys"
    IMPORT_EXTERNAL_KEYS = "import-external-keys"
    REMOVE_EXTERNAL_KEYS = "remove-external-keys"


PAGE_VIEWS = frozenset({Operation.LIST_KEYS, Operation.LIST_KEYRINGS, Operation.LIST_RULES})
"""Reads by portal pages with a person's session. A person's successes here are page views."""
PERSON = "user:"
"""The prefix of a signed-in person's principal."""
API_KEY = "api-key:"
"""The prefix of an API key's principal. The key's version follows, then a slash and its name."""
WORKLOAD = "workload:"
"""The prefix of a workload's principal. The name of its role follows."""
OPERATOR = "operator:"
"""The prefix of a named operator's principal."""

GatewayOperation = AuditEvent | Operation
"""Events that the gateway can record: its own events, and refused key operations."""

RecordedOperation = GatewayOperation | KeyServiceEvent
"""Every operation that a record can name."""

_BY_NAME: Mapping[str, GatewayOperation] = {
    **{event.value: event for event in AuditEvent},
    **{operation.value: operation for operation in Operation},
}
_is_code = re.compile(r"ERR(_[A-Z]+)+_[0-9]{3}").fullmatch


def gateway_operation(name: str, outcome: str) -> GatewayOperation | None:
    """Return the recorded operation of a name and outcome, or None if the gateway cannot record it.

    Only the key service records a key operation's success. The gateway records its refusals.
    """
    operation = _BY_NAME.get(name)
    is_own_success = outcome == Outcome.SUCCESS and isinstance(operation, AuditEvent)
    return operation if is_own_success or _is_code(outcome) else None
