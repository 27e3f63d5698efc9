"""The chart's pods, run from the trees of the images that ``make images`` made.

Needs root and helm. There is no cluster: ``pods.py`` mounts and runs what the chart says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from tests.deploy.composed import Services, databases, started
from tests.deploy.pods import Cluster, Image
from tests.deploy.tree import CampaignError, wait_until
from tests.fixtures.certificate import Certificate, new_certificate
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/pqkeep"
NAMES = ("gateway", "keyservice", "admin")
DATABASES = ROOT / ".images" / "databases"
HOST = "127.0.0.1"
GROUP = 64000
VALUES = (
    "service.port=8443",
    "backup.enabled=true",
    "backup.claim=backups",
    "backup.keep=2",
    # A program that copies backups, from an image that is here.
    "backup.upload.image=copier",
    "backup.upload.command={sh,-euc}",
    "backup.upload.args[0]=cat /run/secrets/transfer/store; ls /backup; ! ls /run/secrets/pqkeep-keyservice; ! touch /backup/x",
    "backup.upload.secret=store",
    "drill.enabled=true",
    "drill.secret=drill",
)
NO_BUILD_TOOLS = (
    "pip",
    "pip3",
    "gcc",
    "cc",
    "make",
    "apt-get",
    "curl",
    "wget",
    "git",
    "setuptools",
)


def check_images(folder: Path, dist: Path) -> Iterator[str]:
    """Yield observations, step by step. Raises CampaignError."""
    subprocess.run(["/usr/sbin/ip", "link", "set", "lo", "up"], check=True)
    folder.chmod(0o755)
    images = {}
    for name in NAMES:
        (archive,) = dist.glob(f"pqkeep-{name}-*.oci.tar")
        images[f"pqkeep-{name}:0.1.0"] = Image.unpack(archive, folder / name)
    images["copier"] = images["pqkeep-gateway:0.1.0"]
    yield f"images: {_contents(images)}"
    recovery = folder / "recovery"
    recovery.mkdir()
    pqkeepd = str(Path(sys.executable).with_name("pqkeepd"))
    keys = ("--private", recovery / "private", "--public", recovery / "public")
    subprocess.run(
        [pqkeepd, "recovery-key", "create", *keys], check=True, stdout=subprocess.DEVNULL
    )
    certificate = new_certificate(folder)
    root_key = os.urandom(32)
    cluster = Cluster(
        folder,
        images,
        _rendered(recovery / "public"),
        {
            "pqkeep-gateway": {"pepper": os.urandom(32)},
            "pqkeep-keyservice": {"root.key": root_key, "transfer.key": os.urandom(32)},
            "pqkeep-tls": _tls(certificate),
            "store": {"store": b"the store's credential"},
            "drill": {
                "recovery.private": (recovery / "private").read_bytes(),
                "root.key": root_key,
            },
        },
        "127.0.0.1 localhost keep",
        GROUP,
    )
    yield from _installation(cluster, certificate)
    yield from _composed(folder, images)


def _installation(cluster: Cluster, certificate: Certificate) -> Iterator[str]:
    spec = cluster.objects["StatefulSet", "keep"]["spec"]
    pod = spec["template"]["spec"]
    claims = {
        each["metadata"]["name"]: cluster.claim(f"{each['metadata']['name']}-keep-0")
        for each in spec["volumeClaimTemplates"]
    }
    volumes = cluster.volumes("keep-0", pod, claims)
    for container in pod["initContainers"]:
        cluster.run(container, volumes)
    containers = {each["name"]: each for each in pod["containers"]}
    with ExitStack() as stack:
        stack.enter_context(
            cluster.running(containers["keyservice"], volumes, '"event": "serving"')
        )
        gateway = cluster.running(containers["gateway"], volumes, "running on")
        log = stack.enter_context(gateway)
        wait_until(_is_ready)
        yield "both processes run as their users, without rights, on read-only trees"
        yield f"helm test: {cluster.job('keep-test')[0].strip()}"
        add = ("pqkeepd", "operator", "add", "ada", "--data", "/var/lib/pqkeep")
        credential = next(
            word
            for word in cluster.run(containers["gateway-admin"], volumes, *add).split()
            if word.startswith("pqo_")
        )
        key = _used(certificate.path, credential)
        yield "an operator with a name creates a tenant, which encrypts"
        listing = ("pqkeepd", "destructions", "list", "--data", "/var/lib/pqkeep")
        said = cluster.run(containers["keyservice-admin"], volumes, *listing)
        yield f"beside the key service: pqkeepd destructions list: {said.strip()}"
        for _ in range(3):
            time.sleep(1.1)  # names of backups have seconds
            said_by = cluster.job("keep-backup")
        backups = sorted(path.name for path in cluster.claim("backups").iterdir())
        if len(backups) != 2 or "did not record" in said_by[1] or backups[-1] not in said_by[2]:
            raise CampaignError(f"{backups}: {said_by}")
        yield f"backup: {said_by[1].splitlines()[0]}; two are kept; the upload has no key"
        yield f"drill: {cluster.job('keep-drill')[0].splitlines()[-1]}"
        old = next(iter(cluster.claim("backups").iterdir()))
        for path in cluster.claim("backups").iterdir():
            path.rename(path.with_name(path.name.replace(path.name[:4], "2001")))
        try:
            cluster.job("keep-drill")
        except CampaignError as error:
            yield f"an old backup: {str(error).splitlines()[-1]}"
        else:
            raise CampaignError(f"the drill accepted an old backup, {old}")
        replaced = new_certificate(cluster.folder)
        cluster.replace_secret(volumes["tls"], _tls(replaced))
        began = time.monotonic()
        wait_until(lambda: "the TLS certificate is read again" in log.read_text())
        _get(replaced.path, key)
        yield f"a replaced secret is served after {time.monotonic() - began:.0f} s, without a restart"


def _composed(folder: Path, images: dict[str, Image]) -> Iterator[str]:
    made = databases(DATABASES)
    services = Services(folder / "compose", {**images, **made})
    with ExitStack() as stack:
        yield f"compose: {' '.join(started(services, stack))}"
        wait_until(_is_ready)
        cluster, (admin, volumes) = services.cluster, services.container("admin")
        add = ("pqkeepd", "operator", "add", "ada", "--data", "/var/lib/pqkeep")
        credential = re.findall(r"pqo_\w+", cluster.run(admin, volumes, *add))[0]
        shutil.copy(services.folder / "volume-gateway/certificate.pem", folder)
        _used(folder / "certificate.pem", credential, "localhost")
        yield "compose: HTTPS with PostgreSQL and Valkey, an operator, a tenant, an encryption"
        shutil.copy(folder / "recovery/public", services.folder / "backups")
        backup = ("backup", "--recovery-key", "/backups/public", "--to", "/backups/1")
        said = cluster.run(admin, volumes, "pqkeepd", *backup, "--data", "/var/lib/pqkeep")
        if "did not record" in said:
            raise CampaignError(said)
        yield f"compose: {said.splitlines()[0]}"


def _rendered(public: Path) -> dict[tuple[str, str], Any]:
    sets = [argument for value in VALUES for argument in ("--set", value)]
    command = ["helm", "template", "keep", str(CHART), "--kube-version", "1.37.0", *sets]
    said = subprocess.run(
        [*command, "--set-file", f"backup.recoveryPublicKey={public}"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    objects = [each for each in yaml.safe_load_all(said) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def _tls(certificate: Certificate) -> dict[str, bytes]:
    return {"tls.crt": certificate.path.read_bytes(), "tls.key": certificate.key.read_bytes()}


def _contents(images: dict[str, Image]) -> str:
    """Check that images have users, and no build tools. Raises CampaignError."""
    for name, image in images.items():
        if image.config.get("User") not in {"64001:64001", "64002:64002"}:
            raise CampaignError(f"{name} runs as {image.config.get('User')}")
        folders = [*(image.tree / each for each in ("usr/bin", "opt/pqkeep/bin"))]
        folders += [*image.tree.glob("opt/pqkeep/lib/python3*/site-packages")]
        tools = [each for folder in folders for each in NO_BUILD_TOOLS if (folder / each).exists()]
        if tools:
            raise CampaignError(f"{name} has {tools}")
        if unsafe := sorted(_unsafe(image.tree)):
            raise CampaignError(f"{name} has {unsafe}")
    packages = images["copier"].tree.glob("opt/pqkeep/lib/python3*/site-packages/cryptography")
    if any(packages):
        raise CampaignError("the gateway's image has cryptography")
    return "no build tools, no key, no file that others can write, no setuid; users that are not root; the gateway has no cryptography"


def _unsafe(tree: Path) -> Iterator[str]:
    """Yield files that can be written by others or gain rights, or name a key or the building machine."""
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if Path(folder, name) != tree / "dev"]
        for file in (Path(folder, name) for name in files):
            if file.is_symlink() or not file.is_file():
                continue
            data = file.read_bytes()
            is_named = file.parent == tree / "etc" and file.name in {"hostname", "resolv.conf"}
            if (
                file.stat().st_mode & (stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID)
                or b" PRIVATE KEY-----\nM" in data
                or (is_named and data)
            ):
                yield str(file.relative_to(tree))


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:8081/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _call(
    certificate: Path, credential: str, path: str, body: object = None, host: str = HOST
) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"X-API-Key": credential, "Content-Type": "application/json"}
    request = urllib.request.Request(f"https://{host}:8443{path}", data, headers)
    context = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as response:  # noqa: S310 - https
        return json.load(response)["data"]


def _get(certificate: Path, key: str) -> None:
    _call(certificate, key, "/api/v1/kms/keys")


def _used(certificate: Path, operator: str, host: str = HOST) -> str:
    """Create a tenant, and encrypt with its API key, which is returned."""
    tenant = _call(certificate, operator, "/api/v1/tenants", {"name": "Example"}, host)["id"]
    key = str(
        _call(certificate, operator, f"/api/v1/tenants/{tenant}/api-keys", {}, host)["api_key"]
    )
    _call(certificate, key, "/api/v1/kms/keys/generate", {"algorithm": "Kyber768"}, host)
    _call(
        certificate,
        key,
        "/api/v1/kem/encrypt",
        {"plaintext": "YQ==", "algorithm": "Kyber768"},
        host,
    )
    return key
