"""Tells the key service of a backup; says what one is of, and requires that it is the newest."""

from datetime import UTC, datetime
from uuid import UUID

from pqkeep_keyservice import config
from pqkeep_protocol.administration import AnnounceBackup
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_server.backup.encrypted_file import Origin
from pqkeep_server.backup.number import BackupNumber
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError, announce_backup
from pqkeep_server.owner import acting_as_owner_of


class OldBackupError(Exception):
    """There is a newer backup, or there may be one. The message is for the person who restores."""


def describe(origin: Origin) -> str:
    """Return which backup it is."""
    at = datetime.fromtimestamp(origin.created_at_us // 1_000_000, UTC)
    return (
        f"backup {origin.number}, made at {at:%Y-%m-%d %H:%M:%S} UTC, of the audit log "
        f"{origin.log_id} with {origin.records:,} records"
    )


def announce(layout: Layout, origin: Origin) -> None:
    """Tell the key service that a backup is complete. Raises ConfigError and KeyServiceError."""
    with acting_as_owner_of(layout.key_service):
        socket = config.read(layout.key_service_settings).operator_socket
    if socket is None:
        raise KeyServiceError(f"{layout.key_service_settings} has no operator_socket")
    announcement = AnnounceBackup(
        tenant=INSTALLATION,
        log_id=UUID(origin.log_id),
        generation=origin.generation,
        records=origin.records,
        created_at_us=origin.created_at_us,
    )
    announce_backup(socket, announcement)


def require_newest(origin: Origin, newest: BackupNumber | None) -> None:
    """Raise OldBackupError unless the backup is the newest that is known, or newer."""
    if newest is None:
        raise OldBackupError(
            "name the newest backup that you know of, by the number that pqkeepd backup printed: "
            "--newest NUMBER, or --older to restore this one whatever there is"
        )
    if origin.number < newest:
        raise OldBackupError(
            f"it is older than backup {newest}: what was done in between would be lost, and what "
            "was revoked would be accepted again. --older restores it nevertheless"
        )
