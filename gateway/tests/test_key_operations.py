"""A key operation is a pair of functions without I/O; its handler combines them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest
from gateway.tests.world import ATTRIBUTION

from pqkeep_gateway.access.entitlements import Entitlements, Tier
from pqkeep_gateway.access.policy import Policy
from pqkeep_gateway.access.principals import GRANTS, ApiKeyPrincipal, Decided
from pqkeep_gateway.api import kem, key_import, keys, public_keys, re_encryption, signature
from pqkeep_gateway.api.key_operation import KeyAccess, endpoint
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Question
from pqkeep_gateway.http.errors import ApiError, ClientGoneError
from pqkeep_gateway.http.text import base64
from pqkeep_gateway.shards import Placement, Then
from pqkeep_gateway.storage.usage import SqlUsage
from pqkeep_gateway.tenancy import cedar, plans
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, Encrypt, Encrypted, Request, Wrap, Wrapped

ROWS = {row.name: row for row in (*kem.OPERATIONS, *signature.OPERATIONS)}
MESSAGE = base64(b"message")
SYMMETRIC_KEY = base64(bytes(range(1, 33)))
COUNTED = Tier.FREE
"""A tier with an allowance."""


class Keys:
    """A key service that notes its requests, and gives one outcome."""

    def __init__(self) -> None:
        self.asked: list[tuple[Request[Any], Attribution, Placement | None]] = []
        self.outcome: object = Encrypted(ciphertext=b"made", version=KeyVersion(1))

    def call(
        self, request: Any, attribution: Attribution, placement: Placement | None, then: Then[Any]
    ) -> None:
        raise AssertionError

    async def execute(
        self, request: Any, attribution: Attribution, placement: Placement | None = None, /
    ) -> Any:
        self.asked.append((request, attribution, placement))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Usage(SqlUsage):
    """Months without usage, and the reservations."""

    def __init__(self) -> None:
        self.reserved = 0

    async def reserve(self, tenant: TenantId, month: str, quota: int, operations: int) -> int:
        self.reserved += operations
        return self.reserved

    async def release(self, tenant: TenantId, month: str, operations: int) -> None:
        self.reserved -= operations

    async def used(self, tenant: TenantId, month: str) -> int:
        return self.reserved


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The built-in policies."""
    return cedar.build(plans.read())


class Setting:
    """The operations with a fake key service."""

    def __init__(self, policy: Policy) -> None:
        self.keys = Keys()
        self.usage = Usage()
        quotas = Quotas(self.usage, dict.fromkeys(Tier) | {COUNTED: 9}, lambda: 0)
        self.access = KeyAccess(policy, quotas, self.keys, cast("Any", None))

    def endpoint(self, name: str) -> Endpoint:
        """Return the endpoint of an operation."""
        return endpoint(ROWS[name], self.access)


@pytest.fixture
def setting(policy: Policy) -> Setting:
    """A new setting for each test."""
    return Setting(policy)


def call_of(values: Mapping[str, object], tier: Tier = Tier.ENTERPRISE) -> ApiCall:
    """Return a call of a tenant in the shard b."""
    principal = ApiKeyPrincipal(
        TenantId(uuid4()), Entitlements(tier), 1, suspended=False, placement=Placement("b")
    )
    return ApiCall(principal=principal, attribution=ATTRIBUTION, values=values)


def asked(made: Endpoint, call: ApiCall) -> Question:
    """Return the request for the key service."""
    assert made.ask is not None
    question = made.ask(call)
    assert question is not None
    return question


def answered(made: Endpoint, call: ApiCall, question: Question, outcome: object) -> object:
    """Return the response to a call."""
    assert made.response is not None
    return made.response(call, question, outcome)


async def test_the_handler_is_the_pair(setting: Setting) -> None:
    """The handler sends the request of `ask`, and returns the response that `response` creates."""
    made = setting.endpoint("encrypt")
    for values in ({}, {"keyring": "cards"}, {"format": "envelope", "keyring": "cards"}):
        call = call_of({"plaintext": MESSAGE, **values})
        question = asked(made, call)
        response = await made.handler(call)
        assert setting.keys.asked.pop() == (*question,)
        assert response == answered(made, call, question, setting.keys.outcome)
        request = question.request
        assert isinstance(request, Encrypt)
        assert request.keyring == values.get("keyring", "default")
        assert question.attribution.policy
        assert question.placement == Placement("b")


async def test_a_refusal_is_the_same_in_both(setting: Setting) -> None:
    """The handler raises the same error as `response` for a refusal."""
    made, call = setting.endpoint("encrypt"), call_of({"plaintext": MESSAGE})
    question = asked(made, call)
    for kind in ErrorKind:
        setting.keys.outcome = KeyServiceError(kind)
        with pytest.raises(ApiError) as by_pair:
            answered(made, call, question, KeyServiceError(kind))
        with pytest.raises(ApiError) as by_handler:
            await made.handler(call)
        assert by_pair.value.code is by_handler.value.code


async def test_what_is_counted_is_not_asked_at_once(setting: Setting) -> None:
    """The handler counts a tenant with a quota once; ask does not count."""
    made, call = setting.endpoint("encrypt"), call_of({"plaintext": MESSAGE}, COUNTED)
    assert made.ask is not None
    assert made.ask(call) is None
    assert setting.usage.reserved == 0
    await made.handler(call)
    assert setting.usage.reserved == 1


@pytest.mark.parametrize("kind", [None, ErrorKind.KEY_NOT_FOUND])
async def test_a_symmetric_key_is_overwritten(setting: Setting, kind: ErrorKind | None) -> None:
    """After any outcome, the service's copy of the key is zero, on both paths."""
    made = setting.endpoint("wrap")
    outcome = Wrapped(wrapped_key=b"wrapped") if kind is None else KeyServiceError(kind)
    call = call_of({"symmetric_key": SYMMETRIC_KEY, "key_version": 1})
    question = asked(made, call)
    request = question.request
    assert isinstance(request, Wrap)
    assert any(request.symmetric_key)
    setting.keys.outcome = outcome
    for answer in (lambda: answered(made, call, question, outcome), None):
        try:
            if answer is None:
                await made.handler(call)
            else:
                answer()
        except ApiError:
            assert kind is not None
    assert not any(request.symmetric_key)
    by_handler = setting.keys.asked[0][0]
    assert isinstance(by_handler, Wrap)
    assert not any(by_handler.symmetric_key)


async def test_what_is_given_up_is_overwritten(setting: Setting) -> None:
    """A request of a disconnected client leaves no copy of the key."""
    setting.keys.outcome = ClientGoneError()
    call = call_of({"symmetric_key": SYMMETRIC_KEY, "key_version": 1})
    with pytest.raises(ClientGoneError):
        await setting.endpoint("wrap").handler(call)
    request = setting.keys.asked[0][0]
    assert isinstance(request, Wrap)
    assert not any(request.symmetric_key)


def test_grants_are_bounded(setting: Setting) -> None:
    """A caller with many keyrings has a limited number of cached grants."""
    made, call = setting.endpoint("encrypt"), call_of({})
    principal = cast("ApiKeyPrincipal", call.principal)
    for number in range(3 * GRANTS):
        values = {"plaintext": MESSAGE, "keyring": f"k{number}"}
        asked(made, ApiCall(principal=principal, attribution=ATTRIBUTION, values=values))
        assert 0 < len(principal.decided.grants) <= GRANTS


def test_a_refusal_is_not_remembered(setting: Setting) -> None:
    """A policy's denial is never cached: it is recorded each time."""
    made, call = setting.endpoint("encrypt"), call_of({"algorithm": "ML-KEM-1024"}, Tier.STARTER)
    for _ in range(2):
        with pytest.raises(ApiError):
            asked(made, call)
    assert cast("ApiKeyPrincipal", call.principal).decided.grants == {}


def test_a_changed_principal_has_nothing_decided() -> None:
    """A copy with other entitlements has no cached decisions; equality and text ignore them."""
    principal = cast("ApiKeyPrincipal", call_of({}).principal)
    principal.decided.subject = "decided"
    copied = replace(principal, entitlements=Entitlements(Tier.FREE))
    assert copied.decided.subject == ""
    assert replace(copied, entitlements=principal.entitlements) == principal
    assert Decided.__name__ not in repr(principal)


def test_each_operation_has_a_pair() -> None:
    """Only operations with several requests or notifications have their own handler."""
    access = cast("Any", None)
    rows = [
        *keys.endpoints(access, plans.read(), cast("Any", None), 7),
        *key_import.endpoints(access, plans.read()),
        *public_keys.endpoints(access),
        *(endpoint(row, access) for row in (*ROWS.values(), re_encryption.OPERATION)),
    ]
    assert {row.name for row in rows if row.ask is None} == {
        *("list_keys", "list_key_usage", "list_jwks"),
        *("rotate_key", "archive_key", "import_key"),
    }
    assert all((row.ask is None) is (row.response is None) for row in rows)
    assert kem.DEFAULT is Algorithm.ML_KEM_768
