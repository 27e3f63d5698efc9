"""The API's description, for programs: ``/api/v1/openapi.json`` and one document for each part."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pqkeep_gateway.http.app import API
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.static_document import FixedDocument
from pqkeep_gateway.reference.openapi import PARTS, document

WHOLE = API + "/openapi.json"


def descriptions(api: Iterable[Endpoint], outside: Iterable[Endpoint]) -> Mapping[str, Any]:
    """Return every OpenAPI document by its path."""
    rows, others = tuple(api), tuple(outside)
    return {
        WHOLE: document(rows, others, API),
        **{
            f"{API}/openapi/{part}.json": document(rows, (), API, part)
            for part in PARTS
            if part != "service"
        },
    }


def served(documents: Mapping[str, Any]) -> Mapping[str, FixedDocument]:
    """Return what serves the documents, outside of the envelope: tools expect them bare."""
    return {
        path: FixedDocument(msgspec.json.encode(each), "application/json", {})
        for path, each in documents.items()
    }
