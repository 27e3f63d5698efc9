"""Where new secrets go: a folder of private files, or a program.

A secret is made in three steps: the store makes a note, the service creates the secret, and the
store saves the secret. A note without a secret tells a later run that it was not delivered.
"""

import os
import shlex
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from pqkeep.cli.failures import Refusal
from pqkeep.errors import ConfigurationError
from pqkeep.new_files import new_file
from pqkeep.private_files import open_private, wrong_in_api_key

_MAX_SECRET = 4096
_MAX_STEM = 120
"""The most characters of a tenant's name in a file's name."""
_SECONDS = 60.0
_ABSENT = 1
"""The status of a program that has no such secret."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The tenant that a secret is for."""

    id: str
    name: str


class Store(Protocol):
    """A place for secrets, by tenant and name."""

    def get(self, owner: Owner, name: str) -> str | None:
        """Return a stored secret, or None. Raises Refusal and OSError."""
        ...

    def is_missing(self, owner: Owner, name: str) -> bool:
        """Return True if a secret was made and is known not to have arrived."""
        ...

    def expect(self, owner: Owner, name: str) -> None:
        """Note that a secret is coming. Raises Refusal and OSError."""
        ...

    def put(self, owner: Owner, name: str, secret: str | None) -> str:
        """Store a secret; None removes the note of a coming one. Return the place for people."""
        ...


class Folder:
    """A folder with a file of mode 0600 for each secret."""

    def __init__(self, path: Path) -> None:
        """Use a folder, which the first secret makes. Raises Refusal if others can change it."""
        self._path = path
        if path.exists():
            self._check()

    def get(self, owner: Owner, name: str) -> str | None:
        """Return the content of the file, or None."""
        try:
            with open_private(self._file(owner, name)) as file:
                text = file.read(_MAX_SECRET).decode(errors="replace").strip()
        except FileNotFoundError:
            return None
        return _checked(text, str(self._file(owner, name)))

    def is_missing(self, owner: Owner, name: str) -> bool:
        """Return True if a run was interrupted before it wrote the file."""
        return self._note(owner, name).exists()

    def expect(self, owner: Owner, name: str) -> None:
        """Make an empty file beside the one that is coming."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check()
        with new_file(self._note(owner, name), replace=True):
            pass

    def put(self, owner: Owner, name: str, secret: str | None) -> str:
        """Replace the file."""
        path = self._file(owner, name)
        if secret is not None:
            with new_file(path, replace=True) as file:
                file.write(secret.encode() + b"\n")
        self._note(owner, name).unlink(missing_ok=True)
        return str(path)

    def _check(self) -> None:
        status = self._path.stat()
        is_shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if os.name == "posix" and (is_shared or status.st_uid not in {0, os.geteuid()}):
            raise Refusal(
                f"other users can change the folder {self._path}",
                f"chmod 0700 {shlex.quote(str(self._path))}",
            )

    def _file(self, owner: Owner, name: str) -> Path:
        """Return a path in the folder.

        No name leads out of the folder, and no two names share a path.
        """
        stem = quote(owner.name, safe=" ").replace(".", "%2E")
        if len(stem) > _MAX_STEM:
            stem = f"%sha256-{sha256(owner.name.encode()).hexdigest()}"  # no name is quoted so
        return self._path / f"{stem}.{quote(name, safe='@')}"

    def _note(self, owner: Owner, name: str) -> Path:
        path = self._file(owner, name)
        return path.with_name(f".{path.name}.expected")


class Program:
    """A program, run as ``PROGRAM get TENANT_ID NAME`` and ``PROGRAM put TENANT_ID NAME``.

    ``get`` writes the secret to standard output, or ends with status 1 if it has no secret. ``put``
    reads it from standard input. No secret is in an argument.
    """

    def __init__(self, command: str) -> None:
        """Take the command. It is split like a shell's, and no shell runs it. Raises Refusal."""
        try:
            self._command: Sequence[str] = shlex.split(command)
        except ValueError:
            self._command = ()
        if not self._command:
            raise Refusal("--secrets-command is no command", "name a program with its arguments")

    def get(self, owner: Owner, name: str) -> str | None:
        """Ask the program."""
        ended = self._run("get", owner, name, b"", is_permitted=True)
        if ended is None:
            return None
        return _checked(ended.decode(errors="replace").strip(), self._command[0])

    def is_missing(self, owner: Owner, name: str) -> bool:
        """Return True if the program has no such secret."""
        return self.get(owner, name) is None

    def expect(self, owner: Owner, name: str) -> None:
        """Do nothing: the program knows what it has."""

    def put(self, owner: Owner, name: str, secret: str | None) -> str:
        """Give the secret to the program."""
        if secret is not None:
            self._run("put", owner, name, secret.encode() + b"\n")
        return self._command[0]

    def _run(
        self, verb: str, owner: Owner, name: str, given: bytes, *, is_permitted: bool = False
    ) -> bytes | None:
        try:
            ended = subprocess.run(  # noqa: S603 - the user's own command
                [*self._command, verb, owner.id, name],
                input=given,
                stdout=subprocess.PIPE,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Refusal(
                f"{self._command[0]} {verb} took more than {_SECONDS:.0f} s", "correct the program"
            ) from None
        if ended.returncode == _ABSENT and is_permitted:
            return None
        if ended.returncode:
            raise Refusal(
                f"{self._command[0]} {verb} ended with status {ended.returncode}",
                "correct the program, and run this command again",
            )
        return ended.stdout[:_MAX_SECRET]


def _checked(secret: str, place: str) -> str:
    if wrong := wrong_in_api_key(secret):
        raise ConfigurationError(f"the secret of {place} must be one word: it {wrong}")
    return secret
