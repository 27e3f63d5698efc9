"""Return 0 if the tests pass, else another number, and the seconds of CPU time."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
from pkgutil import resolve_name

LIBRARIES = (
    "aiosmtpd.controller",
    "asyncpg",
    "cedarpy",
    "cryptography.hazmat.primitives.asymmetric.mldsa",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "cryptography.x509",
    "httpx2",
    "hypothesis",
    "msgspec",
    "pqcrypto",
    "prometheus_client",
    "psycopg",
    "pytest",
    "redis.asyncio",
    "sqlalchemy.ext.asyncio",
    "starlette.applications",
    "structlog",
    "uvicorn",
)
"""Libraries that import nothing of this tree. Missing ones are skipped."""


def main() -> None:
    """Run tests until the input ends."""
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            resolve_name(name)
    gc.freeze()
    for line in sys.stdin:
        seconds, tests = json.loads(line)
        child = os.fork()
        if child == 0:
            _test(seconds, tests)
        _, status, used = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what the tests started
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)


def _test(seconds: int, tests: list[str]) -> None:
    """Run the tests in this process, and end it."""
    import pytest  # noqa: PLC0415 - imported above already

    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(silence, descriptor)
    options = ["-n0", "-qx", "-p", "no:cacheprovider", "-k", "not postgresql"]
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # hypothesis, which is a plugin too
    os._exit(pytest.main([*options, "-W", imported, *tests]))


if __name__ == "__main__":
    main()
