"""Pieces of data, made into files."""

import os
from collections.abc import Iterable

from pqkeep.new_files import new_file

FilePath = str | os.PathLike[str]


def save(target: FilePath, pieces: Iterable[bytes], *, replace: bool) -> None:
    """Write pieces to a new file, mode 0600. If making them fails, nothing is there.

    Raises FileExistsError unless ``replace``, before the first piece is asked for if it can.
    """
    with new_file(target, replace=replace) as file:
        for piece in pieces:
            file.write(piece)
