"""Load over HTTP from wrk: a fixed number of connections for a fixed time."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks import cpu
from benchmarks.errors import BenchmarkError
from benchmarks.processes import output_of

SCRIPT = Path(__file__).with_name("post.lua")
TIMEOUT_SECONDS = 10
INSTALL_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of request, and the measured processes that serve it."""

    url: str
    body: Path
    api_key: str
    front: int | None = None
    """Process id of the gateway, or of the minimal service's front."""
    back: int | None = None
    """Process id of the key service, or of the minimal service's back."""
    closes: bool = False
    """True if each request has a new connection."""
    credential_header: str = "X-API-Key"

    def command(self, wrk: str, *, seconds: int, connections: int) -> list[str]:
        """Return the command that loads it."""
        return [
            wrk,
            "--threads=1",
            f"--connections={connections}",
            f"--duration={seconds}s",
            f"--timeout={TIMEOUT_SECONDS}s",
            f"--script={SCRIPT}",
            self.url,
            "--",
            str(self.body),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of wrk's script."""
        return {
            "BENCHMARK_CREDENTIAL_HEADER": self.credential_header,
            "BENCHMARK_CREDENTIAL": self.api_key,
            "BENCHMARK_CONNECTION": "close" if self.closes else "keep-alive",
        }


class Measurement(Struct, frozen=True):
    """The result of one load. Times are in microseconds."""

    requests_per_second: float
    median: float
    percentile_99: float
    cpu_front: float
    """CPU per operation in the front process."""
    cpu_back: float
    """CPU per operation in the back process."""
    others: float
    """Cores that other work kept busy. With more, the measurement is less reliable."""

    @property
    def cpu(self) -> float:
        """CPU per operation in both processes."""
        return self.cpu_front + self.cpu_back


class Summary(Struct, frozen=True):
    """wrk's summary of one load."""

    requests: int
    microseconds: int
    median: float
    percentile_99: float
    failed: int
    disconnected: int


def require_wrk() -> str:
    """Return the path of wrk, and install it first if possible. Raises BenchmarkError."""
    apt = shutil.which("apt-get")
    if shutil.which("wrk") is None and apt is not None and os.geteuid() == 0:
        output_of([apt, "install", "-y", "wrk"], seconds=INSTALL_SECONDS)
    wrk = shutil.which("wrk")
    if wrk is None:
        raise BenchmarkError("wrk generates the load and is not installed: apt-get install wrk")
    return wrk


def load(wrk: str, target: Target, *, seconds: int, connections: int) -> Summary:
    """Load a target. Raises BenchmarkError if any request fails."""
    output = output_of(
        target.command(wrk, seconds=seconds, connections=connections),
        seconds=seconds,
        environment=target.environment(),
    )
    summary = msgspec.json.decode(output.rstrip().rpartition("\n")[2], type=Summary)
    if summary.failed or summary.disconnected or not summary.requests:
        raise BenchmarkError(
            f"{target.url}: of {summary.requests} requests {summary.failed} were not answered with 2xx, "
            f"and {summary.disconnected} lost their connection or timed out"
        )
    return summary


def measure(wrk: str, target: Target, *, seconds: int, connections: int) -> Measurement:
    """Load a target, and measure its processes. Raises the BenchmarkError of ``load``."""
    before = _cpu_times(target)
    summary = load(wrk, target, seconds=seconds, connections=connections)
    used = [now - then for now, then in zip(_cpu_times(target), before, strict=True)]
    front, back, generator, machine = used
    return Measurement(
        requests_per_second=summary.requests / (summary.microseconds / 1_000_000),
        median=summary.median,
        percentile_99=summary.percentile_99,
        cpu_front=front / 1000 / summary.requests,
        cpu_back=back / 1000 / summary.requests,
        others=max(0.0, (machine - front - back - generator) / 1000 / summary.microseconds),
    )


def _cpu_times(target: Target) -> tuple[int, int, int, int]:
    """Return nanoseconds: of front, back, all ended wrk processes, and the machine."""
    return (
        0 if target.front is None else cpu.nanoseconds(target.front),
        0 if target.back is None else cpu.with_children(target.back),  # its worker processes, too
        cpu.ended_nanoseconds(),
        cpu.machine_nanoseconds(),
    )
