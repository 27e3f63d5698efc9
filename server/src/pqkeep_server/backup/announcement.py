"""Describes a backup, announces it to the key services, and requires the newest one."""

from datetime import UTC, datetime
from uuid import UUID

from pqkeep_keyservice import config
from pqkeep_protocol.administration import AnnounceBackup
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.backup.encrypted_file import BackupNumber, Origin, ShardOrigin
from pqkeep_server.initialise import Layout
from pqkeep_server.key_service_client import KeyServiceError, announce_backup
from pqkeep_server.owner import acting_as_owner_of


class OldBackupError(Exception):
    """A newer backup exists or may exist. The message is for the person who restores."""


def describe(origin: Origin) -> str:
    """Return number, time and audit logs of a backup in words."""
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

    If one key service cannot be told, the others still are.
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
        raise KeyServiceError(f"{layout.key_service_settings} has no operator_socket: set one")
    announcement = AnnounceBackup(
        tenant=INSTALLATION,
        log_id=UUID(origin.log_id),
        generation=origin.generation,
        records=origin.records,
        created_at_us=created_at_us,
    )
    announce_backup(socket, announcement)


def require_newest(origin: Origin, newest: BackupNumber | None) -> None:
    """Raise OldBackupError unless the backup is at least as new as the newest known one."""
    if newest is None:
        raise OldBackupError(
            "name the newest backup by the number that pqkeepd backup printed: "
            "--newest NUMBER; to restore this one in any case, use --older"
        )
    if (shard := origin.number.lacks(newest)) is not None:
        of_shard = f" in the shard {shard}" if len(newest.shards) > 1 or origin.others else ""
        raise OldBackupError(
            f"the backup is older than backup {newest}: changes since then{of_shard} would be lost,"
            " and revoked credentials would be accepted again. To restore it anyway, use --older"
        )
