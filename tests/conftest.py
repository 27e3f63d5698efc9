"""The callers of one installation, which most end-to-end tests use."""

from __future__ import annotations

import base64
import subprocess
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.browser import STUCK
from tests.fixtures.caller import PASSWORD, Caller, Refusal, refusal_of
from tests.fixtures.installation import Installation

KNOWN_ANSWERS = "known answers: "
"""The first letters of the properties that count a test's known answers."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the verified known answers of each algorithm, and stuck browsers."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if str(name).startswith(KNOWN_ANSWERS):
                counts[str(name)] += int(str(value))
    for report in terminalreporter.stats.get("", []):
        counts[STUCK] += report.when == "teardown" and (STUCK, 1) in map(
            tuple, report.user_properties
        )
    for name, count in sorted((+counts).items()):
        terminalreporter.write_line(f"{name}: {count}")


@pytest.fixture(scope="session")
def operator(installation: Installation) -> Caller:
    """The operator."""
    return installation.operator()


@pytest.fixture(scope="session")
def anonymous(installation: Installation) -> Caller:
    """A caller without a credential."""
    return installation.caller(None)


@pytest.fixture(scope="session")
def demo(installation: Installation) -> Caller:
    """The demo tenant, with the API key of the ready file."""
    return installation.demo()


@pytest.fixture(scope="session")
def new_tenant(installation: Installation) -> Callable[..., Caller]:
    """Make a new tenant, on the plan enterprise_plus unless named."""
    return installation.new_tenant


@pytest.fixture(scope="session")
def new_person(installation: Installation) -> Callable[..., Caller]:
    """Make a signed-in person with a role in a tenant."""
    return installation.person


@pytest.fixture(scope="session")
def password() -> str:
    """The password of people from ``new_person``."""
    return PASSWORD


@pytest.fixture(scope="session")
def b64() -> Callable[[bytes], str]:
    """Encode bytes as the API takes them."""
    return lambda data: base64.b64encode(data).decode()


@pytest.fixture(scope="session")
def unb64() -> Callable[[str], bytes]:
    """Decode the API's base64."""
    return lambda text: base64.b64decode(text, validate=True)


@pytest.fixture(scope="session")
def refused() -> Callable[[httpx2.Response], Refusal]:
    """Return status, code and field of an error."""
    return refusal_of


@pytest.fixture(scope="session")
def pqkeepd() -> Callable[..., subprocess.Popen[bytes]]:
    """Start the command with arguments, with its output in a file."""

    def start(output: Path, *arguments: str) -> subprocess.Popen[bytes]:
        return processes.start([processes.PQKEEPD, *arguments], output)

    return start


@pytest.fixture(scope="session")
def child_processes() -> Callable[[int], dict[str, int]]:
    """List the children of a process by module."""
    return processes.children_by_module


@pytest.fixture(scope="session")
def openssl_library() -> str:
    """Return the path of OpenSSL 3.5 or later, from the installed psycopg wheel."""
    wheel = find_spec("psycopg_binary")
    if wheel is None or wheel.origin is None:
        pytest.skip("psycopg_binary, whose wheel brings an OpenSSL, is not installed")
    libraries = Path(wheel.origin).parent.with_name("psycopg_binary.libs")
    for path in sorted(libraries.glob("libcrypto*")):
        return str(path)
    pytest.skip("the installed psycopg_binary wheel brings no libcrypto")
