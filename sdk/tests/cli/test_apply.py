"""``pqkeep apply`` and ``pqkeep export-config``: the same file, the same end."""

from __future__ import annotations

import json
import signal
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
import yaml  # type: ignore[import-untyped]
from sdk.tests.fault_proxy import FaultProxy, Seen, answered, forwarded

from pqkeep import Client
from pqkeep.cli.failures import CHANGES

if TYPE_CHECKING:
    import socket

    from sdk.tests.cli.conftest import Command, Ended
    from tests.fixtures.installation import Installation

Run = Callable[..., "Ended"]


def tenant(name: str, **more: Any) -> dict[str, Any]:
    """Return the declaration of a tenant with an entry of each kind."""
    return {
        "name": name,
        "plan": "enterprise",
        "requests_per_minute": 5000,
        "credential": "configuration",
        "api_keys": [
            {"name": "configuration", "scopes": [{"operations": ["manage-keys"]}]},
            {
                "name": "worker",
                "scopes": [{"operations": ["use"], "keyrings": ["payments"]}],
                "expires_at": "2036-01-01T01:00:00+01:00",
                "allowed_addresses": ["127.0.0.0/8", "10.0.0.0/24"],
            },
        ],
        "keyrings": [
            {
                "name": "payments",
                "labels": {"team": "payments"},
                "purposes": ["encrypt", "decrypt"],
                "rotation_days": 90,
                "keys": ["ML-KEM-768"],
            },
        ],
        "workload_issuers": [
            {
                "name": "github",
                "url": "https://token.actions.githubusercontent.com",
                "audience": "https://pqkeep.example.com",
                "algorithms": ["RS256"],
            },
        ],
        "workload_roles": [
            {
                "name": "deploy",
                "issuer": "github",
                "claims": {"repository": "acme/shop"},
                "scopes": [{"operations": ["sign"]}],
            },
        ],
        "members": [{"email": f"Owner@{uuid4()}.example", "role": "owner"}],
        **more,
    }


def declared(*tenants: Mapping[str, Any]) -> bytes:
    """Return a file."""
    return bytes(yaml.safe_dump({"version": 1, "tenants": list(tenants)}), "utf-8")


@pytest.fixture
def run(operator_command: Command) -> Run:
    """Run a command as the operator, with the folder ``secrets``."""

    def command(name: str, *arguments: str, stdin: bytes = b"") -> Ended:
        if name == "apply":
            arguments = ("-f", "-", *arguments)
        return operator_command(name, "--secrets", "secrets", *arguments, stdin=stdin)

    return command


def names(folder: Path) -> set[str]:
    """Return the names of files."""
    return {file.name for file in folder.iterdir()}


def test_two_tenants_from_nothing_and_back(
    run: Run, operator: Client, operator_command: Command, base_url: str
) -> None:
    """A file makes two tenants, once; drift is shown and mended; an export changes nothing."""
    first, second = (f"Acme {uuid4()}" for _ in range(2))
    wanted = tenant(first), tenant(second)
    file = declared(*wanted)
    shown = run("apply", "--dry-run", stdin=file)
    assert shown.status == CHANGES
    assert f"+++ {first} / keyrings / payments (file)\n" in shown.out.decode()
    assert not operator.tenants.list(name=first)

    made = run("apply", stdin=file)
    assert (made.status, made.out) == (0, shown.out)
    secrets = operator_command.directory / "secrets"
    assert {oct(file.stat().st_mode & 0o777) for file in secrets.iterdir()} == {"0o600"}
    key = (secrets / f"{first}.worker.api-key").read_text().strip()
    with Client(base_url, key) as worker:
        assert worker.api_keys.own().name == "worker"
    assert key.encode() not in made.out
    assert key not in made.err

    again = run("apply", stdin=file)
    assert (again.status, again.out) == (0, b"")

    (of_first,) = operator.tenants.list(name=first)
    operator.tenants.update(of_first.id, requests_per_minute=4000)
    operator.api_keys.create(of_first.id, name="stray")
    manager = (secrets / f"{first}.configuration.api-key").read_text().strip()
    with Client(base_url, manager) as client:
        client.keyrings.update("payments", rotation_days=1)
    drift = run("apply", "--dry-run", stdin=file)
    assert drift.status == CHANGES
    for line in ("-requests_per_minute: 4000", "+requests_per_minute: 5000", "-rotation_days: 1"):
        assert line in drift.out.decode().splitlines()
    assert "stray" not in drift.out.decode()

    pruned = run("apply", "--prune", stdin=file)
    assert pruned.status == 0
    assert "-name: stray" in pruned.out.decode().splitlines()
    active = [
        key.name
        for key in operator.api_keys.list(of_first.id, details=True)
        if key.status == "active"
    ]
    assert sorted(map(str, active)) == ["configuration", "worker"]

    exported = run("export-config", "--tenant", first.upper(), "--tenant", second)
    assert exported.status == 0
    assert key.encode() not in exported.out
    found = yaml.safe_load(exported.out)["tenants"][0]
    assert found["keyrings"][-1]["rotation_days"] == 90
    same = run("apply", "--dry-run", "--prune", stdin=exported.out)
    assert (same.status, same.out) == (0, b"")


def killed(process: Callable[[], subprocess.Popen[bytes]], number: int, *, is_sent: bool) -> Any:
    """Return a fault that kills a process at its change of this number, sent or not."""
    changes = 0

    def fault(proxy: FaultProxy, client: socket.socket, seen: Seen) -> None:
        nonlocal changes
        changes += not seen.line.startswith("GET ")
        if changes == number and not seen.line.startswith("GET "):
            if is_sent:
                proxy.ask(seen)
            process().send_signal(signal.SIGKILL)
            return
        proxy.faults.appendleft(fault)
        forwarded(proxy, client, seen)

    return fault


def apply_killed(
    command: Command, proxy: FaultProxy, file: Path, number: int, *, is_sent: bool
) -> bool:
    """Apply a file, and kill the command at a change. Return False if the command ended before."""
    started: list[subprocess.Popen[bytes]] = []
    proxy.faults.clear()
    proxy.faults.append(killed(lambda: started[0], number, is_sent=is_sent))
    started.append(
        command.as_(PQKEEP_URL=proxy.url).start(
            "apply", "-f", str(file), "--secrets", "secrets", stdout=subprocess.DEVNULL
        )
    )
    with started[0] as process:
        process.communicate()
    proxy.faults.clear()
    assert process.returncode in {0, -signal.SIGKILL}
    return process.returncode != 0


def require_same_end(command: Command, operator: Client, file: Path, tenants: int) -> None:
    """Require that a last run leaves what an uninterrupted one would leave."""
    ended = command("apply", "-f", str(file), "--secrets", "secrets")
    assert ended.status == 0, ended.err
    again = command("apply", "-f", str(file), "--secrets", "secrets", "--dry-run", "--prune")
    assert (again.status, again.out) == (0, b""), again.out
    for one in yaml.safe_load(file.read_bytes())["tenants"]:
        (found,) = operator.tenants.list(name=one["name"])
        keys = operator.api_keys.list(found.id, details=True)
        assert sorted(str(key.name) for key in keys if key.status == "active") == [
            "configuration",
            "worker",
        ]
    secrets = names(command.directory / "secrets")
    assert len(secrets) == 3 * tenants, secrets


@pytest.mark.parametrize(
    "number",
    [2, *(pytest.param(number, marks=pytest.mark.campaign) for number in (1, *range(3, 22)))],
)
@pytest.mark.parametrize("when", ["after", pytest.param("before", marks=pytest.mark.campaign)])
def test_a_run_that_was_killed_is_finished_by_the_next(
    operator_command: Command, operator: Client, proxy: FaultProxy, number: int, when: str
) -> None:
    """If a run is killed at any change, the next run finishes it.

    Each kill is before or after the service made the change.
    """
    file = operator_command.directory / "two.yaml"
    file.write_bytes(declared(tenant(f"Acme {uuid4()}"), tenant(f"Acme {uuid4()}")))
    apply_killed(operator_command, proxy, file, number, is_sent=when == "after")
    require_same_end(operator_command, operator, file, 2)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("installation", ["sqlite", "postgresql"], indirect=True, scope="session")
def test_twenty_tenants_by_runs_that_are_all_killed(
    operator_command: Command, operator: Client, proxy: FaultProxy
) -> None:
    """Twenty tenants come from runs that are killed at their 19th change; the export is the same."""
    file = operator_command.directory / "twenty.yaml"
    file.write_bytes(declared(*(tenant(f"Acme {uuid4()}") for _ in range(20))))
    runs = 1
    while apply_killed(operator_command, proxy, file, 19, is_sent=bool(runs % 2)):
        runs += 1
        assert runs < 200
    assert runs > 5
    require_same_end(operator_command, operator, file, 20)
    exported = operator_command("export-config", "--secrets", "secrets")
    assert exported.status == 0, exported.err
    same = operator_command(
        "apply", "-f", "-", "--secrets", "secrets", "--dry-run", stdin=exported.out
    )
    assert (same.status, same.out) == (0, b"")


@pytest.mark.campaign
def test_two_runs_at_once(operator_command: Command, operator: Client) -> None:
    """Two runs of the same file at once do no harm: every name is there once."""
    file = operator_command.directory / "two.yaml"
    file.write_bytes(declared(tenant(f"Acme {uuid4()}"), tenant(f"Acme {uuid4()}")))
    arguments = ("apply", "-f", str(file), "--secrets", "secrets")
    both = [operator_command.start(*arguments) for _ in range(2)]
    for process in both:
        process.communicate()
    require_same_end(operator_command, operator, file, 2)


def test_a_suspended_tenant(run: Run, operator: Client) -> None:
    """Apply suspends a tenant after all its other changes, and resumes a tenant before them."""
    wanted = tenant(f"Acme {uuid4()}", status="suspended")
    assert run("apply", stdin=declared(wanted)).status == 0
    (found,) = operator.tenants.list(name=wanted["name"])
    assert found.status == "suspended"
    assert run("apply", "--dry-run", stdin=declared(wanted)).out == b""
    wanted |= {"status": "active"}
    assert run("apply", stdin=declared(wanted)).status == 0
    assert run("apply", "--dry-run", stdin=declared(wanted)).out == b""


def test_what_only_people_change_is_named(run: Run, installation: Installation) -> None:
    """Apply counts rules and webhooks if the API key may read them, and does not change them."""
    wanted = tenant(f"Acme {uuid4()}")
    wanted["api_keys"][0]["scopes"] = "everything"
    file = declared(wanted)
    assert "cannot be in a file" not in run("apply", stdin=file).err
    tenants = installation.operator().get("/tenants", name=wanted["name"])["tenants"]
    owner = installation.person(tenants[0]["id"])
    for name in ("first", "second"):
        rule = {"algorithms": ["Kyber768"]}
        assert owner.ask_proven("PUT", f"/rules/algorithms/{name}", rule).is_success
    note = f"2 rules of {wanted['name']} cannot be in a file: owners and admins change them"
    assert note in run("apply", "--dry-run", stdin=file).err
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    owner.post_proven("/webhooks", hook, status=201)
    shown = run("apply", "--dry-run", stdin=file)
    note = f"2 rules and 1 webhook of {wanted['name']} cannot be in a file"
    assert note in shown.err
    assert (shown.status, shown.out) == (0, b"")
    assert note in run("export-config", "--tenant", wanted["name"]).err


def test_a_change_of_scopes_makes_a_new_api_key(
    run: Run, operator: Client, operator_command: Command
) -> None:
    """An API key with other scopes is a new one; the old one works until --prune revokes it."""
    name = f"Acme {uuid4()}"
    wanted: dict[str, Any] = {
        "name": name,
        "api_keys": [{"name": "worker", "scopes": [{"operations": ["use"]}]}],
    }
    assert run("apply", stdin=declared(wanted)).status == 0
    file = operator_command.directory / "secrets" / f"{name}.worker.api-key"
    before = file.read_text()
    wanted["api_keys"][0]["scopes"] = "everything"
    assert run("apply", stdin=declared(wanted)).status == 0
    assert file.read_text() != before
    (found,) = operator.tenants.list(name=name)
    keys = operator.api_keys.list(found.id)
    assert [key.status for key in keys] == ["active", "active"]
    assert run("apply", "--prune", stdin=declared(wanted)).status == 0
    assert [key.status for key in operator.api_keys.list(found.id)] == ["revoked", "active"]


def test_a_program_as_the_store(operator_command: Command, tmp_path: Path) -> None:
    """A program gets secrets on its standard input, and is asked for them."""
    program = tmp_path / "store"
    program.write_text(
        '#!/bin/sh\nfile="$0.$2.$3"\n'
        'if [ "$1" = put ]; then cat > "$file"; else [ -e "$file" ] && cat "$file"; fi\n'
    )
    program.chmod(0o700)
    file = declared(tenant(f"Acme {uuid4()}"))
    arguments = ("apply", "-f", "-", "--secrets-command", str(program))
    ended = operator_command(*arguments, stdin=file)
    assert ended.status == 0, ended.err
    assert len(list(tmp_path.glob("store.*.api-key"))) == 2
    again = operator_command(*arguments, stdin=file)
    assert (again.status, again.out) == (0, b"")


def test_gateway_settings(run: Run, operator: Client, operator_command: Command) -> None:
    """Identity providers and the audit sink go between marks of the gateway's settings file."""
    settings = operator_command.directory / "gateway.toml"
    settings.write_text("# mine\nport = 1\n\n[smtp]\nhost = 'mail'\n")
    provider = {
        "name": "acme",
        "issuer": "https://login.acme.example",
        "client_id": 'a"\n[x]\n',
        "client_secret_file": "acme-secret",
        "roles": {"every one": "viewer"},
    }
    wanted = {
        "version": 1,
        "tenants": [{"name": f"Acme {uuid4()}", "identity_providers": [provider]}],
        "audit_sink": {"url": "file:///var/log/pqkeep/audit.jsonl"},
    }
    file = yaml.safe_dump(wanted).encode()
    assert run("apply", stdin=file).status == 2
    arguments = ("--gateway-settings", "gateway.toml")
    assert run("apply", *arguments, stdin=file).status == 0
    (found,) = operator.tenants.list(name=wanted["tenants"][0]["name"])  # type: ignore[index] # it is a list
    written = tomllib.loads(settings.read_text())
    assert written["single_sign_on"] == [{**provider, "tenant": found.id}]
    assert written["audit_sink"] == "file:///var/log/pqkeep/audit.jsonl"
    assert (written["port"], written["smtp"]) == (1, {"host": "mail"})
    again = run("apply", *arguments, "--dry-run", stdin=file)
    assert (again.status, again.out) == (0, b"")
    exported = run("export-config", *arguments, "--tenant", found.name)
    same = run("apply", *arguments, "--dry-run", stdin=exported.out)
    assert (same.status, same.out) == (0, b"")
    assert yaml.safe_load(exported.out)["audit_sink"] == wanted["audit_sink"]


def test_a_tenant_applies_its_own_part(command: Command, tenant: Client) -> None:
    """A tenant's API key manages its own keyrings; everything else is refused, and nothing breaks."""
    own = tenant.api_keys.own().tenant_id
    name = tenant.tenants.get(own).name
    part: dict[str, Any] = {"name": name, "keyrings": [{"name": "mine", "keys": ["X-Wing"]}]}
    for _ in range(2):
        ended = command("apply", "-f", "-", stdin=declared(part))
        assert ended.status == 0, ended.err
    assert ended.out == b""
    assert tenant.keys.active("X-Wing", keyring="mine").key_version == 1
    part |= {"plan": "free", "members": []}
    assert command("apply", "-f", "-", stdin=declared(part)).status == 5
    other = command("apply", "-f", "-", "--dry-run", stdin=declared(part | {"name": "Another"}))
    assert (other.status, other.out) == (2, b"")
    assert "does not belong to the tenant Another" in other.err


def test_a_credential_that_may_not_do_everything(run: Run, operator: Client) -> None:
    """A refusal halfway is named, and the next run with a better file goes on from there."""
    name = f"Acme {uuid4()}"
    wanted = tenant(name)
    wanted["api_keys"][0]["scopes"] = [{"operations": ["manage-key"]}]
    ended = run("apply", stdin=declared(wanted))
    assert ended.status == 1
    assert f"create {name} / api_keys / configuration: scopes" in ended.err
    assert "did you mean manage-keys?" in ended.err
    wanted["api_keys"][0]["scopes"] = [{"operations": ["list-keyrings", "list-keys"]}]
    ended = run("apply", stdin=declared(wanted))
    assert ended.status == 5
    assert "scope" in ended.err
    wanted["api_keys"][0]["scopes"] = [{"operations": ["manage-keys"]}]
    assert run("apply", stdin=declared(wanted)).status == 0
    assert run("apply", "--dry-run", stdin=declared(wanted)).out == b""


HOSTILE = "\x1b]0;owned\x07../../etc/passwd\n+name: trusted\u202e"


@pytest.mark.threat("hostile-configuration")
@pytest.mark.parametrize(
    ("tenants", "status"),
    [
        ([{"id": str(UUID(int=1)), "name": HOSTILE, "plan": "\x1b[2J", "status": "active"}], 0),
        ([{"id": "-x/../../y", "name": "a", "plan": "free", "status": "active"}], 1),
        ([{"id": 7, "name": "a", "plan": "free", "status": "active"}], 1),
        ([{"id": "a", "name": "a", "plan": ["free"], "status": "active"}], 1),
        (["a"], 1),
    ],
    ids=["control characters", "a path as id", "no id", "a list", "a text"],
)
def test_a_hostile_service(nobody: Command, proxy: FaultProxy, tenants: Any, status: int) -> None:
    """Names of a service cannot control the terminal or leave the folder; other forms are refused."""
    own = json.dumps({"error": {"error_code": "ERR_FORBIDDEN_001", "message": "no"}}).encode()
    listed = json.dumps({"data": {"tenants": tenants, "total": 1}}).encode()
    keys = json.dumps({"data": {"api_keys": [], "total": 0}}).encode()
    proxy.faults.extend([answered(403, own), answered(200, listed), answered(200, keys)])
    file = declared({"name": HOSTILE, "plan": "free", "api_keys": []})
    hostile = nobody.as_(PQKEEP_URL=proxy.url, PQKEEP_API_KEY="pqk_x")
    ended = hostile("apply", "-f", "-", "--dry-run", stdin=file)
    assert ended.status == (CHANGES if status == 0 else status), ended.err
    shown = ended.out.decode() + ended.err
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert "\n+name: trusted" not in shown


@pytest.mark.threat("hostile-configuration")
def test_secrets_stay_in_their_folder(tmp_path: Path) -> None:
    """No tenant and no name can make a path outside the folder, or share a file."""
    from pqkeep.cli.secret_stores import Folder, Owner  # noqa: PLC0415 - loads with the command

    folder = tmp_path / "secrets"
    store = Folder(folder)
    odd = ["..", "../x", "/etc/passwd", "a.b", "a", "A" * 255, "\n", ".", "é", "a/b.c"]
    odd.append(sha256(b"A" * 255).hexdigest())
    for number, tenant_name in enumerate(odd):
        for name in ("b.api-key", "../b", "x@y.invitation"):
            owner = Owner(f"../{number}", tenant_name)
            store.expect(owner, name)
            assert store.is_missing(owner, name)
            store.put(owner, name, f"{number}-{len(name)}")
            assert store.get(owner, name) == f"{number}-{len(name)}"
    assert len(names(folder)) == 3 * len(odd)
    assert names(tmp_path) == {"secrets"}


@pytest.mark.threat("hostile-configuration")
def test_a_link_in_the_folder_is_replaced(tmp_path: Path) -> None:
    """A secret and its note replace symbolic links with their names, and write to no target."""
    from pqkeep.cli.secret_stores import Folder, Owner  # noqa: PLC0415 - loads with the command

    folder, target, owner = tmp_path / "secrets", tmp_path / "target", Owner("1", "Acme")
    store = Folder(folder)
    store.expect(owner, "a.api-key")
    (note,) = folder.iterdir()
    store.put(owner, "a.api-key", "first")
    (secret,) = folder.iterdir()
    target.write_text("unchanged")
    secret.unlink()
    for path in (note, secret):
        path.symlink_to(target)
    store.expect(owner, "a.api-key")
    store.put(owner, "a.api-key", "second")
    assert target.read_text() == "unchanged"
    assert not secret.is_symlink()
    assert store.get(owner, "a.api-key") == "second"


def test_a_folder_that_others_can_change_is_refused(run: Run, operator_command: Command) -> None:
    """Secrets are not written where other users could replace them."""
    folder = operator_command.directory / "secrets"
    folder.mkdir()
    folder.chmod(0o777)
    ended = run("apply", stdin=declared({"name": "x"}))
    assert ended.status == 2
    assert "chmod 0700" in ended.err


@pytest.mark.campaign
def test_colours_are_for_terminals(operator_command: Command, terminal: Any) -> None:
    """On a terminal the diff is coloured, and elsewhere it is not."""
    file = operator_command.directory / "one.yaml"
    file.write_bytes(declared({"name": f"Acme {uuid4()}"}))
    status, shown = terminal(operator_command, "apply", "-f", str(file), "--dry-run").end()
    assert status == CHANGES
    assert "\x1b[32m+name" in shown
    assert b"\x1b" not in operator_command("apply", "-f", str(file), "--dry-run").out
