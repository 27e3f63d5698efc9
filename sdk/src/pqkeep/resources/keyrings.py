"""Keyrings: named sets of a tenant's keys, one for each algorithm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from pqkeep._call import Call, Page, Pages, change, get
from pqkeep._data import Data
from pqkeep._operation import Operation, WholeListing
from pqkeep.models import Keyring

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Keyrings(Generic[T_co]):
    """A tenant's keyrings. ``default`` is always there."""

    _transport: T_co

    @Operation
    def create(
        self,
        name: str,
        *,
        description: str | None = None,
        labels: Mapping[str, str] | None = None,
        purposes: Sequence[str] | None = None,
        rotation_days: int | None = None,
        archive_after_days: int | None = None,
    ) -> Call[Keyring]:
        """Create a keyring, which has no keys yet. Without ``purposes`` its keys are for all."""
        body = _settings(description, labels, purposes, rotation_days, archive_after_days)
        return change("/kms/keyrings", _keyring, {"name": name, **body})

    @Operation
    def update(
        self,
        name: str,
        *,
        description: str | None = None,
        labels: Mapping[str, str] | None = None,
        purposes: Sequence[str] | None = None,
        rotation_days: int | None = None,
        archive_after_days: int | None = None,
    ) -> Call[Keyring]:
        """Change what is named, and leave the rest. Labels and purposes replace all; 0 days: never."""
        body = _settings(description, labels, purposes, rotation_days, archive_after_days)
        return change(f"/kms/keyrings/{quote(name, safe='')}", _keyring, body, method="PATCH")

    @Operation
    def get(self, name: str) -> Call[Keyring]:
        """Return a keyring. Raises NotFoundError."""
        return get(f"/kms/keyrings/{quote(name, safe='')}", _keyring)

    @WholeListing
    def list(self, *, label: str | None = None) -> Pages[Keyring]:
        """Return all keyrings by name, or those with a label: ``team:payments``."""
        return lambda place: get("/kms/keyrings", _keyrings, {"label": label, "after": place})


def _settings(
    description: str | None,
    labels: Mapping[str, str] | None,
    purposes: Sequence[str] | None,
    rotation_days: int | None,
    archive_after_days: int | None,
) -> dict[str, object]:
    return {
        "description": description,
        "labels": None if labels is None else dict(labels),
        "purposes": None if purposes is None else list(purposes),
        "rotation_days": rotation_days,
        "archive_after_days": archive_after_days,
    }


def _keyrings(data: Data) -> Page[Keyring]:
    return Page(
        items=tuple(map(_keyring, data.objects("keyrings"))), next=data.text_or_none("next")
    )


def _keyring(data: Data) -> Keyring:
    return Keyring(
        name=data.text("name"),
        description=data.text("description"),
        labels=data.texts("labels"),
        purposes=data.texts_or_none("purposes") or (),
        rotation_days=data.integer_or_none("rotation_days"),
        archive_after_days=data.integer_or_none("archive_after_days"),
        created_at=data.time_or_none("created_at"),
    )
