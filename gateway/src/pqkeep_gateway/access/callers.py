"""The access table: permissions and the callers that have them. Anything else is denied.

Each endpoint names one permission, and the request pipeline checks it before it reads a body. A
permission is necessary, not sufficient: the policies of the plan decide too.
"""

from collections.abc import Mapping
from enum import StrEnum

from pqkeep_protocol.algorithms import Operation


class Role(StrEnum):
    """The roles of people, the most powerful first."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Credential(StrEnum):
    """The credential of a caller without a session."""

    API_KEY = "API key"
    ROTATED_API_KEY = "rotated API key"
    """A rotated API key during its overlap.

    It can also use keys, so programs can switch in time.
    """
    WORKLOAD = "workload"
    """A short-lived API key of a role, for the token of a workload. It may not manage API keys."""
    OPERATOR = "operator"
    """An operator with the role admin."""
    TENANT_OPERATOR = "tenant operator"
    READING_OPERATOR = "reading operator"
    NONE = "anyone"


Caller = Credential | Role
"""A column of the table. A signed-in person's column is their role."""

CALLERS: tuple[Caller, ...] = (*Credential, *Role)


class OperatorRole(StrEnum):
    """The roles of operators, the most powerful first. ``OPERATOR_CALLERS`` has their columns."""

    ADMIN = "admin"
    TENANT_ADMIN = "tenant-admin"
    """Makes and manages tenants. Nothing about the installation as a whole."""
    READ_ONLY = "read-only"


OPERATOR_CALLERS: Mapping[OperatorRole, Credential] = {
    OperatorRole.ADMIN: Credential.OPERATOR,
    OperatorRole.TENANT_ADMIN: Credential.TENANT_OPERATOR,
    OperatorRole.READ_ONLY: Credential.READING_OPERATOR,
}
OPERATORS: frozenset[Caller] = frozenset(OPERATOR_CALLERS.values())


class Permission(StrEnum):
    """A row of the table: the permission that an endpoint requires."""

    PUBLIC = "public"
    """Signing in, and public information."""
    OWN_ACCOUNT = "own-account"
    """The caller's own password, factors and sessions."""
    OWN_OPERATOR = "own-operator"
    """The operator's own name, role and session."""
    OWN_API_KEY = "own-api-key"
    """The tenant and limits of the API key that calls."""
    VIEW_KEYS = "view-keys"
    USE_KEYS = "use-keys"
    MANAGE_KEYS = "manage-keys"
    ARCHIVE_KEYS = "archive-keys"
    MANAGE_RULES = "manage-rules"
    """A tenant's rules. No program has it."""
    USE_WEBHOOKS = "use-webhooks"
    """Webhooks and their deliveries, test messages, and sending a message again."""
    MANAGE_WEBHOOKS = "manage-webhooks"
    """The receivers of messages, and their secrets. No program has it."""
    RUN_CANARIES = "run-canaries"
    """Disabling the sources of a campaign for a time, to see who still needs them."""
    DELETE_KEYRINGS = "delete-keyrings"
    """Deleting keyrings that allow it. An API key needs a scope that names this operation."""
    VIEW_TENANT = "view-tenant"
    """The tenant, its API keys' metadata and its audit log."""
    SEARCH = "search"
    """Finding things by name. A search finds only what the caller's other permissions show."""
    VIEW_INVENTORY = "view-inventory"
    """All keys of a tenant, and the principals that use them."""
    MANAGE_API_KEYS = "manage-api-keys"
    ROTATE_API_KEYS = "rotate-api-keys"
    """A rotated API key keeps it, so that a repeated rotation returns its first response."""
    MANAGE_WORKLOADS = "manage-workloads"
    """Issuers of workloads' tokens, and roles. No program has it."""
    VIEW_TEAM = "view-team"
    """The list of members and invitations."""
    MANAGE_TEAM = "manage-team"
    """Members and invitations, except owners."""
    MANAGE_OWNERS = "manage-owners"
    LEAVE_TEAM = "leave-team"
    """Removing a member: oneself, or others with ``manage-team``."""
    REQUIRE_MFA = "require-mfa"
    APPROVE_REQUESTS = "approve-requests"
    """Seeing and deciding requests that a second person must approve. Approving one also needs the
    permission of the request itself. No program has it."""
    MANAGE_NOTICES = "manage-notices"
    """Switching kinds of notices off, and dismissing one. A dismissed notice is hidden from the
    whole tenant."""
    VIEW_SUBSCRIPTION = "view-subscription"
    MANAGE_BILLING = "manage-billing"
    SIGN_UP = "sign-up"
    """Creating a tenant where sign-up is open."""
    CREATE_TENANTS = "create-tenants"
    MANAGE_TENANTS = "manage-tenants"
    VIEW_INSTALLATION = "view-installation"
    MANAGE_OPERATORS = "manage-operators"
    """Ending operators' sessions. Operators themselves are managed by pqkeepd on the host."""
    SIGN_CHECKPOINTS = "sign-checkpoints"


_OWNER: frozenset[Caller] = frozenset({Role.OWNER})
_ADMIN = _OWNER | {Role.ADMIN}
_DEVELOPER = _ADMIN | {Role.DEVELOPER}
_PEOPLE = _DEVELOPER | {Role.VIEWER}
_API_KEY: frozenset[Caller] = frozenset({Credential.API_KEY})
_PROGRAM = _API_KEY | {Credential.WORKLOAD}
_ANY_PROGRAM = _PROGRAM | {Credential.ROTATED_API_KEY}
_OPERATOR: frozenset[Caller] = frozenset({Credential.OPERATOR})
_TENANT_OPERATOR = _OPERATOR | {Credential.TENANT_OPERATOR}

GRANTS: Mapping[Permission, frozenset[Caller]] = {
    Permission.PUBLIC: frozenset(CALLERS),
    Permission.OWN_ACCOUNT: _PEOPLE,
    Permission.OWN_OPERATOR: OPERATORS,
    Permission.OWN_API_KEY: _ANY_PROGRAM,
    Permission.VIEW_KEYS: _PEOPLE | _ANY_PROGRAM,
    Permission.USE_KEYS: _DEVELOPER | _ANY_PROGRAM,
    Permission.MANAGE_KEYS: _DEVELOPER | _PROGRAM,
    Permission.ARCHIVE_KEYS: _ADMIN,
    Permission.MANAGE_RULES: _ADMIN,
    Permission.USE_WEBHOOKS: _ADMIN | _PROGRAM,
    Permission.MANAGE_WEBHOOKS: _ADMIN,
    Permission.RUN_CANARIES: _ADMIN,
    Permission.DELETE_KEYRINGS: _ADMIN | _PROGRAM,
    Permission.VIEW_TENANT: _PEOPLE | _PROGRAM | OPERATORS,
    Permission.SEARCH: _PEOPLE | OPERATORS,
    Permission.VIEW_INVENTORY: _PEOPLE | _PROGRAM,
    Permission.MANAGE_API_KEYS: _ADMIN | _API_KEY | _TENANT_OPERATOR,
    Permission.ROTATE_API_KEYS: _ADMIN | _API_KEY | {Credential.ROTATED_API_KEY} | _TENANT_OPERATOR,
    Permission.MANAGE_WORKLOADS: _ADMIN | _TENANT_OPERATOR,
    Permission.VIEW_TEAM: _ADMIN | OPERATORS,
    Permission.MANAGE_TEAM: _ADMIN | _TENANT_OPERATOR,
    Permission.MANAGE_OWNERS: _OWNER | _TENANT_OPERATOR,
    Permission.LEAVE_TEAM: _PEOPLE | _TENANT_OPERATOR,
    Permission.REQUIRE_MFA: _OWNER,
    Permission.APPROVE_REQUESTS: _ADMIN,
    Permission.MANAGE_NOTICES: _ADMIN,
    Permission.VIEW_SUBSCRIPTION: _PEOPLE | _PROGRAM,
    Permission.MANAGE_BILLING: _OWNER,
    Permission.SIGN_UP: _TENANT_OPERATOR | {Credential.NONE},
    Permission.CREATE_TENANTS: _TENANT_OPERATOR,
    Permission.MANAGE_TENANTS: _TENANT_OPERATOR,
    Permission.VIEW_INSTALLATION: _OPERATOR | {Credential.READING_OPERATOR},
    Permission.MANAGE_OPERATORS: _OPERATOR,
    Permission.SIGN_CHECKPOINTS: _OPERATOR,
}

ADMINISTERS: frozenset[Permission] = frozenset(
    {
        Permission.MANAGE_KEYS,
        Permission.DELETE_KEYRINGS,
        Permission.VIEW_TENANT,
        Permission.VIEW_INVENTORY,
        Permission.MANAGE_API_KEYS,
        Permission.ROTATE_API_KEYS,
    }
)
"""Permissions of API keys that a program which only uses keys does not need."""

WITHOUT_SCOPE: frozenset[Permission] = frozenset({Permission.PUBLIC, Permission.OWN_API_KEY})
"""Permissions that the scopes of an API key do not limit. No scope can name their operations."""

PERMISSION_OF: Mapping[Operation, Permission] = {
    Operation.ENCRYPT: Permission.USE_KEYS,
    Operation.DECRYPT: Permission.USE_KEYS,
    Operation.ENCAPSULATE: Permission.USE_KEYS,
    Operation.DECAPSULATE: Permission.USE_KEYS,
    Operation.WRAP: Permission.USE_KEYS,
    Operation.UNWRAP: Permission.USE_KEYS,
    Operation.RE_ENCRYPT: Permission.USE_KEYS,
    Operation.SIGN: Permission.USE_KEYS,
    Operation.VERIFY: Permission.USE_KEYS,
    Operation.SIGN_HASH: Permission.USE_KEYS,
    Operation.VERIFY_HASH: Permission.USE_KEYS,
    Operation.SIGN_JWS: Permission.USE_KEYS,
    Operation.SIGN_MU: Permission.USE_KEYS,
    Operation.VERIFY_MU: Permission.USE_KEYS,
    Operation.GENERATE_DATA_KEY: Permission.USE_KEYS,
    Operation.COMPUTE_MAC: Permission.USE_KEYS,
    Operation.VERIFY_MAC: Permission.USE_KEYS,
    Operation.GENERATE_KEY: Permission.MANAGE_KEYS,
    Operation.GET_IMPORT_KEY: Permission.MANAGE_KEYS,
    Operation.IMPORT_KEY: Permission.MANAGE_KEYS,
    Operation.ROTATE_KEY: Permission.MANAGE_KEYS,
    Operation.RETIRE_KEY: Permission.MANAGE_KEYS,
    Operation.DISABLE_KEY: Permission.MANAGE_KEYS,
    Operation.ENABLE_KEY: Permission.MANAGE_KEYS,
    Operation.SCHEDULE_ARCHIVE: Permission.ARCHIVE_KEYS,
    Operation.CANCEL_ARCHIVE: Permission.MANAGE_KEYS,
    Operation.ARCHIVE_KEY: Permission.ARCHIVE_KEYS,
    Operation.LIST_KEYS: Permission.VIEW_KEYS,
    Operation.LIST_PUBLIC_KEYS: Permission.VIEW_KEYS,
    Operation.GET_KEY: Permission.VIEW_KEYS,
    Operation.GET_ACTIVE_KEY: Permission.VIEW_KEYS,
    Operation.CREATE_KEYRING: Permission.MANAGE_KEYS,
    Operation.UPDATE_KEYRING: Permission.MANAGE_KEYS,
    Operation.DELETE_KEYRING: Permission.DELETE_KEYRINGS,
    Operation.RESTORE_KEYRING: Permission.MANAGE_KEYS,
    Operation.GET_KEYRING: Permission.VIEW_KEYS,
    Operation.LIST_KEYRINGS: Permission.VIEW_KEYS,
    Operation.LIST_RULES: Permission.VIEW_KEYS,
    Operation.PUT_RULE: Permission.MANAGE_RULES,
    Operation.DELETE_RULE: Permission.MANAGE_RULES,
}
"""The permission for each operation of the key service. An operation without a row is denied."""

COVERED_BY_PROOF: frozenset[str] = frozenset(
    {
        # Granted access, which an owner can revoke.
        "invite",
        "change_role",
        # Revoked access. An incident may require many removals of members and API keys.
        "remove_member",
        "revoke_api_key",
        "remove_webhook",
        "remove_workload_issuer",
        "remove_workload_role",
        # A name, by which its owner recognizes a passkey.
        "rename_passkey",
        # Keys: nothing becomes unreadable. For archiving, see Endpoint.step_up_for.
        "rotate_key",
        "import_key",
        "update_keyring",
        # Hides notices of a kind, which the log records and anyone can show again.
        "change_notice_setting",
        # Money, in amounts that the plans name.
        "check_out",
        "cancel_subscription",
    }
)
"""Sensitive operations for which a session's proof of identity is enough for five minutes.

Every other sensitive operation takes a single-use step-up token: destruction of keys, and changes
of credentials and factors. A password, a second factor, a tenant's MFA requirement and a new API
key outlast the session and its proof. Without the token, an intruder at an unattended browser could
keep access for longer than these five minutes.
"""


COVERED_FOR_OPERATORS: frozenset[str] = COVERED_BY_PROOF | {
    "create_tenant",
    "change_tenant",
    "cancel_tenant_deletion",
    "withdraw_invitation",
    "end_operator_session",
}
"""Changes that operators may make for five minutes after a reauthentication at their provider.

Every other change destroys keys or outlasts the session, and needs its own reauthentication. To make
a person an owner needs one too: owners can invite others, so this outlasts the session.
"""


def is_covered_for_operators(operation: str, values: Mapping[str, object]) -> bool:
    """Return whether an operator's earlier reauthentication covers a change with these values."""
    makes_owner = operation in {"invite", "change_role"} and values.get("role") == Role.OWNER
    return operation in COVERED_FOR_OPERATORS and not makes_owner


def may(caller: Caller | None, permission: Permission) -> bool:
    """Return whether a caller has a permission. None is no caller and has no permission."""
    return caller in GRANTS.get(permission, frozenset())
