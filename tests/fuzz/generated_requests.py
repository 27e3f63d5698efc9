"""Sends generated requests to a real installation and holds every answer against its OpenAPI document.

Run by ``make fuzz``, in an environment of its own. Prints operations by status; exits with 1 if an
answer was not as documented, or if an operation never succeeded.
"""

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

READY_SECONDS = 60.0
REQUEST_SECONDS = 30.0
SLOW_SIGNATURES = 150
"""How many cases may use SLH-DSA, whose signatures take up to seconds each."""
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
PEOPLE = {
    "register",
    "confirm_registration",
    "forgot_password",
    "reset_password",
    "send_email_code",
    "change_me",
    "login",
    "accept_invitation",
    "refresh",
    "logout",
    "me",
    "list_sessions",
    "end_session",
    "change_password",
    "enroll_mfa",
    "confirm_mfa",
    "disable_mfa",
    "verify_mfa",
    "step_up",
    "change_organization",
    "list_members",
    "change_role",
    "remove_member",
    "list_invitations",
    "withdraw_invitation",
    "list_invoices",
    "check_out",
    "cancel_subscription",
}
"""For people: nobody signs in here."""
NEVER_SUCCEEDS = {"archive_key"} | PEOPLE
NEEDS_KEYS = {"rotate_key", "retire_key"}
SPENDS = NEEDS_KEYS | {
    "generate_key",
    "create_api_key",
    "rotate_api_key",
    "revoke_api_key",
    "change_tenant",
}
"""Operations that use their tenant up."""
KEMS = {"Kyber768", "X-Wing", "ML-KEM-1024"}
PLAIN = base64.b64encode(b"plaintext").decode()
DIGEST = base64.b64encode(bytes(32)).decode()
READS = {
    "decrypt": ("ciphertext", "/kem/encrypt", {"plaintext": PLAIN}, {}),
    "decapsulate": ("kem_ciphertext", "/kem/encapsulate", {}, {}),
    "unwrap": ("wrapped_key", "/kem/key/wrap", {"symmetric_key": DIGEST}, {}),
    "verify": ("signature", "/signature/sign", {"message": PLAIN}, {"message": PLAIN}),
    "verify_hash": (
        "signature",
        "/signature/sign-hash",
        {"hash": DIGEST, "hash_algorithm": "SHA-256"},
        {"hash": DIGEST, "hash_algorithm": "SHA-256"},
    ),
}
"""Reading operations: the field that another makes, where, from what, and what goes with it."""


@dataclass
class Tenant:
    """One tenant with a credential of its own."""

    id: str
    api_key: str


@dataclass
class World:
    """An installation and its tenants."""

    base_url: str
    operator: str
    reader: Tenant
    """Has keys of every algorithm, and keeps them."""
    spent: Tenant
    """Its keys or its API keys come and go; another takes its place now and then."""
    real: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """A valid body for a reading operation, by operation and algorithm."""

    def call(self, method: str, path: str, credential: str, body: Any = None) -> Any:
        """Return the data of a request that must succeed."""
        answer = requests.request(
            method,
            f"{self.base_url}/api/v1{path}",
            json={} if body is None else body,
            headers={"X-API-Key": credential},
            timeout=REQUEST_SECONDS,
        )
        answer.raise_for_status()
        return answer.json()["data"]

    def new_tenant(self) -> Tenant:
        """Make a tenant that nothing slows down."""
        named = {"name": f"fuzz {uuid.uuid4()}", "plan": "enterprise_plus"}
        path = f"/tenants/{self.call('POST', '/tenants', self.operator, named)['id']}"
        self.call("PATCH", path, self.operator, {"requests_per_minute": 1_000_000})
        api_key = self.call("POST", path + "/api-keys", self.operator)["api_key"]
        return Tenant(path.rsplit("/", 1)[1], api_key)

    def algorithms(self) -> list[str]:
        """Return all algorithms."""
        document = requests.get(f"{self.base_url}/api/v1/openapi.json", timeout=REQUEST_SECONDS)
        found: list[str] = document.json()["components"]["schemas"]["Algorithm"]["enum"]
        return found


@dataclass
class Findings:
    """What was answered, and what was wrong with it."""

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: dict[tuple[str, str], str] = field(default_factory=dict)
    slow: int = 0


RENEWED_AFTER = 40
"""Cases that use a tenant up, after which another takes its place."""
WHO = ("own", "operator", "own", "nobody", "own", "own", "operator")
"""Whose credential the cases carry, in turn."""


def main() -> int:
    """Send the requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=20_000, help="in all; under 1,500 not everything succeeds"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after so long")
    parser.add_argument("--pqkeepd", default=".venv/bin/pqkeepd", help="the command to start")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process = _start(arguments.pqkeepd, Path(folder))
        try:
            world = _prepare(_ready(process, Path(folder) / "ready.json"))
            found = _run(world, arguments.cases, arguments.seed, arguments.minutes * 60)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    return _report(found)


def _start(pqkeepd: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [pqkeepd, "dev", "--port", "0", "--data", str(folder / "data")]
    command += ["--ready-file", str(folder / "ready.json")]
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={"PATH": os.defpath}
        )


def _ready(process: subprocess.Popen[bytes], ready_file: Path) -> dict[str, str]:
    deadline = time.monotonic() + READY_SECONDS
    while not ready_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("pqkeepd dev did not start")
        time.sleep(0.05)
    ready: dict[str, str] = json.loads(ready_file.read_bytes())
    return ready


def _prepare(ready: dict[str, str]) -> World:
    demo = Tenant(ready["tenant_id"], ready["api_key"])
    world = World(ready["base_url"], ready["operator_key"], reader=demo, spent=demo)
    world.reader = world.new_tenant()

    def post(path: str, body: dict[str, Any]) -> Any:
        return world.call("POST", path, world.reader.api_key, body)

    for algorithm in world.algorithms():
        named = {"algorithm": algorithm}
        post("/kms/keys/generate", named)
        post("/kms/keys/rotate", named)
        for reading, (made, path, given_, kept) in READS.items():
            if (algorithm in KEMS) is not path.startswith("/kem/"):
                continue
            if reading == "unwrap" and algorithm == "ML-KEM-1024":
                continue
            answer = post(path, {**given_, **named, "key_version": 2})
            world.real[reading, algorithm] = {
                made: answer[made],
                "key_version": 2,
                **kept,
                **named,
            }
    return world


def _renew(world: World, name: str) -> None:
    """Put a fresh tenant in the spent one's place, with keys where the operation needs them."""
    world.spent = world.new_tenant()
    if name in NEEDS_KEYS:
        for algorithm in world.algorithms():
            named = {"algorithm": algorithm}
            world.call("POST", "/kms/keys/generate", world.spent.api_key, named)


def _run(world: World, cases: int, number: int, seconds: float) -> Findings:
    deadline = time.monotonic() + seconds
    found = Findings()
    schema = schemathesis.openapi.from_url(f"{world.base_url}/api/v1/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each = -(-cases // (len(operations) * len(modes)))
    for operation in operations:
        for mode in modes:
            if time.monotonic() > deadline:
                return found
            _run_operation(world, found, operation, mode, each, number, deadline)
        name = operation.definition.raw["operationId"]
        print(name, dict(found.statuses[name]), flush=True)
    return found


def _run_operation(
    world: World,
    found: Findings,
    operation: Any,
    mode: GenerationMode,
    cases: int,
    number: int,
    deadline: float,
) -> None:
    @seed(number)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if time.monotonic() < deadline:
            _send(world, found, case, positive=mode is GenerationMode.POSITIVE)

    try:
        send()
    except HypothesisException as error:
        # An operation that takes nothing has no negative cases.
        print(operation.label, mode.name, type(error).__name__)


def _send(world: World, found: Findings, case: Any, *, positive: bool) -> None:
    name = case.operation.definition.raw["operationId"]
    number = sum(found.statuses[name].values())
    if name in SPENDS and number % RENEWED_AFTER == 0:
        _renew(world, name)
    tenant = world.spent if name in SPENDS else world.reader
    if number % 3:  # a case as generated seldom names anything that exists
        _make_real(world, name, case, tenant, 1 + number % 2, positive=positive)
    _bound(found, case)
    who = WHO[number % len(WHO)]
    credential = {"own": tenant.api_key, "operator": world.operator, "nobody": None}[who]
    for given_name in [each for each in case.headers or {} if each.lower() == "x-api-key"]:
        del case.headers[given_name]
    headers = {} if credential is None else {"X-API-Key": credential}
    try:
        response = case.call(base_url=world.base_url, headers=headers, timeout=REQUEST_SECONDS)
    except (requests.RequestException, ValueError, UnicodeError) as error:
        found.wrong.setdefault((name, type(error).__name__), str(error)[:300])
        return
    found.statuses[name][response.status_code] += 1
    problem = _problem(case, response)
    if problem is not None:
        kind, text = problem
        found.wrong.setdefault((name, kind), f"{response.status_code}: {text[:1500]}")


def _make_real(
    world: World, name: str, case: Any, tenant: Tenant, version: int, *, positive: bool
) -> None:
    if case.path_parameters and "tenant_id" in case.path_parameters:
        case.path_parameters["tenant_id"] = tenant.id
    for place in ("version", "key_version"):
        if positive and case.path_parameters and place in case.path_parameters:
            case.path_parameters[place] = version
    if not (positive and isinstance(case.body, dict)):
        return
    if "key_version" in case.body:
        case.body["key_version"] = 1 if name in NEEDS_KEYS else 2
    reading = name.removesuffix("_by_short_path")
    if reading in READS:
        default = "Dilithium3" if name.startswith("verify") else "Kyber768"
        named = (reading, case.body.get("algorithm", default))
        case.body.update(world.real.get(named, world.real[reading, default]))


def _bound(found: Findings, case: Any) -> None:
    if isinstance(case.body, dict) and str(case.body.get("algorithm", "")).startswith("SLH-DSA"):
        found.slow += 1
        if found.slow > SLOW_SIGNATURES:
            case.body["algorithm"] = "Dilithium3"


def _problem(case: Any, response: Any) -> tuple[str, str] | None:
    """Return what is wrong with an answer: its kind, and what it is."""
    try:
        case.validate_response(response, checks=CHECKS)
    except FailureGroup as group:
        first = group.exceptions[0]
        return type(first).__name__, f"{first} {response.text[:300]}"
    if response.headers["content-type"] == ["application/jsonl"]:
        is_whole = '"type":"end"' in response.text.splitlines()[-1]
        return None if is_whole else ("Lines", "the last line is missing")
    body = response.json()
    inner = "data" if response.status_code < 400 else "error"
    if body.keys() != {inner, "request_id", "timestamp"}:
        return "Envelope", response.text
    if response.headers["x-request-id"] != [body["request_id"]]:
        return "RequestId", str(response.headers)
    return None


def _report(found: Findings) -> int:
    columns = sorted({status for counts in found.statuses.values() for status in counts})
    print("\n" + f"{'operation':24}" + "".join(f"{status:>7}" for status in columns))
    for name, counts in found.statuses.items():
        print(f"{name:24}" + "".join(f"{counts[status] or '':>7}" for status in columns))
    print(f"{sum(sum(counts.values()) for counts in found.statuses.values())} answers")
    for (name, kind), text in found.wrong.items():
        print(f"\n{name}: {kind}\n  {text}")
    idle = [
        name
        for name, counts in found.statuses.items()
        if name not in NEVER_SUCCEEDS and not any(200 <= status < 300 for status in counts)
    ]
    for name in idle:
        print(f"\n{name} never succeeded")
    return 1 if found.wrong or idle or not found.statuses else 0


if __name__ == "__main__":
    sys.exit(main())
