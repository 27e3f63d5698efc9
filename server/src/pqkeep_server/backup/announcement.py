"""Tells the key services of a backup; says what one is of, and requires that it is the newest."""

from datetime import UTC, datetime
from uuid import UUID

from pqkeep_keyservice import config
from pqkeep_protocol.administration import AnnounceBackup
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.encrypted_file import Origin, ShardOrigin
from pqkeep_server.backup.number import BackupNumber
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError, announce_backup
from pqkeep_server.owner import acting_as_owner_of


class OldBackupError(Exception):
    """There is a newer backup, or there may be one. The message is for the person who restores."""


def describe(origin: Origin) -> str:
    """Return which backup it is."""
    at = datetime.fromtimestamp(origin.created_at_us // 1_000_000, UTC)
    logs = (
        f"{log.log_id} with {log.records:,} records"
        + (f" (shard {shard})" if origin.others else "")
        for shard, log in origin.shards.items()
    )
    of = "of the audit logs" if origin.others else "of the audit log"
    return f"backup {origin.number}, made at {at:%Y-%m-%d %H:%M:%S} UTC, {of} " + ", ".join(logs)


def announce(layout: Layout, origin: Origin) -> None:
    """Tell each key service that a backup is complete. Raises ConfigError and KeyServiceError.

    Where one cannot be told the others are nevertheless.
    """
    problem: ConfigError | KeyServiceError | None = None
    for shard, log in origin.shards.items():
        try:
            _announce(Layout(layout.directory, shard), log, origin.created_at_us)
        except (ConfigError, KeyServiceError) as error:
            problem = error
    if problem is not None:
        raise problem


def _announce(layout: Layout, origin: ShardOrigin, created_at_us: int) -> None:
    with acting_as_owner_of(layout.key_service):
        socket = config.read(layout.key_service_settings).operator_socket
    if socket is None:
        raise KeyServiceError(f"{layout.key_service_settings} has no operator_socket")
    announcement = AnnounceBackup(
        tenant=INSTALLATION,
        log_id=UUID(origin.log_id),
        generation=origin.generation,
        records=origin.records,
        created_at_us=created_at_us,
    )
    announce_backup(socket, announcement)


def require_newest(origin: Origin, newest: BackupNumber | None) -> None:
    """Raise OldBackupError unless the backup is the newest that is known, or newer."""
    if newest is None:
        raise OldBackupError(
            "name the newest backup that you know of, by the number that pqkeepd backup printed: "
            "--newest NUMBER, or --older to restore this one whatever there is"
        )
    if (shard := origin.number.lacks(newest)) is not None:
        of_shard = f" in the shard {shard}" if len(newest.shards) > 1 or origin.others else ""
        raise OldBackupError(
            f"it is older than backup {newest}: what was done in between{of_shard} would be lost, and"
            " what was revoked would be accepted again. --older restores it nevertheless"
        )
