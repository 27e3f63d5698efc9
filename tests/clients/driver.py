"""Runs the behaviour suite: the same cases for the client of each language, against one service.

``cases.json`` has the cases. A runner is a program of one language. It makes the calls and prints
the results. This driver prepares the service, makes the faults, and checks results and requests.

The driver starts ``runner FILE``. FILE is JSON:

    {"cases": [{"name": "a name",
                "client": {"base_url": "http://…", "api_key": "pqk_…", "timeout": 30, "retries": 2},
                "calls": [{"call": "kem.encrypt", "arguments": {"plaintext": "aGVsbG8="}}]}]}

- ``client`` has the options of a new client for the case. ``timeout`` (seconds) and ``retries`` may
  be absent: the client's defaults apply. A workload has ``token_file`` and ``role`` in place of
  ``api_key``.
- ``calls`` are made in order with this client, also after a failed call. Names of calls, arguments
  and results are those of the Python client, bytes are base64. ``{"result": 0, "field":
  "ciphertext"}`` as an argument stands for that field of the case's first result. If the result is
  missing, the call is not made, and its result is ``{"skipped": "result"}``.
- ``local.decrypt_with`` decrypts with known shared secrets: its argument ``secrets`` has one for
  each algorithm. ``local.encrypt_file`` and ``local.decrypt_file`` take and return the content of
  files: the runner writes it to an empty folder. It returns the new file's content and its ``mode``
  (such as "600"). ``left`` has the names of other new files.

For each case, in any order and as soon as it has ended, the runner prints one line of JSON:

    {"name": "a name", "results": [{"value": {"ciphertext": "…", "key_version": 1}, "seconds": 0.1},
                                   {"error": {"kind": "RateLimitError"}, "seconds": 0.1}]}

- ``value`` is an object. A method that returns one value has it under a name: see VALUES in
  ``python_runner.py``. Lists are under ``items``. Additional fields are ignored.
- ``error`` has ``kind``, the name of the class in docs/sdk.md, ``code``, ``status``, ``field``,
  ``request_id``, ``retry_after`` (seconds) and ``message``. Unknown values are null or absent.
- A client that cannot be made is the error of each call.
- A case with ``"needs": "files"`` may be skipped by a runner without files, such as a browser:
  ``{"name": "a name", "skipped": "files"}``. It must be told so with ``skips``.

Cases may run at the same time, and should: some wait. Each case has its own base URL, a path of one
proxy. So the proxy can also serve a page and its scripts (``Suite.pages``), and the page's requests
have its origin. Such a runner has no program: give its lines to ``Suite.failures``.
"""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from sdk.tests.fault_proxy import (
    END_OF_HEAD,
    Fault,
    FaultProxy,
    Seen,
    answered,
    closed_after,
    forwarded,
    half_a_body,
    noise,
    reset_after,
    reset_before,
    silence,
    trickle,
    trickled_head,
)
from sdk.tests.local.write_vectors import body, plaintext, recipient, slot
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.fixtures.token_platform import AUDIENCE, Platform
from tests.patience import PATIENCE

from pqkeep import PqkeepError, local

CASES = Path(__file__).with_name("cases.json")
HOSTILE = Path(__file__).with_name("hostile.json")
"""Responses that are no HTTP, or never end. Each may use a processor until the client's deadline."""
ROOT = Path(__file__).parents[2]
INTEROP = ROOT / ".interop"
RUNNERS: Mapping[str, Sequence[str | Path]] = {
    "python": (sys.executable, Path(__file__).with_name("python_runner.py")),
    "go": (INTEROP / "bin/pqkeep-go",),
    "typescript": ("node", ROOT / "clients/typescript/build/suite/test/suite/node.js"),
}
"""The command of each language's runner. ``make interop`` builds the last word of all but Python's."""
VECTORS = ROOT / "sdk/tests/local/vectors.json"
LARGEST = 128 * 1024 * 1024
"""The most bytes of an endless response that a client may read."""
_SIMPLE: Mapping[str, Fault] = {
    "forward": forwarded,
    "reset before": reset_before,
    "reset after": reset_after,
    "closed after": closed_after,
    "half a body": half_a_body,
    "silence": silence,
    "trickle": trickle,
    "trickled head": trickled_head,
    "noise": noise,
}


@dataclass
class Route:
    """One case at the proxy: its next faults, and the requests that arrived."""

    faults: deque[Fault]
    seen: list[Seen] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class Elsewhere:
    """Another host, to which a redirect leads. It counts connections, which must not be made."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def is_reached(self) -> bool:
        """Return True if something has connected."""
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._listener.close()


class CaseProxy(FaultProxy):
    """A proxy with a path for each case, and pages beside them."""

    def __init__(self, upstream: str) -> None:
        self.routes: dict[str, Route] = {}
        self.pages: dict[str, tuple[str, bytes]] = {}
        super().__init__(upstream)

    def handle(self, client: socket.socket, seen: Seen) -> None:
        """Serve a page, or give the request of a case its next fault."""
        method, target, version = seen.line.split(" ")
        name, slash, rest = target[1:].partition("/")
        route = self.routes.get(name)
        if route is None:
            kind, body = self.pages.get(target, ("text/plain", b""))
            status = 200 if target in self.pages else 404
            answered(status, body, f"Content-Type: {kind}")(self, client, seen)
            return
        line = f"{method} {slash}{rest} {version}"
        moved = replace(seen, line=line, raw=line.encode() + seen.raw[len(seen.line.encode()) :])
        route.times.append(time.monotonic())
        route.seen.append(moved)
        fault = route.faults.popleft() if route.faults else forwarded
        fault(self, client, moved)


class Suite:
    """The cases for one run of a runner, with tenants of their own."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        cases: Iterable[Mapping[str, Any]] = (),
        tenant: Caller | None = None,
    ) -> None:
        """Prepare the cases. The default is ``cases.json`` and the local format's vectors.

        Cases without a tenant of their own share the given one, or a new one.
        """
        self._installation = installation
        self._folder = folder
        self._elsewhere = Elsewhere()
        self._proxy = CaseProxy(installation.base_url)
        self.pages = self._proxy.pages
        """Contents by path, with their types."""
        self._shared = new_tenant(installation) if tenant is None else tenant
        self._platform = Platform("https://token.actions.githubusercontent.com")
        self._cases = {
            case["name"]: case for case in cases or (*json.loads(CASES.read_text()), *of_vectors())
        }
        if any("workload" in case for case in self._cases.values()):
            self._trust(self._platform)
        self._routes: dict[str, Route] = {}
        self._keys: dict[str, str] = {}
        self.input = {"cases": [self._prepared(case) for case in self._cases.values()]}
        """What a runner reads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.__exit__()
        self._elsewhere.close()

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return self._proxy.url

    def run(self, command: Sequence[str | Path]) -> list[dict[str, Any]]:
        """Run a program, and return its lines."""
        file = self._folder / "cases.json"
        file.write_text(json.dumps(self.input))
        ended = subprocess.run([*command, file], capture_output=True, timeout=PATIENCE, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def failures(
        self, lines: Iterable[Mapping[str, Any]], *, skips: Collection[str] = ()
    ) -> dict[str, list[str]]:
        """Return what is wrong, by case."""
        by_name = {line["name"]: line for line in lines}
        found = {name: ["unknown"] for name in by_name.keys() - self._cases.keys()}
        for name, case in self._cases.items():
            line = by_name.get(name, {})
            if "skipped" in line and line["skipped"] == case.get("needs") in skips:
                continue
            wrong = ["no results"] if "results" not in line else self._wrong(case, line["results"])
            if wrong:
                found[name] = wrong
        if self._elsewhere.is_reached():
            found["elsewhere"] = ["a client followed a redirect"]
        return found

    def _prepared(self, case: Mapping[str, Any]) -> dict[str, Any]:
        name = case["name"]
        slug = f"case-{len(self._routes)}"
        faults = [
            fault
            for said in case.get("faults", ())
            for fault in [self._fault(said)] * said.get("times", 1)
        ]
        self._routes[name] = self._proxy.routes[slug] = Route(deque(faults))
        tenant = self._shared
        if "own" in case:
            tenant = new_tenant(self._installation, case["own"])
        self._keys[name] = tenant.api_key
        client: dict[str, Any] = {"base_url": f"{self.url}/{slug}"}
        if "workload" in case:
            client |= self._workload(case["workload"])
        else:
            client["api_key"] = tenant.api_key
        client |= case.get("client", {})
        calls = [
            {"call": call["call"], "arguments": expanded(call.get("arguments", {}))}
            for call in case["calls"]
        ]
        needs = {"needs": case["needs"]} if "needs" in case else {}
        return {"name": name, "client": client, "calls": calls, **needs}

    def _workload(self, claims: Mapping[str, Any]) -> dict[str, str]:
        """Return the options of a workload of the shared tenant. Its token has other claims."""
        file = self._folder / f"token-{len(self._routes)}"
        file.write_text(self._platform.token(claims) + "\n")
        return {"token_file": str(file), "role": f"{self._shared.tenant_id}/deploy"}

    def _trust(self, platform: Platform) -> None:
        """Let the shared tenant trust a platform, with one role."""
        owner = self._installation.person(self._shared.tenant_id)
        paths = f"/tenants/{self._shared.tenant_id}/workloads"
        issuer = {
            "url": platform.issuer,
            "audience": AUDIENCE,
            "algorithms": [platform.algorithm],
            "jwks": platform.jwks,
        }
        role = {
            "issuer": "ci",
            "claims": {"repository": "acme/shop"},
            "scopes": [{"operations": ["use"], "keyrings": ["default"]}],
        }
        owner.ask_proven("PUT", f"{paths}/issuers/ci", issuer).raise_for_status()
        owner.ask_proven("PUT", f"{paths}/roles/deploy", role).raise_for_status()

    def _fault(self, said: Mapping[str, Any]) -> Fault:
        kind = said["fault"]
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        headers = [f"{name}: {value}" for name, value in said.get("headers", {}).items()]
        status = said.get("status", 200)
        if kind == "redirect":
            return answered(status, b"", f"Location: {self._elsewhere.url}/api/v1/kms/keys")
        if kind == "endless":
            return endless(status)
        if kind == "replaced":
            return replaced(said["fields"])
        if kind == "raw":
            return raw(said["head"].encode(), said.get("repeated", "").encode())
        assert kind == "respond", kind
        if "code" in said:
            error = {"error_code": said["code"], "message": "no", "field": said.get("field")}
            body = json.dumps({"error": error}).encode()
            headers.append("Content-Type: application/json")
        elif "data" in said:
            body = json.dumps({"data": said["data"], "request_id": "r"}).encode()
            headers.append("Content-Type: application/json")
        elif "base64" in said:
            body = base64.b64decode(said["base64"])
        else:
            body = said.get("body", "").encode()
        return answered(status, body, *headers)

    def _wrong(self, case: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> list[str]:
        expected, route = case.get("expect", {}), self._routes[case["name"]]
        calls, wrong = case["calls"], []
        wanted_results = expected.get("results", [{"value": {}}] * len(calls))
        if len(results) != len(calls):
            return [f"{len(results)} results of {len(calls)} calls"]
        for place, (result, wanted) in enumerate(zip(results, wanted_results, strict=True)):
            if not has(result, expanded(wanted)):
                wrong.append(f"result {place}: {str(result)[:600]} is not {str(wanted)[:300]}")
        wrong += self._wrong_requests(case, expected, route)
        for result in results:
            error = result.get("error", {})
            said = json.dumps(error)
            if self._keys[case["name"]] in said or "c2VjcmV0" in said or "a secret" in said:
                wrong.append(f"a secret is in the error {said}")
            ids = {seen.headers.get("x-request-id") for seen in route.seen} | {"r", None}
            if error.get("request_id") not in ids and not expected.get("other_request_id"):
                wrong.append(f"no request has the id in {said}")
        if "seconds" in expected:
            least, most = expected["seconds"]
            if not least <= results[0]["seconds"] <= most:
                wrong.append(f"it took {results[0]['seconds']} seconds, not {least} to {most}")
        return wrong

    def _wrong_requests(
        self, case: Mapping[str, Any], expected: Mapping[str, Any], route: Route
    ) -> list[str]:
        wrong, calls = [], len(case["calls"])
        lines = [" ".join(seen.line.split(" ")[:2]) for seen in route.seen]
        attempts = expected.get("attempts", calls)
        counts = attempts if isinstance(attempts, list) else [attempts]
        if len(lines) not in counts:
            wrong.append(f"{len(lines)} requests, not {attempts}: {lines}")
        if "requests" in expected and lines != expected["requests"]:
            wrong.append(f"the requests are {lines}")
        ids = Counter(seen.headers.get("x-request-id", "") for seen in route.seen)
        wanted_ids = expected.get("request_ids", min(calls, len(lines)))
        if wanted_ids not in {len(ids), None} or "" in ids:
            wrong.append(f"{len(ids)} request ids, not {wanted_ids}")
        keys = [seen.headers.get("idempotency-key") for seen in route.seen]
        given = {key for key in keys if key}
        if expected.get("idempotency_keys", 0) not in {len(given), None}:
            wrong.append(f"the idempotency keys are {keys}")
        for seen in route.seen:
            if "workload" not in case and seen.headers.get("x-api-key") != self._keys[case["name"]]:
                wrong.append("a request has another API key")
            if not seen.headers.get("user-agent", "").strip():
                wrong.append("a request has no User-Agent")
        for place, least in enumerate(expected.get("pauses", ())):
            pauses = [
                later - sooner for sooner, later in zip(route.times, route.times[1:], strict=False)
            ]
            if place >= len(pauses) or pauses[place] < least:
                wrong.append(f"the pauses are {pauses}")
        return wrong


def endless(status: int) -> Fault:
    """Return a fault: a response that ends when the client hangs up."""

    def fault(proxy: FaultProxy, client: socket.socket, seen: Seen) -> None:
        head = f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nConnection: close"
        client.sendall(head.encode() + END_OF_HEAD + b'{"data": {"x": "')
        piece = b"a" * 1024 * 1024
        for _ in range(LARGEST // len(piece)):
            client.sendall(piece)

    return fault


def raw(head: bytes, repeated: bytes) -> Fault:
    """Return a fault: send the first bytes, then repeat the others until the client hangs up."""

    def fault(proxy: FaultProxy, client: socket.socket, seen: Seen) -> None:
        client.sendall(head)
        piece = repeated * (1024 * 1024 // max(len(repeated), 1))
        for _ in range(LARGEST // len(piece) if piece else 0):
            client.sendall(piece)

    return fault


def replaced(fields: Mapping[str, Any]) -> Fault:
    """Return a fault: fields of the response's data have other values."""

    def fault(proxy: FaultProxy, client: socket.socket, seen: Seen) -> None:
        head, _, body = proxy.ask(seen).partition(END_OF_HEAD)
        envelope = json.loads(body)
        envelope["data"] = {**envelope["data"], **fields}
        changed = json.dumps(envelope).encode()
        lines = [
            line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")
        ]
        length = b"Content-Length: %d" % len(changed)
        client.sendall(b"\r\n".join([*lines, length]) + END_OF_HEAD + changed)

    return fault


def new_tenant(
    installation: Installation,
    algorithms: Iterable[str] = ("Kyber768", "X-Wing", "ML-KEM-1024", "Dilithium3", "HMAC-SHA-256"),
) -> Caller:
    """Make a tenant with keys."""
    tenant = installation.new_tenant()
    for algorithm in algorithms:
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    return tenant


def expanded(value: Any) -> Any:
    """Return a value of a case with its bytes as base64: {"utf8": "text"} or {"pattern": size}."""
    if isinstance(value, list):
        return [expanded(member) for member in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"utf8"}:
        return _encoded(value["utf8"].encode())
    if value.keys() == {"pattern"}:
        return _encoded(plaintext(value["pattern"]))
    return {name: expanded(member) for name, member in value.items()}


def has(value: Any, wanted: Any) -> bool:
    """Return True if a value is as expected. It may have more fields. ``null`` accepts absence."""
    if isinstance(wanted, dict) and wanted.keys() == {"one_of"}:
        return value in wanted["one_of"]
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(
            has(value.get(name), member) for name, member in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(value, list) and len(value) == len(wanted) and all(map(has, value, wanted))
        )
    return bool(value == wanted)


_SECRET = {"utf8": "a secret"}
WRITING: Sequence[Mapping[str, Any]] = [
    *(
        {
            "name": f"local.decrypt {algorithm} {size}",
            "calls": [
                {
                    "call": "local.encrypt",
                    "arguments": {"plaintext": {"pattern": size}, "algorithm": algorithm},
                }
            ],
        }
        for algorithm in ("Kyber768", "X-Wing", "ML-KEM-1024")
        for size in (0, 1, 262_144, 300_000)
    ),
    {
        "name": "local.decrypt Kyber768 12 and others",
        "calls": [
            {
                "call": "local.encrypt",
                "arguments": {
                    "plaintext": {"pattern": 12},
                    "recipients": ["X-Wing", "ML-KEM-1024"],
                },
            }
        ],
        "expect": {"attempts": 3, "request_ids": 3},
    },
]
"""Cases with files that programs of other languages read: see ``reading``."""


def reading(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return cases that read the files of a ``WRITING`` runner, intact and damaged."""
    cases = []
    for line in lines:
        size = int(line["name"].split(" ")[2])
        data = base64.b64decode(line["results"][0]["value"]["ciphertext"])
        damaged = [
            data[:20] + bytes([data[20] ^ 1]) + data[21:],
            data[:-1] + bytes([data[-1] ^ 1]),
            data[:-1],
            data + b"x",
        ]
        kinds = ["DecryptionError"] * len(damaged)
        if not size:  # its only segment is then shorter than a tag
            kinds[2] = "UnreadableInputError"
        contents = [data, *damaged, data[:60]]
        calls = [
            {"call": "local.decrypt", "arguments": {"ciphertext": _encoded(content)}}
            for content in contents
        ]
        results = [
            {"value": {"plaintext": {"pattern": size}}},
            *({"error": {"kind": kind}} for kind in kinds),
            {"error": {"kind": "UnreadableInputError"}},
        ]
        # the damaged header and the cut one need no request
        expect = {"attempts": 4, "request_ids": 4, "results": results}
        cases.append({"name": line["name"], "calls": calls, "expect": expect})
    return cases


def of_vectors() -> Iterable[dict[str, Any]]:
    """Yield the vectors of the local format as cases. The Python client says how each is refused."""
    vectors = json.loads(VECTORS.read_text())
    secrets = {name: bytes.fromhex(key["shared_secret"]) for name, key in vectors["keys"].items()}
    given = {name: _encoded(secret) for name, secret in secrets.items()}
    files = {file["name"]: _file(file, vectors["keys"]) for file in vectors["files"]}

    def case(name: str, contents: Iterable[tuple[bytes, Any]]) -> dict[str, Any]:
        calls, results = [], []
        for data, wanted in contents:
            arguments = {"ciphertext": _encoded(data), "secrets": given}
            calls.append({"call": "local.decrypt_with", "arguments": arguments})
            results.append(wanted)
        expect = {"attempts": 0, "results": results}
        return {"name": f"vectors: {name}", "calls": calls, "expect": expect}

    def opened(size: int) -> dict[str, Any]:
        return {"value": {"plaintext": _encoded(plaintext(size))}}

    def refusal(data: bytes) -> dict[str, Any]:
        try:
            local.decrypt(data, decapsulate=lambda *_, algorithm, **__: secrets[algorithm])
        except PqkeepError as error:
            return {"error": {"kind": type(error).__name__}}
        raise AssertionError("a file that must be refused was not")

    def assembled(parts: Iterable[Any]) -> bytes:
        return b"".join(
            bytes.fromhex(part) if isinstance(part, str) else files[part[0]][part[1] : part[2]]
            for part in parts
        )

    yield case("files", ((files[file["name"]], opened(file["size"])) for file in vectors["files"]))
    yield case(
        "interrupted", ((assembled(file["parts"]), opened(12)) for file in vectors["interrupted"])
    )
    refused = [assembled(file["parts"]) for file in vectors["refused"]]
    yield case("refused", ((data, refusal(data)) for data in refused))


def _file(file: Mapping[str, Any], keys: Mapping[str, Any]) -> bytes:
    key = bytes.fromhex(file["file_key"])
    wrapped = [recipient(algorithm, keys[algorithm], key) for algorithm in file["recipients"]]
    header = slot(key, wrapped, file["slots"], file["slot_size"], file["sequence"])
    data: bytes = header * file["slots"] + body(key, plaintext(file["size"]))
    return data


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
