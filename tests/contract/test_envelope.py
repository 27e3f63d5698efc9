"""Every response has the envelope's form."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.caller import Caller

if TYPE_CHECKING:
    import httpx2

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
MINUTE = timedelta(minutes=1)

RESPONSES = [
    pytest.param("GET", "/kms/keys", 200, id="success"),
    pytest.param("POST", "/kem/encrypt", 400, id="error of the request"),
    pytest.param("GET", "/nowhere", 404, id="unknown path"),
    pytest.param("DELETE", "/kms/keys", 405, id="wrong method"),
]


@pytest.mark.parametrize(("method", "path", "status"), RESPONSES)
def test_the_request_id_is_a_new_uuid(demo: Caller, method: str, path: str, status: int) -> None:
    """Without X-Request-ID each response has a new UUID, in the body and as a header."""
    responses = [demo.ask(method, path) for _ in range(2)]
    assert [response.status_code for response in responses] == [status, status]
    first, second = (uuid.UUID(response.json()["request_id"]) for response in responses)
    assert first != second


@pytest.mark.parametrize(("method", "path", "status"), RESPONSES)
def test_the_timestamp_is_now_in_utc(demo: Caller, method: str, path: str, status: int) -> None:
    """Every response has its time: UTC, Z, milliseconds."""
    response = demo.ask(method, path)
    assert response.status_code == status
    text = response.json()["timestamp"]
    assert TIMESTAMP.fullmatch(text)
    assert abs(datetime.fromisoformat(text) - datetime.now(UTC)) < MINUTE


@pytest.mark.parametrize(("method", "path", "status"), RESPONSES)
@pytest.mark.parametrize(
    "given",
    [
        pytest.param("7", id="1 character"),
        pytest.param("order 66/retry#2", id="printable ASCII"),
        pytest.param('"\\{}<script>', id="characters that JSON and HTML treat apart"),
        pytest.param("x" * 128, id="128 characters"),
        pytest.param("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", id="UUID"),
    ],
)
def test_a_usable_request_id_is_returned(
    demo: Caller, method: str, path: str, status: int, given: str
) -> None:
    """X-Request-ID of 1 to 128 printable ASCII characters is returned."""
    response = demo.ask(method, path, headers={"X-Request-ID": given})
    assert response.status_code == status
    assert response.json()["request_id"] == given
    assert response.headers["x-request-id"] == given


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x" * 129, id="129 characters"),
        pytest.param("größe".encode(), id="UTF-8"),
        pytest.param(b"gr\xf6\xdfe", id="Latin-1"),
        pytest.param(b"a\tb", id="tab"),
    ],
)
def test_another_request_id_is_replaced(demo: Caller, given: bytes) -> None:
    """X-Request-ID of any other form is replaced by a UUID."""
    response = demo.ask("GET", "/kms/keys", headers=[(b"X-Request-ID", given)])
    assert response.status_code == 200
    assert uuid.UUID(response.json()["request_id"]).version == 4


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/nowhere", id="unknown path"),
        pytest.param("/kms/keys/", id="trailing slash"),
        pytest.param("/kms/keys/1/2", id="one part too many"),
        pytest.param("/KMS/keys", id="wrong case"),
        pytest.param("/kem/encrypt/..", id="dots"),
        pytest.param("/%00", id="null byte"),
        pytest.param("/%ff%fe", id="not UTF-8"),
        pytest.param("/" + "x" * 10_000, id="10,000 characters"),
    ],
)
def test_an_unknown_path_is_404(
    demo: Caller,
    anonymous: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    path: str,
) -> None:
    """An unknown path is 404 in the envelope, with and without a credential."""
    for caller in (demo, anonymous):
        assert refused(caller.ask("GET", path)) == (404, "ERR_NOT_FOUND_001", None)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/kem/encrypt", {"POST"}),
        ("PUT", "/kem/decrypt", {"POST"}),
        ("PATCH", "/signature/sign", {"POST"}),
        ("DELETE", "/kms/keys", {"GET", "HEAD"}),
        ("POST", "/kms/keys", {"GET", "HEAD"}),
        ("POST", "/kms/keys/active", {"GET", "HEAD"}),
        ("GET", "/kms/keys/generate", {"POST"}),
        ("DELETE", "/kms/keys/1", {"GET", "HEAD"}),
        ("OPTIONS", "/kem/encrypt", {"POST"}),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_ones(
    demo: Caller,
    anonymous: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    method: str,
    path: str,
    allowed: set[str],
) -> None:
    """A method that the path does not have is 405 with Allow, with a credential and without."""
    for caller in (demo, anonymous):
        response = caller.ask(method, path)
        assert refused(response) == (405, "ERR_INVALID_001", None)
        assert set(response.headers["allow"].replace(" ", "").split(",")) == allowed


def test_every_error_names_a_code_of_the_documented_form(demo: Caller) -> None:
    """Codes have the form ERR_<CATEGORY>_<NNN>."""
    response = demo.ask("POST", "/kem/encrypt", {})
    assert re.fullmatch(r"ERR_[A-Z]+_\d{3}", response.json()["error"]["error_code"])


def test_health_has_the_envelope_and_needs_no_credential(anonymous: Caller) -> None:
    """/healthz answers anyone, in the envelope."""
    response = anonymous.client.get("/healthz")
    assert response.status_code == 200
    assert response.json()["data"] == {"status": "ok"}
