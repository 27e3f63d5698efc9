"""Each runbook of docs/runbooks.md runs in a test, with its own commands, on a real installation.

``make campaigns`` runs them. Commands of a service manager are left out.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from tests.docs.runbooks import (
    Shell,
    diagnosis,
    has_commands,
    inline,
    places_of,
    requests,
    scripts,
    sections,
)
from tests.fixtures.installation import Installation
from tests.fixtures.mail_server import MailServer
from tests.fixtures.processes import HOST, free_port
from tests.fixtures.redis import running_valkey
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import read_pepper
from pqkeep_protocol.link import Role
from pqkeep_server.link_certificates import issue
from pqkeep_server.settings_file import edited

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(900)

RUNBOOKS: Mapping[str, str] = {
    "First look": "tests/docs/test_runbooks.py::test_a_root_key_is_lost",
    "A part is not ready": "tests/watchers/test_alerts.py::test_a_key_service_that_hangs",
    "Requests fail or are slow": "tests/watchers/test_alerts.py::test_slow_operations",
    "The gateway is lost": "tests/e2e/test_two_users.py::",
    "The gateway was taken over": "tests/docs/test_runbooks_of_two_users.py::test_a_database_is_lost",
    "The key service is lost": "tests/standby/test_fail_over.py::",
    "A database is lost": "tests/docs/test_runbooks_of_two_users.py::test_a_database_is_lost",
    "Valkey is lost": "tests/docs/test_runbooks.py::test_valkey_is_lost",
    "A root key is lost": "tests/docs/test_runbooks.py::test_a_root_key_is_lost",
    "A root key is stolen": "tests/backup/test_root_key_sources.py::",
    "The pepper is lost": "tests/docs/test_runbooks.py::test_a_new_pepper",
    "A restore drill": "tests/docs/test_runbooks.py::test_a_drill",
    "A backup is missing": "tests/docs/test_runbooks.py::test_a_drill",
    "Rotate everything": "tests/docs/test_runbooks.py::test_rotation",
    "An API key is stolen": "tests/docs/test_runbooks.py::test_credentials",
    "The only owner is locked out": "tests/docs/test_runbooks.py::test_the_only_owner",
    "Credentials are refused": "tests/docs/test_runbooks.py::test_clients_in_the_log",
    "A client runs away": "tests/docs/test_runbooks.py::test_clients_in_the_log",
    "A tenant reaches a limit": "tests/docs/test_runbooks.py::test_credentials",
    "Revoke an operator": "tests/docs/test_runbooks.py::test_credentials",
    "The audit log refused an event": "tests/watchers/test_alerts.py::test_events_and_mails_that_stay",
    "The audit log is behind": "tests/watchers/test_alerts.py::test_commits_that_fail",
    "A witness does not cosign": "tests/watchers/test_alerts.py::test_a_witness",
    "Mail is not delivered": "tests/docs/test_runbooks.py::test_mail_is_not_delivered",
    "A due change is not made": "tests/watchers/test_alerts.py::test_a_due_rotation",
    "A rule will deny operations": "tests/docs/test_runbooks.py::test_credentials",
    "A tenant's row was changed": "tests/docs/test_runbooks.py::test_a_changed_row",
    "The disk is full": "tests/faults/test_disk_full.py::",
    "A certificate expired": "tests/watchers/test_alerts.py::test_a_certificate",
    "Memory or descriptors run out": "tests/docs/test_runbooks.py::test_descriptors",
    "An upgrade failed": "tests/docs/test_runbooks_of_two_users.py::test_a_failed_upgrade",
    "A clock is wrong": "tests/watchers/test_alerts.py::test_a_wrong_clock",
}
"""Each section of the runbooks, with the test that causes its fault and follows its steps."""


def test_each_runbook_has_a_test() -> None:
    """Each section has a test in the table, and each of these tests exists."""
    assert list(sections()) == list(RUNBOOKS)
    for test in {*RUNBOOKS.values()}:
        file, name = test.split("::")
        assert f"def {name}" in (ROOT / file).read_text(), test


@pytest.mark.parametrize("title", [title for title in RUNBOOKS if has_commands(title)])
def test_the_tests_type_the_pages_commands(title: str) -> None:
    """A section's snippets, and the commands in its text, are taken from the page by its test."""
    source = (ROOT / RUNBOOKS[title].split("::")[0]).read_text()
    assert not "".join(scripts(title, {})).strip() or f'scripts("{title}"' in source
    assert not inline(title, {}) or f'inline("{title}"' in source
    assert not requests(title, {}) or f'"{title}"' in source.partition("requests(")[2]


def environment_of(installation: Installation) -> dict[str, str]:
    """Return the environment of an operator."""
    return installation.environment(installation.ready["operator_key"])


def status(url: str, api_key: str = "") -> int:
    """Return the status of a request, which may fail."""
    headers = {"X-API-Key": api_key} if api_key else {}
    return httpx2.get(url, headers=headers, timeout=PATIENCE, trust_env=False).status_code


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def back_up(installation: Installation, shell: Shell) -> dict[str, str]:
    """Make a backup as the page says; return the placeholders for a restore."""
    shell("pqkeepd recovery-key create --private recovery.private --public recovery.public\n", {})
    (script,) = scripts("A backup is missing", places_of(installation))
    (newest,) = re.findall(r"\b\d+\.\d+\b", shell(script, {}))
    root_key = f"--root-key {installation.data}/keyservice/root.key"
    return {
        **places_of(installation, FILE="backup-of-today", NUMBER=newest, NEWDIR="restored"),
        r"--root-key root.key": root_key,
    }


@pytest.mark.campaign
def test_a_drill(start: Callable[..., Installation], shell: Shell) -> None:
    """A backup is made and tried."""
    places = back_up(start(), shell)
    (drill,) = scripts("A restore drill", places)
    shell(drill, {})


@pytest.mark.campaign
def test_a_changed_row(start: Callable[..., Installation], shell: Shell) -> None:
    """Doctor names a tenant with a changed row, until the page's request has written it again."""
    installation = start(settings={})
    tenant = installation.new_tenant()
    accounts = installation.data / "gateway" / "accounts.sqlite3"
    with closing(sqlite3.connect(accounts, timeout=PATIENCE)) as database, database:
        database.execute("UPDATE tenants SET tier = 'free' WHERE name LIKE 'tenant %'")
    (doctor,) = inline("First look", places_of(installation))
    assert tenant.tenant_id in shell(diagnosis(doctor), {})
    ((method, path),) = requests(
        "A tenant's row was changed", places_of(installation, TENANT=tenant.tenant_id)
    )
    plan = {"plan": "enterprise_plus"}
    assert installation.operator().ask(method, path, plan).is_success
    assert tenant.tenant_id not in shell(diagnosis(doctor), {})


@pytest.mark.campaign
def test_the_only_owner(installation: Installation, shell: Shell, tmp_path: Path) -> None:
    """The operator makes a second owner, removes the first, and invites the first owner again."""
    tenant = installation.new_tenant()
    installation.person(tenant.tenant_id, email="only@example.org")
    (tmp_path / "operator.key").write_text(installation.ready["operator_key"])
    (tmp_path / "operator.key").chmod(0o400)
    team = {"tenant_id": tenant.tenant_id}
    (only,) = installation.operator().get("/team/members", **team)["members"]
    places = places_of(
        installation, OTHER="second@example.org", TENANT=tenant.tenant_id, MEMBER=only["id"]
    )
    invite, remove = scripts("The only owner is locked out", places)
    said = shell(invite, environment_of(installation))
    (token,) = set(re.findall(r"pqi_\w+", said))
    second = installation.caller(None, tenant.tenant_id)
    fields = {"token": token, "password": secrets.token_hex(16)}
    second.post("/auth/accept-invitation", fields, status=201)
    shell(remove, environment_of(installation))
    shell(f"pqkeepd operator add grace --data {installation.data}\n", {})
    (rotate,) = inline("The only owner is locked out", {**places, r"\bNAME\b": "grace"})
    assert re.findall(r"pqo_\w+", shell(rotate, {}))
    again = installation.person(tenant.tenant_id, email="only@example.org")
    assert {member["email"] for member in again.get("/team/members")["members"]} == {
        "second@example.org",
        "only@example.org",
    }


@pytest.mark.campaign
def test_credentials(installation: Installation, shell: Shell) -> None:
    """An API key is revoked, an operator removed, and a tenant's limits and rules are handled."""
    tenant = installation.new_tenant()
    shell(f"pqkeepd operator add ada --data {installation.data}\n", {})
    places = places_of(installation, NAME="ada", TENANT=tenant.tenant_id, VERSION="1")
    environment = environment_of(installation)
    ((method, path),) = requests("A tenant reaches a limit", places)
    assert tenant.ask(method, path).is_success
    for script in (
        *scripts("A tenant reaches a limit", places),
        *scripts("A rule will deny operations", places),
        *scripts("Revoke an operator", places),
    ):
        said = shell(script, environment)
    assert "ada" not in said
    for script in scripts("An API key is stolen", places):
        shell(script, environment)
    for method, path in (
        *requests("An API key is stolen", places),
        *requests("Revoke an operator", places),
    ):
        assert installation.operator().ask(method, path).is_success
    assert tenant.ask("GET", "/kms/keys").status_code == 401


@pytest.mark.campaign
def test_clients_in_the_log(start: Callable[..., Installation], shell: Shell) -> None:
    """The access log has the address and the tenant; the tenant is limited, suspended and back."""
    installation = start(settings={"access_log": True})
    tenant = installation.new_tenant()
    for _ in range(20):
        tenant.get("/kms/keys")
        installation.caller("pqk_" + "0" * 49).ask("GET", "/kms/keys")
    places = places_of(installation, TENANT=tenant.tenant_id, VERSION="1")
    (installation.data / "gateway.log").write_text(installation.output)
    environment = environment_of(installation)
    (refused,) = scripts("Credentials are refused", places)
    assert re.search(r'\b20 "source_address": *"127\.0\.0\.1"', shell(refused, environment))
    find, limit, end, back = scripts("A client runs away", places)
    assert tenant.tenant_id in shell(find, environment)
    shell(limit, environment)
    shell(end, environment)
    assert tenant.ask("GET", "/kms/keys").status_code in {401, 403}
    shell(back, environment)
    made = installation.operator().post(f"/tenants/{tenant.tenant_id}/api-keys", status=201)
    assert installation.caller(made["api_key"]).ask("GET", "/kms/keys").is_success


@pytest.mark.campaign
def test_descriptors(start: Callable[..., Installation], shell: Shell) -> None:
    """A process without descriptors is found, and serves again with a higher limit."""
    installation = start()
    pid = installation.children()["pqkeep_keyservice"]
    is_open = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (is_open, hard))
    places = {**places_of(installation, PID=str(pid)), "65536": str(min(hard, 65536))}
    memory, files = scripts("Memory or descriptors run out", places)
    assert "VmRSS" in shell(memory, {})
    assert shell(files, {}).split()[0] == str(is_open)
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == min(hard, 65536)
    os.kill(pid, signal.SIGKILL)  # as the kernel does without memory
    wait_for(lambda: status(f"{installation.base_url}/healthz") == 200)
    demo = installation.demo()
    demo.ask("POST", "/kms/keys/generate", {"algorithm": "Kyber768"})
    demo.post("/kem/encrypt", {"plaintext": "AAAA"})


@pytest.mark.campaign
def test_a_new_pepper(start: Callable[..., Installation], shell: Shell, tmp_path: Path) -> None:
    """The pepper of a backup is put back; without one, a tenant's keys are used again."""
    installation = start(settings={})
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    sealed = tenant.post("/kem/encrypt", {"plaintext": "AAAA"})
    installation.person(tenant.tenant_id, email="owner@example.org")
    shell(f"pqkeepd operator add ada --data {installation.data}\n", {})
    places = back_up(installation, shell)
    places |= places_of(installation, NAME="ada", TENANT=tenant.tenant_id, PLAN="enterprise_plus")
    restore, renew, rotate, give = scripts("The pepper is lost", places)
    pepper = installation.data / "gateway" / "pepper"
    before = pepper.read_bytes()
    pepper.unlink()
    assert tenant.ask("GET", "/kms/keys").is_success  # it is in memory
    shell(restore, {})
    assert pepper.read_bytes() == before
    installation.stop()
    shell(renew, {})
    settings = installation.data / "gateway" / "settings.toml"
    operator_key = json.loads((installation.data / "dev.json").read_text())["operator_key"]
    digest = read_pepper(pepper).digest(operator_key).hex()  # of the development's operator
    settings.write_text(edited(settings.read_text(), {"operator_digest": digest}))
    installation = start(data=installation.data)
    assert installation.caller(tenant.api_key).ask("GET", "/kms/keys").status_code == 401
    (credential,) = re.findall(r"pqo_\w+", shell(rotate, {}))
    shell(give, installation.environment(credential))
    renewed = installation.caller((tmp_path / "tenant.key").read_text().strip())
    opened = renewed.post("/kem/decrypt", {**sealed, "algorithm": "Kyber768"})
    assert opened["plaintext"] == "AAAA"
    (doctor,) = inline("The pepper is lost", places)
    assert tenant.tenant_id not in shell(diagnosis(doctor), {})


@pytest.mark.campaign
def test_valkey_is_lost(start: Callable[..., Installation], shell: Shell) -> None:
    """Without Valkey requests get 503; with an empty one they are served, revocations included."""
    port = free_port()
    with running_valkey(port) as address:
        installation = start(settings={"redis_url": f"redis://{address}"})
        kept, revoked = installation.new_tenant(), installation.new_tenant()
        operator = installation.operator()
        path = f"/tenants/{revoked.tenant_id}/api-keys/1"
        assert operator.ask("DELETE", path).is_success
    places = places_of(installation)
    (script,), (doctor,) = scripts("Valkey is lost", places), inline("Valkey is lost", places)
    keys = f"{installation.base_url}/api/v1/kms/keys"
    assert status(keys, kept.api_key) == 503
    wait_for(lambda: "rate_limits" in shell(diagnosis(doctor), {}))
    with running_valkey(port):
        shell(script, {})
        wait_for(lambda: status(keys, kept.api_key) != 503)
        assert status(keys, kept.api_key) == 200
        assert status(keys, revoked.api_key) == 401
    installation.stop()
    with running_valkey(free_port()) as address:  # on another machine
        settings = installation.data / "gateway" / "settings.toml"
        settings.write_text(edited(settings.read_text(), {"redis_url": f"redis://{address}"}))
        assert "valid settings of the gateway" in shell(script, {})
        keys = f"{start(data=installation.data).base_url}/api/v1/kms/keys"
        assert status(keys, kept.api_key) == 200
        assert status(keys, revoked.api_key) == 401


@pytest.mark.campaign
def test_a_root_key_is_lost(start: Callable[..., Installation], shell: Shell) -> None:
    """Doctor names the lost root key; the running key service gets a new one, which it starts with."""
    installation = start()
    demo = installation.demo()
    demo.ask("POST", "/kms/keys/generate", {"algorithm": "Kyber768"})
    sealed = demo.post("/kem/encrypt", {"plaintext": "AAAA"})
    (installation.data / "keyservice" / "root.key").unlink()
    places = places_of(installation)
    (doctor,), (rotate,) = inline("First look", places), inline("A root key is lost", places)
    assert inline("A root key is lost", {})[0] in scripted(
        shell(diagnosis(doctor), {}), installation
    )
    shell(rotate, {})
    installation.stop()
    restarted = start(data=installation.data)
    opened = restarted.demo().post("/kem/decrypt", {**sealed, "algorithm": "Kyber768"})
    assert opened["plaintext"] == "AAAA"


def scripted(said: str, installation: Installation) -> str:
    """Return an output with the page's placeholder for the data directory."""
    return said.replace(str(installation.data), "DIR")


@pytest.mark.campaign
def test_rotation(start: Callable[..., Installation], shell: Shell, tmp_path: Path) -> None:
    """Credentials, a tenant's keys, the root key, the recovery key and certificates are changed."""
    installation = start()
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    shell(f"pqkeepd operator add ada --data {installation.data}\n", {})
    hosts = [(Role.GATEWAY, HOST), (Role.KEY_SERVICE, HOST)]
    issue(tmp_path / "link", hosts, algorithm=None, days=90, renew=False)
    certificate = tmp_path / "link" / f"gateway-{HOST}" / "certificate.pem"
    before = certificate.read_bytes()
    own = places_of(installation, NAME="ada", ALGORITHM="Kyber768")
    places = {r"certificates DIR": "certificates link", **own}
    commands = inline("Rotate everything", places)
    operator, api_key, keys, root_key, recovery_key, certificates = commands
    (credential,) = re.findall(r"pqo_\w+", shell(operator, {}))
    (renewed,) = re.findall(r"pqk_\w+", shell(api_key, installation.environment(tenant.api_key)))
    assert tenant.ask("GET", "/kms/keys").status_code == 401
    shell(keys, installation.environment(renewed))
    shell(root_key, {})
    shell(recovery_key, {})
    (backup,) = scripts("A backup is missing", places)
    shell(backup, {})
    shell(certificates, {})
    assert certificate.read_bytes() != before
    installation.stop()
    restarted = start(data=installation.data)
    assert restarted.caller(credential).ask("GET", "/tenants").is_success
    found = restarted.caller(renewed).get("/kms/keys")["keys"]
    assert {key["key_version"] for key in found} == {1, 2}


@pytest.mark.campaign
def test_mail_is_not_delivered(
    start: Callable[..., Installation], shell: Shell, mail_server: MailServer
) -> None:
    """A mail server that is away is named in the log; corrected settings are checked, and mail goes."""
    smtp = {"host": HOST, "port": free_port(), "security": "none", "sender": "pqkeep@example.org"}
    public_url = "https://keep.example.org"
    installation = start(settings={"mailbox": None, "smtp": smtp, "public_url": public_url})
    tenant = installation.new_tenant()
    invitation = {"email": "ada@example.org", "role": "owner"}
    path = f"/tenants/{tenant.tenant_id}/invitations"
    installation.operator().post(path, invitation, status=201)
    wait_for(lambda: "mail delivery will be tried again" in installation.output)
    installation.stop()
    settings = installation.data / "gateway" / "settings.toml"
    mail_server.start()
    right = {"smtp": {**smtp, "port": mail_server.port}}
    settings.write_text(edited(settings.read_text(), right))
    (check,) = scripts("Mail is not delivered", places_of(installation))
    assert "valid settings of the gateway" in shell(check, {})
    accounts = installation.data / "gateway" / "accounts.sqlite3"
    with closing(sqlite3.connect(accounts)) as database, database:
        database.execute("UPDATE outgoing_mail SET next_attempt_at_us = 0")
    start(data=installation.data)
    mail_server.wait_for_messages(1)
