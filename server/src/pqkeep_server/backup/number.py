"""The number of a backup: it grows with what the installation records, and with each restore."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from pqkeep_protocol.keys import DEFAULT_SHARD

_matches = re.compile(r"(?:([a-z0-9-]{1,32}):)?(\d{1,9})\.(\d{1,18})", re.ASCII).fullmatch


class ShardNumber(NamedTuple):
    """Compares as its parts do: a backup with a smaller number lacks what came later."""

    generation: int
    """How often the shard was restored before."""
    records: int
    """How many audit records the backup has of it."""

    def __str__(self) -> str:
        return f"{self.generation}.{self.records}"


@dataclass(frozen=True, slots=True)
class BackupNumber:
    """The numbers of all shards in a backup. With one shard it is that shard's."""

    shards: Mapping[str, ShardNumber]

    def __str__(self) -> str:
        if self.shards.keys() == {DEFAULT_SHARD}:
            return str(self.shards[DEFAULT_SHARD])
        return ",".join(f"{name}:{number}" for name, number in self.shards.items())

    def lacks(self, other: Self) -> str | None:
        """Return the name of a shard that has more in another backup, or is in that one only."""
        for name, number in other.shards.items():
            if name not in self.shards or self.shards[name] < number:
                return name
        return None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a number as it is printed. Raises ValueError."""
        shards: dict[str, ShardNumber] = {}
        for part in text.split(","):
            if (match := _matches(part)) is None or (name := match[1] or DEFAULT_SHARD) in shards:
                raise ValueError(
                    "expected the number of a backup, such as 0.1200 or default:0.1200,b:0.300"
                )
            shards[name] = ShardNumber(int(match[2]), int(match[3]))
        return cls(shards)
