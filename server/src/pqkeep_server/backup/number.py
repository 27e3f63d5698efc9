"""The number of a backup: it grows with what the installation records, and with each restore."""

import re
from typing import NamedTuple, Self

_matches = re.compile(r"(\d{1,9})\.(\d{1,18})", re.ASCII).fullmatch


class BackupNumber(NamedTuple):
    """Compares as its parts do: a backup with a smaller number lacks what came later."""

    generation: int
    """How often the installation was restored before."""
    records: int
    """How many audit records the backup has."""

    def __str__(self) -> str:
        return f"{self.generation}.{self.records}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a number as it is printed. Raises ValueError."""
        if (match := _matches(text)) is None:
            raise ValueError("expected the number of a backup, such as 0.1200")
        return cls(*map(int, match.groups()))
