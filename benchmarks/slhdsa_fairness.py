"""Measures the effect of one tenant's queued SLH-DSA signatures on another tenant's Kyber768.

Run as a script; it only reports. It starts a real installation on loopback and measures decapsulate
over one keep-alive connection, alone and beside the queued signatures. Both alternate, because the
machine is shared. The clients that fill the queue are threads of a separate process. The goal is a
p99 of at most twice that without the load.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from uuid import uuid4

import httpx2

QUEUED = 50
WARM = 3
"""Pieces of load before the first measurement."""
START_SECONDS = 60.0
REQUEST_SECONDS = 30.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="how often each condition")
    parser.add_argument("--requests", type=int, default=1500, help="decapsulations a condition")
    parser.add_argument("--algorithm", default="SLH-DSA-SHA2-256s", help="what is signed")
    parser.add_argument("--tenants", type=int, default=1, help="how many keep signatures queued")
    parser.add_argument(
        "--idle-load",
        action="store_true",
        help="instead of signing, only use one core at low priority: what the machine itself does",
    )
    arguments = parser.parse_args()
    with _installation() as ready, _client(ready["base_url"], ready["operator_key"]) as operator:
        measured, *busy = (_new_tenant(operator) for _ in range(1 + arguments.tenants))
        for each in busy:
            with _client(ready["base_url"], each) as client:
                _post(client, "/kms/keys/generate", {"algorithm": arguments.algorithm})
        load = (
            (_burn, ())
            if arguments.idle_load
            else (_keep_queued, (ready["base_url"], arguments.algorithm, *busy))
        )
        alone: list[float] = []
        beside: list[float] = []
        with _client(ready["base_url"], measured) as client:
            body = _decapsulation(client)
            _measure(client, body, 500)
            for turn in range(arguments.rounds):
                first = _measure(client, body, arguments.requests)
                with _load(*load) as signed:
                    second = _measure(client, body, arguments.requests)
                alone += first
                beside += second
                _say(f"round {turn + 1}: {_line(first, second)}; {signed()} signatures a second")
        _say(f"all     : {_line(alone, beside)}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _line(alone: list[float], beside: list[float]) -> str:
    one, other = _quantile(alone, 0.99), _quantile(beside, 0.99)
    return (
        f"alone p50 {median(alone):.2f} p99 {one:.2f} ms, "
        f"beside p50 {median(beside):.2f} p99 {other:.2f} ms, p99 ratio {other / one:.2f}"
    )


def _quantile(values: list[float], quantile: float) -> float:
    return sorted(values)[int(quantile * (len(values) - 1))]


def _measure(client: httpx2.Client, body: dict[str, object], count: int) -> list[float]:
    """Return milliseconds of sequential decapsulations."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        _post(client, "/kem/decapsulate", body)
        taken.append((time.perf_counter() - begin) * 1000)
    return taken


def _decapsulation(client: httpx2.Client) -> dict[str, object]:
    _post(client, "/kms/keys/generate", {"algorithm": "Kyber768"})
    made = _post(client, "/kem/encapsulate", {"key_version": 1})
    return {"key_version": 1, "kem_ciphertext": made["kem_ciphertext"]}


def _post(client: httpx2.Client, path: str, body: dict[str, object]) -> dict[str, str]:
    response = client.post(path, json=body)
    response.raise_for_status()
    data: dict[str, str] = response.json()["data"]
    return data


def _new_tenant(operator: httpx2.Client) -> str:
    """Return the API key of a new tenant."""
    body: dict[str, object] = {"name": f"fairness {uuid4()}", "plan": "enterprise_plus"}
    tenant = _post(operator, "/tenants", body)
    return _post(operator, f"/tenants/{tenant['id']}/api-keys", {})["api_key"]


@contextmanager
def _client(base_url: str, api_key: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(
        base_url=base_url + "/api/v1",
        headers={"X-API-Key": api_key},
        timeout=REQUEST_SECONDS,
        trust_env=False,
        limits=httpx2.Limits(max_connections=QUEUED),
    ) as client:
        yield client


@contextmanager
def _load(work: Callable[..., None], arguments: tuple[str, ...]) -> Iterator[Callable[[], float]]:
    """Run a load in a separate process; yield its pieces per second."""
    context = multiprocessing.get_context("spawn")
    stop, done = context.Event(), context.Value("i", 0)
    process = context.Process(target=work, args=(stop, done, *arguments))
    process.start()
    while done.value < WARM:
        time.sleep(0.05)
    begin, before = time.monotonic(), done.value
    yield lambda: round((done.value - before) / (time.monotonic() - begin), 2)
    stop.set()
    process.join()


def _keep_queued(
    stop: Event, done: "Synchronized[int]", url: str, algorithm: str, *api_keys: str
) -> None:
    """Keep signatures queued by a number of clients, each with one request after another."""
    body = {"algorithm": algorithm, "message": "AAAA"}

    def ask(client: httpx2.Client) -> None:
        while not stop.is_set():
            if client.post("/signature/sign", json=body).is_success:
                with done.get_lock():
                    done.value += 1

    with ExitStack() as clients:
        threads = [
            threading.Thread(target=ask, args=(client,))
            for api_key in api_keys
            for client in [clients.enter_context(_client(url, api_key))]
            for _ in range(QUEUED)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _burn(stop: Event, done: "Synchronized[int]") -> None:
    """Use one core at the signing workers' priority."""
    os.nice(10)
    while not stop.is_set():
        sum(range(100_000))
        done.value += 1


@contextmanager
def _installation() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="fairness-") as folder:
        ready = Path(folder, "ready.json")
        program = str(Path(sys.executable).with_name("pqkeepd"))
        process = subprocess.Popen(
            [program, "dev", "--port", "0", "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("the installation did not start")
                time.sleep(0.05)
            yield json.loads(ready.read_bytes())
        finally:
            process.terminate()
            process.wait(START_SECONDS)


if __name__ == "__main__":
    main()
