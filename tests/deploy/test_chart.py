"""The Helm chart's output, checked by Kubernetes schemas and by both processes."""

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
CLUSTER = (
    "cluster.enabled=true",
    "gateway.database=postgresql://pqkeep_gateway@db.example.org/pqkeep_accounts",
    "gateway.redisUrl=rediss://pqkeep@limits.example.org:6379/0",
    "cluster.shards[0].name=default",
    "cluster.shards[0].replicas=2",
    "cluster.shards[0].database=postgresql://pqkeep_keyservice@db.example.org/pqkeep_keys",
    "cluster.shards[0].secret=keys-default",
    "cluster.shards[1].name=b",
    "cluster.shards[1].replicas=2",
    "cluster.shards[1].database=postgresql://pqkeep_keyservice@db.example.org/pqkeep_keys_b",
    "cluster.shards[1].secret=keys-b",
)
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


@pytest.mark.parametrize("values", [*CASES, CLUSTER], ids=["default", "postgresql", "several pods"])
@pytest.mark.parametrize("kubernetes", ["1.29.0", "1.37.0"])
def test_what_is_rendered_is_valid(
    kubernetes: str, values: tuple[str, ...], tmp_path: Path
) -> None:
    """Each object is valid in the oldest and in the newest version of Kubernetes."""
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
    """Both processes accept their settings files, which name the other's user and socket."""
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
    """Only the sockets' folder is mounted in containers of both processes."""
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
    """A volume's first start makes an empty database; a lost database is not replaced."""
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
    """The chart renders nothing with one user id for both processes."""
    refused = _render("users.gateway=64002")
    assert refused.returncode != 0
    assert "must differ" in refused.stderr


def test_several_pods_read_their_settings(tmp_path: Path) -> None:
    """Gateways name each key service's pod by its shard, and each pod listens there."""
    objects = _objects(*CLUSTER)
    file = tmp_path / "settings.toml"
    file.write_text(objects["ConfigMap", "keep-gateway"]["data"]["settings.toml"])
    gateway = gateway_config.read(file)
    assert gateway.link is not None
    assert (gateway.link.name, gateway.key_service_socket) == ("keyservice", None)
    assert gateway.redis_url is not None
    assert gateway.redis_password_file is not None
    assert set(gateway.shards) == {"default", "b"}
    for shard, told in gateway.shards.items():
        name = f"keep-keyservice-{shard}"
        file.write_text(objects["ConfigMap", name]["data"]["settings.toml"])
        key_service = key_service_config.read(file)
        assert (key_service.shard, key_service.socket) == (shard, None)
        assert key_service.link is not None
        pods = objects["StatefulSet", name]["spec"]
        assert objects["Service", name]["spec"]["clusterIP"] == "None"
        assert [(each.host, each.port) for each in told.addresses] == [
            (f"{name}-{number}.{name}", key_service.link.listen.port)
            for number in range(pods["replicas"])
        ]


def test_several_pods_have_their_own_secrets() -> None:
    """No secret is in two kinds of pods, and the public service leads only to gateways."""
    objects = _objects(*CLUSTER)
    pods = {
        name: each["spec"]["template"]
        for (kind, name), each in objects.items()
        if kind in ("Deployment", "StatefulSet")
    }
    secrets = {
        name: {
            volume["secret"]["secretName"]
            for volume in pod["spec"]["volumes"]
            if "secret" in volume
        }
        for name, pod in pods.items()
    }
    assert secrets == {
        "keep-gateway": {"pqkeep-gateway"},
        "keep-keyservice-default": {"keys-default"},
        "keep-keyservice-b": {"keys-b"},
    }
    selectors = {
        name: each["spec"]["selector"].items()
        for (kind, name), each in objects.items()
        if kind == "Service"
    }
    reached = {
        service: {
            name for name, pod in pods.items() if selector <= pod["metadata"]["labels"].items()
        }
        for service, selector in selectors.items()
    }
    assert reached.pop("keep") == {"keep-gateway"}
    assert reached == {name: {name} for name in reached}
    users = {
        name: {each["securityContext"]["runAsUser"] for each in pod["spec"]["containers"]}
        for name, pod in pods.items()
    }
    assert not users["keep-gateway"] & users["keep-keyservice-default"]


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("gateway.redisUrl=", "gateway.redisUrl"),
        ("gateway.database=/var/lib/pqkeep/data/a", "gateway.database"),
        ("cluster.shards[1].database=keys.sqlite3", "the database of b"),
    ],
)
def test_several_pods_need_what_they_share(missing: str, why: str) -> None:
    """For several pods, the chart needs a server for each database and Valkey."""
    refused = _render(*CLUSTER, missing)
    assert refused.returncode != 0
    assert why in refused.stderr
