"""Sends generated requests to a real installation and checks each response by its OpenAPI document.

``make fuzz`` runs it in a separate environment. It prints operations by status. Exit status 1: a
response was not as documented, or an operation never succeeded.
"""

import argparse
import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
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
from tests.fuzz.reached import REACHED
from tests.fuzz.world import Person, Tenant, World
from tests.patience import PATIENCE

SLOW_SIGNATURES = 150
"""The most cases with SLH-DSA: a signature takes up to seconds."""
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
PEOPLE = {"auth", "team", "billing"}
"""Parts of the API that change people and purchases."""
NEEDS_KEYS = {"rotate_key", "retire_key", "disable_key", "enable_key", "cancel_archive"}
SPENDS = NEEDS_KEYS | {
    "generate_key",
    "create_api_key",
    "rotate_api_key",
    "revoke_api_key",
    "change_tenant",
}
"""Operations after which their tenant is unusable."""
KINDS = {
    **dict.fromkeys(("Kyber768", "X-Wing", "ML-KEM-1024", "XAES-256-GCM"), "/kem/"),
    **dict.fromkeys(("HMAC-SHA-256", "HMAC-SHA-512"), "/mac/"),
}
"""The beginning of paths with an algorithm, except paths for signatures."""
PLAIN = base64.b64encode(b"plaintext").decode()
DIGEST = base64.b64encode(bytes(32)).decode()
MU = base64.b64encode(bytes(64)).decode()
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
    "verify_mac": ("mac", "/mac/compute", {"message": PLAIN}, {"message": PLAIN}),
    "verify_mu": ("signature", "/signature/sign-mu", {"mu": MU}, {"mu": MU}),
}
"""Reading operations: a field, the operation that makes its value, its place, its source, and other
fields."""
ONLY = {
    "unwrap": ("Kyber768", "X-Wing", "XAES-256-GCM"),
    "decapsulate": ("Kyber768", "X-Wing", "ML-KEM-1024"),
    "verify_mu": ("Dilithium3", "ML-DSA-87"),
}
"""Algorithms of reading operations that only some of their kind have."""


@dataclass
class Cast:
    """The tenants of the cases and their credentials."""

    reader: Tenant
    """A tenant with permanent keys of every algorithm."""
    spent: Tenant
    """A tenant with changing keys and API keys; it is sometimes replaced."""
    team: Tenant
    """A tenant with changing people; it is replaced after each change."""
    stranger: Tenant
    """The tenant of an owner who requests other tenants' objects."""
    real: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """A valid body for a reading operation, by operation and algorithm."""


@dataclass
class Findings:
    """A response and its problem."""

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    wrong: dict[tuple[str, str], str] = field(default_factory=dict)
    slow: int = 0


RENEWED_AFTER = 40
"""Cases that make a tenant unusable. A new tenant then takes its place."""
WHO = ("own", "owner", "operator", "own", "viewer", "owner", "nobody", "own", "stranger", "owner")
"""The callers of the cases, in turn."""


def main() -> int:
    """Send the requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=20_000, help="in all; under 1,500 not everything succeeds"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after so long")
    parser.add_argument("--names", default="", help="only operations whose name matches this")
    parser.add_argument("--pqkeepd", default=".venv/bin/pqkeepd", help="the command to start")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process = _start(arguments.pqkeepd, Path(folder))
        try:
            ready = _ready(process, Path(folder) / "ready.json")
            world = World.of(ready, str(Path(arguments.pqkeepd).with_name("python")))
            found = _run(
                world, arguments.cases, arguments.seed, arguments.minutes * 60, arguments.names
            )
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
    deadline = time.monotonic() + PATIENCE
    while not ready_file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("pqkeepd dev did not start")
        time.sleep(0.05)
    ready: dict[str, str] = json.loads(ready_file.read_bytes())
    return ready


def _prepare(world: World) -> Cast:
    reader, spent, team, stranger = (world.new_tenant() for _ in range(4))
    cast = Cast(reader, spent, team, stranger)

    def post(path: str, body: dict[str, Any]) -> Any:
        return world.call("POST", path, body, credential=reader.api_key)

    for algorithm in world.algorithms():
        named = {"algorithm": algorithm}
        post("/kms/keys/generate", named)
        post("/kms/keys/rotate", named)
        for reading, (made, path, given_, kept) in READS.items():
            if not path.startswith(KINDS.get(algorithm, "/signature/")):
                continue
            if algorithm not in ONLY.get(reading, (algorithm,)):
                continue
            answer = post(path, {**given_, **named, "key_version": 2})
            cast.real[reading, algorithm] = {
                made: answer[made],
                "key_version": 2,
                **kept,
                **named,
            }
    return cast


def _run(world: World, cases: int, number: int, seconds: float, names: str) -> Findings:
    deadline = time.monotonic() + seconds
    found = Findings()
    cast = _prepare(world)
    schema = schemathesis.openapi.from_url(f"{world.base_url}/api/v1/openapi.json")
    everything = [result.ok() for result in schema.get_all_operations()]
    operations = [
        each for each in everything if re.search(names, each.definition.raw["operationId"])
    ]
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    each = -(-cases // (len(operations) * len(modes)))
    for operation in operations:
        world.sign_in(cast.reader)  # an access token is valid for 15 minutes
        cast.team, cast.stranger = world.new_tenant(), world.new_tenant()
        for mode in modes:
            if time.monotonic() > deadline:
                return found
            _run_operation(world, cast, found, operation, mode, each, number, deadline)
        name = operation.definition.raw["operationId"]
        print(name, dict(found.statuses[name]), flush=True)
    return found


def _run_operation(
    world: World,
    cast: Cast,
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
            _send(world, cast, found, case, positive=mode is GenerationMode.POSITIVE)

    try:
        send()
    except HypothesisException as error:
        # An operation that takes nothing has no negative cases.
        print(operation.label, mode.name, type(error).__name__)


def _send(world: World, cast: Cast, found: Findings, case: Any, *, positive: bool) -> None:
    row = case.operation.definition.raw
    name = row["operationId"]
    number = sum(found.statuses[name].values())
    is_of_people = name in REACHED or not PEOPLE.isdisjoint(row["tags"])
    if name in SPENDS and number % RENEWED_AFTER == 0:
        cast.spent = world.new_tenant()
        if name in NEEDS_KEYS:
            world.generate_keys(cast.spent)
    tenant = cast.team if is_of_people else cast.spent if name in SPENDS else cast.reader
    who = WHO[number % len(WHO)]
    person = cast.stranger.people["owner"] if who == "stranger" else tenant.people.get(who)
    is_real = bool(number % 3)  # a case as generated seldom names anything that exists
    is_reached = is_real and positive and name in REACHED
    if is_real:
        _make_real(cast, name, case, tenant, 1 + number % 2, positive=positive)
    if is_reached:
        _name(case, REACHED[name](world, tenant, person or tenant.people["owner"]))
    _bound(found, case)
    credential = {"own": tenant.api_key, "operator": world.operator}.get(who)
    try:
        response = case.call(
            base_url=world.base_url,
            headers=_credentials(world, case, credential, person),
            timeout=PATIENCE,
        )
    except (requests.RequestException, ValueError, UnicodeError) as error:
        found.wrong.setdefault((name, type(error).__name__), str(error)[:300])
        return
    found.statuses[name][response.status_code] += 1
    problem = _problem(case, response)
    if problem is not None:
        kind, text = problem
        found.wrong.setdefault((name, kind), f"{response.status_code}: {text[:1500]}")
    is_changed = case.method != "GET" and response.status_code < 300
    if is_of_people and (is_reached or is_changed):
        cast.team = world.new_tenant()
        if who == "stranger":
            cast.stranger = world.new_tenant()


def _credentials(
    world: World, case: Any, credential: str | None, person: Person | None
) -> dict[str, str]:
    """Return the headers of a case's sender, and add a person's cookies to the case."""
    ours = {"x-api-key"} if person is None else {"x-api-key", "x-step-up-token"}
    for given_name in [each for each in case.headers or {} if each.lower() in ours]:
        del case.headers[given_name]
    if person is None:
        return {} if credential is None else {"X-API-Key": credential}
    case.cookies = dict(person.cookies)
    needed = case.operation.definition.raw["parameters"]
    if any(each.get("$ref", "").endswith("/StepUpToken") for each in needed):
        return {"X-Step-Up-Token": world.step_up(person)}
    return {}


def _name(case: Any, fields: dict[str, Any]) -> None:
    """Put fields into an operation's path or body."""
    for place, value in fields.items():
        if case.path_parameters and place in case.path_parameters:
            case.path_parameters[place] = value
        elif isinstance(case.body, dict):
            case.body[place] = value


def _make_real(
    cast: Cast, name: str, case: Any, tenant: Tenant, version: int, *, positive: bool
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
        case.body.update(cast.real.get(named, cast.real[reading, default]))


def _bound(found: Findings, case: Any) -> None:
    if isinstance(case.body, dict) and str(case.body.get("algorithm", "")).startswith("SLH-DSA"):
        found.slow += 1
        if found.slow > SLOW_SIGNATURES:
            case.body["algorithm"] = "Dilithium3"


def _problem(case: Any, response: Any) -> tuple[str, str] | None:
    """Return a response's problem: its kind and details."""
    try:
        case.validate_response(response, checks=CHECKS)
    except FailureGroup as group:
        first = group.exceptions[0]
        return type(first).__name__, f"{first} {response.text[:300]}"
    if response.headers["content-type"] == ["application/jsonl"]:
        is_whole = '"type":"end"' in response.text.splitlines()[-1]
        return None if is_whole else ("Lines", "the last line is missing")
    if response.headers["content-type"] != ["application/json"]:
        return None  # a document, without the envelope
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
        if not any(200 <= status < 300 for status in counts)
    ]
    for name in idle:
        print(f"\n{name} never succeeded")
    return 1 if found.wrong or idle or not found.statuses else 0


if __name__ == "__main__":
    sys.exit(main())
