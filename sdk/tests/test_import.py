"""What importing the client loads, seen in an interpreter that has loaded nothing else."""

import json
import subprocess
import sys

import pytest

import pqkeep

HTTP = {"httpx2", "ssl", "tomllib"}
ASYNCIO = {"asyncio"}
NEVER = {"cryptography", "pqcrypto", "typer", "rich", "pqkeep.audit", "pqkeep.cli"}


def loaded(statement: str) -> set[str]:
    """Return what is loaded after a statement."""
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, check=True, timeout=60
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
    """Importing loads what is needed then, and not what may never be."""
    modules = loaded(statement)
    assert wanted <= modules
    assert not unwanted & modules


def test_every_public_name_is_there() -> None:
    """Everything that the package offers can be had, and nothing else by chance."""
    assert all(hasattr(pqkeep, name) for name in pqkeep.__all__)
    assert pqkeep.__all__ == sorted(pqkeep.__all__)
    with pytest.raises(AttributeError, match="AsynchronousClient"):
        pqkeep.AsynchronousClient  # type: ignore[attr-defined]  # noqa: B018
