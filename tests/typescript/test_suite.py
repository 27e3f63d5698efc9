"""The TypeScript client passes the behaviour suite in Deno and in a browser.

``make interop`` builds it. ``tests/clients/test_languages.py`` runs the suite in Node.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.clients.driver import RUNNERS, Suite
from tests.fixtures.browser import Visit
from tests.fixtures.installation import Installation
from tests.typescript.description import CLIENT

BUILT = CLIENT / "build/suite"
MODULES = CLIENT / "node_modules"
NODE_RUNNER = Path(RUNNERS["typescript"][-1])
DENO = MODULES / ".bin/deno"
NOBLE = ("ciphers", "curves", "hashes", "post-quantum")
PAGE = "<!doctype html><meta charset=utf-8><script type=importmap>{}</script>{}"
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not NODE_RUNNER.exists(), reason="make interop builds it"),
]


def test_deno(installation: Installation, tmp_path: Path) -> None:
    """Each case of the suite passes in Deno."""
    with Suite(installation, tmp_path) as suite:
        run: list[str | Path] = [DENO, "run", "--quiet", "--node-modules-dir=manual", "--allow-all"]
        assert suite.failures(suite.run([*run, NODE_RUNNER])) == {}


def test_browser(installation: Installation, tmp_path: Path, visit: Visit) -> None:
    """Each case of the suite that needs no files passes in Chromium, from the service's origin."""
    with Suite(installation, tmp_path) as suite:
        for file in (*(BUILT / "src").rglob("*.js"), *(BUILT / "test/suite").rglob("*.js")):
            suite.pages[f"/build/{file.relative_to(BUILT)}"] = (
                "text/javascript",
                file.read_bytes(),
            )
        for name in NOBLE:
            folder = MODULES / "@noble" / name
            for file in folder.rglob("*.js"):
                path = f"/noble/{name}/{file.relative_to(folder)}"
                suite.pages[path] = ("text/javascript", file.read_bytes())
        imports = {f"@noble/{name}/": f"/noble/{name}/" for name in NOBLE}
        script = '<script type=module src="/build/test/suite/browser.js"></script>'
        page = PAGE.format(json.dumps({"imports": imports}), script)
        suite.pages["/page"] = ("text/html", page.encode())
        suite.pages["/favicon.ico"] = ("image/png", b"")
        suite.pages["/cases.json"] = ("application/json", json.dumps(suite.input).encode())
        visitor = visit(suite.url, is_fresh=True)
        visitor.expected += [
            "on the console: Failed to load resource",
            "a request to another host: .*/api/v1/kms/keys",  # a redirect that is not followed
        ]
        lines = visitor.open("/page").evaluate("() => pqkeepLines")
        assert (found := suite.failures(map(json.loads, lines), skips={"files"})) == {}, found
