"""Lists of people, sessions and invitations, a part at a time."""

from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

T = TypeVar("T")


class PositionNotFoundError(Exception):
    """The entry after which a list was to go on is not in it, or no longer."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a list is asked for."""

    limit: int | None = None
    """How many entries at most; None: all."""
    after: UUID | None = None
    """The entry behind which it begins."""


WHOLE = Part()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    entries: tuple[T, ...]
    total: int
    """How many entries the whole list has."""
    has_more: bool
    """Whether there are entries behind this part."""
