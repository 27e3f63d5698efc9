"""The runbooks that restore an installation, by their own commands, as root on one of two users.

``make campaigns`` runs them. ``pqkeepd start`` takes the place of the service manager.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.docs.runbooks import Shell, diagnosis, scripts
from tests.e2e.test_two_users import folder as folder  # noqa: PLC0414 - a fixture
from tests.fixtures import processes
from tests.fixtures.caller import Caller
from tests.fixtures.certificate import new_certificate
from tests.fixtures.two_users import GATEWAY, IDS, PATHS, initialised, pqkeepd_program
from tests.patience import PATIENCE

import pqkeep_keyservice
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

OK, UNAUTHORIZED = 200, 401
NOT_LOCKED = "the memory of the key service is not locked"
"""The only fault that pqkeepd doctor may find: a container may lock little memory."""
KEM = {"algorithm": "Kyber768"}
TEXT = {"plaintext": "AAAA"}
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@dataclass
class Site:
    """A host with an installation that serves TLS, its operator, and a place for backups."""

    layout: Layout
    credential: str
    url: str
    tls: ssl.SSLContext
    places: dict[str, str]
    shell: Shell
    folder: Path
    clients: ExitStack = field(default_factory=ExitStack)

    def caller(self, credential: str) -> Caller:
        """Return a caller with a credential."""
        client = httpx2.Client(
            base_url=self.url,
            headers={"X-API-Key": credential},
            verify=self.tls,
            trust_env=False,
            timeout=PATIENCE,
        )
        return Caller(self.clients.enter_context(client), "")

    def follow(self, script: str) -> str:
        """Type a snippet of the page; return its output."""
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.defpath}",
            "PQKEEP_URL": self.url,
            "PQKEEP_API_KEY": self.credential,
            "CURL_CA_BUNDLE": str(self.folder / "certificate.pem"),
        }
        return self.shell(script, environment)

    @contextmanager
    def serving(self, path: str = PATHS) -> Iterator[None]:
        """Run the installation for a block, perhaps by another version of pqkeep."""

        def is_served() -> bool:
            with suppress(httpx2.HTTPError):
                health = httpx2.get(f"{self.url}/healthz", verify=self.tls, timeout=PATIENCE)
                return health.status_code == OK
            return False

        with self._started(path) as (process, output):
            processes.wait_until(is_served, process, output)
            yield

    def refusal(self, path: str = PATHS) -> str:
        """Start the installation, which must end with status 78; return its output."""
        with self._started(path) as (process, output):
            assert process.wait(PATIENCE) == os.EX_CONFIG, output.read_text()
            return output.read_text()

    @contextmanager
    def _started(self, path: str) -> Iterator[tuple[Any, Path]]:
        output = self.folder / "output"
        output.unlink(missing_ok=True)
        words: list[str | Path] = [*pqkeepd_program(path), "start", "--data", self.layout.directory]
        with processes.running(words, output) as process:
            yield process, output

    def revoke(self, tenant: str, version: int) -> None:
        """Revoke an API key as in the runbook."""
        places = {**self.places, r"\bTENANT\b": tenant, r"\bVERSION\b": str(version)}
        (revoke,) = scripts("An API key is stolen", places)
        self.follow(revoke)


@dataclass(frozen=True)
class Before:
    """What an installation has before a backup."""

    tenant: str
    api_key: str
    revoked_later: str
    sealed: Mapping[str, Any]
    audit_keys: int


@pytest.fixture
def site(folder: Path, tmp_path: Path, shell: Shell) -> Iterator[Site]:
    """Install pqkeep for two users, with a certificate, a management address and a recovery key."""
    tmp_path.chmod(0o711)
    made = Path(folder, tmp_path.name)
    made.mkdir(mode=0o711)
    layout, credential = initialised(made / "data")
    new_certificate(made, expires=timedelta(days=90))
    settings = layout.gateway_settings
    port = processes.free_port()
    changed = {
        "port": port,
        "tls_certificate": "certificate.pem",
        "tls_key": "key.pem",
        "management_address": f"{processes.HOST}:{processes.free_port()}",
    }
    settings.write_text(edited(settings.read_text(), changed))
    program = made / "bin" / "pqkeepd"
    program.parent.mkdir()
    *words, code = pqkeepd_program()
    program.write_text(f"#!/bin/sh\nexec {' '.join(words)} '{code}' \"$@\"\n")
    program.chmod(0o755)
    (made / "root.key").write_bytes((layout.key_service / "root.key").read_bytes())
    (made / "root.key").chmod(0o400)
    site = Site(
        layout,
        credential,
        f"https://{processes.HOST}:{port}",
        ssl.create_default_context(cafile=made / "certificate.pem"),
        {
            r"\bDIR\b": str(layout.directory),
            r"\bFILE\b": "backup-of-today",
            r" root\.key": f" {made / 'root.key'}",
            r"^(pqkeepd restore .*)$": rf"\1 {' '.join(IDS)}",
        },
        shell,
        made,
    )
    put_certificate(site)
    with site.clients:
        yield site


def put_certificate(site: Site) -> None:
    """Put the files in place that the settings name, for the gateway's user."""
    for name in ("certificate.pem", "key.pem"):
        path = site.layout.gateway / name
        shutil.copy(site.folder / name, path)
        os.chown(path, GATEWAY, GATEWAY)
        path.chmod(0o400)


def backed_up(site: Site) -> Before:
    """Fill a running installation, make a backup by the page, and change something later."""
    operator = site.caller(site.credential)
    tenant = operator.post("/tenants", {"name": "one", "plan": "enterprise_plus"}, status=201)["id"]
    first, second = (
        operator.post(f"/tenants/{tenant}/api-keys", status=201)["api_key"] for _ in range(2)
    )
    caller = site.caller(first)
    caller.post("/kms/keys/generate", KEM, status=201)
    sealed = caller.post("/kem/encrypt", TEXT)
    before = Before(tenant, first, second, sealed, len(caller.get("/audit/keys")["keys"]))
    site.follow("pqkeepd recovery-key create --private recovery.private --public recovery.public\n")
    (backup,) = scripts("A backup is missing", site.places)
    (newest,) = re.findall(r"\b\d+\.\d+\b", site.follow(backup))
    site.places[r"\bNUMBER\b"] = newest
    site.revoke(tenant, 2)
    assert site.caller(second).ask("GET", "/kms/keys").status_code == UNAUTHORIZED
    return before


def restored(site: Site, before: Before) -> None:
    """Follow the section about a lost database to its end, and check what it promises."""
    old = tomllib.loads(site.layout.gateway_settings.read_text())
    move_away, restore, start = scripts("A database is lost", site.places)
    site.follow(move_away)
    said = site.follow(restore)
    left_out = {"port", "tls_certificate", "tls_key", "management_address"}
    for name in left_out:
        assert name in said
    settings = site.layout.gateway_settings
    put_back = {name: old[name] for name in left_out}
    settings.write_text(edited(settings.read_text(), put_back))
    put_certificate(site)
    check, doctor = start.splitlines()
    assert "valid settings of the gateway" in site.follow(check)
    with site.serving():
        found = site.follow(diagnosis(doctor))
        faults = re.findall(r"^(.*): wrong\n  (.*)", found, re.MULTILINE)
        assert all(NOT_LOCKED in fault for _, fault in faults), found
        caller = site.caller(before.api_key)
        opened = caller.post("/kem/decrypt", {**before.sealed, **KEM})
        assert opened["plaintext"] == TEXT["plaintext"]
        assert len(caller.get("/audit/keys")["keys"]) == before.audit_keys + 1
        assert site.caller(before.revoked_later).ask("GET", "/kms/keys").is_success
        site.revoke(before.tenant, 2)
        assert site.caller(before.revoked_later).ask("GET", "/kms/keys").status_code == UNAUTHORIZED
        rotated = caller.post("/kms/keys/rotate", KEM, status=201)
        assert rotated["key_version"] > 1_000_000


@pytest.mark.parametrize(
    "lost", ["keyservice/keys.sqlite3", "gateway/accounts.sqlite3"], ids=["keys", "accounts"]
)
def test_a_database_is_lost(site: Site, lost: str) -> None:
    """Without one database nothing starts. Both of the backup are restored, and serve old data."""
    with site.serving():
        before = backed_up(site)
    for path in site.layout.directory.glob(f"{lost}*"):
        path.unlink()
    assert "there is no database" in site.refusal()
    restored(site, before)


FIRST = "keys_0001"
NEXT = "keys_0002"
MIGRATION = '''"""A migration of a next version."""

from alembic import op

revision, down_revision = "{next}", "{first}"


def upgrade() -> None:
    """Add a column, and perhaps fail."""
    op.execute("ALTER TABLE keys ADD COLUMN next INTEGER")
    {last}
'''


def next_version(folder: Path, last: str) -> str:
    """Make a next version of pqkeep, of which the schema has one more column; return its path."""
    version = Path(folder, "next")
    package = version / "pqkeep_keyservice"
    shutil.copytree(Path(pqkeep_keyservice.__file__).parent, package)
    schema = package / "storage/schema.py"
    text = schema.read_text()
    assert f'NEWEST = "{FIRST}"' in text
    schema.write_text(text.replace(f'NEWEST = "{FIRST}"', f'NEWEST = "{NEXT}"'))
    migration = package / "storage/migrations/versions/0002_next.py"
    migration.write_text(MIGRATION.format(next=NEXT, first=FIRST, last=last))
    return f"{version}{os.pathsep}{PATHS}"


def test_a_failed_migration(site: Site) -> None:
    """A migration that fails changes nothing: the old version starts again, and serves."""
    with site.serving():
        before = backed_up(site)
    new = next_version(site.folder, 'op.execute("ALTER TABLE missing ADD COLUMN next INTEGER")')
    assert "cannot start" in site.refusal(new)
    with site.serving():
        opened = site.caller(before.api_key).post("/kem/decrypt", {**before.sealed, **KEM})
        assert opened["plaintext"] == TEXT["plaintext"]


def test_a_failed_upgrade(site: Site) -> None:
    """The old version refuses the new version's database, and serves the backup from before."""
    with site.serving():
        before = backed_up(site)
    with site.serving(next_version(site.folder, "")):
        caller = site.caller(before.api_key)
        assert caller.ask("POST", "/kem/decrypt", {**before.sealed, **KEM}).is_success
    assert "another version of pqkeep" in site.refusal()
    restored(site, before)
