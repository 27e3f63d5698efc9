"""The number of a backup. It grows with each audit record and each restore."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from pqkeep_protocol.keys import DEFAULT_SHARD

_matches = re.compile(r"(?:([a-z0-9-]{1,32}):)?(\d{1,9})\.(\d{1,18})", re.ASCII).fullmatch


class ShardNumber(NamedTuple):
    """A shard's part of a number, compared part by part. A backup with a smaller one is older."""

    generation: int
    """The number of restores of the shard so far."""
    records: int
    """The number of the shard's audit records in the backup."""

    def __str__(self) -> str:
        return f"{self.generation}.{self.records}"


@dataclass(frozen=True, slots=True)
class BackupNumber:
    """The numbers of all shards in a backup."""

    shards: Mapping[str, ShardNumber]

    def __str__(self) -> str:
        if self.shards.keys() == {DEFAULT_SHARD}:
            return str(self.shards[DEFAULT_SHARD])
        return ",".join(f"{name}:{number}" for name, number in self.shards.items())

    def lacks(self, other: Self) -> str | None:
        """Return a shard that is newer in the other backup or only there, or None."""
        for name, number in other.shards.items():
            if name not in self.shards or self.shards[name] < number:
                return name
        return None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the number from its printed form. Raises ValueError."""
        shards: dict[str, ShardNumber] = {}
        for part in text.split(","):
            if (match := _matches(part)) is None or (name := match[1] or DEFAULT_SHARD) in shards:
                raise ValueError(
                    "not the number of a backup: expected 0.1200 or default:0.1200,b:0.300, for example"
                )
            shards[name] = ShardNumber(int(match[2]), int(match[3]))
        return cls(shards)
