"""create, update, get and list keyrings."""

from collections.abc import Sequence

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.changes import KeyringChange
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.operations.result import OperationResult
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import MAX_KEYRINGS, KeyringInfo
from pqkeep_protocol.messages import (
    CreateKeyring,
    KeyringFound,
    KeyringsFound,
    ListKeyrings,
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
