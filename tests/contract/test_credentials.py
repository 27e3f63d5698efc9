"""Unknown credentials are 401, and the operator is 403 on tenants' keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

from pqkeep_gateway.access.credentials import CredentialKind, new_credential

if TYPE_CHECKING:
    import httpx2

EVERY_ENDPOINT = [
    ("POST", "/kem/encrypt"),
    ("POST", "/kem/decrypt"),
    ("POST", "/kem/encapsulate"),
    ("POST", "/kem/decapsulate"),
    ("POST", "/kem/key/wrap"),
    ("POST", "/kem/key/unwrap"),
    ("POST", "/kem/wrap"),
    ("POST", "/kem/unwrap"),
    ("POST", "/kem/data-key"),
    ("POST", "/mac/compute"),
    ("POST", "/mac/verify"),
    ("POST", "/tools/hash"),
    ("POST", "/tools/random"),
    ("POST", "/signature/sign-hash"),
    ("POST", "/signature/verify-hash"),
    ("POST", "/signature/sign-mu"),
    ("POST", "/signature/verify-mu"),
    ("POST", "/signature/sign"),
    ("POST", "/signature/verify"),
    ("POST", "/kms/keys/generate"),
    ("POST", "/kms/keys/rotate"),
    ("POST", "/kms/keys/retire"),
    ("POST", "/kms/keys/archive"),
    ("GET", "/kms/keys"),
    ("GET", "/kms/keys/active"),
    ("GET", "/kms/keys/1"),
]
TENANT_ENDPOINTS = [
    ("GET", "/tenants/00000000-0000-4000-8000-000000000000"),
    ("POST", "/tenants/00000000-0000-4000-8000-000000000000/api-keys"),
]


@pytest.mark.parametrize(("method", "path"), EVERY_ENDPOINT + TENANT_ENDPOINTS)
def test_without_a_credential(
    anonymous: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    method: str,
    path: str,
) -> None:
    """Without a credential every endpoint refuses a request before any other check."""
    assert refused(anonymous.ask(method, path)) == (401, "ERR_AUTH_001", None)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param("", id="empty"),
        pytest.param("pqk_", id="prefix only"),
        pytest.param(new_credential(CredentialKind.API_KEY), id="API key that nobody has"),
        pytest.param(new_credential(CredentialKind.OPERATOR), id="operator key that nobody has"),
        pytest.param(new_credential(CredentialKind.API_KEY)[:-1] + "!", id="wrong checksum"),
        pytest.param("x" * 20_000, id="20,000 characters"),
        pytest.param("\xff" * 53, id="not ASCII"),
    ],
)
def test_with_a_credential_that_is_none(
    anonymous: Caller, refused: Callable[[httpx2.Response], tuple[int, str, str | None]], shown: str
) -> None:
    """An unknown credential of any form is 401, also where none is needed."""
    headers = [(b"X-API-Key", shown.encode("latin-1"))]
    for method, path in (("GET", "/kms/keys"), ("POST", "/tenants")):
        response = anonymous.ask(method, path, headers=headers)
        assert refused(response) == (401, "ERR_AUTH_001", None)


def test_near_misses_of_a_real_api_key(
    demo: Caller,
    anonymous: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
) -> None:
    """An API key with any character added, removed or changed is 401."""
    real = demo.api_key
    swapped = real[:10] + ("A" if real[10] != "A" else "B") + real[11:]
    for shown in (real[:-1], real + "A", real.swapcase(), "pqo_" + real[4:], swapped):
        response = anonymous.ask("GET", "/kms/keys", headers={"X-API-Key": shown})
        assert refused(response) == (401, "ERR_AUTH_001", None)


@pytest.mark.parametrize("name", ["x-api-key", "X-API-KEY", "X-Api-Key"])
def test_header_names_have_no_case(
    installation: Installation, anonymous: Caller, name: str
) -> None:
    """The credential's header is found in any case of letters."""
    response = anonymous.ask("GET", "/kms/keys", headers={name: installation.ready["api_key"]})
    assert response.status_code == 200


@pytest.mark.parametrize(("method", "path"), EVERY_ENDPOINT)
def test_the_operator_uses_no_keys(
    operator: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    method: str,
    path: str,
) -> None:
    """The operator cannot use keys: 403, with archive's own code for archive."""
    body: dict[str, object] | None = {} if method == "POST" else None
    code = "ERR_KMS_020" if path.endswith("/archive") else "ERR_FORBIDDEN_001"
    assert refused(operator.ask(method, path, body)) == (403, code, None)


def test_the_credential_comes_before_the_body(
    anonymous: Caller, refused: Callable[[httpx2.Response], tuple[int, str, str | None]]
) -> None:
    """Without a credential an invalid body is not read."""
    response = anonymous.ask("POST", "/kem/encrypt", content=b"not JSON")
    assert refused(response) == (401, "ERR_AUTH_001", None)
