"""create, update, get and list keyrings; schedule the destruction of a tenant's keys, and cancel it."""

from collections.abc import Sequence
from datetime import UTC, timedelta

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import KeyringChange
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import MAX_KEYRINGS, KeyringInfo
from pqkeep_protocol.messages import (
    CancelDestruction,
    CreateKeyring,
    KeyringFound,
    KeyringsFound,
    ListKeyrings,
    ScheduleDestruction,
    TenantDestruction,
    UpdateKeyring,
)


def create(request: CreateKeyring, current: Keyring | None) -> OperationResult:
    """Create a keyring. Raises KEYRING_EXISTS."""
    if current is not None:
        raise KeyServiceError(ErrorKind.KEYRING_EXISTS)
    info = KeyringInfo(
        request.keyring,
        request.description,
        request.labels,
        request.purposes,
        request.rotation_days,
        request.archive_after_days,
        clock.now(),
    )
    change = KeyringChange(Keyring(request.tenant, info), MAX_KEYRINGS)
    return OperationResult(KeyringFound(keyring=info), None, change)


def update(request: UpdateKeyring, current: Keyring) -> OperationResult:
    """Change a keyring."""
    new = current.with_changes(request)
    if new.info == current.info:
        return get(current)
    return OperationResult(KeyringFound(keyring=new.info), None, KeyringChange(new))


def get(current: Keyring) -> OperationResult:
    """Return a keyring."""
    return OperationResult(KeyringFound(keyring=current.info), None)


def list_(request: ListKeyrings, keyrings: Sequence[Keyring]) -> OperationResult:
    """Return one page of keyrings, by name."""
    found = [
        keyring.info
        for keyring in keyrings
        if request.label is None or request.label in keyring.info.labels.items()
    ]
    rest = [each for each in found if request.after is None or each.name > request.after]
    page = tuple(rest[: request.limit])
    listed = KeyringsFound(keyrings=page, total=len(found), has_more=len(rest) > len(page))
    return OperationResult(listed, None)


MAX_DELAY = timedelta(days=366)
"""How far ahead the destruction of a tenant's keys can be."""


def on_destruction(
    request: ScheduleDestruction | CancelDestruction, current: Keyring, least_delay: timedelta
) -> OperationResult:
    """Set when all private keys of a tenant are destroyed, not before a least delay; or keep them.

    Raises KEY_STATUS where they are to be kept and their destruction has begun.
    """
    if isinstance(request, ScheduleDestruction):
        earliest = clock.now() + least_delay
        at = max(earliest, min(request.at, earliest + MAX_DELAY)).astimezone(UTC)
        new = current.with_destruction_scheduled(at)
    else:
        new = current.with_destruction_cancelled()
    found = new.destruction
    return OperationResult(
        TenantDestruction(destruction=found),
        None,
        None if new is current else KeyringChange(new),
        policy=None if found is None else f"at-{found.at:%Y-%m-%dT%H:%M:%SZ}",
    )
