"""docs/architecture.md says where everything is: its tables and layers are the tree's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = {
    "protocol": "pqkeep_protocol",
    "keyservice": "pqkeep_keyservice",
    "gateway": "pqkeep_gateway",
    "server": "pqkeep_server",
    "sdk": "pqkeep",
}
SOURCES = {name: ROOT / name / "src" / package for name, package in PACKAGES.items()}
ENTRY_POINTS = frozenset({"__init__.py", "__main__.py"})
FOLDERS = sorted(
    str(Path(name) / folder.relative_to(source))
    for name, source in SOURCES.items()
    for folder in (source, *source.rglob("*/"))
    if list(folder.glob("*.py")) and "migrations" not in folder.parts
)


def section(distribution: str) -> str:
    """Return what is said of a distribution, by folder."""
    titles = {"keyservice": "Key service", "sdk": "Client"}
    title = titles.get(distribution, distribution.capitalize())
    return DOCUMENT.split(f"\n### {title}\n")[1].split("\n## ")[0].split("\n### ")[0]


def listed(folder: str) -> set[str]:
    """Return the modules that the table of a distribution lists in a folder."""
    distribution, _, inner = folder.partition("/")
    text = section(distribution)
    found = set(re.findall(rf"`{folder}/(\w+\.py)`", text))
    row = "top level" if distribution in {"gateway", "keyservice"} else None
    first_cell = f"`{folder}/`" if inner else row
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) > 2 and cells[1].strip() == first_cell:
            found |= set(re.findall(r"`(\w+\.py)`", cells[2]))
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_has_its_place(folder: str) -> None:
    """Each folder has a row that lists its modules; of the client's, no module that is not there."""
    distribution, _, inner = folder.partition("/")
    modules = {path.name for path in (SOURCES[distribution] / inner).glob("*.py")} - ENTRY_POINTS
    if distribution == "sdk":
        assert not inner or f"`{folder}/`" in section(distribution)
        assert listed(folder) <= modules
    else:
        assert listed(folder) == modules


def test_every_path_exists() -> None:
    """No path in the document leads nowhere."""
    paths = re.findall(r"`((?:protocol|keyservice|gateway|server|sdk)/[\w/.]+)`", DOCUMENT)
    missing = {
        path
        for path in paths
        if not (SOURCES[path.split("/")[0]] / path.split("/", 1)[1]).exists()
        and not (ROOT / path).exists()
    }
    assert len(set(paths)) > 50
    assert missing == set()


def test_the_layers_are_the_contracts() -> None:
    """The document prints the layers as the import contracts have them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    names = {package: name for name, package in PACKAGES.items()}
    expected = []
    for contract in contracts["contracts"]:
        for container in contract.get("containers", ()):
            package, *inner = container.split(".")
            layers = " ▸ ".join(contract["layers"])
            expected.append(f"{'/'.join([names[package], *inner])}: {layers}")
    printed = DOCUMENT.split("\n## Layers\n")[1].split("```")[1].splitlines()[1:]
    assert printed == expected
