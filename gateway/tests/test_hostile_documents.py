"""Malformed documents of providers, webhooks and settings are refused."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from gateway.tests.test_identity_providers import PROVIDER
from protocol.tests.test_documents import NOT_JSON, NOT_TOML

from pqkeep_gateway.payments.notices import Notice, read
from pqkeep_gateway.people.identity_providers import (
    InvalidProviderResponseError,
    claims_of,
    metadata_of,
    with_userinfo,
)
from pqkeep_gateway.tenancy import plans
from pqkeep_gateway.tenancy.billing import InvalidNoticeError
from pqkeep_protocol.startup.settings import ConfigError


def _id_token(claims: bytes) -> object:
    return claims_of(f"e30.{urlsafe_b64encode(claims).decode().rstrip('=')}.e30")


READERS: dict[str, tuple[Callable[[bytes], object], type[Exception]]] = {
    "the claims of an ID token": (_id_token, InvalidProviderResponseError),
    "a discovery document": (
        lambda data: metadata_of(data, "https://id.example.org"),
        InvalidProviderResponseError,
    ),
    "UserInfo": (
        lambda data: with_userinfo({"sub": "1"}, data, PROVIDER),
        InvalidProviderResponseError,
    ),
    "a webhook's event": (lambda data: read(data, Notice), InvalidNoticeError),
}


@pytest.mark.parametrize("name", NOT_JSON)
@pytest.mark.parametrize("reader", READERS)
def test_json_that_is_refused(reader: str, name: str) -> None:
    """Each reader refuses invalid JSON with its own exception, and not as a defect."""
    decode, refusal = READERS[reader]
    with pytest.raises(refusal):
        decode(NOT_JSON[name])


@pytest.mark.parametrize("name", NOT_TOML)
def test_plans_that_are_refused(name: str, tmp_path: Path) -> None:
    """A file of plans is refused by its name."""
    file = tmp_path / "plans.toml"
    file.write_text(NOT_TOML[name])
    with pytest.raises(ConfigError, match=r"plans\.toml"):
        plans.read(file)
