"""A long audit log: ``make bench-log``, or ``python -m benchmarks.log --help``.

Starts ``pqkeepd dev``, fills its key service's database (log_fill.py), and restarts it. Then it
measures requests about the log over HTTP, as the operator and as a tenant with a tenth of the
records.
"""

import argparse
import http.client
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import cpu
from benchmarks.command import Report, exit_status, publish
from benchmarks.errors import BenchmarkError
from benchmarks.installation import API, PRODUCT, parts_of, service
from benchmarks.log_fill import MANY_VERSIONS, Filled
from benchmarks.processes import output_of, python
from pqkeep_protocol.keys import MAX_VERSIONS

REPEATS = 9
FILL_SECONDS = 7200.0
EXPORT_SECONDS = 1800.0
EXPORTED = 300_000
"""The newest records in a measured export, by default."""
PROVEN = 50_000
"""The first records in a measured export with proofs."""
_PIECE = 1024 * 1024
_DAYS_AGO = "2020-01-01T00:00:00Z"


class Answer(msgspec.Struct, frozen=True):
    """One request, repeated: milliseconds."""

    name: str
    first: float
    median: float
    most: float


class Export(msgspec.Struct, frozen=True):
    """One export, read to its end and discarded."""

    name: str
    records: int
    megabytes: float
    seconds: float
    cpu_front: float
    cpu_back: float
    """CPU microseconds per record, of the gateway and of the key service."""


class Numbers(msgspec.Struct, frozen=True):
    """What was measured."""

    filled: Filled | None
    ready_seconds: float
    responses: tuple[Answer, ...]
    exports: tuple[Export, ...]
    memory_mib: float
    """The key service's resident memory at the end."""

    def show(self, console: Console) -> None:
        """Print tables."""
        if self.filled is not None:
            console.print(f"{self.filled.records:,} records, {self.filled.seconds:.0f} s to fill,")
            console.print(f"{self.filled.cpu_microseconds:.1f} µs of CPU a record")
        console.print(
            f"ready after {self.ready_seconds:.1f} s, key service {self.memory_mib:.0f} MiB"
        )
        table = Table("request", "first", "median", "most", title="milliseconds")
        for each in self.responses:
            values = each.first, each.median, each.most
            table.add_row(each.name, *(f"{value:.1f}" for value in values))
        console.print(table)
        table = Table("export", "records", "MB", "seconds", "records/s", "gateway", "key service")
        for one in self.exports:
            rate = one.records / one.seconds
            table.add_row(
                one.name,
                f"{one.records:,}",
                f"{one.megabytes:.1f}",
                f"{one.seconds:.1f}",
                f"{rate:,.0f}",
                f"{one.cpu_front:.1f}",
                f"{one.cpu_back:.1f}",
            )
        console.print(table)


def _hour_ago() -> str:
    return (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Api:
    """One kept connection."""

    def __init__(self, base_url: str, credential: str) -> None:
        self._address = urlsplit(base_url).netloc
        self._headers = {"X-API-Key": credential, "Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(self._address, timeout=EXPORT_SECONDS)

    def ask(self, path: str, *, method: str = "GET", body: bytes | None = None) -> bytes:
        """Return a response. Raises BenchmarkError."""
        self._connection.request(method, API + path, body, self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status not in {200, 201}:
            raise BenchmarkError(f"{path} was refused: {answer.decode(errors='replace')}")
        return answer

    def read(self, path: str, *, gzip: bool, at_most: int) -> tuple[int, int]:
        """Read an export to its end, or up to a number of lines; return its bytes and lines."""
        encoding = {"Accept-Encoding": "gzip" if gzip else "identity"}
        self._connection.request("GET", API + path, headers={**self._headers, **encoding})
        response = self._connection.getresponse()
        size = lines = 0
        while lines < at_most and (piece := response.read(_PIECE)):
            size += len(piece)
            lines += piece.count(b"\n")  # compressed it has few of them, and is read to its end
        self._connection.close()  # the next request opens it again
        return size, lines


def exported(
    name: str, api: Api, records: int, query: str, processes: tuple[int, int], *, gzip: bool
) -> Export:
    """Measure an export of a number of records, or its beginning."""
    before = [cpu.nanoseconds(each) for each in processes]
    began = time.perf_counter()
    size, lines = api.read(f"/audit/export{query}", gzip=gzip, at_most=records)
    records = records if gzip else min(lines, records)
    seconds = time.perf_counter() - began
    front, back = (
        (cpu.nanoseconds(each) - used) / records / 1000
        for each, used in zip(processes, before, strict=True)
    )
    return Export(name, records, size / 1e6, seconds, front, back)


def measured(name: str, ask: Callable[[], object]) -> Answer:
    """Measure a request."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1000)
    return Answer(name, times[0], median(times[1:]), max(times))


def requests(operator: Api, tenant: Api, size: int) -> Iterator[Answer]:
    """Measure each request."""
    last = msgspec.json.decode(operator.ask("/audit/records?order=desc&limit=1"))
    request_id = last["data"]["records"][0]["request_id"]
    newest, nothing = "/audit/records?order=desc&limit=100", "/audit/records?order=desc&limit=1"
    searches = {
        "newest 100": newest,
        "oldest 100": "/audit/records?limit=100",
        "before the middle": f"{newest}&before={size // 2}",
        "to a time": f"{newest}&to={_DAYS_AGO}",
        "common operation": f"{newest}&operation=encrypt",
        "rare operation": f"{newest}&operation=list-keys",
        "rare outcome": f"{newest}&outcome=decryption-failed",
        "nothing: operation": f"{nothing}&operation=archive-key",
        "nothing: outcome": f"{nothing}&outcome=internal",
        "nothing: keyring": f"{nothing}&keyring=none",
        "nothing: algorithm": f"{nothing}&algorithm=ML-DSA-87",
        "nothing: key version": f"{nothing}&key_version=77",
        "nothing: principal": f"{nothing}&principal=api-key:77",
        "nothing: request id": f"{nothing}&request_id=none",
        "keyring": f"{newest}&keyring=default",
        "key version": f"{newest}&key_version=7",
        "principal": f"{newest}&principal=api-key:7",
        "an hour": f"{newest}&from={_hour_ago()}",
        "a request id": f"{nothing}&request_id={request_id}",
    }
    for who, api in (("operator", operator), ("tenant", tenant)):
        for name, path in searches.items():
            yield measured(f"{who}: {name}", partial(api.ask, path))
    for place, record in (("first", 1), ("middle", size // 2), ("last", size - 1)):
        path = f"/audit/records/{record}/proof"
        yield measured(f"proof of the {place}", partial(operator.ask, path))
    path = f"/audit/consistency?first={size // 3}&second={size}"
    yield measured("consistency", lambda: operator.ask(path))
    yield measured("usage of the tenant", lambda: tenant.ask("/usage"))
    many = f"algorithm={MANY_VERSIONS}"
    yield measured("usage of a version", lambda: tenant.ask(f"/kms/keys/1/usage?{many}"))
    yield measured("list 100 versions", lambda: tenant.ask(f"/kms/keys?{many}&limit=100"))
    body = msgspec.json.encode({"algorithm": MANY_VERSIONS})
    rotate = "/kms/keys/rotate"
    listed = msgspec.json.decode(tenant.ask(f"/kms/keys?{many}&limit=1"))
    if listed["data"]["total"] + REPEATS <= MAX_VERSIONS:
        yield measured("rotate", lambda: tenant.ask(rotate, method="POST", body=body))
    body = msgspec.json.encode({"plaintext": "QUJD", "algorithm": MANY_VERSIONS})
    encrypt = "/kem/encrypt"
    yield measured("encrypt", lambda: tenant.ask(encrypt, method="POST", body=body))


def measure(directory: Path, filled: Filled | None, export: int) -> Numbers:
    """Start the installation and measure it, with an export of a number of records."""
    began = time.perf_counter()
    with service(directory, PRODUCT) as (pid, ready):
        ready_seconds = time.perf_counter() - began
        operator, tenant = (
            Api(ready["base_url"], ready[key]) for key in ("operator_key", "api_key")
        )
        checkpoint = msgspec.json.decode(operator.ask("/audit/checkpoints"))
        size = checkpoint["data"]["checkpoints"][0]["size"]
        responses = tuple(requests(operator, tenant, size))
        processes = parts_of(pid)
        records = min(size, export)
        after = f"?after={size - records}"
        exports = (
            exported("operator's newest", operator, records, after, processes, gzip=False),
            exported("the same, gzip", operator, records, after, processes, gzip=True),
            exported("operator's, proofs", operator, PROVEN, "", processes, gzip=False),
            exported("tenant's, proofs", tenant, PROVEN, "", processes, gzip=False),
        )
        memory = _resident_mib(processes[1])
    return Numbers(filled, ready_seconds, responses, exports, memory)


def _resident_mib(process_id: int) -> float:
    status = Path(f"/proc/{process_id}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


@contextmanager
def _place(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
        return
    with TemporaryDirectory(prefix="pqkeep-log-") as made:
        yield Path(made)


def main() -> int:
    """Fill and measure. Exit status 1: there is nothing to report."""
    parser = argparse.ArgumentParser(description="Measure what is asked of a long audit log.")
    parser.add_argument("--records", type=int, default=100_000, help="how long (100,000)")
    parser.add_argument("--tenants", type=int, default=10_000, help="tenants in the log (10,000)")
    parser.add_argument(
        "--versions", type=int, default=9_900, help="of one key, which has 10,000 at most (9,900)"
    )
    parser.add_argument(
        "--export",
        type=int,
        default=EXPORTED,
        help="how many of the newest to export without proofs (300,000)",
    )
    parser.add_argument(
        "--directory", type=Path, help="keep the databases here, and use them again"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    arguments = parser.parse_args()

    def work(report: Report) -> None:
        with _place(arguments.directory) as directory:
            with service(directory, PRODUCT) as (_, ready):
                tenant_id = ready["tenant_id"]
            settings = directory / "data" / "keyservice" / "settings.toml"
            counts = map(str, (arguments.records, arguments.tenants, arguments.versions))
            command = python("benchmarks.log_fill", str(settings), *counts, tenant_id)
            text = output_of(["nice", *command], seconds=FILL_SECONDS)
            filled = msgspec.json.decode(text.splitlines()[-1], type=Filled)
            numbers = measure(directory, filled, arguments.export)
        publish(numbers, arguments.json)

    return exit_status("benchmark", work)


if __name__ == "__main__":
    sys.exit(main())
