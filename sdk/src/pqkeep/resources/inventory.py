"""The inventory: keys with their uses, their bill of materials, and keys elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar, cast

from pqkeep._call import API, Call, Page, Pages, Place, Query, change, get, in_path
from pqkeep._data import Data
from pqkeep._operation import Listing, Operation
from pqkeep.models import (
    Cbom,
    CountedLog,
    ExternalSource,
    InventoryKey,
    InventoryPage,
    KeyUses,
    RuleAssessment,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inventory(Generic[T_co]):
    """The inventory of a tenant's keys."""

    _transport: T_co

    @Listing
    def pages(  # noqa: PLR0913 - filters, by name
        self,
        *,
        since: datetime | None = None,
        keyring: str | None = None,
        algorithm: str | None = None,
        status: str | None = None,
        used_by: str | None = None,
        used_since: datetime | None = None,
        unused_since: datetime | None = None,
        created_since: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int | None = None,
    ) -> Pages[InventoryPage]:
        """Yield the pages of the inventory, by keyring, algorithm and version.

        Times have an offset from UTC. ``since``: only uses from the beginning of its day count.
        ``algorithm`` and ``status`` may be several, separated by commas. ``used_by`` is a principal,
        or the name of an API key; then ``used_since`` and ``unused_since`` are about its uses. A page has at most 50 key versions. Its counts are exact up to its own ``as_of``.
        """
        query = {
            "since": None if since is None else since.isoformat(),
            "keyring": keyring,
            "algorithm": algorithm,
            "status": status,
            "used_by": used_by,
            **{
                name: None if at is None else at.isoformat()
                for name, at in (
                    ("used_since", used_since),
                    ("unused_since", unused_since),
                    ("created_since", created_since),
                    ("created_before", created_before),
                )
            },
            "limit": page_size,
        }

        def page(at: Place | None) -> Call[Page[InventoryPage]]:
            return get("/inventory", _pages, query | {"after": at})

        return page

    @Listing
    def uses(
        self,
        algorithm: str,
        *,
        keyring: str | None = None,
        key_version: int | None = None,
        since: datetime | None = None,
        page_size: int | None = None,
    ) -> Pages[KeyUses]:
        """Yield all uses of a key version, by principal and operation.

        Without a version: the uses of the algorithm's public keys that are not the tenant's own.
        """
        query = {
            "algorithm": algorithm,
            "keyring": keyring,
            "key_version": key_version,
            "since": None if since is None else since.isoformat(),
            "limit": page_size,
        }

        def page(at: Place | None) -> Call[Page[KeyUses]]:
            return get("/inventory/uses", _uses_page, query | {"after": at})

        return page

    @Operation
    def cbom(
        self,
        *,
        version: Literal["1.6", "1.7"] | None = None,
        uses: Literal["none", "counts", "principals"] | None = None,
        signed_by: str | None = None,
        after: str | None = None,
    ) -> Call[Cbom]:
        """Return a cryptographic bill of materials of CycloneDX, by default 1.7.

        ``signed_by`` is the key that signs it: a keyring, a slash, and ML-DSA-65 or ML-DSA-87. A
        signature costs one operation. A document has at most 500 key versions, or 50 with
        ``uses="principals"``. ``after`` is the ``next`` of the previous document.
        """
        asked: dict[str, str | None] = {"version": version, "uses": uses, "after": after}
        if signed_by is None:
            return get("/inventory/cbom", _cbom, asked)
        body = {name: value for name, value in asked.items() if value is not None}
        return change("/inventory/cbom", _cbom, {**body, "signed_by": signed_by})

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
        path = f"/inventory/external/{in_path(source)}"
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


def _pages(data: Data) -> Page[InventoryPage]:
    page = InventoryPage(
        as_of=_counted(data.nested("as_of")),
        since=data.time_or_none("since"),
        keys=tuple(map(_key, data.objects("keys"))),
        total=data.integer("total"),
        unattributed=tuple(map(_uses, data.objects("unattributed"))),
        external=tuple(map(_source, data.nested("external").objects("sources"))),
        merged_principals=data.flag("merged_principals"),
        not_seen=data.texts_or_none("not_seen") or (),
    )
    return Page(items=(page,), next=data.text_or_none("next"))


def _uses_page(data: Data) -> Page[KeyUses]:
    return Page(items=tuple(map(_uses, data.objects("uses"))), next=data.text_or_none("next"))


def _counted(data: Data) -> CountedLog:
    return CountedLog(
        log_id=data.text("log_id"),
        size=data.integer("size"),
        root=data.binary("root", 32),
        at=data.time("at"),
    )


def _uses(data: Data) -> KeyUses:
    return KeyUses(
        operation=data.text("operation"),
        uses=data.integer("uses"),
        first_used_at=data.time("first_used_at"),
        last_used_at=data.time("last_used_at"),
        principal=data.text_or_none("principal"),
        algorithm=data.text_or_none("algorithm"),
    )


def _assessment(data: Data) -> RuleAssessment:
    return RuleAssessment(
        rule=data.text("rule"),
        state=data.text("state"),
        uses=data.texts_or_none("uses") or (),
        warn_from=data.time_or_none("warn_from"),
        deny_from=data.time_or_none("deny_from"),
        successor=data.text_or_none("successor"),
        confidential_longer=data.flag("confidential_longer"),
    )


def _key(data: Data) -> InventoryKey:
    return InventoryKey(
        keyring=data.text("keyring"),
        algorithm=data.text("algorithm"),
        standard=data.text("standard"),
        key_version=data.integer("key_version"),
        status=data.text("status"),
        created_at=data.time("created_at"),
        age_days=data.integer("age_days"),
        retired_at=data.time_or_none("retired_at"),
        retired_days=data.integer_or_none("retired_days"),
        archive_at=data.time_or_none("archive_at"),
        imported=data.flag("imported"),
        private_key=data.text("private_key"),
        fingerprint=data.text("fingerprint"),
        keyring_deleted=data.has("keyring_deleted"),
        owner=data.text_or_none("owner"),
        data_class=data.text_or_none("data_class"),
        confidential_until=data.text_or_none("confidential_until"),
        uses=data.integer("uses"),
        first_used_at=data.time_or_none("first_used_at"),
        last_used_at=data.time_or_none("last_used_at"),
        operations=tuple(map(_uses, data.objects("operations"))),
        principals=tuple(map(_uses, data.objects("principals"))),
        more_principals=data.flag("more_principals"),
        rules=tuple(map(_assessment, data.objects("rules"))) if data.has("rules") else None,
    )


def _cbom(data: Data) -> Cbom:
    return Cbom(
        spec_version=data.text("spec_version"),
        document=data.json_or_none("cbom"),
        jws=data.text_or_none("jws"),
        next=data.text_or_none("next"),
    )
