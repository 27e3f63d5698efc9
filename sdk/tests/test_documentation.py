"""The documentation of the client is complete and correct.

tests/docs/test_documents_in_order.py runs its examples.
"""

import inspect
import re
import textwrap
from pathlib import Path

import pytest

import pqkeep
from pqkeep import Client, _exchange, _settings, errors
from pqkeep.profiles import Profile, profile_file, read_profile

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "sdk.md").read_text()
RESOURCES = (
    "kem",
    "signatures",
    "macs",
    "tools",
    "keys",
    "keyrings",
    "campaigns",
    "rules",
    "notices",
    "webhooks",
    "workloads",
    "tenants",
    "team",
    "api_keys",
    "audit",
    "usage",
    "installation",
    "operators",
    "search",
    "status",
    "requests",
)


def run(program: str, **names: object) -> dict[str, object]:
    """Run a program; return its names."""
    exec(compile(program, "documentation", "exec"), names)  # noqa: S102 - it is our own
    return names


def test_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The profiles in the document can be read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profile_file().parent.mkdir()
    profile_file().touch(0o600)
    (example,) = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    profile_file().write_text(example)
    assert read_profile().api_key_file == "/run/secrets/pqkeep"
    assert read_profile("staging").compliance_profile == "cnsa-2.0"


def test_docstring(base_url: str, api_key: str) -> None:
    """The example in the package's docstring runs."""
    lines = str(pqkeep.__doc__).splitlines()
    example = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    assert run(example, base_url=base_url, api_key=api_key)["opened"] == b"a secret"


def test_the_tree() -> None:
    """The document has the same tree of errors as errors.py."""
    lines = [line for line in str(errors.__doc__).splitlines() if line.startswith("    ")]
    assert textwrap.dedent("\n".join(lines)) in DOCUMENT


def test_every_method() -> None:
    """The document's table has exactly the methods of all resources."""
    table = dict(re.findall(r"^\| `client\.(\w+)` \| (.*) \|$", DOCUMENT, re.MULTILINE))
    assert tuple(table) == RESOURCES
    with Client("http://127.0.0.1", "key") as client:
        for name in RESOURCES:
            public = {
                attribute
                for attribute in dir(getattr(client, name))
                if not attribute.startswith("_")
            }
            assert set(re.findall(r"`(\w+)`", table[name])) == public


def test_every_setting() -> None:
    """The document names every argument, every variable and every profile setting."""
    arguments = set(inspect.signature(Client).parameters)
    for name in arguments | set(Profile.__dataclass_fields__):
        assert f"`{name}`" in DOCUMENT
    sources = "".join(path.read_text() for path in (ROOT / "sdk" / "src" / "pqkeep").glob("*.py"))
    variables = set(re.findall(r'"(PQKEEP_\w+)"', sources))
    assert len(variables) == 7
    assert all(f"`{variable}`" in DOCUMENT for variable in variables)


def test_numbers() -> None:
    """The document's numbers equal the program's values."""
    assert f"`timeout` (seconds, {_settings.TIMEOUT:.0f})" in DOCUMENT
    assert f"`retries` ({_settings.RETRIES})" in DOCUMENT
    assert f"at most {_exchange.CONNECT_SECONDS:.0f} seconds to connect" in DOCUMENT
    assert f"{_exchange.ATTEMPT_SECONDS:.0f} seconds for a response" in DOCUMENT
    assert f"first pause is {_exchange.FIRST_PAUSE} seconds" in DOCUMENT
    assert f"double up to {_exchange.LONGEST_PAUSE:.0f} seconds" in DOCUMENT
