"""``make release-check``: install, use, upgrade, remove and purge a release in bare Debian trees.

Needs root, mmdebstrap, a release in ``dist/``, and the network for Debian's packages. A bare Debian has
no systemd: the campaign starts the command of each unit, as the unit's user. Then it installs systemd.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import mldsa
from release.__main__ import CACHE, bundle_machine, make_packages, sign, write_sums
from release.wheels import MACHINES, PYTHONS, wheels_in
from tests.deploy.https import CERTIFICATE, CLASSICAL, DATA, HYBRID, KEY, agreed, set_settings
from tests.deploy.installation import NEWER, newer_wheels
from tests.deploy.tree import (
    SUITES,
    CampaignError,
    Suite,
    Tree,
    enter,
    is_inside,
    make_tree,
    wait_until,
)
from tests.fixtures.processes import free_port

ROOT = Path(__file__).parents[2]
MACHINE = platform.machine()
NEWER_DIST = ROOT / ".release/newer"
EPOCH = 1_800_000_000
SECONDS = 300
"""How long the documented commands may take on a machine with nothing else to do."""
APT = ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2", "--yes")
NO_RECOMMENDS = ("install", "--no-install-recommends")
SERVER = "pqkeep-server"


def main() -> int:
    """Run the check in one Debian tree. Exit status 1: a step failed."""
    parser = argparse.ArgumentParser(prog="make release-check")
    parser.add_argument("suite", choices=SUITES)
    suite = SUITES[parser.parse_args().suite]
    folder = ROOT / f".debian/bare-{suite.name}"
    if not is_inside():
        make_tree(folder, suite)
        _prepare_newer()
        _prepare_files(folder)
    enter("tests.release")
    try:
        tree = Tree(folder, folder / "files")
        for seen in check(tree, suite):
            print(f"ok  {seen}", flush=True)
    except CampaignError as error:
        print(f"FAILED  {error}", flush=True)
        return 1
    return 0


def _prepare_newer() -> None:
    """Build the packages of a newer version, once for each release."""
    NEWER_DIST.mkdir(parents=True, exist_ok=True)
    for old in NEWER_DIST.iterdir():
        old.unlink()
    own = newer_wheels(ROOT / ".release/newer-sources", NEWER_DIST)
    locked = {python: wheels_in(CACHE / MACHINE / python) for python in PYTHONS}
    make_packages(NEWER_DIST, own, locked, MACHINE, EPOCH)


def _prepare_files(folder: Path) -> None:
    """Put what a host of this machine gets into one folder, with sums, signed by a key of the test."""
    files = folder / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    for pattern in (f"*_{MACHINES[MACHINE]}.deb*", f"*-{bundle_machine(MACHINE)}.tar.gz*"):
        for path in (ROOT / "dist").glob(pattern):
            shutil.copy(path, files)
    write_sums(files)
    key = mldsa.MLDSA65PrivateKey.generate()
    private = folder / "release-key.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    sign(files, private)
    (files / "release-key.pub.pem").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    for path in NEWER_DIST.glob("*.deb"):
        shutil.copy(path, files)


def check(tree: Tree, suite: Suite) -> Iterator[str]:
    """Yield observations, step by step. Raises CampaignError."""
    tree.said(*APT, "update")
    tree.said(*APT, *NO_RECOMMENDS, "openssl", "curl", "ca-certificates")  # not the package's
    yield _verified(tree, suite)
    port = free_port()
    url = f"https://localhost:{port}"
    began = time.monotonic()
    yield from _installed(tree, began)
    operator = _initialised(tree, port)
    with _units(tree, url):
        group = HYBRID if suite.post_quantum else CLASSICAL
        yield f"HTTPS: {agreed(tree, port, group)}"
        tenant, api_key = _tenant(tree, url, operator)
        yield f"the first person: {_owner(tree, url, operator, tenant)}"
        stored = _encrypted(tree, url, api_key)
        yield "encrypt"
    yield from _upgraded(tree)
    with _units(tree, url):
        _decrypted(tree, url, api_key, stored)
    yield "the newer version decrypts what the older version encrypted"
    yield from _removed(tree)
    took = time.monotonic() - began
    verdict = "" if took < SECONDS else f", more than {SECONDS} s: is the machine busy?"
    yield f"the documented commands took {took:.0f} s{verdict}"
    tree.said(*APT, *NO_RECOMMENDS, _package(tree, SERVER, NEWER))
    with _units(tree, url):
        _decrypted(tree, url, api_key, stored)
    yield "installed again: the same data decrypts"
    yield from _client(tree, url, api_key)
    tree.said(*APT, *NO_RECOMMENDS, "systemd", "systemd-sysv")
    with tree.booted():
        yield from _system(tree, url, api_key, stored)
    tree.said(*APT, "purge", SERVER, "pqkeep")
    yield from _foreign_environment(tree, _package(tree, SERVER, ""))
    yield from _bundle(tree)


def _installed(tree: Tree, began: float) -> Iterator[str]:
    older = _package(tree, SERVER, "")
    said = tree.said(*APT, *NO_RECOMMENDS, older)
    _require("Next: pqkeepd init" in said, said)
    yield f"apt install {older.name}: {time.monotonic() - began:.0f} s"
    tree.said("pqkeepd", "selftest")
    yield f"{tree.said('pqkeepd', '--version').strip()}, selftest"


def _initialised(tree: Tree, port: int) -> str:
    """Make the data directory and a certificate; return the operator's credential."""
    said = tree.said("pqkeepd", "init", "--data", DATA)
    tree.said("install", "-m", "0400", DATA / "keyservice/root.key", "/root/root.key")
    _certificate(tree, port)
    return str(re.findall(r"pqo_\w+", said)[0])


def _upgraded(tree: Tree) -> Iterator[str]:
    tree.said(*APT, *NO_RECOMMENDS, _package(tree, SERVER, NEWER))
    version = tree.said("pqkeepd", "--version").strip()
    _require(NEWER in version, version)
    yield f"upgraded to {version}"


def _removed(tree: Tree) -> Iterator[str]:
    tree.said(*APT, "remove", SERVER)
    _require(not tree.path("/opt/pqkeep").exists(), "remove leaves /opt/pqkeep")
    _require(tree.path(DATA / "keyservice/root.key").exists(), "remove deletes data")
    yield "removed: no program is left, and every file of the data directory"
    tree.path("/etc/pqkeep").mkdir(exist_ok=True)
    tree.path("/etc/pqkeep/recovery.public").write_text("")
    said = tree.said(*APT, "purge", SERVER)
    _require(not tree.path("/etc/pqkeep").exists(), "purge leaves /etc/pqkeep")
    _require(tree.path(DATA / "keyservice/root.key").exists(), "purge deletes keys")
    _require(f"kept: {DATA}" in said, f"purge does not say what it keeps:\n{said}")
    yield "purged: no configuration is left, and the data directory"


def _verified(tree: Tree, suite: Suite) -> str:
    tree.said("sh", "-c", "cd /wheels && sha256sum --check --quiet --strict SHA256SUMS")
    verify = (
        *("openssl", "pkeyutl", "-verify", "-rawin", "-in", "/wheels/SHA256SUMS"),
        *("-sigfile", "/wheels/SHA256SUMS.sig", "-pubin", "-inkey", "/wheels/release-key.pub.pem"),
    )
    if not suite.post_quantum:
        return "SHA256SUMS; this OpenSSL cannot verify ML-DSA"
    said = tree.said(*verify)
    _require("Verified Successfully" in said, said)
    with tree.path("/wheels/SHA256SUMS").open("ab") as sums:
        sums.write(b"\n")
    said = tree.said(*verify, status=1)
    _require("Verification Failure" in said, said)
    return "SHA256SUMS, and its signature by openssl; a changed file is refused"


def _package(tree: Tree, name: str, version: str) -> Path:
    found = [Path("/wheels") / path.name for path in tree.path("/wheels").glob(f"{name}_*.deb")]
    newer = [path for path in found if f"_{NEWER}_" in path.name]
    return newer[0] if version else next(path for path in found if path not in newer)


def _certificate(tree: Tree, port: int) -> None:
    tree.said(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-noenc", "-days", "90", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost"),
        *("-keyout", "/root/privkey.pem", "-out", "/root/fullchain.pem"),
    )
    install = ("install", "-o", "pqkeep-gateway", "-g", "pqkeep-gateway", "-m", "0400")
    tree.said(*install, "/root/privkey.pem", KEY)
    tree.said(*install, "/root/fullchain.pem", CERTIFICATE)
    lines = ('tls_certificate = "certificate.pem"', 'tls_key = "key.pem"', f"port = {port}")
    set_settings(tree, "\n".join((*lines, 'management_address = "off"')))
    tree.said("chown", "pqkeep-gateway:", DATA / "gateway/settings.toml")


@contextmanager
def _units(tree: Tree, url: str) -> Iterator[None]:
    """Run the commands of both units, each as its user, until the block ends."""
    key_service = tree.running(*_unit(tree, "keyservice"), until="")
    gateway = tree.running(*_unit(tree, "gateway"), until="running on")
    with key_service, gateway:
        retry = ("--retry", "60", "--retry-delay", "1", "--retry-all-errors")
        tree.said("curl", "-sS", "--fail", *retry, "--cacert", CERTIFICATE, f"{url}/healthz")
        yield


def _unit(tree: Tree, name: str) -> list[str]:
    text = tree.path(f"/usr/lib/systemd/system/pqkeep-{name}.service").read_text()
    values = dict(
        re.findall(r"^(User|Group|SupplementaryGroups|ExecStart)=(.*)$", text, re.MULTILINE)
    )
    tree.said("getent", "group", values["SupplementaryGroups"])
    return [
        *("setpriv", f"--reuid={values['User']}", f"--regid={values['Group']}", "--init-groups"),
        *values["ExecStart"].split(),
    ]


def _curl(tree: Tree, url: str, credential: str, body: object) -> dict[str, str]:
    header = ("-H", "Content-Type: application/json", "-H", f"X-API-Key: {credential}")
    options = ("-sS", "--cacert", CERTIFICATE, *header, "-d", json.dumps(body))
    answer = json.loads(tree.said("curl", *options, url))
    if not answer.get("success", True) or "error" in answer:
        raise CampaignError(json.dumps(answer))
    data: dict[str, str] = answer.get("data", answer)
    return data


def _tenant(tree: Tree, url: str, operator: str) -> tuple[str, str]:
    tenant = _curl(tree, f"{url}/api/v1/tenants", operator, {"name": "Example"})["id"]
    api_key = _curl(tree, f"{url}/api/v1/tenants/{tenant}/api-keys", operator, {})["api_key"]
    return tenant, api_key


def _owner(tree: Tree, url: str, operator: str, tenant: str) -> str:
    tree.path("/root/operator.key").write_text(operator)
    tree.path("/root/operator.key").chmod(0o400)
    said = tree.said(
        *("pqkeepd", "admin", "create", "--email", "owner@example.com", "--tenant", tenant),
        *("--role", "owner", "--operator-key-file", "/root/operator.key"),
        *("--url", url, "--ca-file", CERTIFICATE),
    )
    _require(f"{url}/" in said, said)
    return "an invitation with a link"


def _encrypted(tree: Tree, url: str, api_key: str) -> str:
    generate = {"algorithm": "Kyber768", "if_absent": True}
    _curl(tree, f"{url}/api/v1/kms/keys/generate", api_key, generate)
    body = {"plaintext": "aGVsbG8sIHdvcmxk", "format": "envelope"}
    return _curl(tree, f"{url}/api/v1/kem/encrypt", api_key, body)["envelope"]


def _decrypted(tree: Tree, url: str, api_key: str, envelope: str) -> None:
    answer = _curl(tree, f"{url}/api/v1/kem/decrypt", api_key, {"envelope": envelope})
    _require(answer["plaintext"] == "aGVsbG8sIHdvcmxk", json.dumps(answer))


def _client(tree: Tree, url: str, api_key: str) -> Iterator[str]:
    """Install the client's package beside the server's; use it, its pages and its completion."""
    tree.said(*APT, *NO_RECOMMENDS, _package(tree, "pqkeep", NEWER), "man-db", "zsh")
    environment = ("env", f"PQKEEP_URL={url}", f"PQKEEP_API_KEY={api_key}")
    ca_file = f"PQKEEP_CA_FILE={CERTIFICATE}"
    tree.path("/root/secret").write_text("a secret")
    with _units(tree, url):
        for words in (("encrypt", "secret"), ("decrypt", "secret.pqk", "--to", "back")):
            command = f"cd /root && exec pqkeep {' '.join(words)}"
            tree.said(*environment, ca_file, "sh", "-c", command)
    _require(tree.path("/root/back").read_text() == "a secret", "the client decrypts wrongly")
    yield "the client's package encrypts and decrypts beside the server's"
    typed = "COMP_WORDS='pqkeep encr' COMP_CWORD=1 _PQKEEP_COMPLETE=complete_bash pqkeep"
    _require("encrypt" in tree.said("sh", "-c", typed), "no completion")
    typed = "COMP_WORDS='pqkeepd back' COMP_CWORD=1 _PQKEEPD_COMPLETE=complete_bash pqkeepd"
    _require("backup" in tree.said("sh", "-c", typed), "no completion of pqkeepd")
    for file in ("zsh/vendor-completions/_pqkeep", "zsh/vendor-completions/_pqkeepd"):
        tree.said("zsh", "-n", f"/usr/share/{file}")
    for page in ("pqkeepd", "pqkeep", "age-plugin-pqkeep"):
        said = tree.said("sh", "-c", f"man --warnings {page} 2>&1 > /dev/null")
        _require(not said.strip(), said)
    yield "completion and manual pages"


def _system(tree: Tree, url: str, api_key: str, envelope: str) -> Iterator[str]:
    """Run the units by systemd: start, reload, crash, backup, upgrade."""
    units = ("pqkeep-keyservice", "pqkeep-gateway")

    def responds() -> None:
        retry = ("--retry", "60", "--retry-delay", "1", "--retry-all-errors")
        tree.said("curl", "-sS", "--fail", *retry, "--cacert", CERTIFICATE, f"{url}/healthz")
        wait_until(lambda: _is_connected(tree, url, api_key))
        _decrypted(tree, url, api_key, envelope)

    tree.said("systemctl", "enable", "--now", *units)
    responds()
    tree.said("systemctl", "reload", *units)
    yield "systemd starts the units, and reloads them"
    for unit in units:
        tree.said("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
    wait_until(
        lambda: tree.said("systemctl", "show", "-P", "NRestarts", *units).split() == ["1"] * 2
    )
    responds()
    yield "systemd starts them again after kill -9"
    keys = ("--private", "/root/recovery.private", "--public", "/etc/pqkeep/recovery.public")
    tree.said("pqkeepd", "recovery-key", "create", *keys)
    tree.said("systemctl", "start", "pqkeep-backup")
    (backup,) = tree.path("/var/backups/pqkeep").iterdir()
    yield f"its unit makes the backup {backup.name}"
    tree.said(*APT, "install", "--reinstall", _package(tree, SERVER, NEWER))
    tree.said("systemctl", "is-active", *units)
    responds()
    failed = tree.said("systemctl", "list-units", "--failed", "--no-legend", "pqkeep*")
    _require(not failed, failed)
    yield "the package stops the units and starts them again"
    tree.said("systemctl", "disable", "--now", *units)


def _is_connected(tree: Tree, url: str, api_key: str) -> bool:
    """Return True if the gateway has reached the key service: a response can then name keys."""
    header = ("-H", f"X-API-Key: {api_key}")
    listing = ("--cacert", CERTIFICATE, *header, f"{url}/api/v1/kms/keys")
    return '"data"' in tree.said("curl", "-sS", *listing)


def _foreign_environment(tree: Tree, older: Path) -> Iterator[str]:
    """The package leaves an environment alone that somebody made by hand in its place."""
    tree.path("/opt/pqkeep/bin").mkdir(parents=True)
    said = tree.said(*APT, *NO_RECOMMENDS, older, status=100)
    _require("move it away" in said, said)
    tree.said(
        *("sh", "-c", f"{' '.join(APT)} purge {SERVER} || dpkg --purge {SERVER}"), status=None
    )
    shutil.rmtree(tree.path("/opt/pqkeep"))
    yield "an environment that was made by hand stays, and the installation says so"


def _bundle(tree: Tree) -> Iterator[str]:
    """Install the bundle without a network."""
    tree.said(*APT, *NO_RECOMMENDS, "python3-venv")
    (archive,) = (path.name for path in tree.path("/wheels").glob("*.tar.gz"))
    folder = f"/root/{archive.removesuffix('.tar.gz')}"
    tree.said("tar", "--extract", "--no-same-owner", f"--file=/wheels/{archive}", "-C", "/root")
    offline = ("unshare", "--net")
    said = tree.said(*offline, f"{folder}/install.sh")
    tree.said(*offline, "/opt/pqkeep/bin/pqkeepd", "selftest")
    tree.said(*offline, f"{folder}/install.sh", "--client", "--prefix", "/opt/client")
    tree.said(*offline, f"{folder}/install.sh")  # again
    _require(said.startswith("pqkeepd "), said)
    tree.path(f"{folder}/wheels").joinpath("pqkeep_server-0.1.0-py3-none-any.whl").write_bytes(b"")
    tree.said(*offline, f"{folder}/install.sh", status=1)
    yield "the bundle installs server and client without a network; a changed wheel is refused"


def _require(condition: bool, text: str) -> None:  # noqa: FBT001 - as assert
    if not condition:
        raise CampaignError(text)


if __name__ == "__main__":
    sys.exit(main())
