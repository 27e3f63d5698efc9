"""One thread's connection to the API, with everything that responses acknowledged."""

import http.client
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

API = "/api/v1"
RESPONSE_SECONDS = 20.0
RETRY_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
"""Seconds for retries of a request with an Idempotency-Key."""
AWAY = {502: "ERR_BAD_GATEWAY_001", 503: "ERR_SERVICE_001", 504: "ERR_TIMEOUT_001"}
"""Permitted responses while a part of the service is away."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A record that must be in the log, because of a response."""

    request_ids: tuple[str, ...]
    """The request ids of all attempts, the successful one last.

    A change is recorded under one of them, and an operation with a key under the last."""
    tenant_id: str
    principal: str
    operation: str
    outcome: str
    key_version: int | None
    """None if the response names no version."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller: a tenant with one of its API keys, or the operator."""

    tenant_id: str
    principal: str
    credential: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The response, with the ids of its requests."""

    status: int
    data: dict[str, Any]
    code: str
    request_ids: tuple[str, ...]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass
class Ledger:
    """The acknowledgements of one thread."""

    promises: list[Promise] = field(default_factory=list)
    responses: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and code."""
    refused: int = 0
    """Refused connections."""
    broken: int = 0
    """Requests without a response."""
    wrong: list[str] = field(default_factory=list)
    """Responses that must never occur."""

    @property
    def operations(self) -> int:
        """Responses that promise a record."""
        return len(self.promises)


def responses_of(ledgers: Iterable[Ledger]) -> dict[str, int]:
    """Return the number of responses by status and code."""
    found = sum((ledger.responses for ledger in ledgers), Counter[tuple[int, str]]())
    return {f"{status} {code}".strip(): n for (status, code), n in sorted(found.items())}


class Client:
    """Sends requests, with retries where they are safe."""

    def __init__(self, base_url: str, ledger: Ledger, seconds: float = RESPONSE_SECONDS) -> None:
        self._address = urlsplit(base_url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=seconds)
        self.ledger = ledger
        self.retry_seconds = RETRY_SECONDS
        """Seconds to wait after a request without a response."""

    def ask(
        self,
        caller: Caller,
        method: str,
        path: str,
        body: object = None,
        idempotency: str | None = None,
    ) -> Answer | None:
        """Send one request. Return its response, or None if it was lost or a part is away.

        With an Idempotency-Key it is repeated until there is a response.
        """
        request_ids: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            request_ids.append(str(uuid.uuid4()))
            answer = self._exchange(caller, method, path, body, tuple(request_ids), idempotency)
            if answer is not None or idempotency is None or time.monotonic() > deadline:
                return answer
            time.sleep(self.retry_seconds)

    def promised(
        self,
        answer: Answer,
        caller: Caller,
        operation: str,
        outcome: str = "success",
        key_version: int | None = None,
    ) -> None:
        """Note the record that the log must have now."""
        self.ledger.promises.append(
            Promise(
                answer.request_ids,
                caller.tenant_id,
                caller.principal,
                operation,
                outcome,
                key_version,
            )
        )

    def _exchange(
        self,
        caller: Caller,
        method: str,
        path: str,
        body: object,
        request_ids: tuple[str, ...],
        idempotency: str | None,
    ) -> Answer | None:
        headers = {"X-API-Key": caller.credential, "X-Request-ID": request_ids[-1]}
        if idempotency is not None:
            headers["Idempotency-Key"] = idempotency
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(
                method, API + path, None if body is None else json.dumps(body), headers
            )
            response = self._connection.getresponse()
            status, content = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self.ledger.refused += isinstance(error, ConnectionRefusedError)
            self.ledger.broken += 1
            time.sleep(self.retry_seconds)
            return None
        code = content["error"]["error_code"] if "error" in content else ""
        self.ledger.responses[status, code] += 1
        if content["request_id"] != request_ids[-1]:
            self.ledger.wrong.append(f"{method} {path}: the answer to another request")
        if status >= 500:
            if AWAY.get(status) != code:
                self.ledger.wrong.append(f"{method} {path}: {status} {code}")
            time.sleep(self.retry_seconds)
            return None
        return Answer(status, content.get("data", {}), code, request_ids)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


@contextmanager
def client(base_url: str, ledger: Ledger) -> Iterator[Client]:
    """Connect for a ``with`` block."""
    made = Client(base_url, ledger)
    try:
        yield made
    finally:
        made.close()
