"""Notices: what needs attention. People dismiss them and choose kinds in the portal."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from pqkeep._call import Call, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import Notice

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Notices(Generic[T_co]):
    """The tenant's notices; with an operator's credential, those about the installation."""

    _transport: T_co

    @Operation
    def list(self, *, closed: bool = False) -> Call[tuple[Notice, ...]]:
        """Return the open notices, or with ``closed`` those that closed in the last 30 days.

        There are at most 100, the last raised first. An API key needs the scope ``administer``.
        """
        return get("/notices", _notices, {"state": "closed" if closed else "open"})


def _notices(data: Data) -> tuple[Notice, ...]:
    return tuple(
        Notice(
            id=notice.text("id"),
            kind=notice.text("kind"),
            severity=notice.text("severity"),
            text=notice.text("text"),
            action=notice.text("action"),
            path=notice.text("path"),
            count=notice.integer("count"),
            names=notice.texts_or_none("names") or (),
            at=notice.time_or_none("at"),
            opened_at=notice.time("opened_at"),
            raised_at=notice.time("raised_at"),
            closed_at=notice.time_or_none("closed_at"),
        )
        for notice in data.objects("notices")
    )
