"""Campaigns: plans to move data from old keys to a new one, and their progress."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from pqkeep._call import Call, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import (
    Campaign,
    CampaignProgress,
    CampaignScan,
    CampaignSource,
    CampaignTarget,
    MovedVersions,
    RefusedUses,
    ScannedVersion,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Campaigns(Generic[T_co]):
    """A tenant's campaigns."""

    _transport: T_co

    @Operation
    def put(
        self,
        name: str,
        *,
        sources: Sequence[CampaignSource],
        target: CampaignTarget,
        description: str = "",
        quiet_days: int = 30,
        state: str = "open",
        replace: bool = True,
    ) -> Call[Campaign]:
        """Create a campaign, or replace the campaign with this name.

        Raises ConflictError if it exists and ``replace`` is False.

        ``quiet_days``: the days without a use after which the sources are quiet. A replaced
        campaign keeps its scans and its moves.
        """
        body = {
            "description": description,
            "sources": [
                {
                    "keyring": source.keyring,
                    "algorithm": source.algorithm,
                    "key_versions": source.key_versions and list(source.key_versions),
                }
                for source in sources
            ],
            "target": {"keyring": target.keyring, "algorithm": target.algorithm},
            "quiet_days": quiet_days,
            "state": state,
            "replace": replace,
        }
        return change(_path(name), _campaign, body, method="PUT")

    @Operation
    def list(self) -> Call[tuple[Campaign, ...]]:
        """Return all campaigns by name, including closed ones."""
        return get("/campaigns", lambda data: tuple(map(_campaign, data.objects("campaigns"))))

    @Operation
    def get(self, name: str) -> Call[Campaign]:
        """Return a campaign. Raises NotFoundError."""
        return get(_path(name), _campaign)

    @Operation
    def progress(self, name: str) -> Call[CampaignProgress]:
        """Return what is known of a campaign. Raises NotFoundError."""
        return get(_path(name), _progress)

    @Operation
    def close(self, name: str) -> Call[Campaign]:
        """Close a campaign. The campaign keeps its scans and moves, and a PUT opens it again."""
        return change(_path(name), _campaign, method="DELETE")

    @Operation
    def add_scan(
        self,
        name: str,
        *,
        place: str,
        sha256: str,
        scanned_at: datetime,
        counts: Iterable[ScannedVersion],
        unreadable: int = 0,
    ) -> Call[CampaignScan]:
        """State how many ciphertexts of each key version a place has.

        ``place`` names a folder or a table. ``sha256``: of the scan's file, in hexadecimal.
        ``scanned_at``: the end of the scan, with its offset from UTC. ``unreadable``: the entries
        without a known key version. Raises ConflictError if there is a newer scan of the place.
        """
        body = {
            "place": place,
            "sha256": sha256,
            "scanned_at": scanned_at.isoformat(),
            "counts": [
                {
                    "keyring": counted.keyring,
                    "algorithm": counted.algorithm,
                    "key_version": counted.key_version,
                    "count": counted.count,
                }
                for counted in counts
            ],
            "unreadable": unreadable,
        }
        return change(f"{_path(name)}/scans", _scan, body)


def _path(name: str) -> str:
    return f"/campaigns/{in_path(name)}"


def _campaign(data: Data) -> Campaign:
    target = data.nested("target")
    return Campaign(
        name=data.text("name"),
        description=data.text("description"),
        sources=tuple(map(_source, data.objects("sources"))),
        target=CampaignTarget(keyring=target.text("keyring"), algorithm=target.text("algorithm")),
        quiet_days=data.integer("quiet_days"),
        state=data.text("state"),
        created_at=data.time("created_at"),
        created_by=data.text("created_by"),
        changed_at=data.time("changed_at"),
    )


def _progress(data: Data) -> CampaignProgress:
    moved, left = data.nested("moved"), data.nested("left")
    quiet, canary = data.nested("quiet"), data.nested("canary")
    return CampaignProgress(
        campaign=_campaign(data),
        moved=moved.integer("count"),
        moved_by_version=tuple(map(_moved, moved.objects("by_version"))),
        left=left.integer_or_none("count"),
        unreadable=left.integer("unreadable"),
        scans=tuple(map(_scan, left.objects("scans"))),
        is_quiet=quiet.flag("is_quiet"),
        last_used_at=quiet.time_or_none("last_used_at"),
        canary=canary.text("state"),
        canary_until=canary.time_or_none("until"),
        refused=tuple(map(_refused, canary.objects("refused"))),
        is_complete=canary.flag("complete"),
    )


def _moved(data: Data) -> MovedVersions:
    return MovedVersions(
        keyring=data.text("keyring"),
        algorithm=data.text("algorithm"),
        key_version=data.integer("key_version"),
        target_keyring=data.text("target_keyring"),
        target_algorithm=data.text("target_algorithm"),
        target_key_version=data.integer("target_key_version"),
        count=data.integer("count"),
        first_at=data.time("first_at"),
        last_at=data.time("last_at"),
    )


def _refused(data: Data) -> RefusedUses:
    return RefusedUses(
        principal=data.text("principal"),
        keyring=data.text("keyring"),
        algorithm=data.text("algorithm"),
        key_version=data.integer_or_none("key_version"),
        count=data.integer("count"),
        last_at=data.time("last_at"),
    )


def _source(data: Data) -> CampaignSource:
    return CampaignSource(
        keyring=data.text("keyring"),
        algorithm=data.text("algorithm"),
        key_versions=data.versions_or_none("key_versions"),
    )


def _scan(data: Data) -> CampaignScan:
    return CampaignScan(
        place=data.text("place"),
        sha256=data.text("sha256"),
        scanned_at=data.time("scanned_at"),
        recorded_at=data.time("recorded_at"),
        principal=data.text("principal"),
        left=data.integer("left"),
        other=data.integer("other"),
        unreadable=data.integer("unreadable"),
    )
