"""Requests of an operator's command to the key service."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from pqkeep_protocol.messages import Request, Result

Count = Annotated[int, Meta(ge=0)]


class RootKeys(Result, frozen=True, kw_only=True, tag="root-keys"):
    """The progress of a rotation of the root key."""

    in_use: tuple[int, ...]
    """Ids of the root keys that private keys are sealed under, or may be, in order."""
    remaining: Count
    """Keys that are not wholly under the newest yet: a private key or the MAC."""
    damaged: Count
    """How many of them are not what was stored."""


class ReloadRootKeys(Request[RootKeys], frozen=True, kw_only=True, tag="reload-root-keys"):
    """Read the settings again, and use the root keys they name.

    The tenant is INSTALLATION. Errors: UNAVAILABLE if the root keys are not the right ones; the key
    service's log says why, and nothing is changed.
    """


class NewestBackup(Result, frozen=True, kw_only=True, tag="newest-backup"):
    """The newest backup that was announced: the parts of its number, and when it was made."""

    generation: Count
    records: Count
    created_at_us: Count
    """Microseconds since 1970."""


class AnnounceBackup(Request[NewestBackup], frozen=True, kw_only=True, tag="announce-backup"):
    """Note that a backup is complete, unless a newer one is noted already.

    The tenant is INSTALLATION. Errors: RECORD_NOT_FOUND if it cannot be a backup of what the key
    service has: its log is another one or has fewer records, or the time has not come.
    """

    log_id: UUID
    generation: Count
    records: Count
    created_at_us: Count
    """Microseconds since 1970."""


AnyAdministrationRequest = ReloadRootKeys | AnnounceBackup
AnyAdministrationResult = RootKeys | NewestBackup
