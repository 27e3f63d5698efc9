"""The sections of docs/runbooks.md and their commands, for the tests that follow them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs.test_operators_pages import replaced
from tests.fixtures.installation import Installation

PAGE = Path(__file__).parents[2] / "docs" / "runbooks.md"
SECTION = re.compile(r"^##+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^( *)```sh\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(pqkeepd? [^`\n]*(?: --|[A-Z]{3})[^`\n]*|pqkeep audit [^`\n]*)`")
"""A command of the text. A name of a command alone has no option and no placeholder."""
REQUEST = re.compile(r"`(GET|PATCH) (/api/v1/\S+)`")
"""A request of the text."""
Shell = Callable[[str, Mapping[str, str]], str]


def sections() -> dict[str, str]:
    """Return the sections by title."""
    _, *parts = SECTION.split(PAGE.read_text())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def scripts(title: str, places: Mapping[str, str]) -> list[str]:
    """Return a section's snippets, without commands of a service manager."""
    found = []
    for indentation, text in FENCE.findall(sections()[title]):
        plain = re.sub(rf"^{indentation}", "", text, flags=re.MULTILINE)
        kept = [line for line in plain.splitlines() if "systemctl" not in line]
        found.append(replaced("\n".join([*kept, ""]), places))
    return found


def inline(title: str, places: Mapping[str, str]) -> list[str]:
    """Return the commands in a section's text, outside of snippets, each once."""
    text = FENCE.sub("", sections()[title])
    return [replaced(command, places) for command in dict.fromkeys(INLINE.findall(text))]


def requests(title: str, places: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the requests in a section's text: method and path."""
    text = FENCE.sub("", sections()[title])
    found = dict.fromkeys(REQUEST.findall(text))
    return [(method, replaced(path, places).removeprefix("/api/v1")) for method, path in found]


def places_of(installation: Installation, **others: str) -> dict[str, str]:
    """Return the page's placeholders with the values of an installation."""
    return {r"\bDIR\b": str(installation.data), **{rf"\b{k}\b": v for k, v in others.items()}}


def has_commands(title: str) -> bool:
    """Return True if a section has commands that a test can run."""
    texts = "".join(scripts(title, {})).strip(), inline(title, {}), requests(title, {})
    return any(texts)


def diagnosis(script: str) -> str:
    """Return a script of ``pqkeepd doctor`` that may find faults."""
    return f"{script.strip()} || [ $? = 1 ]\n"
