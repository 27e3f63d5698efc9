"""The portal's modules load in the order of their imports."""

import re
from graphlib import CycleError, TopologicalSorter

import pytest

from pqkeep_gateway.portal.assets import contents

_IMPORT = re.compile(
    r'^import (?:\{ (?P<names>[^}]*) \} from )?"\./(?P<module>[^"]+)";$', re.MULTILINE
)
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const|let) (?P<name>\w+)", re.MULTILINE)


def _modules() -> dict[str, str]:
    return {name: text.decode() for name, text in contents().items() if name.endswith(".js")}


def test_no_module_leads_back_to_itself() -> None:
    """The imports of the portal's modules have no loop."""
    imports = {
        name: {found["module"] for found in _IMPORT.finditer(text)}
        for name, text in _modules().items()
    }
    assert any(imports.values())
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_modules_import_what_others_export() -> None:
    """Every name that a module imports is exported by the other module."""
    modules = _modules()
    exported = {
        name: {found["name"] for found in _EXPORT.finditer(text)} for name, text in modules.items()
    }
    missing = {
        (name, found["module"], imported)
        for name, text in modules.items()
        for found in _IMPORT.finditer(text)
        for imported in (found["names"] or "").split(", ")
        if imported and imported not in exported.get(found["module"], ())
    }
    assert missing == set()


def test_every_import_is_read() -> None:
    """These tests see all imports of the modules."""
    for name, text in _modules().items():
        lines = [line for line in text.splitlines() if line.startswith(("import ", "export {"))]
        assert len(lines) == len(_IMPORT.findall(text)), name
