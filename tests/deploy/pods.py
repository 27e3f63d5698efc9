"""Runs pods of the chart from the trees of images, as a kubelet would: volumes, users, rights.

Each container has its own mounts: its image's tree, read-only, with the volumes of its pod. It runs
as its user, without capabilities. ``tests.deploy.images`` runs this in its own network.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.tree import CampaignError, wait_until
from tests.patience import PATIENCE

GROUP_READS, SET_GROUP = 0o440, 0o2770


@dataclass(frozen=True)
class Image:
    """An unpacked OCI archive."""

    tree: Path
    config: Mapping[str, Any]

    @classmethod
    def unpack(cls, archive: Path, folder: Path) -> Image:
        """Unpack the layers of an archive with one image."""
        folder.mkdir(parents=True)
        blobs = folder / "blobs"
        with tarfile.open(archive) as tar:
            tar.extractall(blobs, filter="data")

        def blob(digest: str) -> Path:
            return blobs / "blobs" / digest.replace(":", "/")

        index = json.loads((blobs / "index.json").read_bytes())
        manifest = json.loads(blob(index["manifests"][0]["digest"]).read_bytes())
        tree = folder / "tree"
        tree.mkdir()
        for layer in manifest["layers"]:
            extract = ["tar", "--extract", "--gzip", "--directory", str(tree), "--file"]
            subprocess.run([*extract, str(blob(layer["digest"]))], check=True)
        config = json.loads(blob(manifest["config"]["digest"]).read_bytes())["config"]
        shutil.rmtree(blobs)
        return cls(tree, config)


@dataclass(frozen=True)
class Cluster:
    """What the objects of a chart meet: images, secrets and claims, in one folder."""

    folder: Path
    images: Mapping[str, Image]
    objects: Mapping[tuple[str, str], Any]
    secrets: Mapping[str, Mapping[str, bytes]]
    hosts: str
    group: int
    _pods: list[str] = field(default_factory=list)

    def replace_secret(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Replace a mounted secret as the kubelet does: a new folder behind the link ``..data``."""
        new = folder / f"..{os.urandom(4).hex()}"
        new.mkdir()
        for name, data in files.items():
            (new / name).write_bytes(data)
            os.chown(new / name, 0, self.group)
            (new / name).chmod(GROUP_READS)
            link = folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        (folder / "..new").symlink_to(new.name)
        (folder / "..new").rename(folder / "..data")

    def volumes(self, name: str, spec: Any, claims: Mapping[str, Path]) -> dict[str, Path]:
        """Make the volumes of a pod."""
        self._pods.append(name)
        pod = self.folder / f"pod-{len(self._pods)}-{name}"
        found = dict(claims)
        for volume in spec.get("volumes", ()):
            path = pod / volume["name"]
            match volume:
                case {"persistentVolumeClaim": claim}:
                    found[volume["name"]] = self.claim(claim["claimName"])
                    continue
                case {"configMap": source}:
                    path.mkdir(parents=True)
                    for key, text in self.objects["ConfigMap", source["name"]]["data"].items():
                        (path / key).write_text(text)
                case {"secret": source}:
                    path.mkdir(parents=True)
                    secret = self.secrets[source["secretName"]]
                    items = {item["key"]: item["path"] for item in source.get("items", ())}
                    files = items or {key: key for key in secret}
                    self.replace_secret(path, {to: secret[key] for key, to in files.items()})
                case {"emptyDir": _}:
                    path.mkdir(parents=True)
                    os.chown(path, 0, self.group)
                    path.chmod(0o2777)
                case _:
                    raise CampaignError(f"a volume of another kind: {volume}")
            found[volume["name"]] = path
        return found

    def claim(self, name: str) -> Path:
        """Return a persistent volume, which is made when it is first used."""
        path = self.folder / f"claim-{name}"
        if not path.exists():
            path.mkdir()
            os.chown(path, 0, self.group)
            path.chmod(SET_GROUP)
        return path

    def command(self, container: Any, volumes: Mapping[str, Path], *instead: str) -> list[str]:
        """Return the command that runs a container, or another program in its place."""
        image = self.images[container["image"]]
        root = self.folder / f"root-{os.urandom(4).hex()}"
        script = [
            "set -e",
            f"mkdir {root} && mount -t tmpfs tmpfs {root}",
            f"mkdir {root}/upper {root}/work {root}/root && cd {root}/root",
            f"mount -t overlay -o lowerdir={image.tree},upperdir={root}/upper,workdir={root}/work overlay .",
            f"cd {root}/root && mkdir -p proc dev && mount -t proc proc proc && mount --rbind /dev dev",
            f"echo {shlex.quote(self.hosts)} > etc/hosts",
        ]
        for mount in container.get("volumeMounts", ()):
            inside = shlex.quote(mount["mountPath"].lstrip("/"))
            source = volumes[mount["name"]]
            make = "mkdir -p" if source.is_dir() else "touch"
            script.append(f"{make} {inside} && mount --bind {source} {inside}")
            if mount.get("readOnly"):
                script.append(f"mount -o remount,bind,ro {inside}")
        context = container["securityContext"]
        assert context["capabilities"]["drop"] == ["ALL"]
        added = [f"+{each.lower()}" for each in context["capabilities"].get("add", ())]
        groups = ",".join(map(str, container.get("groups", [self.group])))
        command = container.get("command", image.config.get("Entrypoint", []))
        run = [*command, *container.get("args", image.config.get("Cmd", []))]
        user, group = str(context["runAsUser"]), str(context["runAsGroup"])
        bounds = ",".join(("-all", *added))
        rights = ("--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all")
        names = dict(each.split("=", 1) for each in image.config["Env"])
        names |= {each["name"]: each["value"] for each in container.get("env", ())}
        environment = [f"{name}={value}" for name, value in names.items()]
        become = [
            "setpriv",
            f"--reuid={user}",
            f"--regid={group}",
            f"--groups={groups}",
            *rights,
        ]
        program = ["env", "-i", *environment, *(instead or run)]
        script += [
            "mount -o remount,ro .",
            # chroot is of this machine, and setpriv of the image
            shlex.join(["exec", "chroot", ".", *become, *program]),
        ]
        return ["unshare", "--mount", "sh", "-c", "\n".join(script)]

    def run(
        self, container: Any, volumes: Mapping[str, Path], *instead: str, status: int = 0
    ) -> str:
        """Run a container to its end, and return its output. Raises CampaignError."""
        ended = subprocess.run(
            self.command(container, volumes, *instead),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if ended.returncode != status:
            raise CampaignError(
                f"{container['name']} ended with {ended.returncode}:\n{ended.stdout}"
            )
        return ended.stdout

    @contextmanager
    def running(self, container: Any, volumes: Mapping[str, Path], until: str) -> Iterator[Path]:
        """Run a container for a block, which begins when its log has a text. Gives the log."""
        log = self.folder / f"log-{container['name']}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command(container, volumes),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: until in log.read_text() or process.poll() is not None)
            if until not in log.read_text():
                raise CampaignError(f"{container['name']} ended:\n{log.read_text()}")
            yield log
        finally:
            process.terminate()
            process.wait(PATIENCE)

    def job(self, name: str) -> list[str]:
        """Run the pod of a CronJob or a test to its end. Returns the output of each container."""
        found = self.objects.get(("CronJob", name))
        pod = (
            found["spec"]["jobTemplate"]["spec"]["template"] if found else self.objects["Pod", name]
        )
        spec = pod["spec"]
        volumes = self.volumes(name, spec, {})
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        return [self.run(container, volumes) for container in containers]
