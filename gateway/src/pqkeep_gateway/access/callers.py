"""Who may ask for what: one table of permissions and callers. What is not in it is denied.

Each endpoint names one permission, and the request pipeline asks this table before it reads a body.
A permission is necessary, not sufficient: a plan's policies decide beside it.
"""

from collections.abc import Mapping
from enum import StrEnum

from pqkeep_protocol.algorithms import Operation


class Role(StrEnum):
    """From most to least."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Credential(StrEnum):
    """What a caller without a session sends."""

    API_KEY = "API key"
    ROTATED_API_KEY = "rotated API key"
    """One that is still accepted for its overlap: it uses keys, so that programs can change over."""
    OPERATOR = "operator"
    NONE = "anyone"


Caller = Credential | Role
"""A column of the table: a signed-in person is their role."""

CALLERS: tuple[Caller, ...] = (*Credential, *Role)


class Permission(StrEnum):
    """A row of the table: what an endpoint asks of its caller."""

    PUBLIC = "public"
    """Signing in, and what is shown to everybody."""
    OWN_ACCOUNT = "own-account"
    """One's own password, factors and sessions."""
    VIEW_KEYS = "view-keys"
    USE_KEYS = "use-keys"
    MANAGE_KEYS = "manage-keys"
    ARCHIVE_KEYS = "archive-keys"
    VIEW_TENANT = "view-tenant"
    """The tenant, its API keys' metadata and its audit log."""
    MANAGE_API_KEYS = "manage-api-keys"
    ROTATE_API_KEYS = "rotate-api-keys"
    """Also with a rotated API key: asked again, a rotation gives its first answer again."""
    MANAGE_TEAM = "manage-team"
    """Members and invitations, except owners."""
    MANAGE_OWNERS = "manage-owners"
    LEAVE_TEAM = "leave-team"
    """Removing a member: oneself, or others with ``manage-team``."""
    REQUIRE_MFA = "require-mfa"
    VIEW_SUBSCRIPTION = "view-subscription"
    MANAGE_BILLING = "manage-billing"
    SIGN_UP = "sign-up"
    """Creating a tenant where sign-up is open."""
    CREATE_TENANTS = "create-tenants"
    MANAGE_TENANTS = "manage-tenants"
    VIEW_INSTALLATION = "view-installation"
    SIGN_CHECKPOINTS = "sign-checkpoints"


_OWNER: frozenset[Caller] = frozenset({Role.OWNER})
_ADMIN = _OWNER | {Role.ADMIN}
_DEVELOPER = _ADMIN | {Role.DEVELOPER}
_PEOPLE = _DEVELOPER | {Role.VIEWER}
_API_KEY: frozenset[Caller] = frozenset({Credential.API_KEY})
_ANY_API_KEY = _API_KEY | {Credential.ROTATED_API_KEY}
_OPERATOR: frozenset[Caller] = frozenset({Credential.OPERATOR})

GRANTS: Mapping[Permission, frozenset[Caller]] = {
    Permission.PUBLIC: frozenset(CALLERS),
    Permission.OWN_ACCOUNT: _PEOPLE,
    Permission.VIEW_KEYS: _PEOPLE | _ANY_API_KEY,
    Permission.USE_KEYS: _DEVELOPER | _ANY_API_KEY,
    Permission.MANAGE_KEYS: _DEVELOPER | _API_KEY,
    Permission.ARCHIVE_KEYS: _ADMIN,
    Permission.VIEW_TENANT: _PEOPLE | _API_KEY | _OPERATOR,
    Permission.MANAGE_API_KEYS: _ADMIN | _API_KEY | _OPERATOR,
    Permission.ROTATE_API_KEYS: _ADMIN | _ANY_API_KEY | _OPERATOR,
    Permission.MANAGE_TEAM: _ADMIN | _OPERATOR,
    Permission.MANAGE_OWNERS: _OWNER | _OPERATOR,
    Permission.LEAVE_TEAM: _PEOPLE | _OPERATOR,
    Permission.REQUIRE_MFA: _OWNER,
    Permission.VIEW_SUBSCRIPTION: _PEOPLE | _API_KEY,
    Permission.MANAGE_BILLING: _OWNER,
    Permission.SIGN_UP: _OPERATOR | {Credential.NONE},
    Permission.CREATE_TENANTS: _OPERATOR,
    Permission.MANAGE_TENANTS: _OPERATOR,
    Permission.VIEW_INSTALLATION: _OPERATOR,
    Permission.SIGN_CHECKPOINTS: _OPERATOR,
}

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
    Operation.GET_KEYRING: Permission.VIEW_KEYS,
    Operation.LIST_KEYRINGS: Permission.VIEW_KEYS,
}
"""What each operation of the key service asks for. An operation without a row cannot be served."""

COVERED_BY_PROOF: frozenset[str] = frozenset(
    {
        # Access that is granted, and that an owner can take away again.
        "invite",
        "change_role",
        # Access that ends. In an incident many members and API keys are removed one after another.
        "remove_member",
        "revoke_api_key",
        # Keys: nothing becomes unreadable. Where keys are to be archived, see Endpoint.step_up_for.
        "rotate_key",
        "import_key",
        "update_keyring",
        # Money, in amounts that the plans name.
        "check_out",
        "cancel_subscription",
    }
)
"""Sensitive operations for which a session's proof of identity is enough for five minutes.

Every other sensitive operation takes a step-up token, which is used up: those that destroy keys,
and those that change credentials and factors. A password, a second factor, a tenant's demand for
one, and an API key that is made or rotated outlast the session and its proof, so that somebody who
sits down at a browser in these five minutes could stay. An operation is not covered unless it is
named here.
"""


def may(caller: Caller | None, permission: Permission) -> bool:
    """Return whether a caller has a permission. Nobody (None) has none."""
    return caller in GRANTS.get(permission, frozenset())
