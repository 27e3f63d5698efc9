"""What people may do: one table of roles and permissions. What is not in it is denied.

A permission is necessary, not sufficient: a plan's policies decide beside it.
"""

from collections.abc import Mapping
from enum import StrEnum

from pqkeep_protocol.algorithms import LIFECYCLE, Operation


class Role(StrEnum):
    """What somebody is to their tenant, from most to least."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    VIEWER = "viewer"


class Permission(StrEnum):
    """What an endpoint asks of a signed-in person."""

    OWN_ACCOUNT = "own-account"
    """Everything about oneself."""
    VIEW = "look"
    """Keys, the tenant, its API keys and its audit log, as they are."""
    USE_KEYS = "use-keys"
    CHANGE_KEYS = "change-keys"
    ARCHIVE_KEYS = "archive-keys"
    API_KEYS = "api-keys"
    TEAM = "team"
    """Everybody but owners."""
    OWNERS = "owners"
    BILLING = "billing"


_VIEWER = frozenset({Permission.OWN_ACCOUNT, Permission.VIEW})
_DEVELOPER = _VIEWER | {Permission.USE_KEYS, Permission.CHANGE_KEYS}
_ADMIN = _DEVELOPER | {Permission.ARCHIVE_KEYS, Permission.API_KEYS, Permission.TEAM}

PERMISSIONS: Mapping[Role, frozenset[Permission]] = {
    Role.OWNER: frozenset(Permission),
    Role.ADMIN: _ADMIN,
    Role.DEVELOPER: _DEVELOPER,
    Role.VIEWER: _VIEWER,
}

_LOOKING = frozenset({Operation.LIST_KEYS, Operation.GET_KEY, Operation.GET_ACTIVE_KEY})

PERMISSION_OF: Mapping[Operation, Permission] = {
    **dict.fromkeys(Operation, Permission.USE_KEYS),
    **dict.fromkeys(LIFECYCLE, Permission.CHANGE_KEYS),
    **dict.fromkeys(_LOOKING, Permission.VIEW),
    Operation.ARCHIVE_KEY: Permission.ARCHIVE_KEYS,
}
"""What each operation of the key service asks for."""
