"""Every kind of operation, with its frequency, in one thread."""

import secrets
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.crash_recovery.client import Answer, Caller, Client
from tests.crash_recovery.random_choices import SeededRandom
from tests.crash_recovery.state import (
    KEMS,
    RATE,
    SIGNATURES,
    SLH_DSA,
    WRAPPING,
    Made,
    State,
    change_tenant,
    new_api_key,
    new_tenant,
)

KEPT_API_KEYS = 30
"""API keys to rotate and revoke, over all tenants: fewer than the plan's quota."""
GONE = (400, 404)
"""Permitted responses to a change that another thread made first."""


class Worker:
    """A thread of requests."""

    def __init__(self, state: State, client: Client, random: SeededRandom, idle: Caller) -> None:
        self._state = state
        self._client = client
        self._random = random
        self._idle = idle
        self._kinds: Sequence[tuple[Callable[[], None], int]] = (
            (self._encrypt, 200),
            (self._encapsulate, 200),
            (self._wrap, 60),
            (self._sign, 60),
            (self._sign_hash, 20),
            (lambda: self._again("decrypt", "/kem/decrypt"), 160),
            (self._re_encrypt, 30),
            (lambda: self._again("decapsulate", "/kem/decapsulate"), 120),
            (lambda: self._again("unwrap", "/kem/key/unwrap"), 50),
            (lambda: self._again("verify", "/signature/verify"), 60),
            (lambda: self._again("verify-hash", "/signature/verify-hash"), 20),
            (self._sign_slh_dsa, 1),
            (self._look_up, 20),
            (self._list, 4),
            (self._rotate, 15),
            (self._retire, 4),
            (self._start_over, 12),
            (self._make_tenant, 2),
            (self._suspend_and_resume, 4),
            (self._set_rate, 4),
            (self._make_api_key, 6),
            (self._rotate_api_key, 5),
            (self._revoke_api_key, 5),
            (self._beyond_the_plan, 10),
            (self._beyond_the_plan_too, 4),
            (self._not_a_tenant, 4),
            (self._not_the_operator, 4),
            (self._archive, 3),
        )

    def run(self, stop: threading.Event, pause: float = 0.0) -> None:
        """Send requests until told to stop, with pauses in seconds."""
        while not stop.wait(pause):
            self._random.weighted(self._kinds)()

    def _ask(
        self,
        caller: Caller,
        operation: str,
        path: str,
        body: Mapping[str, object],
        tolerated: Sequence[int] = (),
        idempotency: str | None = None,
    ) -> dict[str, Any] | None:
        """Return the data of an operation with a key, and its promise."""
        response = self._client.ask(caller, "POST", path, body, idempotency)
        if response is None or response.status in tolerated:
            return None
        if not response.is_success:
            self._wrong(operation, response)
            return None
        version = response.data.get("key_version", body.get("key_version"))
        if operation == "re-encrypt":  # whose answer has the target's
            version = body["key_version"]
        outcome = "verification-failed" if response.data.get("valid") is False else "success"
        self._client.promised(response, caller, operation, outcome, version)
        return response.data

    def _refused(
        self,
        caller: Caller,
        operation: str,
        method: str,
        path: str,
        body: object,
        outcome: str | None = None,
    ) -> None:
        """Send a request that is 403 and recorded, with its code or this outcome."""
        response = self._client.ask(caller, method, path, body)
        if response is None:
            return
        if response.status != 403:
            self._wrong(operation, response)
            return
        self._client.promised(response, caller, operation, outcome or response.code)

    def _wrong(self, operation: str, response: Answer) -> None:
        self._client.ledger.wrong.append(f"{operation}: {response.status} {response.code}")

    def _encrypt(self) -> None:
        caller, algorithm = self._random.one_of(self._state.busy), self._random.one_of(KEMS)
        text = _random()
        body = {"algorithm": algorithm, "plaintext": text}
        if made := self._ask(caller, "encrypt", "/kem/encrypt", body, (404,)):
            ask = {
                "algorithm": algorithm,
                "ciphertext": made["ciphertext"],
                "key_version": made["key_version"],
            }
            self._state.remember("decrypt", Made(caller, ask, {"plaintext": text}))

    def _re_encrypt(self) -> None:
        waiting = self._state.made.get("decrypt")
        if not waiting:
            return
        old = self._random.one_of(tuple(waiting))
        if made := self._ask(old.caller, "re-encrypt", "/kem/re-encrypt", old.body, (404,)):
            changed = {name: made[name] for name in ("ciphertext", "key_version")}
            again = Made(old.caller, {**old.body, **changed}, old.expected)
            self._state.remember("decrypt", again)

    def _encapsulate(self) -> None:
        known = self._some_key(KEMS)
        if known is None:
            return
        caller, algorithm, version = known
        body = {"algorithm": algorithm, "key_version": version}
        if made := self._ask(caller, "encapsulate", "/kem/encapsulate", body, (404,)):
            ask = {**body, "kem_ciphertext": made["kem_ciphertext"]}
            expected = {"shared_secret": made["shared_secret"]}
            self._state.remember("decapsulate", Made(caller, ask, expected))

    def _wrap(self) -> None:
        known = self._some_key(WRAPPING)
        if known is None:
            return
        caller, algorithm, version = known
        key = _random()
        body = {"algorithm": algorithm, "key_version": version}
        with_key = {**body, "symmetric_key": key}
        if made := self._ask(caller, "wrap", "/kem/key/wrap", with_key, (404,)):
            ask = {**body, "wrapped_key": made["wrapped_key"]}
            self._state.remember("unwrap", Made(caller, ask, {"symmetric_key": key}))

    def _sign(self, algorithm: str | None = None) -> None:
        caller = self._random.one_of(self._state.busy[: 1 if algorithm else None])
        algorithm = algorithm or self._random.one_of(SIGNATURES)
        body = {"algorithm": algorithm, "message": _random()}
        if made := self._ask(caller, "sign", "/signature/sign", body, (404,)):
            self._remember_signature("verify", caller, body, made)

    def _sign_slh_dsa(self) -> None:
        self._sign(SLH_DSA)

    def _sign_hash(self) -> None:
        caller, algorithm = self._random.one_of(self._state.busy), self._random.one_of(SIGNATURES)
        body = {"algorithm": algorithm, "hash_algorithm": "SHA-256", "hash": _random()}
        if made := self._ask(caller, "sign-hash", "/signature/sign-hash", body, (404,)):
            self._remember_signature("verify-hash", caller, body, made)

    def _remember_signature(
        self, operation: str, caller: Caller, signed: dict[str, str], made: dict[str, Any]
    ) -> None:
        ask = {**signed, "signature": made["signature"], "key_version": made["key_version"]}
        self._state.remember(operation, Made(caller, ask, {"valid": True}))
        other: dict[str, Any] = {name: _random() for name in ("message", "hash") if name in signed}
        self._state.remember(operation, Made(caller, {**ask, **other}, {"valid": False}))

    def _again(self, operation: str, path: str) -> None:
        """Reverse or check a result, and verify the response."""
        waiting = self._state.made.get(operation)
        if not waiting:
            return
        made = self._random.one_of(tuple(waiting))
        data = self._ask(made.caller, operation, path, made.body)
        if data is not None and data.items() < made.expected.items():
            self._client.ledger.wrong.append(f"{operation}: another result")

    def _look_up(self) -> None:
        known = self._some_key((*KEMS, *SIGNATURES))
        if known is None:
            return
        caller, algorithm, version = known
        path = f"/kms/keys/{version}?algorithm={algorithm}"
        response = self._client.ask(caller, "GET", path)
        if response is None:
            return
        if not response.is_success:
            self._wrong("get-key", response)
            return
        self._client.promised(response, caller, "get-key", key_version=version)

    def _list(self) -> None:
        caller, algorithm = self._random.one_of(self._state.busy), self._random.one_of(KEMS)
        response = self._client.ask(caller, "GET", f"/kms/keys?algorithm={algorithm}&status=active")
        if response is not None and response.is_success:
            self._client.promised(response, caller, "list-keys")

    def _rotate(self) -> None:
        caller = self._random.one_of(self._state.busy)
        algorithm = self._random.one_of((*KEMS, *SIGNATURES))
        body = {"algorithm": algorithm}
        idempotency = str(uuid.uuid4()) if self._random.below(2) else None
        made = self._ask(caller, "rotate-key", "/kms/keys/rotate", body, GONE, idempotency)
        if made:
            self._state.keys.append((caller, algorithm, made["key_version"]))

    def _retire(self) -> None:
        known = self._some_key((*KEMS, *SIGNATURES))
        if known is not None:
            caller, algorithm, version = known
            body = {"algorithm": algorithm, "key_version": version}
            self._ask(caller, "retire-key", "/kms/keys/retire", body)

    def _start_over(self) -> None:
        """Make a key where none is active, after a retirement."""
        caller = self._random.one_of(self._state.busy)
        algorithm = self._random.one_of((*KEMS, *SIGNATURES))
        body = {"algorithm": algorithm}
        idempotency = str(uuid.uuid4()) if self._random.below(2) else None
        made = self._ask(caller, "generate-key", "/kms/keys/generate", body, GONE, idempotency)
        if made:
            self._state.keys.append((caller, algorithm, made["key_version"]))

    def _make_tenant(self) -> None:
        new_tenant(self._client, self._state, "starter")

    def _suspend_and_resume(self) -> None:
        tenant_id = self._idle.tenant_id
        suspend = {"status": "suspended"}
        if not change_tenant(self._client, self._state, tenant_id, suspend):
            # Whether it was done is not known; the tenant is active again before it is used.
            while not change_tenant(self._client, self._state, tenant_id, {"status": "active"}):
                pass
            return
        body = {"plaintext": _random()}
        self._refused(self._idle, "encrypt", "POST", "/kem/encrypt", body)
        while not change_tenant(self._client, self._state, tenant_id, {"status": "active"}):
            pass

    def _set_rate(self) -> None:
        rate = RATE - self._random.below(1000)
        change = {"requests_per_minute": rate}
        change_tenant(self._client, self._state, self._idle.tenant_id, change)

    def _make_api_key(self) -> None:
        if len(self._state.api_keys) < KEPT_API_KEYS:
            tenant_id = self._random.one_of(self._state.busy).tenant_id
            self._state.api_keys.append(new_api_key(self._client, self._state, tenant_id))

    def _rotate_api_key(self) -> None:
        taken = self._take_api_key()
        if taken is None:
            return
        path = f"/tenants/{taken.tenant_id}/api-keys/rotate"
        response = self._client.ask(taken, "POST", path, {}, idempotency=str(uuid.uuid4()))
        if response is None:
            return
        if not response.is_success:
            self._wrong("rotate-api-key", response)
            return
        new = response.data["new_key"]
        version = new["version"]
        self._client.promised(response, taken, "rotate-api-key", key_version=version)
        made = Caller(taken.tenant_id, f"api-key:{version}", new["api_key"])
        self._state.api_keys.append(made)

    def _revoke_api_key(self) -> None:
        taken = self._take_api_key()
        if taken is None:
            return
        version = int(taken.principal.partition(":")[2])
        path = f"/tenants/{taken.tenant_id}/api-keys/{version}"
        while (response := self._client.ask(self._state.operator, "DELETE", path)) is None:
            pass
        if not response.is_success:
            self._wrong("revoke-api-key", response)
            return
        by_operator = Caller(taken.tenant_id, "operator", "")
        self._client.promised(response, by_operator, "revoke-api-key", key_version=version)

    def _beyond_the_plan(self) -> None:
        body = {"algorithm": "ML-KEM-1024", "plaintext": _random()}
        self._refused(self._state.plan_bound, "encrypt", "POST", "/kem/encrypt", body)

    def _beyond_the_plan_too(self) -> None:
        body = {"algorithm": "X-Wing"}
        self._refused(self._state.plan_bound, "generate-key", "POST", "/kms/keys/generate", body)

    def _not_a_tenant(self) -> None:
        body = {"plaintext": _random()}
        self._refused(self._state.operator, "encrypt", "POST", "/kem/encrypt", body)

    def _not_the_operator(self) -> None:
        caller = self._random.one_of(self._state.busy)
        body = {"name": "mine", "plan": "free"}
        self._refused(caller, "create-tenant", "POST", "/tenants", body)

    def _archive(self) -> None:
        caller = self._random.one_of(self._state.busy)
        body = {"algorithm": "Kyber768", "key_version": 1}
        self._refused(caller, "archive-key", "POST", "/kms/keys/archive", body)

    def _some_key(self, algorithms: Sequence[str]) -> tuple[Caller, str, int] | None:
        known = tuple(self._state.keys)
        found = self._random.one_of(known[-REMEMBERED_KEYS:])
        return found if found[1] in algorithms else None

    def _take_api_key(self) -> Caller | None:
        try:
            return self._state.api_keys.popleft()
        except IndexError:
            return None


REMEMBERED_KEYS = 60


def _random() -> str:
    return b64encode(secrets.token_bytes(32)).decode()
