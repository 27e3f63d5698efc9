"""Applies docs/first-change.md to a copy of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "first-change.md"
NEW = re.compile(r"Save it as `([^`]+)`:\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLACE = re.compile(
    r"^In (?:`([^`]+)`:|the same file, [^`]*?:)\n\n```diff\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def copy_repository(folder: Path) -> None:
    """Copy the files of the working tree that git does not ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
            (folder / name).chmod((ROOT / name).stat().st_mode)


def apply(folder: Path) -> list[str]:
    """Make the page's missing edits; return their files.

    Raises ValueError for a place that the file does not have exactly once.
    """
    text = PAGE.read_text()
    changed = []
    for name, content in NEW.findall(text):
        (folder / name).write_text(content)
        changed.append(name)
    name = ""
    for named, diff in PLACE.findall(text):
        name = named or name
        lines = diff.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines)
        before = (folder / name).read_text()
        changed.append(name)
        if f"\n{new}" in f"\n{before}":
            continue  # a tree in which the page was followed
        if (found := f"\n{before}".count(f"\n{old}")) != 1:
            raise ValueError(f"{name} has this {found} times:\n{old}")
        (folder / name).write_text(f"\n{before}".replace(f"\n{old}", f"\n{new}")[1:])
    return list(dict.fromkeys(changed))
