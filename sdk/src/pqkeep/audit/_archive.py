"""Unpacks a migration report of the portal: a ZIP file without compression.

All members are checked before any is written.
"""

import errno
import re
import stat
from collections.abc import Container
from pathlib import Path
from shutil import copyfileobj
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

BEGINNING = b"PK\x03\x04"
"""The first bytes of a ZIP file."""
_ENCRYPTED = 0x1
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII).fullmatch


class TruncatedError(Exception):
    """The file has no list of its members at its end."""


class DamagedError(Exception):
    """A member is not the one that was packed. The argument is its name."""


def is_archive(path: Path) -> bool:
    """Return True if a file begins like a ZIP file. Raises OSError."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(BEGINNING)) == BEGINNING


def unpack(path: Path, folder: Path, largest: int, unlimited: Container[str]) -> None:
    """Write the members of a ZIP file into a folder.

    A member has at most ``largest`` bytes, unless ``unlimited`` has its name. Raises OSError that
    names the refused member, TruncatedError and DamagedError.
    """
    try:
        archive = ZipFile(path)
    except (BadZipFile, EOFError, ValueError, NotImplementedError):
        raise TruncatedError from None
    with archive:
        members = archive.infolist()
        _require_plain_files(path, members, largest, unlimited)
        for member in members:
            try:
                with (
                    archive.open(member) as source,
                    (folder / member.filename).open("xb") as target,
                ):
                    copyfileobj(source, target)
            except (BadZipFile, EOFError, ValueError, NotImplementedError):
                raise DamagedError(member.filename) from None


def _require_plain_files(
    path: Path, members: list[ZipInfo], largest: int, unlimited: Container[str]
) -> None:
    """Raise OSError for a member that is no plain file, and for members with a name twice."""
    names: set[str] = set()
    rest = path.stat().st_size
    for member in members:
        reason, code = "", errno.EINVAL
        mode = member.external_attr >> 16
        rest -= member.file_size
        if not _is_name(member.filename):
            reason = "a report has no links, folders or devices, and no other names"
        elif stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
            reason = "a report has no links, folders or devices"
        elif member.filename.casefold() in names:
            reason = "the file is there twice"
        elif member.compress_type != ZIP_STORED or member.flag_bits & _ENCRYPTED:
            reason = "the file is compressed or encrypted; unpack the report and name its directory"
        elif member.file_size > largest and member.filename not in unlimited:
            reason, code = f"a file of a report has at most {largest >> 20} MiB", errno.EFBIG
        elif rest < 0 or member.file_size != member.compress_size:
            reason, code = "the file is larger than the report", errno.EFBIG
        if reason:
            raise OSError(code, reason, f"{path}/{member.filename}")
        names.add(member.filename.casefold())
