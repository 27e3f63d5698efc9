"""The forms of Vault's requests and responses, without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import process_time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, structs

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.principals import AnonymousPrincipal
from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.api.keyrings import EXAMPLE as KEYRING
from pqkeep_gateway.api.keyrings import TRANSIT_TYPES, Keyrings
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.errors import ApiError, Code, forbidden, too_many, unavailable
from pqkeep_gateway.http.field import FieldError
from pqkeep_gateway.transit.batches import checked_base64, parts_of
from pqkeep_gateway.transit.fields import NAME, boolean, duration, integer, text, version
from pqkeep_gateway.transit.key_types import KeyType, stored_type
from pqkeep_gateway.transit.keys import TransitKeys
from pqkeep_gateway.transit.operations import Operations
from pqkeep_gateway.transit.responses import MESSAGES, TransitError, error_response, not_found
from pqkeep_gateway.transit.routes import read_credential
from pqkeep_protocol.algorithms import CURRENT
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import MAX_KEY_VERSION
from pqkeep_protocol.messages import Attribution

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
FIELDS = (NAME, boolean("f"), duration("f"), integer("f"), text("f"), version("f"))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        ("0", 0),
        (86_400, 86_400),
        ("86400", 86_400),
        ("60s", 60),
        ("10m", 600),
        ("48h", 172_800),
        ("30d", 2_592_000),
        ("1h30m", 5_400),
        (None, None),
    ],
)
def test_durations(value: object, seconds: int | None) -> None:
    """A period is seconds, or a text with units as Go writes them."""
    assert duration("period").read({"period": value}) == seconds


@pytest.mark.parametrize("value", ["", "h", "1w", "-1h", "1.5h", "1h 2m", -1, 1.5, True, [], {}])
def test_other_durations_are_refused(value: object) -> None:
    """Anything else is no period."""
    with pytest.raises(FieldError, match="period must be a duration"):
        duration("period").read({"period": value})


@pytest.mark.parametrize(
    ("value", "is_true"),
    [
        *((value, True) for value in (True, "true", "1", 1, "T")),
        *((value, False) for value in (False, "false", "0", 0, "")),
        (None, None),
    ],
)
def test_truth_values(value: object, is_true: bool | None) -> None:  # noqa: FBT001 - a table
    """The command line sends texts for truth values."""
    assert boolean("flag").read({"flag": value}) is is_true


@pytest.mark.parametrize("value", ["yes", 2, 1.0, [], {}])
def test_other_truth_values_are_refused(value: object) -> None:
    """A value other than true or false is refused, and not converted."""
    with pytest.raises(FieldError, match="flag must be true or false"):
        boolean("flag").read({"flag": value})


@pytest.mark.parametrize("value", ["1", 1])
def test_numbers(value: object) -> None:
    """The command line sends digits for numbers."""
    assert version("key_version").read({"key_version": value}) == 1


@pytest.mark.parametrize("value", [-1, "-1", MAX_KEY_VERSION + 1, "9" * 18, "1.0", True, "", []])
def test_other_versions_are_refused(value: object) -> None:
    """A version is a whole number within its bounds."""
    with pytest.raises(FieldError, match="key_version must be"):
        version("key_version").read({"key_version": value})


@given(JSON_VALUES)
def test_every_value_is_read_or_refused(value: object) -> None:
    """No value of a field raises anything but its refusal."""
    for field in FIELDS:
        with suppress(FieldError):
            field.read({field.name: value})


@given(st.text() | st.none(), st.text() | st.none(), st.integers() | st.none())
def test_a_type_is_known_or_refused(
    name: str | None, parameter_set: str | None, key_size: int | None
) -> None:
    """Each accepted type has an algorithm, and the response repeats the requested type."""
    with suppress(TransitError):
        stored = stored_type(name, parameter_set, key_size, (None, None))
        assert stored in TRANSIT_TYPES
        assert not name or KeyType(stored, derived=False).name == name


def test_each_algorithm_has_a_type() -> None:
    """Every algorithm can be asked for, except legacy ones: nothing new is made with them."""
    assert set(TRANSIT_TYPES.values()) == set(CURRENT)


@pytest.mark.parametrize(
    ("error", "status", "errors"),
    [
        (ApiError(Code.AUTH_001, "missing or invalid credential"), 403, ["permission denied"]),
        (forbidden("your role does not allow this"), 403, ["your role does not allow this"]),
        (not_found(), 404, []),
        (not_found("why"), 404, ["why"]),
        (TransitError("no"), 400, ["no"]),
        (ApiError(Code.CONFLICT_001, "taken"), 400, ["taken"]),
        (ApiError(Code.UNPROCESSABLE, "bad"), 400, ["bad"]),
        (unavailable(), 503, ["a part of the service is unavailable"]),
        (too_many("too many requests", Limit(1, 60), 3), 429, ["too many requests"]),
    ],
)
def test_errors(error: ApiError, status: int, errors: list[str]) -> None:
    """An error is a list of messages with a status that Vault uses, and asks for no credential."""
    response = error_response(error, "id")
    assert (response.status, json.loads(response.body)) == (status, {"errors": errors})
    assert b"www-authenticate" not in response.lines
    assert (b"retry-after" in response.lines) is (status in {429, 503})


@pytest.mark.parametrize("kind", MESSAGES)
def test_messages_that_programs_compare(kind: ErrorKind) -> None:
    """The key service's reasons have Vault's words, and are the request's fault."""
    error = ApiError(Code.POLICY_001, "in our words")
    error.kind = kind
    response = error_response(error, "id")
    assert response.status == 400
    assert json.loads(response.body) == {"errors": [MESSAGES[kind]]}


TOKEN = b"token"


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({b"x-vault-token": TOKEN}, TOKEN),
        ({b"authorization": b"Bearer token"}, TOKEN),
        ({b"authorization": b"bearer token"}, TOKEN),
        ({b"authorization": b"Bearer other", b"x-vault-token": TOKEN}, TOKEN),
        ({b"authorization": b"Basic token"}, b""),
        ({b"x-api-key": TOKEN}, b""),
        ({b"cookie": b"pqkeep_access=token"}, b""),
        ({}, b""),
    ],
)
def test_the_credential_of_a_request(sent: dict[bytes, bytes], read: bytes) -> None:
    """Only Vault's two headers have a credential. Reading it twice gives the same result."""
    found = read_credential(sent, Permission.USE_KEYS)
    assert found[b"x-api-key"] == read
    assert b"cookie" not in found
    assert read_credential(found, Permission.USE_KEYS) == found
    assert b"x-api-key" not in read_credential(sent, Permission.PUBLIC)


class _Listed:
    """Operations with many keyrings, on pages."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.further = 0

    async def run(self, name: str, call: ApiCall, values: Mapping[str, Any]) -> Keyrings:
        """Return the page that a list asks for."""
        assert name == "list_keyrings"
        left = [name for name in self._names if name > (values["after"] or "")]
        page = left[: values["limit"]]
        keyrings = tuple(structs.replace(TYPED, name=name) for name in page)
        following = page[-1] if len(left) > len(page) else UNSET
        return Keyrings(keyrings=keyrings, total=len(self._names), next=following)

    async def count_further_request(self, call: ApiCall) -> None:
        """Count a page."""
        self.further += 1


TYPED = structs.replace(KEYRING, transit_type="aes256-gcm96")
NAMES = [f"key-{number:05}" for number in range(2_500)]


@pytest.mark.parametrize(
    ("query", "listed", "further"),
    [
        ({}, NAMES, 2),
        ({"after": NAMES[1_499]}, NAMES[1_500:], 0),
        ({"limit": "10"}, NAMES[:10], 0),
        ({"limit": 1_001}, NAMES[:1_001], 1),
        ({"limit": -1}, NAMES, 2),
    ],
)
async def test_long_lists(query: dict[str, object], listed: list[str], further: int) -> None:
    """A list has all names, and each page after the first counts as a request."""
    operations = _Listed(NAMES)
    call = ApiCall(
        principal=AnonymousPrincipal(), attribution=Attribution("id", "", ""), values=query
    )
    response = await TransitKeys(cast("Operations", operations)).list_(call)
    assert json.loads(response.body)["data"]["keys"] == listed
    assert operations.further == further


@pytest.mark.threat("flood")
def test_a_large_value_that_is_wrong_is_refused_quickly() -> None:
    """The place of the first error in a large text is found without a step for each character."""
    size = 2 * 1024 * 1024
    began = process_time()
    with pytest.raises(TransitError, match=f"at input byte {size}"):
        checked_base64("A" * size + "!")
    with pytest.raises(TransitError, match="wrong number of fields"):
        parts_of("vault:v1" + ":" * size, "ciphertext")
    assert process_time() - began < 0.1
