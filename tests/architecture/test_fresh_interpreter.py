"""The modules that each process loads, in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

CRYPTOGRAPHY = ("cryptography", "pqcrypto", "pqkeep_keyservice")
EVERYTHING = """
import json, pkgutil, sys
import {package}
{before}
names = [m.name for m in pkgutil.walk_packages({package}.__path__, {package!r} + ".")]
for name in names:
    if not name.endswith("migrations.env") and ".versions." not in name:
        __import__(name)
print(json.dumps([names, sorted(sys.modules)]))
"""

FORBID = """
from {package}.__main__ import FORBIDDEN
from pqkeep_protocol.startup.hardening import forbid_imports
forbid_imports(FORBIDDEN)
"""
"""The first steps of each process."""
FORBID_IN_GATEWAY = FORBID.format(package="pqkeep_gateway")


def loaded(package: str, before: str = "") -> tuple[list[str], list[str]]:
    """Import every module of a package; return their names, and all loaded modules."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", EVERYTHING.format(package=package, before=before)],
        capture_output=True,
        check=True,
    )
    names, modules = json.loads(ended.stdout)
    return names, modules


@cache
def loaded_with(module: str, before: str = "") -> frozenset[str]:
    """Import one module; return all loaded modules."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", f"{before}\nimport {module}, sys; print(*sys.modules)"],
        capture_output=True,
        check=True,
    )
    return frozenset(ended.stdout.decode().split())


@pytest.mark.parametrize(
    ("package", "before"), [("pqkeep_gateway", FORBID_IN_GATEWAY), ("pqkeep_protocol", "")]
)
def test_no_cryptography_is_loaded(package: str, before: str) -> None:
    """Importing all of the gateway and the protocol loads no cryptography and no key service."""
    names, modules = loaded(package, before)
    assert package in modules
    assert set(names) - set(modules) == set()
    if package == "pqkeep_gateway":
        assert {"pqkeep_gateway.__main__", "pqkeep_gateway.wiring"} <= set(names)
    assert [name for name in modules if name.startswith(CRYPTOGRAPHY)] == []


def test_the_key_service_does_load_cryptography() -> None:
    """Importing all of the key service loads cryptography, so the test above can fail."""
    _, modules = loaded("pqkeep_keyservice", FORBID.format(package="pqkeep_keyservice"))
    assert "cryptography" in modules
    assert "starlette" not in modules
    assert not any(name.startswith("pqkeep_gateway") for name in modules)


@pytest.mark.parametrize("package", ["pqkeep_gateway", "pqkeep_keyservice"])
def test_logs_need_no_terminal_library(package: str) -> None:
    """Structlog loads rich if it is installed, except in these processes."""
    module = f"{package}.process"
    assert "rich" in loaded_with(module)
    assert "rich" not in loaded_with(module, FORBID.format(package=package))


@pytest.mark.threat("compromised-gateway")
@pytest.mark.parametrize("module", ["cryptography", "cryptography.hazmat.primitives", "pqcrypto"])
def test_the_gateway_s_process_cannot_import_cryptography(module: str) -> None:
    """An import of cryptography fails, though the package is installed."""
    for before, status in (("", 0), (FORBID_IN_GATEWAY, 1)):
        ended = subprocess.run(
            [sys.executable, "-I", "-c", f"{before}\nimport {module}"],
            capture_output=True,
            check=False,
        )
        assert ended.returncode == status
    assert b"this process must not import " in ended.stderr


STRIPE = """
import logging, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import requests, stripe

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.handle_request, daemon=True).start()
client = stripe.StripeClient(
    "sk_test", base_addresses={"api": f"http://127.0.0.1:{server.server_port}"}
)
client.v1.subscriptions.retrieve("sub_1")
header = stripe.WebhookSignature.generate_signature_header('{"object": "event"}', "whsec")
client.construct_event(b'{"object": "event"}', header, "whsec")
print(*sorted(sys.modules))
"""


def test_stripe_s_library_works_without_cryptography() -> None:
    """Stripe's library sends requests and verifies webhooks without cryptography."""
    ended = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", f"{FORBID_IN_GATEWAY}\n{STRIPE}"],
        capture_output=True,
        check=True,
    )
    modules = ended.stdout.decode().split()
    assert "stripe" in modules
    assert [name for name in modules if name.startswith(CRYPTOGRAPHY)] == []


def test_stripe_is_loaded_only_where_it_is_set_up() -> None:
    """Importing the gateway's wiring does not load Stripe's library or its dependencies."""
    modules = loaded_with("pqkeep_gateway.process", FORBID_IN_GATEWAY)
    assert "pqkeep_gateway.wiring" in modules
    assert {"stripe", "requests", "urllib3"}.isdisjoint(modules)


def test_imports_are_not_forbidden_too_late() -> None:
    """If cryptography was already imported, the process does not start."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", f"import cryptography\n{FORBID_IN_GATEWAY}"],
        capture_output=True,
        check=False,
    )
    assert b"imported before its import was forbidden" in ended.stderr


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        (
            "pqkeep.client",
            ("cryptography", "pqcrypto", "typer", "rich", "pqkeep.audit", "pqkeep.cli"),
        ),
        ("pqkeep_server.cli", ("sqlalchemy", "alembic", "asyncpg", "starlette")),
        ("pqkeep_gateway.process", ("redis", "alembic", "asyncpg")),
        ("pqkeep_keyservice.process", ("alembic", "asyncpg", "sqlalchemy.dialects.postgresql")),
    ],
)
def test_what_few_need_is_not_loaded(module: str, heavy: tuple[str, ...]) -> None:
    """Client, command and gateway start without slow modules that most users never need."""
    modules = loaded_with(module)
    assert module in modules
    assert [name for name in modules for each in heavy if f"{name}.".startswith(f"{each}.")] == []
