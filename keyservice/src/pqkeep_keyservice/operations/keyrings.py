"""create, update, delete, restore, get and list keyrings; schedule or cancel the destruction of a tenant's keys."""

from datetime import UTC, timedelta

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import KeyringChange
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.operations.context import Context, OperationResult
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keyrings import KeyringInfo
from pqkeep_protocol.keys import Destruction
from pqkeep_protocol.messages import (
    CancelDestruction,
    CreateKeyring,
    DeleteKeyring,
    GetKeyring,
    KeyringFound,
    KeyringsFound,
    ListKeyrings,
    RestoreKeyring,
    ScheduleDestruction,
    TenantDestruction,
    UpdateKeyring,
)

MAX_DELAY = timedelta(days=366)
"""The longest delay before the destruction of a tenant's keys."""


async def create(request: CreateKeyring, context: Context) -> OperationResult:
    """Create a keyring. Raises KEYRING_EXISTS and KEYRING_DELETED."""
    info = KeyringInfo(
        request.keyring,
        request.description,
        request.labels,
        request.purposes,
        request.rotation_days,
        request.archive_after_days,
        clock.now(),
        request.minimum_decryption_version,
        request.minimum_encryption_version,
        request.transit_type,
        request.derived,
        request.first_version,
        request.deletion_allowed,
        request.retired_public_keys_allowed,
    )
    try:
        earlier = await context.parts.keyrings.get(KeyringId(request.tenant, request.keyring))
    except KeyServiceError:
        new = Keyring(request.tenant, info)
    else:
        new = earlier.recreated(info)
    change = KeyringChange(new, request.quota)
    return OperationResult(KeyringFound(keyring=info), None, change)


def delete(request: DeleteKeyring, context: Context) -> OperationResult:
    """Delete a keyring. Its private keys are destroyed after the delay.

    Raises DELETION_DENIED and KEYRING_PROTECTED.
    """
    context.keyring.require_unprotected()
    if request.only_if_allowed:
        context.keyring.require_deletion_allowed()
    delay = max(timedelta(days=request.days), context.parts.least_delay)
    new = context.keyring.with_destruction_scheduled(clock.now() + delay)
    policy = None if new.destruction is None else _at(new.destruction)
    found = KeyringFound(keyring=new.shown)
    return OperationResult(found, None, KeyringChange(new), policy=policy)


def restore(_: RestoreKeyring, context: Context) -> OperationResult:
    """Restore a deleted keyring. Raises KEYRING_NOT_FOUND if its destruction has begun."""
    new = context.keyring.restored()
    change = None if new is context.keyring else KeyringChange(new)
    return OperationResult(KeyringFound(keyring=new.info), None, change)


def update(request: UpdateKeyring, context: Context) -> OperationResult:
    """Change a keyring."""
    new = context.keyring.with_changes(request)
    change = None if new.info == context.keyring.info else KeyringChange(new)
    return OperationResult(KeyringFound(keyring=new.info), None, change)


def get(_: GetKeyring, context: Context) -> OperationResult:
    """Return a keyring."""
    return OperationResult(KeyringFound(keyring=context.keyring.info), None)


async def list_(request: ListKeyrings, context: Context) -> OperationResult:
    """Return one page of keyrings."""
    page = await context.parts.store.find_keyring_page(request)
    listed = KeyringsFound(
        keyrings=tuple(keyring.shown for keyring in page.keyrings),
        total=page.total,
        has_more=page.has_more,
        last_used_us=page.last_used_us,
    )
    return OperationResult(listed, None)


def schedule_destruction(request: ScheduleDestruction, context: Context) -> OperationResult:
    """Schedule the destruction of all a tenant's private keys, no sooner than the minimum delay."""
    earliest = clock.now() + context.parts.least_delay
    at = max(earliest, min(request.at, earliest + MAX_DELAY)).astimezone(UTC)
    new = context.keyring.with_destruction_scheduled(at, renews=request.renews)
    return _destruction(context.keyring, new)


def cancel_destruction(_: CancelDestruction, context: Context) -> OperationResult:
    """Cancel the destruction of all private keys of a tenant. Raises KEY_STATUS if it has begun."""
    new = context.keyring.with_destruction_cancelled(clock.now())
    return _destruction(context.keyring, new)


def _destruction(current: Keyring, new: Keyring) -> OperationResult:
    planned = new.destruction
    return OperationResult(
        TenantDestruction(destruction=planned),
        None,
        None if new is current else KeyringChange(new),
        policy=None if planned is None or not planned.is_open else _at(planned),
    )


def _at(planned: Destruction) -> str:
    """Return the time of a destruction in the form of records."""
    return f"at-{planned.at:%Y-%m-%dT%H:%M:%SZ}"
