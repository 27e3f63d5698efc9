"""One thread's connection to the API, and everything that answers have promised it."""

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
"""How long a request with an Idempotency-Key is sent again."""
AWAY = {502: "ERR_BAD_GATEWAY_001", 503: "ERR_SERVICE_001", 504: "ERR_TIMEOUT_001"}
"""What an answer may say while a part of the service is away."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One record that has to be in the log, because of an answer."""

    request_ids: tuple[str, ...]
    """The attempts of one request, the answered one last.

    An action has its record under one of them, an operation with a key under the last.
    """
    tenant_id: str
    principal: str
    operation: str
    outcome: str
    key_version: int | None
    """None: the answer names none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant by one of its API keys, or the operator."""

    tenant_id: str
    principal: str
    credential: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and under which ids it was asked for."""

    status: int
    data: dict[str, Any]
    code: str
    request_ids: tuple[str, ...]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass
class Ledger:
    """What one thread was told."""

    promises: list[Promise] = field(default_factory=list)
    responses: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and code."""
    refused: int = 0
    """Connections that were refused."""
    broken: int = 0
    """Requests without an answer."""
    wrong: list[str] = field(default_factory=list)
    """Answers that should never be."""

    @property
    def operations(self) -> int:
        """Answers that promise a record."""
        return len(self.promises)


def responses_of(ledgers: Iterable[Ledger]) -> dict[str, int]:
    """Return how often each status and code was answered, by status and code."""
    found = sum((ledger.responses for ledger in ledgers), Counter[tuple[int, str]]())
    return {f"{status} {code}".strip(): n for (status, code), n in sorted(found.items())}


class Client:
    """Asks, and asks again where that is safe."""

    def __init__(self, base_url: str, ledger: Ledger, seconds: float = RESPONSE_SECONDS) -> None:
        self._address = urlsplit(base_url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=seconds)
        self.ledger = ledger
        self.retry_seconds = RETRY_SECONDS
        """How long it waits after a request that was not answered."""

    def ask(
        self,
        caller: Caller,
        method: str,
        path: str,
        body: object = None,
        idempotency: str | None = None,
    ) -> Answer | None:
        """Send one request; return its answer, or None if it was lost or a part is away.

        With an Idempotency-Key it is sent until there is an answer.
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
        """Remember what the log has to say now."""
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
    """Connect for the length of a ``with`` block."""
    made = Client(base_url, ledger)
    try:
        yield made
    finally:
        made.close()
