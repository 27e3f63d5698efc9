"""HTTPS in a Debian tree: the key exchange between each client and the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.chromium import opened
from tests.deploy.tree import CampaignError, Running, Suite, Tree, wait_until
from tests.fixtures.processes import free_port

DATA = Path("/var/lib/pqkeep")
CERTIFICATE, KEY = DATA / "gateway/certificate.pem", DATA / "gateway/key.pem"
GATEWAY, KEY_SERVICE = DATA / "gateway/settings.toml", DATA / "keyservice/settings.toml"
HYBRID = "X25519MLKEM768"
CLASSICAL = "x25519"
ENCRYPTS = """\
import sys
from pqkeep import Client
client = Client(sys.argv[1], sys.stdin.readline().strip(), ca_file=sys.argv[2])
if not any(key.algorithm == "X-Wing" for key in client.keys.list()):
    client.keys.generate("X-Wing")
encrypted = client.kem.encrypt(b"a secret", algorithm="X-Wing")
decrypted = client.kem.decrypt(
    encrypted.ciphertext, key_version=encrypted.key_version, algorithm="X-Wing"
)
assert decrypted == b"a secret"
"""


def check_https(tree: Tree, suite: Suite) -> Iterator[str]:
    """Yield observations, step by step. Raises CampaignError."""
    api_key = _installed(tree)
    port = free_port()
    url = f"https://localhost:{port}"
    group = HYBRID if suite.post_quantum else CLASSICAL
    with _running(tree, port) as gateway:
        if ("key exchange is not post-quantum" in gateway.log.read_text()) is suite.post_quantum:
            raise CampaignError("the gateway should warn of classical key exchange, and only then")
        yield f"openssl s_client: {agreed(tree, port, group)}"
        yield f"openssl s_client -groups X25519: {agreed(tree, port, CLASSICAL, 'X25519')}"
        tree.said("python", "-c", ENCRYPTS, url, CERTIFICATE, text=api_key)
        yield "the Python client encrypts and decrypts"
        if suite.post_quantum:
            yield f"chromium: {_chromium(tree, url)}"
    set_settings(tree, "require_post_quantum = true")
    if not suite.post_quantum:
        said = tree.said("pqkeepd", "gateway", GATEWAY, status=78)
        yield f"require_post_quantum: {said.strip()}"
        return
    with _running(tree, port):
        yield f"required, openssl s_client: {agreed(tree, port, group)}"
        yield f"required, -groups X25519: {_refused(tree, port)}"
        tree.said("python", "-c", ENCRYPTS, url, CERTIFICATE, text=api_key)
        yield "required: the Python client encrypts and decrypts"
        yield f"required, chromium: {_chromium(tree, url)}"


def _installed(tree: Tree) -> str:
    """Install the wheels, make an installation and a certificate; return an API key."""
    install(tree)
    ready = Path("/root/ready.json")
    dev = ("pqkeepd", "dev", "--port=0", f"--data={DATA}", f"--ready-file={ready}")
    with tree.running(*dev, until=""):
        wait_until(tree.path(ready).exists)
        api_key = str(json.loads(tree.path(ready).read_text())["api_key"])
    tree.said(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-keyout", KEY, "-out", CERTIFICATE, "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost"),
    )
    set_settings(
        tree, 'tls_certificate = "certificate.pem"\ntls_key = "key.pem"\ncookies = "secure"'
    )
    return api_key


def install(tree: Tree) -> None:
    """Install the wheels into a new environment."""
    tree.said("python3", "-m", "venv", "/opt/pqkeep")
    offline = ("/opt/pqkeep/bin/pip", "install", "--quiet", "--no-index", "--find-links=/wheels")
    tree.said(*offline, "--require-hashes", "--requirement=/wheels/run.txt")
    tree.said(*offline, "--no-deps", *own_wheels(tree))


def own_wheels(tree: Tree) -> list[Path]:
    """Return the paths of pqkeep's wheels inside the tree."""
    found = tree.path("/wheels").glob("pqkeep*.whl")
    return [Path("/wheels") / each.name for each in found]


def set_settings(tree: Tree, lines: str) -> None:
    """Replace settings of the same name before the first table."""
    settings = tree.path(GATEWAY)
    names = {line.partition(" ")[0] for line in lines.splitlines()}
    kept = [
        each for each in settings.read_text().splitlines() if each.partition(" ")[0] not in names
    ]
    settings.write_text("\n".join([lines, *kept, ""]))


@contextmanager
def _running(tree: Tree, port: int) -> Iterator[Running]:
    """Run both processes; yield the gateway when it responds."""
    set_settings(tree, f"port = {port}")
    key_service = tree.running("pqkeepd", "keyservice", KEY_SERVICE, until="")
    gateway = tree.running("pqkeepd", "gateway", GATEWAY, until="running on")
    with key_service, gateway as running:
        health = f"https://localhost:{port}/healthz"
        retry = ("--retry", "60", "--retry-delay", "1", "--retry-all-errors")
        tree.said("curl", "-sS", "--fail", *retry, "--cacert", CERTIFICATE, health)
        yield running


def _s_client(tree: Tree, port: int, groups: str) -> str:
    options = ("-groups", groups) if groups else ()
    return tree.said(
        *("openssl", "s_client", "-connect", f"localhost:{port}", "-CAfile", CERTIFICATE),
        *("-verify_return_error", *options),
        status=None,
    )


def agreed(tree: Tree, port: int, group: str, groups: str = "") -> str:
    """Return openssl's line with the group. Raises CampaignError."""
    said = _s_client(tree, port, groups)
    lines = [each for each in said.splitlines() if "group:" in each or "Temp Key:" in each]
    if not any(group.lower() in each.lower() for each in lines) or "return code: 0" not in said:
        raise CampaignError(said)
    return lines[0]


def _refused(tree: Tree, port: int) -> str:
    said = _s_client(tree, port, "X25519")
    lines = [each for each in said.splitlines() if "handshake failure" in each]
    if not lines:
        raise CampaignError(said)
    return lines[0].rpartition(":")[0]


def _chromium(tree: Tree, url: str) -> str:
    """Return Chromium's name of the key exchange. Raises CampaignError."""
    digest = (
        f"openssl x509 -in {CERTIFICATE} -pubkey -noout | openssl pkey -pubin -outform der"
        " | openssl dgst -sha256 -binary | openssl base64"
    )
    response = opened(tree, f"{url}/docs", tree.said("sh", "-c", digest).strip())
    details = response.get("securityDetails", {})
    seen = f"{details.get('protocol')} {details.get('keyExchangeGroup')}"
    if response.get("status") != 200 or seen != f"TLS 1.3 {HYBRID}":
        raise CampaignError(json.dumps(response)[:2000])
    return seen
