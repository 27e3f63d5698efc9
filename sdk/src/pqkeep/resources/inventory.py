"""The inventory: the tenant's keys as a cryptographic bill of materials."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pqkeep._call import Call, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import Cbom

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inventory(Generic[T_co]):
    """The inventory of a tenant's keys."""

    _transport: T_co

    @Operation
    def cbom(
        self,
        *,
        version: Literal["1.6", "1.7"] | None = None,
        signed_by: str | None = None,
        after: str | None = None,
    ) -> Call[Cbom]:
        """Return a cryptographic bill of materials of CycloneDX, by default 1.7.

        ``signed_by`` is the key that signs it: a keyring, a slash, and ML-DSA-65 or ML-DSA-87. A
        document has at most 500 key versions. ``after`` is the ``next`` of the previous document.
        """
        query = {"version": version, "signed_by": signed_by, "after": after}
        return get("/inventory/cbom", _cbom, query)


def _cbom(data: Data) -> Cbom:
    return Cbom(
        spec_version=data.text("spec_version"),
        document=data.json_or_none("cbom"),
        jws=data.text_or_none("jws"),
        next=data.text_or_none("next"),
    )
