"""The programs in the TypeScript client's README run, from the package that npm pack makes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation
from tests.typescript.description import CLIENT

from pqkeep import Client

EXAMPLE = re.compile(
    r"^<!-- example: (\w+) -->\n```javascript\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
NPM, NODE = shutil.which("npm") or "npm", shutil.which("node") or "node"
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not (CLIENT / "node_modules").exists(), reason="make interop installs it"),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder of a program with the package installed."""
    subprocess.run(
        [NPM, "pack", "--silent", "--pack-destination", tmp_path],
        cwd=CLIENT,
        check=True,
        capture_output=True,
    )
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        archive.extractall(tmp_path, filter="data")
    modules = tmp_path / "node_modules"
    (modules / "@pqkeep").mkdir(parents=True)
    (tmp_path / "package").rename(modules / "@pqkeep/client")
    (modules / "@noble").symlink_to(CLIENT / "node_modules/@noble")
    return tmp_path


def test_own_tests() -> None:
    """The package's own tests pass: strict types, vectors of the local format, a hostile service."""
    run = subprocess.run([NPM, "test"], cwd=CLIENT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def test_package(program: Path) -> None:
    """The package has the compiled modules and their types only."""
    package = program / "node_modules/@pqkeep/client"
    files = {str(file.relative_to(package)) for file in package.rglob("*") if file.is_file()}
    assert {"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts"} <= files
    others = files - {"package.json", "README.md", "LICENSE"}
    assert all(re.fullmatch(r"dist/.*(\.js|\.d\.ts)", name) for name in others)


def test_readme(program: Path, installation: Installation) -> None:
    """Both programs print the plaintext, and Python reads the file and writes one for Node."""
    tenant = installation.new_tenant()
    made = installation.operator().post(f"/tenants/{tenant.tenant_id}/api-keys", {}, status=201)
    environment = {"PATH": os.environ["PATH"], **installation.environment(made["api_key"])}
    examples = dict(EXAMPLE.findall((CLIENT / "README.md").read_text()))

    def output(name: str, text: str) -> str:
        file = program / f"{name}.mjs"
        file.write_text(text)
        run = subprocess.run(
            [NODE, file], cwd=program, env=environment, capture_output=True, text=True, check=False
        )
        assert not run.stderr
        return run.stdout

    assert output("first", examples["first"]) == "hello, world\n"
    assert output("local", examples["local"]) == "hello, world\n"
    assert (program / "copy.txt").read_text() == "a report"
    with Client(installation.base_url, made["api_key"]) as client:
        client.local.decrypt_file(program / "report.pqk", program / "python.txt")
        assert (program / "python.txt").read_text() == "a report"
        (program / "large").write_bytes(bytes(range(256)) * 3000)
        client.local.encrypt_file(program / "large", program / "large.pqk", algorithm="X-Wing")
    reading = (
        'import { Local } from "@pqkeep/client/local";'
        'import { decryptFile, fromEnvironment } from "@pqkeep/client/node";'
        'await decryptFile(new Local(fromEnvironment()), "large.pqk", "large.out");'
    )
    assert output("reading", reading) == ""
    assert (program / "large.out").read_bytes() == (program / "large").read_bytes()
