"""The inventory: the tenant's keys as a bill of materials, and keys elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast
from urllib.parse import quote

from pqkeep._call import API, Call, Query, change, get
from pqkeep._data import Data
from pqkeep._operation import Operation
from pqkeep.models import Cbom, ExternalSource

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

    @Operation
    def import_external(self, source: str, document: str) -> Call[ExternalSource]:
        """Import the keys elsewhere that a document of CycloneDX (1.6 or 1.7) describes.

        They replace the keys of the source. ``document`` is JSON text of at most 1 MiB without
        private keys. ``pqkeep.certificates`` makes one of certificates.
        """
        body = {"source": source, "document": document}
        return change("/inventory/external", _source, body)

    @Operation
    def external(self) -> Call[tuple[ExternalSource, ...]]:
        """Return the sources of keys elsewhere, by name."""
        return get("/inventory/external", lambda data: tuple(map(_source, data.objects("sources"))))

    @Operation
    def remove_external(self, source: str) -> Call[ExternalSource]:
        """Remove a source of keys elsewhere. Raises NotFoundError."""
        path = f"/inventory/external/{quote(source, safe='')}"
        return change(path, _source, method="DELETE")

    @Operation
    def evidence(
        self, path: str, query: Mapping[str, object] | None = None
    ) -> Call[Mapping[str, object]]:
        """Return the data of a GET request as it is, for a report. ``path`` follows ``/api/v1``."""
        return get(path, lambda data: data.unchanged(), cast("Query | None", query))

    @Operation
    def public_keys(self, keyring: str) -> Call[tuple[Mapping[str, str], ...]]:
        """Return the public keys that verify JWS, as JWK."""
        return Call(
            method="GET",
            path=API + "/kms/jwks",
            query={"keyring": keyring},
            read=lambda data: data.text_objects("keys"),
            form="json",
        )


def _source(data: Data) -> ExternalSource:
    return ExternalSource(
        source=data.text("source"),
        document_sha256=data.text("document_sha256"),
        list_sha256=data.text("list_sha256"),
        imported_at=data.time("imported_at"),
        imported_by=data.text("imported_by"),
        total=data.integer("total"),
        moved=data.integer("moved"),
    )


def _cbom(data: Data) -> Cbom:
    return Cbom(
        spec_version=data.text("spec_version"),
        document=data.json_or_none("cbom"),
        jws=data.text_or_none("jws"),
        next=data.text_or_none("next"),
    )
