"""The Helm chart: what it renders, asked of the Kubernetes schemas and of the two processes."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.tools import needs

from pqkeep_gateway import config as gateway_config
from pqkeep_keyservice import config as key_service_config

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "pqkeep"
POSTGRESQL = (
    "gateway.database=postgresql://pqkeep_gateway@db.example.org/pqkeep_accounts",
    "keyservice.database=postgresql://pqkeep_keyservice@db.example.org/pqkeep_keys",
    "gateway.trustedProxies[0]=192.0.2.0/24",
    "gateway.publicUrl=https://keep.example.org",
    "storage.className=fast",
    "images.pullSecrets[0].name=registry",
    "monitors[0].namespaceSelector.matchLabels.name=monitoring",
    "allowedClients[0].podSelector.matchLabels.app=client",
)
CASES = [(), POSTGRESQL]
AS_JSON = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"


def _render(*values: str, kubernetes: str = "1.29.0") -> subprocess.CompletedProcess[str]:
    sets = [argument for value in values for argument in ("--set", value)]
    return subprocess.run(
        [needs("helm"), "template", "keep", str(CHART), "--kube-version", kubernetes, *sets],
        capture_output=True,
        text=True,
        check=False,
    )


def _objects(*values: str) -> dict[tuple[str, str], Any]:
    python = Path(needs("kubernetes-validate")).with_name("python")
    made = subprocess.run(
        [python, "-c", AS_JSON],
        input=_render(*values).stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    return {(each["kind"], each["metadata"]["name"]): each for each in json.loads(made.stdout)}


@pytest.mark.parametrize("values", CASES, ids=["default", "postgresql"])
@pytest.mark.parametrize("kubernetes", ["1.29.0", "1.37.0"])
def test_what_is_rendered_is_valid(
    kubernetes: str, values: tuple[str, ...], tmp_path: Path
) -> None:
    """Each object follows the schema of the oldest and of the newest version of Kubernetes."""
    rendered = _render(*values, kubernetes=kubernetes)
    assert rendered.returncode == 0, rendered.stderr
    (tmp_path / "all.yaml").write_text(rendered.stdout)
    said = subprocess.run(
        [needs("kubernetes-validate"), "--strict", "-k", kubernetes, str(tmp_path / "all.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("values", CASES, ids=["default", "postgresql"])
def test_the_processes_read_their_settings(values: tuple[str, ...], tmp_path: Path) -> None:
    """Both settings files are accepted, and each has the user and the socket of the other."""
    objects = _objects(*values)
    files = {}
    for name in ("gateway", "keyservice"):
        files[name] = tmp_path / f"{name}.toml"
        files[name].write_text(objects["ConfigMap", f"keep-{name}"]["data"]["settings.toml"])
    gateway = gateway_config.read(files["gateway"])
    key_service = key_service_config.read(files["keyservice"])
    assert gateway.key_service_socket == key_service.socket
    assert gateway.tls_certificate or gateway.trusted_proxies, "it would not start"
    pod = objects["StatefulSet", "keep"]["spec"]["template"]["spec"]
    users = {each["name"]: each["securityContext"]["runAsUser"] for each in pod["containers"]}
    assert users["gateway"] == key_service.gateway_uid


def test_each_process_sees_its_own_secrets_and_data() -> None:
    """But for the sockets' folder, no volume is in containers of both processes."""
    pod = _objects()["StatefulSet", "keep"]["spec"]["template"]["spec"]
    seen: dict[str, set[str]] = {"gateway": set(), "keyservice": set()}
    users: dict[str, set[int]] = {"gateway": set(), "keyservice": set()}
    for container in pod["containers"] + pod["initContainers"]:
        process = container["name"].removeprefix("prepare-")
        seen[process] |= {mount["name"] for mount in container["volumeMounts"]}
        users[process].add(container["securityContext"]["runAsUser"])
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["runAsNonRoot"]
    assert seen["gateway"] & seen["keyservice"] == {"run"}
    assert {len(ids) for ids in users.values()} == {1}
    assert not users["gateway"] & users["keyservice"]


def test_a_new_volume_gets_a_database_and_no_other_does(tmp_path: Path) -> None:
    """A volume's first start makes an empty database; where one was lost, none is made."""
    pod = _objects()["StatefulSet", "keep"]["spec"]["template"]["spec"]
    for container in pod["initContainers"]:
        root = tmp_path / container["name"]
        for folder in ("mnt/secret", "run/secrets/pqkeep", "var/lib/pqkeep"):
            (root / folder).mkdir(parents=True)
        script = container["args"][0]
        for path in ("/mnt/", "/run/", "/var/"):
            script = script.replace(f'"{path}', f'"{root}{path}')
        for _ in range(2):
            subprocess.run([sys.executable, "-I", "-c", script], check=True)
        (database,) = (root / "var/lib/pqkeep/data").iterdir()
        assert (database.suffix, database.read_bytes()) == (".sqlite3", b"")
        assert stat.S_IMODE(database.stat().st_mode) == 0o600
        database.unlink()
        subprocess.run([sys.executable, "-I", "-c", script], check=True)
        assert not database.exists()


def test_one_user_for_both_is_refused() -> None:
    """The chart renders nothing where both processes would have the same user id."""
    refused = _render("users.gateway=64002")
    assert refused.returncode != 0
    assert "must differ" in refused.stderr
