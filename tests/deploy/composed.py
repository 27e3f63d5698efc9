"""Runs the services of compose.yaml from the images' trees. Databases come from Debian."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.deploy.pods import Cluster, Image
from tests.deploy.tree import CampaignError, wait_until

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
CREATE_NO_CLUSTER = (
    'mkdir -p "$1/etc/postgresql-common" &&'
    ' echo "create_main_cluster = false" > "$1/etc/postgresql-common/createcluster.conf"'
)


def prepare_databases(folder: Path) -> None:
    """Make a tree of Debian's PostgreSQL and Valkey, once. Needs root, mmdebstrap and the network."""
    if folder.exists():
        return
    partial = folder.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    packages = ["--variant=essential", "--include=postgresql,valkey-server"]
    hook = f"--essential-hook={CREATE_NO_CLUSTER}"
    own = ["unshare", "--mount"]  # what it mounts is gone with it, however it ends
    subprocess.run(
        [*own, "mmdebstrap", "--quiet", *packages, hook, "trixie", str(partial)], check=True
    )
    partial.rename(folder)


def databases(folder: Path) -> dict[str, Image]:
    """Run the steps of the databases' Containerfile in copies of their tree."""
    text = (COMPOSE / "databases.Containerfile").read_text().replace("\\\n", " ")
    images = {}
    for stage in text.split("\nFROM ")[1:]:
        name = stage.splitlines()[0].rpartition(" ")[2]
        words = [line.partition(" ") for line in stage.splitlines()[1:] if line]
        lines = [(word, rest.strip()) for word, _, rest in words]
        tree = folder.with_name(f"{folder.name}-{name}")
        shutil.rmtree(tree, ignore_errors=True)
        copy = ["cp", "-a", "--reflink=auto", str(folder), str(tree)]
        subprocess.run(copy, check=True)
        for word, rest in lines:
            if word == "COPY":
                *files, target = rest.split()
                (tree / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
                for file in files:
                    shutil.copy(COMPOSE.parent / file, tree / target.lstrip("/"))
            elif word == "RUN":
                run = rest.replace("apt-get", ": apt-get")  # the tree has the packages
                inside = ["chroot", str(tree), "sh", "-euc", run]
                subprocess.run(inside, check=True)
        said = dict(lines)
        images[f"pqkeep-{name}:0.1.0"] = Image(
            tree,
            {
                "Env": said.get("ENV", "PATH=/usr/bin:/bin").split(),
                "Entrypoint": json.loads(said["ENTRYPOINT"]),
                "User": said["USER"],
            },
        )
    return images


class Services:
    """The services of a Compose file, with their volumes in a folder."""

    def __init__(self, folder: Path, images: Mapping[str, Image]) -> None:
        """Read the file with the program ``compose``."""
        folder.mkdir()
        (folder / "backups").mkdir()
        variables = {"BACKUPS": str(folder / "backups")}
        command = ["compose", str(COMPOSE / "compose.yaml")]
        read = subprocess.run(
            command,
            env={**os.environ, **variables},
            check=True,
            stdout=subprocess.PIPE,
        )
        self.folder = folder
        self._services: dict[str, Any] = json.loads(read.stdout)["services"]
        self.cluster = Cluster(folder, images, {}, {}, "127.0.0.1 localhost", 0)

    def container(self, name: str) -> tuple[Any, dict[str, Path]]:
        """Return a service as a container, and its volumes."""
        service = self._services[name]
        image = self.cluster.images[service["image"]]
        user = service.get("user") or image.config["User"]
        uid, gid = _ids(image, user)
        mounts = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - in the container
        volumes = {"tmp": self.folder / f"tmp-{os.urandom(4).hex()}"}
        volumes["tmp"].mkdir()
        volumes["tmp"].chmod(0o1777)
        for each in service["volumes"]:
            mount = {"name": each["source"], "mountPath": each["target"]}
            mounts.append({**mount, "readOnly": each.get("read_only", False)})
            volumes[each["source"]] = self._volume(each, image)
        container = {
            "name": name,
            "image": service["image"],
            "volumeMounts": mounts,
            "env": [{"name": n, "value": v} for n, v in (service.get("environment") or {}).items()],
            "groups": service.get("group_add") or [gid],
            "securityContext": {
                "runAsUser": uid,
                "runAsGroup": gid,
                "capabilities": {"drop": service["cap_drop"], "add": service.get("cap_add") or []},
            },
        }
        if service.get("entrypoint"):
            container["command"] = service["entrypoint"]
        if service.get("command"):
            container["args"] = service["command"]
        return container, volumes

    def _volume(self, mount: Any, image: Image) -> Path:
        """Return a volume. A new one has the owner and mode of the folder in the first image."""
        if mount["type"] == "bind":
            return Path(mount["source"])
        path = self.folder / f"volume-{mount['source']}"
        if not path.exists():
            path.mkdir()
            inside = image.tree / mount["target"].lstrip("/")
            if inside.exists():
                status = inside.stat()
                os.chown(path, status.st_uid, status.st_gid)
                path.chmod(status.st_mode & 0o7777)
        return path


def _ids(image: Image, user: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"(\d+):(\d+)", user)
    if numbers:
        return int(numbers[1]), int(numbers[2])
    for line in (image.tree / "etc/passwd").read_text().splitlines():
        found = pwd.struct_passwd(
            (*line.split(":")[:2], *map(int, line.split(":")[2:4]), *line.split(":")[4:])
        )
        if found.pw_name == user:
            return found.pw_uid, found.pw_gid
    raise CampaignError(f"no user {user}")


def started(services: Services, stack: ExitStack) -> Iterator[str]:
    """Start all services in the order of their dependencies, for as long as the stack is open."""
    yield services.cluster.run(*services.container("initialise")).strip()
    again = services.cluster.run(*services.container("initialise")).strip()
    if again != "there is an installation":
        raise CampaignError(again)

    def start(name: str, until: str = "") -> None:
        stack.enter_context(services.cluster.running(*services.container(name), until))

    start("postgresql")
    wait_until((services.folder / "volume-postgresql-socket/.s.PGSQL.5432").exists)
    start("valkey")
    wait_until((services.folder / "volume-valkey-socket/valkey.sock").exists)
    start("keyservice", '"event": "serving"')
    start("gateway", "running on")
