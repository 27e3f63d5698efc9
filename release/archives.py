"""Archives with the same bytes for the same files: the offline bundle and the chart."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path

from release.wheels import Wheel

FOLDER = Path(__file__).parent


def archive(target: Path, top: str, files: Mapping[str, bytes], epoch: int) -> None:
    """Write a ``.tar.gz``: files under one folder, by name, of root, with one time."""
    members: dict[str, bytes | None] = {}
    for name, data in files.items():
        path = Path(top, name)
        members |= {str(folder): None for folder in path.parents if str(folder) != "."}
        members[str(path)] = data
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, content in sorted(members.items(), key=itemgetter(0)):
            member = tarfile.TarInfo(name)
            member.mtime = epoch
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            else:
                member.size = len(content)
                member.mode = 0o755 if content.startswith(b"#!") else 0o644
                tar.addfile(member, io.BytesIO(content))


def chart(target: Path, folder: Path, epoch: int) -> None:
    """Write the archive of a Helm chart, as ``helm install`` reads it."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    archive(target, folder.name, files, epoch)


def bundle(target: Path, wheels: Iterable[Wheel], others: Iterable[Path], epoch: int) -> None:
    """Write the archive of an installation without a network, with the hash of each file."""
    files = {f"wheels/{wheel.path.name}": wheel.path.read_bytes() for wheel in wheels}
    files |= {path.name: path.read_bytes() for path in others}
    files["install.sh"] = (FOLDER / "install.sh").read_bytes()
    sums = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())]
    files["SHA256SUMS"] = "".join(sums).encode()
    archive(target, target.name.removesuffix(".tar.gz"), files, epoch)
