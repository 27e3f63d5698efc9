"""Operations of Vault Transit's clients over HTTP, with the answers that OpenBao 2.4 gives."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.caller import TLS, Caller
from tests.patience import PATIENCE

NewTenant = Callable[..., Caller]
Answer = tuple[int, dict[str, Any]]
TEXT, OTHER = (b64encode(each).decode() for each in (b"4111 1111 1111 1", b"another"))
OURS, THEIRS = (b64encode(each).decode() for each in (b"customers/42", b"customers/43"))
UNREADABLE = "cipher: message authentication failed"
TOO_OLD = "ciphertext or signature version is disallowed by policy (too old)"
MISSING_CONTEXT = "missing 'context' for key derivation"
_NO_BATCHES: tuple[Any, ...] = ({}, "x", [5], [[]], [None])
SIGNING = {
    "ml-dsa": {"parameter_set": "65"},
    "slh-dsa": {"parameter_set": "slh-dsa-sha2-128f"},
    "hybrid": {},
}


class Transit:
    """A client of the face with one token."""

    def __init__(self, client: httpx2.Client, token: str) -> None:
        """Take a client with the address of /v1/transit/."""
        self._client = client
        self._headers = {"X-Vault-Token": token}

    def ask(self, path: str, body: object = None) -> Answer:
        """Return the status and the body of a response."""
        response = self._client.post(path, json=body or {}, headers=self._headers)
        return response.status_code, response.json() if response.content else {}

    def data(self, path: str, body: object = None) -> dict[str, Any]:
        """Return the data of a successful response."""
        status, answer = self.ask(path, body)
        assert status in {200, 204}, answer
        data: dict[str, Any] = answer.get("data", {})
        return data

    def refusal(self, path: str, body: object = None) -> str:
        """Return the one message of a response with status 400."""
        status, answer = self.ask(path, body)
        assert status == 400, answer
        [message] = answer["errors"]
        return str(message)

    def batch(self, path: str, items: list[Any], **more: object) -> tuple[int, list[Any]]:
        """Return the status and the results of a batch."""
        status, answer = self.ask(path, {"batch_input": items, **more})
        return status, answer["data"]["batch_results"]


@pytest.fixture(scope="module")
def connect(installation: Any) -> Iterator[Callable[[str], Transit]]:
    """Return clients of this installation by token."""
    with ExitStack() as stack:
        address = f"{installation.base_url}/v1/transit/"
        client = stack.enter_context(httpx2.Client(base_url=address, verify=TLS, timeout=PATIENCE))
        yield lambda token: Transit(client, token)


@pytest.fixture(scope="module")
def tenant(installation: Any) -> Caller:
    """Return a tenant."""
    made: Caller = installation.new_tenant()
    return made


@pytest.fixture(scope="module")
def transit(connect: Callable[[str], Transit], tenant: Caller) -> Transit:
    """Return a client with keys: orders, cards (derived), old (version 2 of 2), macs."""
    client = connect(tenant.api_key)
    client.data("keys/orders", {})
    client.data("keys/cards", {"derived": True})
    client.data("keys/old", {})
    client.data("keys/macs", {"type": "hmac", "key_size": 32})
    return client


def test_a_plaintext_of_16_bytes_stays_short(transit: Transit) -> None:
    """Its ciphertext has at most 90 characters and exactly two colons."""
    made = transit.data("encrypt/orders", {"plaintext": TEXT})
    assert len(b64decode(TEXT)) == 16
    assert len(made["ciphertext"]) <= 90
    assert made["ciphertext"].count(":") == 2
    assert made["ciphertext"].startswith("vault:v1:")
    assert made["key_version"] == 1
    assert transit.data("decrypt/orders", {"ciphertext": made["ciphertext"]}) == {"plaintext": TEXT}


@pytest.mark.parametrize(
    ("ciphertext", "message"),
    [
        ("hello", "invalid ciphertext: no prefix"),
        ("vault:1:AAAA", "invalid ciphertext: no prefix"),
        ("bault:v1:AAAA", "invalid ciphertext: no prefix"),
        ("vault:v1", "invalid ciphertext: wrong number of fields"),
        ("vault:v1:AA:AA", "invalid ciphertext: wrong number of fields"),
        ("vault:v1:", "invalid ciphertext length"),
        ("vault:v1:AAAA", "invalid ciphertext length"),
        ("vault:v1:!!", "invalid ciphertext: could not decode base64"),
        ("vault:vx:AAAA", "invalid ciphertext: version number could not be decoded"),
        ("vault:v0:AAAA", "invalid ciphertext: version number could not be decoded"),
        ("vault:v01:AAAA", "invalid ciphertext: version number could not be decoded"),
        ("vault:v-1:AAAA", "invalid ciphertext: version number could not be decoded"),
        ("vault:v99999999999999999999:AAAA", "invalid ciphertext: version number could"),
        ("", "missing ciphertext to decrypt"),
        (None, "missing ciphertext to decrypt"),
    ],
)
def test_nonsense_is_no_ciphertext(ciphertext: object, message: str, transit: Transit) -> None:
    """Decrypt and rewrap say what is wrong with a text, alone and in a batch."""
    for path in ("decrypt/orders", "rewrap/orders"):
        assert transit.refusal(path, {"ciphertext": ciphertext}).startswith(message)
        _, [result] = transit.batch(path, [{"ciphertext": ciphertext}])
        assert result["error"].startswith(message)


def test_another_version_is_not_there_or_does_not_open(transit: Transit) -> None:
    """The version in the ciphertext is authenticated, and a missing version is too new."""
    made = transit.data("encrypt/old", {"plaintext": TEXT})["ciphertext"]
    changed = made.replace("vault:v1:", "vault:v2:")
    too_new = transit.refusal("decrypt/old", {"ciphertext": changed})
    assert too_new.startswith("invalid ciphertext: version is too new")
    transit.data("keys/old/rotate")
    assert transit.refusal("decrypt/old", {"ciphertext": changed}) == UNREADABLE
    assert transit.data("decrypt/old", {"ciphertext": made})["plaintext"] == TEXT
    rewrapped = transit.data("rewrap/old", {"ciphertext": made})
    assert rewrapped["key_version"] == 2
    assert rewrapped["ciphertext"].startswith("vault:v2:")
    assert transit.data("decrypt/old", {"ciphertext": rewrapped["ciphertext"]})["plaintext"] == TEXT
    back = rewrapped["ciphertext"].replace("vault:v2:", "vault:v1:")
    assert transit.refusal("decrypt/old", {"ciphertext": back}) == UNREADABLE
    assert transit.data("encrypt/old", {"plaintext": TEXT, "key_version": 2})["key_version"] == 2
    for chosen in (1, 3):
        refused = transit.refusal("encrypt/old", {"plaintext": TEXT, "key_version": chosen})
        assert "latest key version" in refused
    assert "key_version" in transit.refusal("rewrap/old", {"ciphertext": made, "key_version": 1})
    transit.data("keys/old/config", {"min_decryption_version": 2})
    assert transit.refusal("decrypt/old", {"ciphertext": made}) == TOO_OLD
    assert transit.refusal("rewrap/old", {"ciphertext": made}) == TOO_OLD
    transit.data("keys/old/config", {"min_decryption_version": 1})
    assert transit.data("decrypt/old", {"ciphertext": made})["plaintext"] == TEXT


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_changed_text_does_not_open(data: st.DataObject, transit: Transit) -> None:
    """A text that is cut, reordered, or has another character anywhere opens nothing."""
    bound = {"associated_data": OTHER}
    first, second = (
        transit.data("encrypt/orders", {"plaintext": TEXT, **bound})["ciphertext"] for _ in "ab"
    )
    head, body = first[:9], first[9:]
    place = data.draw(st.integers(0, len(body) - 1))
    changed = body[:place] + ("A" if body[place] != "A" else "B") + body[place + 1 :]
    cut = data.draw(st.integers(1, len(body) - 1))
    turned = body[cut:] + body[:cut]
    joined = body[:cut] + second[9 + cut :]
    texts = [changed, body[:-cut], turned, joined, body + body]
    for text in {*texts} - {body, second[9:]}:  # the ciphertexts begin alike
        message = transit.refusal("decrypt/orders", {"ciphertext": head + text, **bound})
        assert message == UNREADABLE or message.startswith("invalid ciphertext")
    assert transit.refusal("decrypt/orders", {"ciphertext": first}) == UNREADABLE
    assert transit.data("decrypt/orders", {"ciphertext": first, **bound})["plaintext"] == TEXT


@pytest.mark.threat("other-tenant")
def test_another_key_or_tenant_does_not_open_it(
    transit: Transit, new_tenant: NewTenant, connect: Callable[[str], Transit]
) -> None:
    """A key with another name does not open it.

    Another tenant's key with the same name does not either.
    """
    made = transit.data("encrypt/orders", {"plaintext": TEXT})["ciphertext"]
    transit.data("keys/payments", {})
    assert transit.refusal("decrypt/payments", {"ciphertext": made}) == UNREADABLE
    stranger = connect(new_tenant().api_key)
    for path in ("decrypt/orders", "rewrap/orders"):
        assert stranger.refusal(path, {"ciphertext": made}) == "encryption key not found"
    stranger.data("keys/orders", {})
    assert stranger.refusal("decrypt/orders", {"ciphertext": made}) == UNREADABLE


def test_derived_keys_need_their_context(transit: Transit) -> None:
    """Each operation with a derived key needs a context, and each with another key refuses one."""
    ours, theirs = {"context": OURS}, {"context": THEIRS}
    made = transit.data("encrypt/cards", {"plaintext": TEXT, **ours})["ciphertext"]
    assert transit.data("decrypt/cards", {"ciphertext": made, **ours})["plaintext"] == TEXT
    assert transit.refusal("decrypt/cards", {"ciphertext": made, **theirs}) == UNREADABLE
    again = transit.data("rewrap/cards", {"ciphertext": made, **ours})["ciphertext"]
    assert transit.data("decrypt/cards", {"ciphertext": again, **ours})["plaintext"] == TEXT
    data_key = transit.data("datakey/plaintext/cards", ours)
    opened = transit.data("decrypt/cards", {"ciphertext": data_key["ciphertext"], **ours})
    assert opened["plaintext"] == data_key["plaintext"]
    for path, body in (
        ("encrypt", {"plaintext": TEXT}),
        ("decrypt", {"ciphertext": made}),
        ("rewrap", {"ciphertext": made}),
        ("datakey/wrapped", {}),
    ):
        assert transit.refusal(f"{path}/cards", body).startswith(MISSING_CONTEXT)
        refused = transit.refusal(f"{path}/cards", {**body, "context": ""})
        assert refused.startswith(MISSING_CONTEXT)
        assert transit.refusal(f"{path}/cards", {**body, "context": "!"}).startswith("illegal")
    plain = transit.data("encrypt/orders", {"plaintext": TEXT})["ciphertext"]
    for path, body in (
        ("encrypt", {"plaintext": TEXT}),
        ("decrypt", {"ciphertext": plain}),
        ("rewrap", {"ciphertext": plain}),
        ("datakey/wrapped", {}),
    ):
        assert "not derived" in transit.refusal(f"{path}/orders", {**body, **ours})
    exchanged = {"ciphertext": made, "context": OTHER, "associated_data": OURS}
    assert transit.refusal("decrypt/cards", exchanged) == UNREADABLE


def test_batches_keep_order_and_references(transit: Transit) -> None:
    """Each item has its own result or error. The status shows whether any item failed."""
    items = [{"plaintext": TEXT, "reference": "a"}, {"plaintext": "@@", "reference": "b"}]
    good, bad = items[:1], items[1:]
    status, [first, second] = transit.batch("encrypt/orders", items)
    assert (status, first["reference"], first["key_version"]) == (400, "a", 1)
    assert second == {"error": "illegal base64 data at input byte 0", "reference": "b"}
    chosen: Any = {"partial_failure_response_code": 207}
    assert transit.batch("encrypt/orders", items, **chosen)[0] == 207
    assert transit.batch("encrypt/orders", bad, **chosen)[0] == 400
    assert transit.batch("encrypt/orders", good, **chosen)[0] == 200
    assert transit.batch("encrypt/orders", [{"plaintext": TEXT}])[1][0]["reference"] == ""
    sealed = [{"ciphertext": first["ciphertext"], "reference": str(n)} for n in range(3)]
    sealed[1] = {"ciphertext": "vault:v1:AAAA", "reference": "1"}
    status, results = transit.batch("decrypt/orders", sealed)
    assert (status, [each["reference"] for each in results]) == (400, ["0", "1", "2"])
    assert [each["plaintext"] for each in results] == [TEXT, "", TEXT]
    assert results[1]["error"] == "invalid ciphertext length"
    assert transit.batch("decrypt/orders", sealed, partial_failure_response_code=200)[0] == 200
    status, results = transit.batch("rewrap/orders", [*sealed, {"reference": "z"}])
    assert (status, results[3]["error"]) == (200, "missing ciphertext to decrypt")
    assert [("error" in each) for each in results] == [False, True, False, True]
    for path in ("encrypt/orders", "decrypt/orders", "rewrap/orders", "sign/orders", "hmac/macs"):
        message = transit.refusal(path, {"batch_input": []})
        assert message == "missing batch input to process"
        for wrong in _NO_BATCHES:
            assert "batch_input" in transit.refusal(path, {"batch_input": wrong})
    for wrong_code in (99, 204, 205, 299, 304, 499, 500, 503, 600, 1000, -1):
        body = {"batch_input": items, "partial_failure_response_code": wrong_code}
        assert "partial_failure_response_code" in transit.refusal("encrypt/orders", body)
    mixed = [{"plaintext": TEXT}, {"plaintext": TEXT, "context": OURS}]
    message = "context should be set either in all the request blocks or in none"
    for name in ("cards", "orders", "never-made"):
        assert transit.refusal(f"encrypt/{name}", {"batch_input": mixed}) == message


def test_a_batch_can_be_larger_than_one_of_the_api(transit: Transit) -> None:
    """300 items are handled in order, and each plaintext is the right one."""
    texts = [b64encode(str(number).encode()).decode() for number in range(300)]
    status, sealed = transit.batch("encrypt/orders", [{"plaintext": text} for text in texts])
    assert status == 200
    items = [{"ciphertext": each["ciphertext"]} for each in sealed]
    status, opened = transit.batch("decrypt/orders", items)
    assert [each["plaintext"] for each in opened] == texts


def test_each_item_counts_once(new_tenant: NewTenant, connect: Callable[[str], Transit]) -> None:
    """A batch counts its successful items against the quota. If there are too many, none is done."""
    caller = new_tenant("free")
    transit = connect(caller.api_key)
    transit.data("keys/orders", {})

    def used() -> int:
        limits = {each["name"]: each["used"] for each in caller.get("/billing/limits")["limits"]}
        return int(limits["operations_per_month"])

    assert used() == 0
    items = [{"plaintext": TEXT}] * 5 + [{"plaintext": "@@"}, {"plaintext": TEXT, "key_version": 9}]
    assert transit.batch("encrypt/orders", items)[0] == 400
    assert used() == 5
    transit.data("encrypt/orders", {"plaintext": TEXT})
    assert used() == 6
    batches: tuple[list[Any], ...] = ([{"plaintext": TEXT}] * 5000, [{}] * 1_000_000)
    for many in batches:
        for path in ("encrypt/orders", "decrypt/orders", "sign/orders"):
            status, answer = transit.ask(path, {"batch_input": many})
            assert status in {400, 429}
            assert "batch_results" not in json.dumps(answer)[:2000]
    assert used() == 6


def test_records_name_each_item(new_tenant: NewTenant, connect: Callable[[str], Transit]) -> None:
    """The audit log has one record for each item that reached the key service."""
    caller = new_tenant()
    transit = connect(caller.api_key)
    transit.data("keys/orders", {})
    transit.batch("encrypt/orders", [{"plaintext": TEXT}] * 3)
    records = caller.get("/audit/records", operation="encrypt")["records"]
    assert [(each["keyring"], each["algorithm"]) for each in records] == [
        ("orders", "XAES-256-GCM")
    ] * 3


def test_a_rule_warns_and_denies(
    new_tenant: NewTenant, new_person: NewTenant, connect: Callable[[str], Transit]
) -> None:
    """A request that a rule warns of has the rule in warnings, once. Later 403 names the rule."""
    caller = new_tenant()
    owner = new_person(caller.tenant_id)
    transit = connect(caller.api_key)
    transit.data("keys/orders", {})
    ciphertext = transit.data("encrypt/orders", {"plaintext": TEXT})["ciphertext"]
    path = "/rules/algorithms/aes"
    rule = {"algorithms": ["XAES-256-GCM"], "warn_from": "2026-01-01T00:00:00Z"}
    assert owner.ask_proven("PUT", path, rule).is_success
    items = [{"plaintext": TEXT}] * 2
    for operation, body in (
        ("encrypt", {"plaintext": TEXT}),
        ("encrypt", {"batch_input": items}),
        ("datakey/plaintext", {}),
        ("keys/orders/rotate", {}),
        ("rewrap", {"ciphertext": ciphertext}),
    ):
        named = operation if operation.startswith("keys") else f"{operation}/orders"
        [warning] = transit.ask(named, body)[1]["warnings"]
        assert "the rule aes" in warning, operation
    assert transit.ask("decrypt/orders", {"ciphertext": ciphertext})[1]["warnings"] is None
    assert owner.ask_proven("PUT", path, rule | {"deny_from": "2026-01-02T00:00:00Z"}).is_success
    status, answer = transit.ask("encrypt/orders", {"plaintext": TEXT})
    assert status == 403
    assert "the rule aes" in answer["errors"][0]
    [result] = transit.batch("encrypt/orders", items[:1])[1]
    assert "the rule aes" in result["error"]
    assert transit.data("decrypt/orders", {"ciphertext": ciphertext})["plaintext"] == TEXT


def test_encrypt_creates_the_key(transit: Transit) -> None:
    """A key that does not exist is created with the type that is asked for; derived by a context."""
    transit.data("encrypt/made-plain", {"plaintext": TEXT})
    transit.data("encrypt/made-derived", {"plaintext": TEXT, "context": OURS})
    sealed = transit.data("encrypt/made-chacha", {"plaintext": TEXT, "type": "chacha20-poly1305"})
    assert sealed["key_version"] == 1
    refused = transit.refusal("encrypt/made-derived", {"plaintext": TEXT})
    assert refused.startswith(MISSING_CONTEXT)
    ecdsa = transit.refusal("encrypt/never-made", {"plaintext": TEXT, "type": "ecdsa-p256"})
    assert "ml-dsa" in ecdsa
    unknown = transit.refusal("encrypt/never-made", {"plaintext": TEXT, "type": "nonsense"})
    assert "unknown key type" in unknown
    signs = {"plaintext": TEXT, "type": "ml-dsa"}
    assert "not supported for key type ml-dsa" in transit.refusal("encrypt/never-made", signs)
    for path, body in (
        ("decrypt", {"ciphertext": sealed["ciphertext"]}),
        ("rewrap", {"ciphertext": sealed["ciphertext"]}),
        ("datakey/plaintext", {}),
        ("hmac", {"input": TEXT}),
    ):
        assert transit.refusal(f"{path}/never-made", body) == "encryption key not found"
    assert transit.refusal("sign/never-made", {"input": TEXT}) == "signing key not found"


@pytest.mark.threat("scoped-api-key")
def test_a_scope_allows_what_it_names(
    tenant: Caller, transit: Transit, connect: Callable[[str], Transit]
) -> None:
    """Keys for data keys, encryption, hashes or verifying do that, and create nothing."""
    ciphertext = transit.data("encrypt/orders", {"plaintext": TEXT})["ciphertext"]
    mac = transit.data("hmac/macs", {"input": TEXT})["hmac"]
    transit.data("keys/signs", {"type": "ml-dsa", "parameter_set": "65"})
    signature = transit.data("sign/signs", {"input": TEXT})["signature"]
    bodies: dict[str, dict[str, Any]] = {
        "encrypt/orders": {"plaintext": TEXT},
        "decrypt/orders": {"ciphertext": ciphertext},
        "rewrap/orders": {"ciphertext": ciphertext},
        "datakey/plaintext/orders": {},
        "sign/signs": {"input": TEXT},
        "verify/signs": {"input": TEXT, "signature": signature},
        "hmac/macs": {"input": TEXT},
        "verify/macs": {"input": TEXT, "hmac": mac},
        "hash": {"input": TEXT},
        "random": {},
    }
    for operations, allowed in (
        (["generate-data-key"], {"datakey/plaintext/orders"}),
        (["encrypt-only"], {"encrypt/orders", "datakey/plaintext/orders"}),
        (["verify-only"], {"verify/signs", "verify/macs"}),
        (["verify-mac"], {"verify/macs"}),
        (["hash"], {"hash"}),
        (["use"], set(bodies)),
    ):
        keys = f"/tenants/{tenant.tenant_id}/api-keys"
        made = tenant.post(keys, {"scopes": [{"operations": operations}]}, status=201)
        limited = connect(made["api_key"])
        for path, body in bodies.items():
            status, answer = limited.ask(path, body)
            assert status == (200 if path in allowed else 403), (operations, path, answer)
        status, answer = limited.ask("encrypt/not-made", {"plaintext": TEXT})
        assert status == (400 if {"use", "encrypt-only"} & set(operations) else 403), answer
        assert tenant.ask("DELETE", f"{keys}/{made['version']}").status_code == 200
    names = {each["name"] for each in tenant.get("/kms/keyrings")["keyrings"]}
    assert "not-made" not in names


@pytest.mark.parametrize(
    ("bits", "size"), [(128, 16), (256, 32), (512, 64), ("256", 32), (None, 32)]
)
def test_data_keys(bits: object, size: int, transit: Transit) -> None:
    """A data key has the requested bits, and decrypt opens it.

    For wrapped, no plaintext is returned.
    """
    bound = {"associated_data": OTHER}
    made = transit.data("datakey/plaintext/orders", {"bits": bits, **bound})
    assert len(b64decode(made["plaintext"])) == size
    opened = transit.data("decrypt/orders", {"ciphertext": made["ciphertext"], **bound})
    assert opened["plaintext"] == made["plaintext"]
    wrapped = transit.data("datakey/wrapped/orders", {"bits": bits})
    assert wrapped.keys() == {"ciphertext", "key_version"}
    for wrong in (192, 0, -1, 1024):
        refused = transit.refusal("datakey/plaintext/orders", {"bits": wrong})
        assert refused == "invalid bit length"
    other = transit.refusal("datakey/other/orders", {})
    assert other == "Invalid path, must be 'plaintext' or 'wrapped'"


@pytest.mark.parametrize("kind", SIGNING)
def test_signatures(kind: str, transit: Transit) -> None:
    """Each algorithm signs messages and digests; a changed input, signature or version is refused."""
    name = f"signs-{kind}"
    transit.data(f"keys/{name}", {"type": kind, **SIGNING[kind]})
    made = transit.data(f"sign/{name}", {"input": TEXT})
    assert made["key_version"] == 1
    verify = f"verify/{name}"
    right = {"input": TEXT, "signature": made["signature"]}
    assert transit.data(verify, right) == {"valid": True}
    assert transit.data(f"{verify}/sha2-512", right) == {"valid": True}
    for wrong in ({"input": OTHER}, {"signature": "vault:v1:AAAA"}):
        assert transit.data(verify, {**right, **wrong}) == {"valid": False}
    too_new = {**right, "signature": made["signature"].replace(":v1:", ":v9:")}
    assert transit.refusal(verify, too_new).startswith("invalid signature: version is too new")
    nonsense = transit.refusal(verify, {**right, "signature": "nonsense"})
    assert nonsense == "invalid signature: no prefix"
    digest = b64encode(hashlib.sha256(b64decode(TEXT)).digest()).decode()
    hashed = {"input": digest, "prehashed": True}
    signed = transit.data(f"sign/{name}/sha2-256", hashed)["signature"]
    assert transit.data(f"{verify}/sha2-256", {**hashed, "signature": signed})["valid"] is True
    assert transit.data(verify, {"input": digest, "signature": signed})["valid"] is False
    short = transit.refusal(f"sign/{name}/sha2-512", hashed)
    assert "64 bytes" in short
    for path, body, message in (
        (f"sign/{name}/nonsense", {"input": TEXT}, "invalid hash algorithm"),
        (f"sign/{name}", {"input": TEXT, "hash_algorithm": "none"}, "hash_algorithm none"),
        (f"sign/{name}/sha3-256", hashed, "prehashed input of sha3-256 is not offered"),
        (f"sign/{name}", {"input": TEXT, "signature_algorithm": "pss"}, "signature_algorithm is"),
        (verify, {**right, "signature_algorithm": "pkcs1v15"}, "signature_algorithm is refused"),
        (f"sign/{name}", {"input": TEXT, "marshaling_algorithm": "jws"}, "marshaling_algorithm is"),
        (f"sign/{name}", {"input": TEXT, "context": OURS}, "context is refused"),
        (f"sign/{name}", {}, "missing input"),
        (f"sign/{name}", {"input": "@@"}, "unable to decode input as base64: illegal base64"),
        (f"sign/{name}", {"input": TEXT, "key_version": 9}, "requested version for signing"),
        (f"encrypt/{name}", {"plaintext": TEXT}, f"not supported for key type {kind}"),
        (f"decrypt/{name}", {"ciphertext": "vault:v1:AAAA"}, "message decryption not supported"),
        (f"datakey/plaintext/{name}", {}, "message encryption not supported"),
        (f"hmac/{name}", {"input": TEXT}, "create a key of type hmac"),
        (verify, {"input": TEXT}, "neither a 'signature' nor an 'hmac' were given to verify"),
    ):
        assert message in transit.refusal(path, body), path
    harmless = {"input": TEXT, "marshaling_algorithm": "asn1", "salt_length": "auto"}
    assert transit.data(f"sign/{name}", harmless)["signature"].startswith("vault:v1:")
    items = [{"input": TEXT, "reference": "a"}, {"input": "@@"}, {}]
    status, results = transit.batch(f"sign/{name}", items)
    assert (status, results[0]["reference"], results[1]["key_version"]) == (200, "a", 0)
    assert results[2]["error"] == "missing input"
    checks = [
        {"input": TEXT, "signature": results[0]["signature"]},
        {"input": OTHER, "signature": results[0]["signature"]},
        {"input": TEXT, "signature": "x"},
    ]
    status, found = transit.batch(verify, checks)
    assert (status, [each["valid"] for each in found]) == (200, [True, False, False])
    assert found[2]["error"] == "invalid signature: no prefix"
    half = [checks[0], {"input": TEXT}]
    both = [checks[0], {"input": TEXT, "hmac": "vault:v1:AAAA"}]
    for mixed in (half, both):
        assert "must all provide" in transit.refusal(verify, {"batch_input": mixed})


@pytest.mark.parametrize(("size", "own"), [(32, "sha2-256"), (64, "sha2-512")])
def test_macs(size: int, own: str, transit: Transit) -> None:
    """A MAC verifies with its key and input; another hash function is refused by name."""
    name = f"macs-{size}"
    transit.data(f"keys/{name}", {"type": "hmac", "key_size": size})
    mac = transit.data(f"hmac/{name}", {"input": TEXT})["hmac"]
    assert len(b64decode(mac.split(":")[2])) == size
    assert transit.data(f"hmac/{name}/{own}", {"input": TEXT})["hmac"] == mac
    right = {"input": TEXT, "hmac": mac}
    assert transit.data(f"verify/{name}", right) == {"valid": True}
    assert transit.data(f"verify/{name}/{own}", right) == {"valid": True}
    for wrong in ({"input": OTHER}, {"hmac": "vault:v1:AAAA"}):
        assert transit.data(f"verify/{name}", {**right, **wrong}) == {"valid": False}
    for path, body, message in (
        (f"hmac/{name}/sha2-384", {"input": TEXT}, "algorithm sha2-384 is refused"),
        (f"hmac/{name}/md5", {"input": TEXT}, "algorithm of this name is refused"),
        (f"verify/{name}/sha3-256", right, "algorithm sha3-256 is refused"),
        (f"verify/{name}", {**right, "hmac": "nonsense"}, "invalid HMAC to verify: no prefix"),
        (f"verify/{name}", {**right, "hmac": mac.replace(":v1:", ":v9:")}, "version is too new"),
        (f"hmac/{name}", {}, "missing input for HMAC"),
        (f"hmac/{name}", {"input": TEXT, "key_version": 9}, "version"),
        (f"sign/{name}", {"input": TEXT}, "key type hmac does not support signing"),
        (f"verify/{name}", {"input": TEXT, "signature": mac}, "does not support verification"),
        (f"encrypt/{name}", {"plaintext": TEXT}, "not supported for key type hmac"),
        ("hmac/orders", {"input": TEXT}, "create a key of type hmac"),
        (f"verify/{name}", {"input": TEXT, "cmac": mac}, "cmac is refused"),
    ):
        assert message in transit.refusal(path, body), path
    items = [{"input": TEXT, "reference": "r"}, {"input": "@@"}, {}]
    status, results = transit.batch(f"hmac/{name}", items)
    assert (status, results[0]) == (200, {"hmac": mac, "reference": "r"})
    assert results[2]["error"] == "missing input for HMAC"
    checks = [{**right, "reference": "q"}, {**right, "input": OTHER}]
    status, found = transit.batch(f"verify/{name}", checks)
    assert found[0] == {"valid": True, "reference": "q"}
    assert found[1]["valid"] is False


@pytest.mark.parametrize(
    "name",
    [f"sha{family}-{size}" for family in (2, 3) for size in (224, 256, 384, 512)],
)
def test_hashes(name: str, transit: Transit) -> None:
    """A hash equals the standard's hash, as hexadecimal or base64.

    The algorithm in the path has priority.
    """
    python = name.replace("sha2-", "sha").replace("sha3-", "sha3_")
    digest = hashlib.new(python, b64decode(TEXT)).digest()
    assert transit.data(f"hash/{name}", {"input": TEXT, "algorithm": "md5"})["sum"] == digest.hex()
    body = {"input": TEXT, "algorithm": name, "format": "base64"}
    assert b64decode(transit.data("hash", body)["sum"]) == digest


def test_hashes_have_refusals(transit: Transit) -> None:
    """SHA-256 is the default. Other names, formats and inputs are refused."""
    default = hashlib.sha256(b64decode(TEXT)).hexdigest()
    assert transit.data("hash", {"input": TEXT})["sum"] == default
    assert "unsupported algorithm" in transit.refusal("hash/md5", {"input": TEXT})
    assert "unsupported encoding format" in transit.refusal("hash", {"input": TEXT, "format": "x"})
    assert transit.refusal("hash", {}) == "input missing"
    assert "illegal base64" in transit.refusal("hash", {"input": "@@"})


def test_random_bytes(transit: Transit) -> None:
    """The path or the body has the number of bytes and the source, as with OpenBao."""
    for path, body, size in (
        ("random", {}, 32),
        ("random/16", {}, 16),
        ("random/platform", {"bytes": 8}, 8),
        ("random/platform/8", {}, 8),
        ("random/all/8", {}, 8),
        ("random", {"bytes": "8"}, 8),
        ("random", {"bytes": 131_072}, 131_072),
    ):
        assert len(b64decode(transit.data(path, body)["random_bytes"])) == size, path
    assert len(bytes.fromhex(transit.data("random/8", {"format": "hex"})["random_bytes"])) == 8
    status, answer = transit.ask("random/seal/8")
    assert (status, len(answer["warnings"])) == (200, 1)
    for path, body, message in (
        ("random/nonsense/8", {}, "unsupported entropy source"),
        ("random/0", {}, '"bytes" cannot be less than 1'),
        ("random", {"bytes": -1}, '"bytes" cannot be less than 1'),
        ("random", {"bytes": 131_073}, '"bytes" should be less than 131072'),
        ("random/99999999999999999999", {}, "unsupported entropy source"),
        ("random/platform/x", {}, "bytes"),
        ("random", {"format": "z"}, "unsupported encoding format"),
    ):
        assert message in transit.refusal(path, body), path


def test_a_refused_encryption_creates_no_key(transit: Transit, tenant: Caller) -> None:
    """Encrypt creates a key only if it encrypts a value, and only for a valid name."""
    for body in (
        {},
        {"plaintext": "%"},
        {"plaintext": TEXT, "nonce": TEXT},
        {"plaintext": TEXT, "key_version": "x"},
        {"plaintext": TEXT, "context": TEXT, "type": "x-wing"},
        {"plaintext": TEXT, "type": "hmac"},
    ):
        assert transit.refusal("encrypt/never", body)
    assert transit.batch("encrypt/never", [{}, {"plaintext": "%"}])[0] == 400
    assert tenant.ask("GET", "/kms/keyrings/never").status_code == 404
    status, items = transit.batch("encrypt/never", [{}, {"plaintext": TEXT}])
    assert (status, items[1]["key_version"]) == (400, 1)


def test_nulls_and_unknown_fields_are_ignored(transit: Transit) -> None:
    """Spring Vault sends null for fields without a value, and Terraform a misspelt one."""
    body = {"plaintext": TEXT, "context": None, "nonce": None, "key_version": 0, "surprise": [1]}
    assert transit.data("encrypt/orders", body)["key_version"] == 1
    assert transit.data("encrypt/orders", {"plaintext": ""})["key_version"] == 1
    wrapped = TEXT[:8] + "\n" + TEXT[8:]
    made = transit.data("encrypt/orders", {"plaintext": wrapped})["ciphertext"]
    assert transit.data("decrypt/orders", {"ciphertext": made})["plaintext"] == TEXT
    refused = transit.refusal("encrypt/orders", {"plaintext": TEXT, "nonce": TEXT})
    assert refused.startswith("nonce is refused")
    for key in ("orders", "absent"):
        body = {"plaintext": TEXT, "convergent_encryption": True}
        refused = transit.refusal(f"encrypt/{key}", body)
        assert refused.startswith("convergent_encryption is refused")
    assert transit.refusal("encrypt/orders", {}) == "missing plaintext to encrypt"
    short = transit.refusal("encrypt/orders", {"plaintext": TEXT[:-1]})
    assert short == f"illegal base64 data at input byte {len(TEXT) - 4}"


def test_no_error_has_the_data(transit: Transit) -> None:
    """A refusal does not repeat a plaintext, a ciphertext or an unknown name of the request."""
    secret = b64encode(b"a canary in a mine").decode()
    for path, body in (
        ("encrypt/orders", {"plaintext": secret[:-2]}),
        ("decrypt/orders", {"ciphertext": secret}),
        ("decrypt/orders", {"ciphertext": f"vault:v1:{secret}"}),
        (f"hash/{secret[:12]}", {"input": secret}),
        (f"random/{secret[:12]}/8", {}),
        ("encrypt/orders", {"batch_input": [{"plaintext": secret[:-2]}]}),
    ):
        _, answer = transit.ask(path, body)
        assert secret[:12] not in json.dumps(answer)
