"""Says what a backup is of before it is restored, and requires that it is the newest."""

from datetime import UTC, datetime

from pqkeep_server.backup.encrypted_file import Origin
from pqkeep_server.backup.number import BackupNumber


class OldBackupError(Exception):
    """There is a newer backup, or there may be one. The message is for the person who restores."""


def describe(origin: Origin) -> str:
    """Return which backup it is."""
    at = datetime.fromtimestamp(origin.created_at_us // 1_000_000, UTC)
    return (
        f"backup {origin.number}, made at {at:%Y-%m-%d %H:%M:%S} UTC, of the audit log "
        f"{origin.log_id} with {origin.records:,} records"
    )


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
