"""Files appear complete, and never replace a file that must stay."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from pqkeep_server.atomic_files import atomic_file

if TYPE_CHECKING:
    from pathlib import Path


def test_somebody_else_is_first(tmp_path: Path) -> None:
    """A file that appears under the name meanwhile is not replaced."""
    path = tmp_path / "file"
    with ExitStack() as stack:
        stack.enter_context(atomic_file(path, 0o600)).write(b"ours")
        path.write_bytes(b"theirs")
        with pytest.raises(FileExistsError):
            stack.close()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"theirs"


def test_a_missing_folder_is_said_of_the_file_s_own_name(tmp_path: Path) -> None:
    """If a file cannot be created, the error names it and not a temporary file."""
    path = tmp_path / "none" / "file"
    with pytest.raises(FileNotFoundError) as raised, atomic_file(path, 0o600):
        pass
    assert raised.value.filename == str(path)


def test_there_is_one_name(tmp_path: Path) -> None:
    """A file has its mode and content, and no temporary file is left."""
    path = tmp_path / "file"
    with atomic_file(path, 0o400) as file:
        file.write(b"ours")
    status = path.stat()
    assert (list(tmp_path.iterdir()), status.st_nlink, status.st_mode & 0o777) == ([path], 1, 0o400)
    assert path.read_bytes() == b"ours"
