"""An installation in a Debian tree, from wheels to a restore drill, by docs/installation.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from release.wheels import Wheel, wheels_in
from tests.deploy.https import (
    CERTIFICATE,
    CLASSICAL,
    DATA,
    HYBRID,
    KEY,
    agreed,
    install,
    own_wheels,
    set_settings,
)
from tests.deploy.tree import CampaignError, Running, Suite, Tree
from tests.fixtures.processes import free_port

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")
NEWER = "0.1.1"
VERSION = "import importlib.metadata as m; print(m.version('pqkeep-gateway'))"
TENANT = """\
import sys
from pqkeep import Client
operator = Client(sys.argv[1], sys.stdin.readline().strip(), ca_file=sys.argv[2])
tenant = operator.tenants.create("Example")
print(operator.api_keys.create(tenant.id).api_key)
"""
ENCRYPTS = """\
import sys
from pqkeep import Client
client = Client(sys.argv[1], sys.stdin.readline().strip(), ca_file=sys.argv[2])
client.keys.generate("Kyber768")
print(client.kem.encrypt(b"from before").ciphertext.hex())
"""
DECRYPTS = """\
import sys
from pqkeep import Client
client = Client(sys.argv[1], sys.stdin.readline().strip(), ca_file=sys.argv[2])
assert client.kem.decrypt(bytes.fromhex(sys.stdin.read()), key_version=1) == b"from before"
"""

IMPORTS = """\
import sys
from pathlib import Path
from pqkeep import Client
from pqkeep.key_import import wrap
client = Client(sys.argv[1], sys.stdin.readline().strip(), ca_file=sys.argv[2])
import_key = client.keys.get_import_key("Dilithium3")
client.keys.import_key(import_key, wrap(import_key, Path("/root/ml-dsa.pem").read_bytes()))
for algorithm in ("Kyber768", "Dilithium3"):
    print(client.keys.public_key(algorithm, key_version=1).public_key, end="")
"""


def check_installation(tree: Tree, suite: Suite) -> Iterator[str]:
    """Yield observations, step by step. Raises CampaignError."""
    install(tree)
    tree.said("pqkeepd", "selftest")
    said = tree.said("pqkeepd", "init", "--data", DATA)
    tree.said("install", "-m", "0400", DATA / "keyservice/root.key", "/root/root.key")
    operator = re.findall(r"pqo_\w+", said)[0]
    yield "init: two users, settings, root key, an operator's credential"
    port = free_port()
    url = f"https://localhost:{port}"
    _certificate(tree, port)
    with _started(tree, url) as running:
        warns = "key exchange is not post-quantum" in running.log.read_text()
        if warns is suite.post_quantum:
            raise CampaignError("the gateway should warn of classical key exchange, and only then")
        group = HYBRID if suite.post_quantum else CLASSICAL
        yield f"start: {agreed(tree, port, group)}"
        yield f"users: {_users(tree)}"
        api_key = tree.said("python", "-c", TENANT, url, CERTIFICATE, text=operator).strip()
        ciphertext = tree.said("python", "-c", ENCRYPTS, url, CERTIFICATE, text=api_key)
        secret = f"{api_key}\n{ciphertext}"
        yield "a tenant encrypts"
        if suite.post_quantum:
            yield f"openssl: {_formats(tree, url, api_key)}"
        keys = ("--private", "/root/recovery.private", "--public", "/root/recovery.public")
        tree.said("pqkeepd", "recovery-key", "create", *keys)
        to = ("--recovery-key", "/root/recovery.public", "--to", "/root/backup")
        yield f"backup: {tree.said('pqkeepd', 'backup', '--data', DATA, *to).split(chr(10))[0]}"
    drill = ("--recovery-key", "/root/recovery.private", "--root-key", "/root/root.key")
    tree.said("pqkeepd", "restore", "/root/backup", *drill, "--drill", "--newest", "0.0")
    yield "restore --drill: every key, record and checkpoint is right"
    older = own_wheels(tree)
    for wheels, version in ((_newer(tree), NEWER), (older, "")):
        pip = ("/opt/pqkeep/bin/pip", "install", "--quiet", "--no-index", "--no-deps")
        tree.said(*pip, "--force-reinstall", *wheels)
        found = tree.said("python", "-c", VERSION).strip()
        if (found == NEWER) is not bool(version):
            raise CampaignError(f"version {found} is installed")
        with _started(tree, url):
            tree.said("python", "-c", DECRYPTS, url, CERTIFICATE, text=secret)
        yield f"with {found} the tenant decrypts what it encrypted before"


def _certificate(tree: Tree, port: int) -> None:
    tree.said(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-keyout", KEY, "-out", CERTIFICATE, "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost"),
    )
    tree.said("chown", "pqkeep-gateway:", CERTIFICATE, KEY)
    lines = (
        'tls_certificate = "certificate.pem"',
        'tls_key = "key.pem"',
        f"port = {port}",
        'management_address = "off"',
    )
    set_settings(tree, "\n".join(lines))


@contextmanager
def _started(tree: Tree, url: str) -> Iterator[Running]:
    with tree.running("pqkeepd", "start", "--data", DATA, until="") as running:
        retry = ("--retry", "60", "--retry-delay", "1", "--retry-all-errors")
        tree.said("curl", "-sS", "--fail", *retry, "--cacert", CERTIFICATE, f"{url}/healthz")
        yield running


def _users(tree: Tree) -> str:
    """Check that the gateway's user cannot read the key service's files. Raises CampaignError."""
    as_gateway = ("setpriv", "--reuid=pqkeep-gateway", "--regid=pqkeep-gateway", "--init-groups")
    for name in ("root.key", "settings.toml", "keys.sqlite3"):
        said = tree.said(*as_gateway, "cat", DATA / "keyservice" / name, status=1)
        if "Permission denied" not in said:
            raise CampaignError(said)
    return "the gateway's cannot read the key service's files"


def _formats(tree: Tree, url: str, api_key: str) -> str:
    """Check public keys with openssl, in both directions. Raises CampaignError."""
    tree.said("openssl", "genpkey", "-algorithm", "ML-DSA-65", "-out", "/root/ml-dsa.pem")
    shown = tree.said("python", "-W", "ignore", "-c", IMPORTS, url, CERTIFICATE, text=api_key)
    made = tree.said("openssl", "pkey", "-in", "/root/ml-dsa.pem", "-pubout")
    said = tree.said("openssl", "pkey", "-pubin", "-noout", "-text", text=shown.removesuffix(made))
    if not (shown.endswith(made) and said.startswith("ML-KEM-768 Public-Key")):
        raise CampaignError(f"openssl reads other keys: {said}")
    return "reads ML-KEM-768; its own ML-DSA-65 key is imported, and has the same public key"


def _newer(tree: Tree) -> list[Path]:
    """Build the wheels of a newer version into the tree."""
    target = tree.path("/newer")
    wheels = newer_wheels(tree.path("/root/sources"), target)
    return [Path("/newer") / wheel.path.name for wheel in wheels]


def newer_wheels(sources: Path, target: Path) -> list[Wheel]:
    """Build the wheels of a newer version from copies of the distributions."""
    shutil.rmtree(sources, ignore_errors=True)
    for name in DISTRIBUTIONS:
        kept = shutil.ignore_patterns("tests", "__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=kept)
        metadata = sources / name / "pyproject.toml"
        text = metadata.read_text()
        metadata.write_text(
            re.sub('^version = ".*"$', f'version = "{NEWER}"', text, flags=re.MULTILINE)
        )
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    folders = [str(sources / name) for name in DISTRIBUTIONS]
    subprocess.run([*build, "--no-index", f"--wheel-dir={target}", *folders], check=True)
    return wheels_in(target)
