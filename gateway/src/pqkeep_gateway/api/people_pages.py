"""What the lists of people, sessions and invitations share: where a part begins and ends."""

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from msgspec import UNSET, Meta, UnsetType

from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.field import LIST_LIMIT, uuid_field
from pqkeep_gateway.storage.pages import Page, Part

Next = Annotated[str | UnsetType, Meta(description="Where there are more: what to send as after.")]
AFTER = uuid_field(
    "after",
    "Only what comes after this entry, as next of the page before says.",
    "6f1c2c52-52a5-4d0e-9a43-7f4d0c8f8a11",
).optional()


class _Listed(Protocol):
    @property
    def id(self) -> str: ...


def part_of(call: ApiCall) -> Part:
    """Return which part of a list a request asks for."""
    return Part(call[LIST_LIMIT], call[AFTER])


def next_of(page: Page[Any], shown: Sequence[_Listed]) -> str | UnsetType:
    """Return where the next part begins; unset at the end."""
    return shown[-1].id if page.has_more else UNSET
