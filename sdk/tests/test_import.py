"""The modules that an import of the client loads, in a new interpreter."""

import json
import subprocess
import sys

import pytest
from tests.patience import PATIENCE

import pqkeep

HTTP = {"httpx2", "ssl", "tomllib"}
ASYNCIO = {"asyncio"}
NEVER = {"cryptography", "pqcrypto", "typer", "rich", "pqkeep.audit", "pqkeep.cli"}


def loaded(statement: str) -> set[str]:
    """Return the modules that a statement loads."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, check=True, timeout=PATIENCE
    )
    return set(json.loads(ended.stdout))


@pytest.mark.parametrize(
    ("statement", "wanted", "unwanted"),
    [
        ("import pqkeep", {"pqkeep.models", "pqkeep.errors"}, HTTP | ASYNCIO | NEVER),
        ("from pqkeep import Client", HTTP, ASYNCIO | NEVER),
        ("from pqkeep import Client; Client('http://[::1]', 'key')", HTTP, ASYNCIO | NEVER),
        ("from pqkeep import AsyncClient", HTTP | ASYNCIO, NEVER),
    ],
)
def test_what_is_loaded(statement: str, wanted: set[str], unwanted: set[str]) -> None:
    """An import loads only the modules that it needs."""
    modules = loaded(statement)
    assert wanted <= modules
    assert not unwanted & modules


def test_every_public_name_is_there() -> None:
    """All public names can be imported, and no other name is public."""
    assert all(hasattr(pqkeep, name) for name in pqkeep.__all__)
    assert pqkeep.__all__ == sorted(pqkeep.__all__)
    with pytest.raises(AttributeError, match="AsynchronousClient"):
        pqkeep.AsynchronousClient  # type: ignore[attr-defined]  # noqa: B018
