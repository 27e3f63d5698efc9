"""Several shards on one host: one command makes the shards, and one runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from tests.e2e.test_two_users import folder
from tests.fixtures import processes, two_users
from tests.fixtures.caller import Caller
from tests.fixtures.installation import running
from tests.fixtures.two_users import GATEWAY, KEY_SERVICE, pqkeepd
from tests.patience import PATIENCE
from tests.shards.test_two_shards import is_readable, use

from pqkeep_server.initialise import Layout
from pqkeep_server.settings_file import edited

__all__ = ["folder"]


@dataclass
class Host:
    """A server at an address, which may respond 503."""

    url: str
    operator_key: str
    clients: ExitStack = field(default_factory=ExitStack)

    def caller(self, credential: str, tenant_id: str = "") -> Caller:
        """Return a caller with a credential."""
        client = httpx2.Client(
            base_url=self.url,
            headers={"X-API-Key": credential},
            timeout=PATIENCE,
            trust_env=False,
        )
        return Caller(self.clients.enter_context(client), tenant_id)

    def new_tenant(self, shard: str) -> Caller:
        """Make a tenant with a key in a shard, as soon as possible."""
        operator = self.caller(self.operator_key)
        body = {"name": f"tenant {uuid4()}", "plan": "enterprise_plus", "shard": shard}
        until(lambda: operator.ask("POST", "/tenants", body).status_code in {201, 409})
        listed = operator.get("/tenants", name=body["name"])["tenants"]
        tenant = str(listed[0]["id"])
        key = operator.post(f"/tenants/{tenant}/api-keys", status=201)["api_key"]
        caller = self.caller(key, tenant)
        generated = {"algorithm": "Kyber768", "if_absent": True}
        until(lambda: caller.ask("POST", "/kms/keys/generate", generated).status_code in {200, 201})
        return caller


def until(condition: Callable[[], object]) -> None:
    """Wait for something."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_command_runs_several_shards_to_try(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Pqkeepd dev makes missing shards, and tenants use the shard where they are."""
    with running(tmp_path_factory.mktemp("dev"), shards=2) as found:
        host = Host(found.base_url, found.ready["operator_key"])
        with host.clients:
            for shard in ("default", "shard-2"):
                tenant = host.new_tenant(shard)
                assert is_readable(tenant, use(tenant))
    assert Layout(found.data).shards == ("default", "shard-2")


@contextmanager
def started(layout: Layout, credential: str) -> Iterator[tuple[Host, subprocess.Popen[bytes]]]:
    """Run an installation."""
    port, management = processes.free_port(), processes.free_port()
    text = layout.gateway_settings.read_text()
    changes = {"port": port, "management_address": f"{processes.HOST}:{management}"}
    layout.gateway_settings.write_text(edited(text, changes))
    host = Host(f"http://{processes.HOST}:{port}", credential)
    output = layout.directory.parent / "output"
    command: list[str | Path] = [*two_users.pqkeepd_program(), "start", "--data", layout.directory]
    with processes.running(command, output) as process, host.clients:
        processes.wait_until(lambda: processes.is_listening(port), process, output)
        yield host, process


def key_service_of(process: subprocess.Popen[bytes], layout: Layout) -> int:
    """Return the process id of a shard's key service."""
    found = [
        pid
        for pid in processes.children_that_run("pqkeep_keyservice", process.pid)
        if str(layout.key_service_settings).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return found[0] if found else 0


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_one_command_runs_several_shards(folder: Path) -> None:
    """Each key service is restarted alone; shards are added and removed without a full restart."""
    made = pqkeepd("init", "--data", folder / "shards", "--shards", "2", *two_users.IDS)
    assert made.returncode == 0, made.stderr
    (credential,) = re.findall(r"pqo_\w+", made.stdout)
    layout, second = Layout(folder / "shards"), Layout(folder / "shards", "shard-2")
    assert f"{layout.root_key}, {second.root_key}" in made.stdout
    with started(layout, credential) as (host, process):
        tenants = [host.new_tenant(shard) for shard in ("default", "shard-2")]
        encrypted = [use(tenant) for tenant in tenants]
        before = {
            name: key_service_of(process, Layout(layout.directory, name)) for name in layout.shards
        }
        assert all(
            Path(f"/proc/{pid}").stat().st_uid in {0, KEY_SERVICE} for pid in before.values()
        )
        os.kill(before["shard-2"], signal.SIGKILL)
        assert is_readable(tenants[0], encrypted[0])
        until(lambda: tenants[1].ask("POST", "/kem/decrypt", encrypted[1]).status_code == 200)
        assert key_service_of(process, layout) == before["default"]
        added = pqkeepd("shard", "add", "c", "--data", layout.directory)
        assert added.returncode == 0, added.stderr
        process.send_signal(signal.SIGHUP)
        until(lambda: key_service_of(process, Layout(layout.directory, "c")))
        # one gateway that keeps the rate limits in its memory is not renewed, but started again
        os.kill(processes.children_by_module(process.pid)["pqkeep_gateway"], signal.SIGTERM)
        third = host.new_tenant("c")
        assert is_readable(third, use(third))
        for tenant, each in zip(tenants, encrypted, strict=True):
            assert is_readable(tenant, each)
        moved = pqkeepd(
            "shard", "move", third.tenant_id, "--to", "shard-2", "--data", layout.directory
        )
        assert moved.returncode == 0, moved.stderr
        for name in layout.shards:
            for path in Layout(layout.directory, name).key_service.rglob("*"):
                assert path.lstat().st_uid == KEY_SERVICE
                assert path.lstat().st_mode & 0o077 == 0
        third_shard = Layout(layout.directory, "c")
        drained = pqkeepd("shard", "drain", "c", "--data", layout.directory)
        assert drained.returncode == 0, drained.stderr
        remove = ("shard", "remove", "c", "--leave-records", "--data", layout.directory)
        until(lambda: pqkeepd(*remove).returncode == 0)  # when its log has its events
        assert key_service_of(process, third_shard)
        process.send_signal(signal.SIGHUP)
        until(lambda: not key_service_of(process, third_shard))
        assert is_readable(tenants[0], encrypted[0])
        assert third_shard.removed_settings.stat().st_uid == KEY_SERVICE
        assert layout.gateway_settings.stat().st_uid == GATEWAY
