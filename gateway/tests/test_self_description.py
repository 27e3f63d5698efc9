"""The rows of the API match the behaviour of their endpoints."""

from collections.abc import Iterator, Mapping
from typing import Any, cast, get_type_hints
from uuid import uuid4

import pytest

from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.principals import ApiKeyPrincipal, Grant
from pqkeep_gateway.api import kem, mac, signature
from pqkeep_gateway.api.key_fields import WRAPPED_KEY_SIZES
from pqkeep_gateway.api.key_operation import KeyCall, KeyOperation
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.field import FieldError, Problem
from pqkeep_gateway.http.text import base64
from pqkeep_gateway.reference.guidance import GUIDANCE
from pqkeep_protocol.algorithms import ALGORITHMS
from pqkeep_protocol.keys import DEFAULT_KEYRING, TenantId
from pqkeep_protocol.messages import Attribution

ROWS = (*kem.OPERATIONS, *signature.OPERATIONS, *mac.OPERATIONS)
ROW = pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in ROWS])
REQUIRED = pytest.mark.parametrize(
    ("row", "name"),
    [
        pytest.param(row, field.name, id=f"{row.name} {field.name}")
        for row in ROWS
        for field in row.fields
        if field.required
    ],
)
WHOLE = {
    "kem_ciphertext": base64(bytes(ALGORITHMS[kem.DEFAULT].output_size)),
    "wrapped_key": base64(bytes(min(WRAPPED_KEY_SIZES[kem.DEFAULT]))),
}
"""A valid value for a field that examples shorten."""
_KEM_KEY, _SIGNATURE_KEY = (
    {"public_key": base64(bytes(ALGORITHMS[default].public_key_size))}
    for default in (kem.DEFAULT, signature.DEFAULT)
)
WHOLE_INSTEAD: Mapping[str, Mapping[str, object]] = {
    "encrypt": {**_KEM_KEY, "format": "ciphertext"},
    "decrypt": {},
    "encapsulate": _KEM_KEY,
    "verify": _SIGNATURE_KEY,
    "verify_hash": _SIGNATURE_KEY,
    "verify_mu": _SIGNATURE_KEY,
}
"""The same, where a field is sent instead of others."""


class Watched(Mapping[str, object]):
    """Values that note which of them were read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> object:
        self.asked.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def use(row: KeyOperation, values: Mapping[str, object]) -> None:
    assert row.default is not None
    tenant = TenantId(uuid4())
    principal = ApiKeyPrincipal(tenant, Entitlements(Tier.FREE), 1, suspended=False)
    attribution = Attribution("1", "api-key:1", "127.0.0.1", "test")
    assert row.ask is not None
    row.ask(
        KeyCall(
            ApiCall(principal=principal, attribution=attribution, values=values),
            principal,
            Grant("test", is_counted=False),
            row.default,
            DEFAULT_KEYRING,
            attribution,
            cast("Any", None),
        )
    )


def example(row: KeyOperation, *, instead: str = "") -> dict[str, object]:
    """Return a value for each field, except for replaced ones."""
    others = {field.replaced_by for field in row.fields} - {instead}
    left_out = others | {
        field.name for field in row.fields if instead and field.replaced_by == instead
    }
    return {
        field.name: WHOLE.get(field.name, field.example)
        for field in row.fields
        if field.name not in left_out
    }


@ROW
def test_reads_what_it_documents(row: KeyOperation) -> None:
    """An operation reads exactly the fields of its row."""
    values = Watched(example(row))
    use(row, values)
    assert values.asked == {field.name for field in row.fields}


@REQUIRED
def test_what_is_required_is_required(row: KeyOperation, name: str) -> None:
    """Without a required field an operation is refused, and the error names the field."""
    values = example(row)
    del values[name]
    with pytest.raises(FieldError) as refused:
        use(row, values)
    assert (refused.value.field, refused.value.problem) == (name, Problem.MISSING)


INSTEAD = [
    pytest.param(row, name, id=f"{row.name} {name}")
    for row in ROWS
    for name in sorted({field.replaced_by for field in row.fields} - {""})
]


@pytest.mark.parametrize(("row", "name"), INSTEAD)
def test_what_is_sent_instead_is_enough(row: KeyOperation, name: str) -> None:
    """A replacing field is enough; together with a replaced one, the error names the latter."""
    values = {**example(row, instead=name), **WHOLE_INSTEAD[row.name]}
    use(row, values)
    replaced = next(field for field in row.fields if field.replaced_by == name)
    with pytest.raises(FieldError) as refused:
        use(row, {**values, replaced.name: replaced.example})
    assert (refused.value.field, refused.value.problem) == (replaced.name, Problem.MALFORMED)


@ROW
def test_what_is_optional_is_optional(row: KeyOperation) -> None:
    """The required fields alone reach the key service."""
    required = {field.name for field in row.fields if field.required}
    use(row, {name: value for name, value in example(row).items() if name in required})


@ROW
def test_examples_are_of_the_answers_type(row: KeyOperation) -> None:
    """A row's example has the type that its function returns."""
    assert get_type_hints(row.response)["return"] is type(row.example)


@pytest.mark.parametrize("code", Code)
def test_every_code_is_explained(code: Code) -> None:
    """The reference has a meaning and a remedy for each error code."""
    assert GUIDANCE[code].when.endswith(".")
    assert GUIDANCE[code].what_to_do.endswith(".")
