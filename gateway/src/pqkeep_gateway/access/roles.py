"""What a person is to their tenant."""

from enum import StrEnum


class Role(StrEnum):
    """From most to least."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    VIEWER = "viewer"
