"""The measured installation: ``pqkeepd dev`` on loopback, with two keys, and its requests."""

import http.client
import json
import secrets
import ssl
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import cpu
from benchmarks.batches import ITEMS
from benchmarks.errors import BenchmarkError
from benchmarks.load import Target
from benchmarks.processes import ROOT, running

READY_SECONDS = 40.0
POLL_SECONDS = 0.05
RESPONSE_SECONDS = 15.0
MESSAGE_SIZE = 1024
SYMMETRIC = "XAES-256-GCM"
BATCH = "encapsulate_batch"
RATE = 1_000_000
"""The measured tenant's rate limit in requests per minute: more than it can reach."""
API = "/api/v1"
ENVIRONMENT: Mapping[str, str] = {"PYTHONPATH": str(ROOT)}
"""For the key service of another launcher."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The command that starts an installation, and the module of its key service."""

    command: Sequence[str]
    key_service: str


PRODUCT = Launcher((str(Path(sys.executable).with_name("pqkeepd")),), "pqkeep_keyservice")
UNAUDITED = Launcher(
    (sys.executable, "-m", "benchmarks.baselines.unaudited"), "benchmarks.baselines.unaudited"
)


@contextmanager
def service(
    directory: Path,
    launcher: Launcher = PRODUCT,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = ENVIRONMENT,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run pqkeep for a ``with`` block; yield its process id and its ready file."""
    directory.mkdir(exist_ok=True)
    ready_file = directory / "ready.json"
    ready_file.unlink(missing_ok=True)
    log = directory / "pqkeepd.log"
    command = [
        *launcher.command,
        "dev",
        "--port=0",
        f"--ready-file={ready_file}",
        f"--data={directory / 'data'}",
        *options,
    ]
    with started(command, log, ready_file.exists, environment) as process:
        yield process.pid, json.loads(ready_file.read_bytes())


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    is_ready: Callable[[], bool],
    environment: Mapping[str, str] = ENVIRONMENT,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of pqkeep for a ``with`` block, which begins when it is ready."""
    with (
        log.open("wb") as output,
        running(
            command,
            output=output,
            errors=subprocess.STDOUT,
            environment=environment,
        ) as process,
    ):
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError("pqkeep did not start:\n" + log.read_text(errors="replace"))
            time.sleep(POLL_SECONDS)
        yield process


def responses(url: str, tls: ssl.SSLContext | None = None) -> bool:
    """Return True if a gateway is healthy."""
    address = urlsplit(url).netloc
    connection = (
        http.client.HTTPConnection(address)
        if tls is None
        else http.client.HTTPSConnection(address, context=tls)
    )
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def installation(
    directory: Path, launcher: Launcher = PRODUCT, size: int = MESSAGE_SIZE
) -> Iterator[dict[str, Target]]:
    """Run pqkeep for a ``with`` block; yield a prepared request for each operation."""
    with service(directory, launcher) as (pid, ready):
        yield prepared(directory, pid, ready, launcher, size)


def prepared(
    directory: Path,
    pid: int,
    ready: dict[str, Any],
    launcher: Launcher = PRODUCT,
    size: int = MESSAGE_SIZE,
) -> dict[str, Target]:
    """Make a running installation's keys; return a prepared request for each operation.

    Messages and plaintexts have ``size`` bytes.
    """
    ask(
        "PATCH",
        f"{ready['base_url']}{API}/tenants/{ready['tenant_id']}",
        {"requests_per_minute": RATE},
        ready["operator_key"],
    )
    front, back = _parts(pid, launcher.key_service)
    return {
        operation: Target(
            url=ready["base_url"] + API + path,
            body=written(directory / f"{operation}.json", body),
            api_key=ready["api_key"],
            front=front,
            back=back,
        )
        for operation, (path, body) in _requests(ready, size).items()
    }


def _parts(supervisor: int, key_service: str) -> tuple[int, int]:
    """Return the process ids of the gateway and of the key service."""
    started = cpu.children(supervisor)
    modules = ("pqkeep_gateway", key_service)
    found = [[pid for pid, command in started.items() if module in command] for module in modules]
    if [len(pids) for pids in found] != [1, 1]:
        raise BenchmarkError(f"pqkeepd has unexpected children: {list(started.values())}")
    return found[0][0], found[1][0]


def parts_of(supervisor: int) -> tuple[int, int]:
    """Return the process ids of an installation's gateway and key service."""
    return _parts(supervisor, PRODUCT.key_service)


def _requests(ready: dict[str, Any], size: int) -> dict[str, tuple[str, dict[str, object]]]:
    """Return path and body for each operation, after each has succeeded once."""

    def post(path: str, body: dict[str, object]) -> dict[str, Any]:
        return ask("POST", ready["base_url"] + API + path, body, ready["api_key"])

    for algorithm in ("Kyber768", "Dilithium3", SYMMETRIC):
        post("/kms/keys/generate", {"algorithm": algorithm})
    message = b64encode(secrets.token_bytes(size)).decode()
    encapsulated = post("/kem/encapsulate", {"key_version": 1})
    signature = post("/signature/sign", {"message": message})["signature"]
    ciphertext = post("/kem/encrypt", {"plaintext": message})["ciphertext"]
    requests: dict[str, tuple[str, dict[str, object]]] = {
        "encapsulate": ("/kem/encapsulate", {"key_version": 1}),
        BATCH: ("/kem/encapsulate/batch", {"key_version": 1, "items": [{}] * ITEMS}),
        "decapsulate": (
            "/kem/decapsulate",
            {"kem_ciphertext": encapsulated["kem_ciphertext"], "key_version": 1},
        ),
        "encrypt": ("/kem/encrypt", {"plaintext": message}),
        "encrypt_symmetric": ("/kem/encrypt", {"plaintext": message, "algorithm": SYMMETRIC}),
        "data_key": ("/kem/data-key", {"algorithm": SYMMETRIC}),
        "decrypt": ("/kem/decrypt", {"ciphertext": ciphertext, "key_version": 1}),
        "verify": (
            "/signature/verify",
            {"message": message, "signature": signature, "key_version": 1},
        ),
        "sign": ("/signature/sign", {"message": message}),
    }
    responses = {operation: post(*request) for operation, request in requests.items()}
    if responses["decapsulate"]["shared_secret"] != encapsulated["shared_secret"]:
        raise BenchmarkError("decapsulate did not recover the shared secret")
    if responses["decrypt"]["plaintext"] != message:
        raise BenchmarkError("decrypt did not recover the plaintext")
    if responses["verify"]["valid"] is not True:
        raise BenchmarkError("verify did not accept the signature")
    return requests


def ask(method: str, url: str, body: dict[str, object], credential: str) -> dict[str, Any]:
    """Return the data of a request to pqkeep. Raises BenchmarkError."""
    response = exchange(method, url, body, {"X-API-Key": credential})
    if "data" not in response:
        raise BenchmarkError(f"{url} was refused: {response}")
    data: dict[str, Any] = response["data"]
    return data


def exchange(
    method: str, url: str, body: dict[str, object], headers: Mapping[str, str]
) -> dict[str, Any]:
    """Return a server's JSON response, or None without a body. Raises BenchmarkError."""
    _, address, path, _, _ = urlsplit(url)
    connection = http.client.HTTPConnection(address, timeout=RESPONSE_SECONDS)
    sent = {"Content-Type": "application/json", **headers}
    try:
        connection.request(method, path, json.dumps(body), sent)
        received = connection.getresponse().read()
        response: dict[str, Any] = json.loads(received) if received else {}
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BenchmarkError(f"{path} does not answer: {error}") from None
    finally:
        connection.close()
    return response


def written(path: Path, body: dict[str, object]) -> Path:
    """Write a request's body to a file, and return its path."""
    path.write_text(json.dumps(body))
    return path
