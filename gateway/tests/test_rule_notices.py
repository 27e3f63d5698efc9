"""The notice of a rule: headers of responses, warnings of items, and messages of refusals."""

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest
from gateway.tests.test_key_operations import MESSAGE, Keys, call_of

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.api import batch, kem, key_import, keys
from pqkeep_gateway.api.errors import error_for
from pqkeep_gateway.api.key_operation import KeyAccess, endpoint
from pqkeep_gateway.http.endpoint import Endpoint, Existing, Warned
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.responses import WholeResponse, response_of
from pqkeep_gateway.tenancy import cedar, plans
from pqkeep_gateway.tenancy.quota import Quotas
from pqkeep_gateway.transit.responses import noticed
from pqkeep_protocol.algorithms import Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion
from pqkeep_protocol.messages import (
    Batch,
    BatchResults,
    Encrypted,
    Key,
    Refused,
    Rotated,
)
from pqkeep_protocol.rules import RuleNotice

SINCE, UNTIL = datetime(2026, 7, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
NOTICE = RuleNotice("cnsa-2.0.kem", SINCE, UNTIL, Algorithm.ML_KEM_1024)
LATER = RuleNotice("later", SINCE, datetime(2028, 1, 1, tzinfo=UTC), None)
NEVER = RuleNotice("never", SINCE, None, None)
V1 = KeyVersion(1)
INFO = KeyInfo(Algorithm.ML_KEM_768, V1, KeyStatus.ACTIVE, b"", SINCE)


@pytest.fixture
def service() -> Keys:
    """A key service that gives one outcome."""
    return Keys()


@pytest.fixture
def access(service: Keys) -> KeyAccess:
    """Access to that key service, without quotas."""
    nothing: Any = None
    policy = cedar.build(plans.read())
    return KeyAccess(policy, Quotas(nothing, dict.fromkeys(Tier), lambda: 0), service, nothing)


def row(access: KeyAccess, name: str) -> Endpoint:
    """Return an endpoint by name."""
    terms = plans.read()
    nothing: Any = None
    rows = (
        *(endpoint(operation, access) for operation in kem.OPERATIONS),
        *keys.endpoints(access, terms, nothing),
        *key_import.endpoints(access, terms),
        *batch.endpoints(access, nothing),
    )
    return next(found for found in rows if found.name == name)


def sent(response: Any) -> WholeResponse:
    """Return the response as it is sent."""
    return response_of(200, response, "a-request")


def headers_of(response: Any) -> dict[str, str]:
    """Return the headers of a response."""
    lines = sent(response).lines.decode("ascii").split("\r\n")[:-1]
    return dict(cast("tuple[str, str]", tuple(line.split(": ", 1))) for line in lines)


@pytest.mark.parametrize(
    ("name", "values", "outcome"),
    [
        ("encrypt", {"plaintext": MESSAGE}, Encrypted(ciphertext=b"", version=V1, notice=NOTICE)),
        ("generate_key", {"algorithm": "Kyber768"}, Key(key=INFO, notice=NOTICE)),
        (
            "rotate_key",
            {"algorithm": "Kyber768", "keyring": "cards"},
            Rotated(key=INFO, old_version=V1, notice=NOTICE),
        ),
    ],
)
async def test_a_warned_response_has_the_dates_and_a_link(
    access: KeyAccess, service: Keys, name: str, values: dict[str, object], outcome: Any
) -> None:
    """Deprecation and Sunset are those of the rule; the body is the same as without a rule."""
    made, call = row(access, name), call_of(values)
    service.outcome = outcome
    warned = await made.handler(call)
    assert isinstance(warned, Warned)
    headers = headers_of(warned)
    assert headers["deprecation"] == "@1782864000"
    assert headers["sunset"] == "Fri, 01 Jan 2027 00:00:00 GMT"
    assert headers["link"] == (
        '</api/v1/rules/algorithms/cnsa-2.0.kem>; rel="deprecation"; type="application/json"'
    )
    service.outcome = msgspec.structs.replace(outcome, notice=None)
    plain = await made.handler(call)
    assert "deprecation" not in headers_of(plain)
    assert warned.response == plain


def test_a_rule_that_never_denies_has_no_sunset() -> None:
    """Without a date of denial only Deprecation and the link are sent; the status stays."""
    data = kem.OPERATIONS[0].example
    response = Warned(Existing(data), NEVER)
    assert headers_of(response).keys() >= {"deprecation", "link"}
    assert "sunset" not in headers_of(response)
    assert response_of(201, response, "x").status == 200


async def test_a_batch_has_the_rule_that_denies_first(access: KeyAccess, service: Keys) -> None:
    """Each item names its own rule, and the headers have the earliest denial."""
    results = [
        Encrypted(ciphertext=b"", version=V1, notice=notice)
        for notice in (NEVER, LATER, None, NOTICE)
    ]
    denied = Refused(kind=ErrorKind.RULE_DENIED, notice=NOTICE)
    service.outcome = BatchResults(results=(*results, denied))
    made = row(access, "encrypt_batch")
    call = call_of({"items": [{"plaintext": MESSAGE}] * 5})
    response = await made.handler(call)
    assert headers_of(response)["link"].startswith("</api/v1/rules/algorithms/cnsa-2.0.kem>")
    items = msgspec.json.decode(sent(response).body)["data"]["results"]
    assert [item.get("warning", {}).get("rule") for item in items] == [
        *("never", "later", None, "cnsa-2.0.kem"),
        None,
    ]
    assert items[3]["warning"] == {
        "rule": "cnsa-2.0.kem",
        "deprecation": "2026-07-01T00:00:00.000Z",
        "sunset": "2027-01-01T00:00:00.000Z",
        "successor": "ML-KEM-1024",
    }
    assert "cnsa-2.0.kem" in items[4]["error"]["message"]
    (request, *_) = service.asked[0]
    assert isinstance(request, Batch)
    assert made.outcomes is not None
    outcomes = await made.outcomes(call)
    notices = [done.notice if isinstance(done, Warned) else None for done in outcomes]
    assert notices == [NEVER, LATER, None, NOTICE, None]


@pytest.mark.parametrize(
    ("operation", "field"), [(Operation.SIGN, "algorithm"), (Operation.RE_ENCRYPT, "to")]
)
def test_a_denial_names_rule_date_and_successor(operation: Operation, field: str) -> None:
    """The message has all three; without a successor it says that another algorithm is needed."""
    error = error_for(operation, KeyServiceError(ErrorKind.RULE_DENIED, NOTICE))
    assert (error.code, error.field, error.is_recorded) == (Code.POLICY_001, field, True)
    for part in ("cnsa-2.0.kem", "2027-01-01T00:00:00Z", "use ML-KEM-1024"):
        assert part in error.message
    assert error.kind is ErrorKind.RULE_DENIED
    other = error_for(operation, KeyServiceError(ErrorKind.RULE_DENIED, LATER))
    assert "another algorithm" in other.message
    assert isinstance(error_for(operation, KeyServiceError(ErrorKind.RULE_DENIED)), ApiError)


def test_clients_of_vault_get_a_warning_for_each_rule() -> None:
    """The member ``warnings`` has a line for each rule, once, and the headers the earliest."""
    call = call_of({})
    response = noticed(call, {"ciphertext": "x"}, [LATER, NOTICE, NOTICE, NEVER])
    assert isinstance(response, Warned)
    body = msgspec.json.decode(sent(response).body)
    assert [line.split()[2] for line in body["warnings"]] == ["later", "cnsa-2.0.kem", "never"]
    assert "2027-01-01T00:00:00Z" in body["warnings"][1]
    assert "ML-KEM-1024" in body["warnings"][1]
    assert headers_of(response)["sunset"] == "Fri, 01 Jan 2027 00:00:00 GMT"
    plain = sent(noticed(call, {"ciphertext": "x"}, []))
    assert msgspec.json.decode(plain.body)["warnings"] is None
