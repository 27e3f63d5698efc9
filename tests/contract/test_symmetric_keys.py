"""Symmetric keys over HTTP: XAES-256-GCM, data keys and MACs."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.caller import Caller

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation

NewTenant = Callable[..., Caller]
XAES = Algorithm.XAES_256_GCM.value
TEXT = b64encode(b"4111 1111 1111 1").decode()
MACS = {"HMAC-SHA-256": 32, "HMAC-SHA-512": 64}
MAKING = [
    a.value for a, spec in ALGORITHMS.items() if Operation.GENERATE_DATA_KEY in spec.operations
]
PLANS = ("free", "starter", "professional", "enterprise", "enterprise_plus")


@pytest.fixture(scope="module")
def caller(installation: Any) -> Caller:
    """Return a tenant with a key of each algorithm in these tests."""
    made: Caller = installation.new_tenant()
    for algorithm in (*MAKING, *MACS):
        made.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    return made


def test_16_bytes_fit_into_a_short_column(caller: Caller) -> None:
    """A ciphertext of 16 bytes has at most 80 characters, and needs its associated data."""
    bound = {"algorithm": XAES, "associated_data": TEXT}
    made = caller.post("/kem/encrypt", {"plaintext": TEXT, **bound})
    assert len(b64decode(TEXT)) == 16
    assert len(made["ciphertext"]) <= 80
    opened = {"ciphertext": made["ciphertext"], "key_version": 1}
    assert caller.post("/kem/decrypt", {**bound, **opened})["plaintext"] == TEXT
    refused = caller.refusal("/kem/decrypt", {**opened, "algorithm": XAES})
    assert refused == (400, "ERR_KEM_002", "ciphertext")
    envelope = caller.post("/kem/encrypt", {"plaintext": TEXT, "format": "envelope", **bound})
    unnamed = {"envelope": envelope["envelope"], "associated_data": TEXT}
    assert caller.post("/kem/decrypt", unnamed)["plaintext"] == TEXT


def test_a_symmetric_key_has_a_fingerprint_and_no_public_key(new_tenant: NewTenant) -> None:
    """All responses about the key have one fingerprint, which changes with a rotation."""
    caller, named = new_tenant(), {"algorithm": XAES}
    made = caller.post("/kms/keys/generate", named, status=201)
    listed = caller.get("/kms/keys")["keys"]
    active = caller.get("/kms/keys/active", **named)
    assert [key["algorithm"] for key in listed] == [XAES]
    assert made["fingerprint"] == listed[0]["fingerprint"] == active["fingerprint"]
    assert len(bytes.fromhex(made["fingerprint"])) == 32
    rotated = caller.post("/kms/keys/rotate", named, status=201)
    assert rotated["fingerprint"] != made["fingerprint"]
    assert not any("public_key" in key for key in (made, active, rotated, *listed))
    for method, path in (
        ("GET", f"/kms/keys/1/public-key?algorithm={XAES}"),
        ("GET", f"/kms/keys/import-key?algorithm={XAES}"),
        ("POST", "/kem/encapsulate"),
    ):
        body = {**named, "key_version": 1} if method == "POST" else None
        response = caller.ask(method, path, body)
        assert response.status_code == 400, path
    public_key = b64encode(bytes.fromhex(made["fingerprint"])).decode()
    body = {"plaintext": TEXT, "public_key": public_key, **named}
    assert caller.refusal("/kem/encrypt", body) == (400, "ERR_INVALID_001", "algorithm")


@pytest.mark.parametrize("other", ["Kyber768", "X-Wing", "ML-KEM-1024"])
def test_data_moves_to_a_kem_and_back(caller: Caller, other: str) -> None:
    """Re-encryption moves a ciphertext in both directions; its responses have no plaintext."""
    blob = caller.post("/kem/encrypt", {"plaintext": TEXT, "algorithm": XAES})["ciphertext"]
    for source, target in ((XAES, other), (other, XAES)):
        body = {
            "ciphertext": blob,
            "key_version": 1,
            "algorithm": source,
            "to": {"algorithm": target},
        }
        response = caller.ask("POST", "/kem/re-encrypt", body)
        assert TEXT not in response.text
        blob = response.json()["data"]["ciphertext"]
    opened = {"ciphertext": blob, "key_version": 1, "algorithm": XAES}
    assert caller.post("/kem/decrypt", opened)["plaintext"] == TEXT


@pytest.mark.parametrize("algorithm", MAKING)
def test_data_keys(caller: Caller, algorithm: str) -> None:
    """A data key of any size and form is returned in plaintext once or never, and can be opened."""
    named = {"algorithm": algorithm}
    wraps = Operation.WRAP in ALGORITHMS[Algorithm(algorithm)].operations
    usual = "wrapped_key" if wraps else "ciphertext"
    assert {usual, "plaintext"} <= caller.post("/kem/data-key", named).keys()
    for size in (16, 32, 64):
        for form in ("wrapped_key", "ciphertext", "envelope"):
            body = {**named, "size": size, "format": form}
            if form == "wrapped_key" and not wraps:
                assert caller.refusal("/kem/data-key", body) == (400, "ERR_KEM_010", "format")
                continue
            made = caller.post("/kem/data-key", body)
            assert len(b64decode(made["plaintext"])) == size
            if form == "envelope":
                opened = caller.post("/kem/decrypt", {"envelope": made[form]})["plaintext"]
            else:
                path = "/kem/key/unwrap" if form == "wrapped_key" else "/kem/decrypt"
                response = caller.post(path, {**named, form: made[form], "key_version": 1})
                opened = response["symmetric_key" if form == "wrapped_key" else "plaintext"]
            assert opened == made["plaintext"]
            assert caller.post("/kem/data-key", {**body, "plaintext": False}).keys() == {
                *(form, "key_version", "algorithm")
            }
    for wrong in (0, 24, 33, "32", 32.5, True):
        refused = caller.refusal("/kem/data-key", {**named, "size": wrong})
        assert refused == (400, "ERR_KEM_010", "size"), wrong


@pytest.mark.parametrize("algorithm", MACS)
def test_macs(caller: Caller, algorithm: str) -> None:
    """A wrong MAC of any size, and a MAC of another message, are 200 with valid false."""
    named = {"algorithm": algorithm, "message": TEXT}
    mac = b64decode(caller.post("/mac/compute", named)["mac"])
    assert len(mac) == MACS[algorithm]
    for other, valid in (
        (mac, True),
        (mac[:-1], False),
        (bytes([mac[0] ^ 1]) + mac[1:], False),
        (bytes(len(mac)), False),
    ):
        body = {**named, "mac": b64encode(other).decode(), "key_version": 1}
        assert caller.post("/mac/verify", body) == {
            "valid": valid,
            "key_version": 1,
            "algorithm": algorithm,
        }
    body = {"algorithm": algorithm, "message": "", "mac": b64encode(mac).decode(), "key_version": 1}
    assert caller.post("/mac/verify", body)["valid"] is False
    assert caller.refusal("/mac/compute", {**named, "algorithm": XAES})[0] == 400
    assert caller.refusal("/kem/encrypt", {"plaintext": TEXT, "algorithm": algorithm})[0] == 400


def test_batches(caller: Caller) -> None:
    """Encryption, data keys and MACs have batches."""
    items = [{"plaintext": TEXT}] * 3
    made = caller.post("/kem/encrypt/batch", {"items": items, "algorithm": XAES})["results"]
    assert len({result["data"]["ciphertext"] for result in made}) == 3
    keys = caller.post("/kem/data-key/batch", {"items": [{}, {}], "algorithm": XAES})["results"]
    assert len({result["data"]["plaintext"] for result in keys}) == 2
    mac = caller.post("/mac/compute", {"message": TEXT})["mac"]
    items = [{"message": TEXT, "mac": mac}, {"message": TEXT, "mac": TEXT}]
    found = caller.post("/mac/verify/batch", {"items": items, "key_version": 1})["results"]
    assert [result["data"]["valid"] for result in found] == [True, False]


@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_has_symmetric_keys(new_tenant: NewTenant, plan: str) -> None:
    """Each plan makes and uses them. Lists of plans have only the specification's algorithms."""
    caller = new_tenant(plan)
    for algorithm in (XAES, "HMAC-SHA-512"):
        caller.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    caller.post("/kem/encrypt", {"plaintext": TEXT, "algorithm": XAES})
    caller.post("/kem/data-key", {"algorithm": XAES})
    caller.post("/mac/compute", {"message": TEXT, "algorithm": "HMAC-SHA-512"})
    sold = caller.get("/billing/plans")["plans"]
    assert {name for each in sold for name in each["algorithms"]} <= {*tuple(Algorithm)[:10]}


@pytest.mark.threat("scoped-api-key")
@pytest.mark.parametrize(
    ("operations", "allowed"),
    [
        (["generate-data-key"], {"/kem/data-key"}),
        (["encrypt-only"], {"/kem/data-key", "/kem/encrypt"}),
        (["verify-only"], {"/mac/verify"}),
        (["compute-mac"], {"/mac/compute"}),
    ],
)
def test_a_scope_allows_what_it_names(
    caller: Caller, installation: Any, operations: list[str], allowed: set[str]
) -> None:
    """An API key for data keys, encryption or MACs can do only that."""
    scopes = [{"operations": operations}]
    made = caller.post(f"/tenants/{caller.tenant_id}/api-keys", {"scopes": scopes}, status=201)
    limited = installation.caller(made["api_key"], caller.tenant_id)
    bodies: dict[str, dict[str, Any]] = {
        "/kem/data-key": {"algorithm": XAES},
        "/kem/encrypt": {"plaintext": TEXT, "algorithm": XAES},
        "/kem/decrypt": {"ciphertext": TEXT, "key_version": 1, "algorithm": XAES},
        "/kem/key/unwrap": {"wrapped_key": TEXT * 4, "key_version": 1, "algorithm": XAES},
        "/mac/compute": {"message": TEXT},
        "/mac/verify": {"message": TEXT, "mac": TEXT, "key_version": 1},
    }
    for path, body in bodies.items():
        expected = 200 if path in allowed else 403
        assert limited.ask("POST", path, body).status_code == expected, path


def test_a_purpose_allows_what_it_names(new_tenant: NewTenant) -> None:
    """A keyring for MACs computes MACs, and cannot encrypt or make data keys."""
    caller = new_tenant()
    keyring = {"name": "sums", "purposes": ["mac"]}
    caller.post("/kms/keyrings", keyring, status=201)
    caller.post("/kms/keys/generate", {"algorithm": "HMAC-SHA-256", "keyring": "sums"}, status=201)
    caller.post("/mac/compute", {"message": TEXT, "keyring": "sums"})
    body = {"algorithm": XAES, "keyring": "sums"}
    assert caller.refusal("/kms/keys/generate", body)[0] in {400, 403}
    assert caller.refusal("/kem/data-key", body)[0] in {403, 404}


# --- Attacks ---------------------------------------------------------------------------------------


def _text(size: int) -> str:
    return b64encode(bytes(size)).decode()


@pytest.mark.parametrize("size", [*range(41), 55, 57, 1_048_577])
def test_a_ciphertext_of_another_size_is_refused(caller: Caller, size: int) -> None:
    """A ciphertext without its nonce or tag, cut or extended, is 400 and no internal error."""
    body = {"ciphertext": _text(size), "key_version": 1, "algorithm": XAES}
    assert caller.refusal("/kem/decrypt", body) == (400, "ERR_KEM_002", "ciphertext")
    again = {**body, "to": {"algorithm": "X-Wing"}}
    assert caller.refusal("/kem/re-encrypt", again)[:2] == (400, "ERR_KEM_002")


@pytest.mark.parametrize("size", [0, 1, 40, 55, 57, 105, 8192, 8193])
def test_a_wrapped_key_of_another_size_is_refused(caller: Caller, size: int) -> None:
    """A wrapped key that no symmetric key can give is 400."""
    body = {"wrapped_key": _text(size), "key_version": 1, "algorithm": XAES}
    status, code, _ = caller.refusal("/kem/key/unwrap", body)
    assert (status, code) in {(400, "ERR_KEM_011"), (400, "ERR_KEM_012")}


@pytest.mark.parametrize("algorithm", MACS)
@pytest.mark.parametrize("size", [0, 1, 16, 31, 33, 63, 65, 1024])
def test_a_mac_of_another_size_is_not_valid(caller: Caller, algorithm: str, size: int) -> None:
    """A cut or extended MAC is not valid, also if it begins or ends with the right one."""
    named = {"algorithm": algorithm, "message": TEXT}
    right = b64decode(caller.post("/mac/compute", named)["mac"])
    for mac in (right[:size], right.ljust(size, b"\0")[:size], right * 16, bytes(size)):
        if mac == right:
            continue
        body = {**named, "mac": b64encode(mac[:1024]).decode(), "key_version": 1}
        assert caller.post("/mac/verify", body)["valid"] is False
    body = {**named, "mac": _text(1025), "key_version": 1}
    assert caller.refusal("/mac/verify", body)[::2] == (400, "mac")


@pytest.mark.parametrize("algorithm", [XAES, *MACS])
def test_nothing_takes_a_symmetric_key_for_a_key_pair(caller: Caller, algorithm: str) -> None:
    """No operation of key pairs accepts the algorithm, and no list of public keys has its keys."""
    named = {"algorithm": algorithm, "key_version": 1}
    for method, path, body in (
        ("POST", "/kem/encapsulate", named),
        ("POST", "/kem/decapsulate", {**named, "kem_ciphertext": TEXT}),
        ("POST", "/signature/sign", {"algorithm": algorithm, "message": TEXT}),
        ("POST", "/signature/verify", {**named, "message": TEXT, "signature": TEXT}),
        ("POST", "/kms/keys/import", {"algorithm": algorithm, "import_key_id": "x"}),
        ("GET", f"/kms/keys/import-key?algorithm={algorithm}", None),
        *(
            ("GET", f"/kms/keys/1/public-key?algorithm={algorithm}&format={form}", None)
            for form in ("raw", "pem", "der", "jwk")
        ),
    ):
        response = caller.ask(method, path, body)
        assert response.status_code == 400, (path, response.text)
        assert response.json()["error"]["field"] == "algorithm", path
    fingerprint = caller.get("/kms/keys/active", algorithm=algorithm)["fingerprint"]
    public = b64encode(bytes.fromhex(fingerprint)).decode()
    for path, fields in (
        ("/kem/encrypt", {"plaintext": TEXT}),
        ("/kem/encapsulate", {}),
        ("/signature/verify", {"message": TEXT, "signature": TEXT}),
    ):
        body = {"algorithm": algorithm, "public_key": public, **fields}
        assert caller.refusal(path, body)[::2] == (400, "algorithm"), path
    body = {"algorithm": algorithm, "public_key": public, "message": TEXT}
    assert caller.refusal("/mac/compute", body)[0] == 400
    assert fingerprint not in caller.ask("GET", "/kms/jwks").text
    shown = [caller.get("/kms/keys/1", algorithm=algorithm), *caller.get("/kms/keys")["keys"]]
    for key in shown:
        has_fingerprint = key["algorithm"] in {XAES, *MACS}
        assert ("fingerprint" in key, "public_key" in key) == (has_fingerprint, not has_fingerprint)


@pytest.mark.parametrize("value", [0, 1, "", "false", "true", [], {}, [False], 0.0])
def test_only_false_hides_a_data_key_and_only_true_shows_it(caller: Caller, value: object) -> None:
    """A Boolean in the style of another language is 400, so that no key is shown."""
    body = {"algorithm": XAES, "plaintext": value}
    assert caller.refusal("/kem/data-key", body) == (400, "ERR_KEM_010", "plaintext")
    items = [{"plaintext": value}, {"plaintext": False}]
    batch = caller.post("/kem/data-key/batch", {"algorithm": XAES, "items": items})["results"]
    assert batch[0]["error"]["field"] == "plaintext"
    assert "plaintext" not in batch[1]["data"]


def test_an_item_cannot_show_a_data_key_that_the_batch_hides(caller: Caller) -> None:
    """Plaintext false for the batch applies to each item. An item with its own value is refused."""
    items: list[dict[str, object]] = [{}, {"plaintext": None}, {"plaintext": True}]
    body = {"algorithm": XAES, "plaintext": False, "items": items}
    *hidden, refused = caller.post("/kem/data-key/batch", body)["results"]
    assert all(result["data"].keys().isdisjoint({"plaintext"}) for result in hidden)
    assert refused["error"]["field"] == "plaintext"


@pytest.mark.parametrize("algorithm", MAKING)
def test_the_largest_batch_of_data_keys(caller: Caller, algorithm: str) -> None:
    """128 data keys are all different, and each has its record. A request for 129 is refused."""
    body: dict[str, object] = {"algorithm": algorithm, "size": 64, "items": [{}] * 128}
    made = caller.post("/kem/data-key/batch", body)["results"]
    assert len({result["data"]["plaintext"] for result in made}) == 128
    assert caller.refusal("/kem/data-key/batch", {**body, "items": [{}] * 129})[0] == 400
    recorded = caller.get(
        "/audit/records", operation="generate-data-key", algorithm=algorithm, limit=128
    )
    assert len(recorded["records"]) == 128


def test_no_algorithm_or_keyring_reads_what_another_made(new_tenant: NewTenant) -> None:
    """A MAC, ciphertext or data key works only with its own algorithm in its own keyring."""
    caller = new_tenant()
    for name in ("one", "two"):
        caller.post("/kms/keyrings", {"name": name}, status=201)
        for algorithm in (XAES, "X-Wing", *MACS):
            body = {"algorithm": algorithm, "keyring": name}
            caller.post("/kms/keys/generate", body, status=201)
    mac = caller.post("/mac/compute", {"message": TEXT, "keyring": "one"})["mac"]
    sealed = {"plaintext": TEXT, "algorithm": XAES, "keyring": "one"}
    blob = caller.post("/kem/encrypt", sealed)["ciphertext"]
    made = caller.post("/kem/data-key", {"algorithm": XAES, "keyring": "one"})["wrapped_key"]
    for keyring in ("one", "two"):
        for algorithm in MACS:
            named: dict[str, object] = {"algorithm": algorithm, "keyring": keyring}
            verify = {**named, "key_version": 1, "message": TEXT, "mac": mac}
            is_its_own = (keyring, algorithm) == ("one", "HMAC-SHA-256")
            assert caller.post("/mac/verify", verify)["valid"] is is_its_own
        for algorithm in (XAES, "X-Wing"):
            named = {"algorithm": algorithm, "keyring": keyring, "key_version": 1}
            if (keyring, algorithm) == ("one", XAES):
                continue
            assert caller.refusal("/kem/decrypt", {**named, "ciphertext": blob})[0] == 400
            assert caller.refusal("/kem/key/unwrap", {**named, "wrapped_key": made})[0] == 400


def test_what_has_no_cipher_is_no_target(caller: Caller) -> None:
    """Nothing is re-encrypted to a MAC key or from one, and no wrapped key to ML-KEM-1024."""
    sealed = {"plaintext": TEXT, "algorithm": XAES}
    named: dict[str, object] = {"key_version": 1, "algorithm": XAES}
    body = {**named, "ciphertext": caller.post("/kem/encrypt", sealed)["ciphertext"]}
    wrapped = caller.post("/kem/data-key", {"algorithm": XAES})["wrapped_key"]
    for refused in (
        {**body, "to": {"algorithm": "HMAC-SHA-256"}},
        {**body, "algorithm": "HMAC-SHA-256", "to": {"algorithm": XAES}},
        {**named, "wrapped_key": wrapped, "to": {"algorithm": "ML-KEM-1024"}},
        {**named, "wrapped_key": wrapped, "to": {"algorithm": "HMAC-SHA-512"}},
    ):
        assert caller.refusal("/kem/re-encrypt", refused)[0] == 400, refused


@pytest.mark.threat("scoped-api-key")
def test_a_scope_for_keyrings_and_algorithms_holds(
    new_tenant: NewTenant, installation: Any
) -> None:
    """A scope with a wildcard includes data keys and MACs of its keyrings and algorithms only."""
    caller = new_tenant()
    for name in ("pay.cards", "payments"):
        caller.post("/kms/keyrings", {"name": name}, status=201)
        for algorithm in (XAES, *MACS):
            named = {"algorithm": algorithm, "keyring": name}
            caller.post("/kms/keys/generate", named, status=201)
    scopes = [{"operations": ["*"], "keyrings": ["pay.*"], "algorithms": [XAES, "HMAC-SHA-256"]}]
    made = caller.post(f"/tenants/{caller.tenant_id}/api-keys", {"scopes": scopes}, status=201)
    limited = installation.caller(made["api_key"], caller.tenant_id)
    for keyring, algorithm, allowed in (
        ("pay.cards", "HMAC-SHA-256", True),
        ("pay.cards", "HMAC-SHA-512", False),
        ("payments", "HMAC-SHA-256", False),
        ("default", "HMAC-SHA-256", False),
    ):
        body = {"message": TEXT, "keyring": keyring, "algorithm": algorithm}
        assert (limited.ask("POST", "/mac/compute", body).status_code == 200) is allowed
        verify = {**body, "mac": TEXT, "key_version": 1}
        assert (limited.ask("POST", "/mac/verify", verify).status_code == 200) is allowed
    for keyring, status in (("pay.cards", 200), ("payments", 403), ("default", 403)):
        body = {"keyring": keyring, "algorithm": XAES}
        assert limited.ask("POST", "/kem/data-key", body).status_code == status
        sealed = {**body, "plaintext": TEXT}
        assert limited.ask("POST", "/kem/encrypt", sealed).status_code == status
