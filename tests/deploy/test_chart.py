"""The Helm chart's output, checked by Kubernetes schemas and by both processes."""

from __future__ import annotations

import copy
import json
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
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
BACKUPS = (
    "backup.enabled=true",
    "backup.recoveryPublicKey=public half",
    "backup.claim=backups",
    "drill.enabled=true",
    "drill.secret=drill",
)
UPLOADS = (
    *BACKUPS[:2],
    "backup.upload.image=rclone:1",
    "backup.upload.args[0]=copy",
    "backup.upload.secret=store",
    "drill.enabled=true",
    "drill.secret=drill",
    "drill.download.image=rclone:1",
    "drill.download.secret=store",
)
MONITORED = (
    "monitoring.rules=true",
    "monitoring.serviceMonitor=true",
    "monitoring.labels.release=prometheus",
    "monitors[0].namespaceSelector.matchLabels.name=monitoring",
)
ROUTED = (
    "ingress.enabled=true",
    "ingress.passthrough=true",
    "ingress.hosts[0]=keep.example.org",
    "ingress.tlsSecret=controller",
    "route.enabled=true",
    "route.parents[0].name=public",
    "route.hostnames[0]=keep.example.org",
)
EXTRAS = (
    "gateway.extraEnv[0].name=TZ",
    "gateway.extraEnv[0].value=UTC",
    "keyservice.extraVolumes[0].name=token",
    "keyservice.extraVolumes[0].secret.secretName=token",
    "keyservice.extraVolumeMounts[0].name=token",
    "keyservice.extraVolumeMounts[0].mountPath=/run/token",
    "nodeSelector.disk=fast",
    "tolerations[0].key=dedicated",
    "tolerations[0].operator=Exists",
)
VALUES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "postgresql": POSTGRESQL,
    "backups to a volume": (*BACKUPS, *EXTRAS),
    "proxy": (
        *POSTGRESQL,
        *UPLOADS,
        "route.enabled=true",
        "route.kind=HTTPRoute",
        "route.parents[0].name=public",
        "admin.enabled=false",
    ),
    "watched": (*ROUTED, *MONITORED, *BACKUPS),
    "several pods": CLUSTER,
    "several pods with all": (
        *CLUSTER,
        *UPLOADS,
        *MONITORED,
        *ROUTED,
        *EXTRAS,
        "cluster.autoscaling.enabled=true",
        "allowedClients[0].podSelector.matchLabels.app=client",
    ),
}
ONE_POD = ("default", "postgresql")
FOREIGN = ("monitoring.coreos.com/", "\napiVersion: gateway.networking.k8s.io/")
"""API groups of other projects."""
AS_JSON = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)"


def _render(
    *values: str,
    kubernetes: str = "1.29.0",
    release: str = "keep",
    of_file: Any = None,
    chart: Path = CHART,
    only: str = "",
) -> subprocess.CompletedProcess[str]:
    """Render the chart. ``of_file`` are values of a file, which may have any character."""
    sets = [argument for value in values for argument in ("--set", value)]
    files = [] if of_file is None else ["--values", "-"]
    shown = ["--show-only", only] if only else []
    return subprocess.run(
        [
            *(needs("helm"), "template", release, str(chart)),
            *("--kube-version", kubernetes, *files, *shown, *sets),
        ],
        input=json.dumps(of_file),
        capture_output=True,
        text=True,
        check=False,
    )


def _objects(*values: str, of_file: Any = None) -> dict[tuple[str, str], Any]:
    python = Path(needs("kubernetes-validate")).with_name("python")
    made = subprocess.run(
        [python, "-c", AS_JSON],
        input=_render(*values, of_file=of_file).stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    objects = [each for each in json.loads(made.stdout) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def _pods(objects: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """Return the metadata and spec of every pod, by the name of its owner."""
    found = {}
    for (kind, name), each in objects.items():
        match kind:
            case "Deployment" | "StatefulSet":
                found[name] = each["spec"]["template"]
            case "CronJob":
                found[name] = each["spec"]["jobTemplate"]["spec"]["template"]
            case "Pod":
                found[name] = each
            case _:
                pass
    return found


def _containers(pod: Any) -> list[Any]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("kubernetes", ["1.29.0", "1.37.0"])
def test_what_is_rendered_is_valid(kubernetes: str, name: str, tmp_path: Path) -> None:
    """Each object is valid in the oldest and in the newest version of Kubernetes.

    Objects of Prometheus' operator and of the Gateway API have no such schema. The types of these
    projects read them.
    """
    rendered = _render(*VALUES[name], kubernetes=kubernetes)
    assert rendered.returncode == 0, rendered.stderr
    documents = [f"---\n{text}" for text in rendered.stdout.split("\n---\n")]
    foreign = [
        text for text in documents if f"\napiVersion: {FOREIGN[0]}" in text or FOREIGN[1] in text
    ]
    (tmp_path / "all.yaml").write_text("\n".join(text for text in documents if text not in foreign))
    said = subprocess.run(
        [needs("kubernetes-validate"), "--strict", "-k", kubernetes, str(tmp_path / "all.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    read = subprocess.run(
        [needs("crds")],
        input="\n".join(foreign),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (read.returncode, read.stdout) == (0, f"{len(foreign)}\n"), read.stdout + read.stderr


def test_a_misspelt_field_of_another_project_is_noticed() -> None:
    """The types of other projects refuse a field that they do not have."""
    monitor = "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nspec:\n  endpoint: []\n"
    read = subprocess.run(
        [needs("crds")], input=monitor, capture_output=True, text=True, check=False
    )
    assert read.returncode == 1


@pytest.mark.parametrize("name", ONE_POD)
def test_the_processes_read_their_settings(name: str, tmp_path: Path) -> None:
    """Both processes accept their settings files, which name the other's user and socket."""
    objects = _objects(*VALUES[name])
    files = {}
    for process in ("gateway", "keyservice"):
        files[process] = tmp_path / f"{process}.toml"
        files[process].write_text(objects["ConfigMap", f"keep-{process}"]["data"]["settings.toml"])
    gateway = gateway_config.read(files["gateway"])
    key_service = key_service_config.read(files["keyservice"])
    assert gateway.key_service_socket == key_service.socket
    assert gateway.tls_certificate or gateway.trusted_proxies, "it would not start"
    pod = objects["StatefulSet", "keep"]["spec"]["template"]["spec"]
    users = {each["name"]: each["securityContext"]["runAsUser"] for each in pod["containers"]}
    assert users["gateway"] == key_service.gateway_uid


def test_each_process_sees_its_own_secrets_and_data() -> None:
    """Only the sockets' folder is mounted in containers of both processes."""
    pod = _objects()["StatefulSet", "keep"]["spec"]["template"]
    seen: dict[str, set[str]] = {"gateway": set(), "keyservice": set()}
    users: dict[str, set[int]] = {"gateway": set(), "keyservice": set()}
    for container in _containers(pod):
        process = container["name"].removeprefix("prepare-").removesuffix("-admin")
        seen[process] |= {mount["name"] for mount in container["volumeMounts"]}
        users[process].add(container["securityContext"]["runAsUser"])
    assert seen["gateway"] & seen["keyservice"] == {"run"}
    assert {len(ids) for ids in users.values()} == {1}
    assert not users["gateway"] & users["keyservice"]


@pytest.mark.parametrize("name", VALUES)
def test_every_container_is_restricted(name: str) -> None:
    """Every pod fits the Pod Security Standard "restricted", has a limit, and no account's token."""
    pods = _pods(_objects(*VALUES[name]))
    assert pods
    for pod in pods.values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()
        assert not spec.get("shareProcessNamespace")
        assert all("hostPath" not in volume for volume in spec.get("volumes", ()))
        for container in _containers(pod):
            context = container["securityContext"]
            assert context["runAsUser"] in {64001, 64002}
            assert (context["runAsNonRoot"], context["readOnlyRootFilesystem"]) == (True, True)
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert all("secretKeyRef" not in str(each) for each in container.get("env", ()))


def _selected(policy: Any, pod: Any) -> bool:
    labels = pod["metadata"]["labels"]
    selector = policy["spec"]["podSelector"]
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


@pytest.mark.parametrize("name", VALUES)
def test_a_network_policy_closes_every_pod(name: str) -> None:
    """Key services admit only gateways. Gateways admit clients and monitors, and jobs admit none."""
    objects = _objects(*VALUES[name])
    policies = [each for (kind, _), each in objects.items() if kind == "NetworkPolicy"]
    gateways = {
        "app.kubernetes.io/name": "pqkeep",
        "app.kubernetes.io/instance": "keep",
        "app.kubernetes.io/component": "gateway",
    }
    for pod in _pods(objects).values():
        (policy,) = (policy for policy in policies if _selected(policy, pod))
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        if component == "gateway":
            assert ports <= {"api", "management"}
        elif component.startswith("keyservice-"):
            (rule,) = policy["spec"]["ingress"]
            assert rule["from"] == [{"podSelector": {"matchLabels": gateways}}]
            assert ports == {"link"}
        else:
            assert policy["spec"]["ingress"] == []


@pytest.mark.parametrize("name", VALUES)
def test_a_service_leads_to_no_pod_of_a_job(name: str) -> None:
    """Services select the pods of gateways and key services, and no pods of jobs or tests."""
    objects = _objects(*VALUES[name])
    for pod_name, pod in _pods(objects).items():
        reached = {
            service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            for (kind, _), service in objects.items()
            if kind == "Service"
        }
        is_server = objects.keys() & {("Deployment", pod_name), ("StatefulSet", pod_name)}
        assert (True in reached) is bool(is_server)


@pytest.mark.parametrize("values", [BACKUPS, UPLOADS, (*CLUSTER, *UPLOADS)])
def test_jobs_see_only_what_they_need(values: tuple[str, ...]) -> None:
    """Programs that copy backups see no key, and a drill sees no volume of the installation."""
    pods = _pods(_objects(*values))
    seen = {
        (job, container["name"]): {mount["name"] for mount in container["volumeMounts"]}
        for job in ("keep-backup", "keep-drill")
        for container in _containers(pods[job])
    }
    for name in (("keep-backup", "upload"), ("keep-drill", "download")):
        assert seen.get(name, {"backup", "tmp", "transfer"}) == {"backup", "tmp", "transfer"}
    assert seen["keep-drill", "drill"] == {"backup", "drill", "scratch"}
    assert "gateway-data" not in seen["keep-backup", "backup"]
    secrets = {
        volume["secret"]["secretName"]: [item["key"] for item in volume["secret"].get("items", ())]
        for volume in pods["keep-backup"]["spec"]["volumes"]
        if "secret" in volume
    }
    secrets.pop("store", None)
    assert secrets.pop("pqkeep-gateway")[0] == "pepper"
    assert all(keys in (["root.key"], ["root.key", "passwords"]) for keys in secrets.values())


def test_a_new_volume_gets_a_database_and_no_other_does(tmp_path: Path) -> None:
    """A volume's first start makes an empty database; a lost database is not replaced."""
    pod = _objects()["StatefulSet", "keep"]["spec"]["template"]["spec"]
    for container in pod["initContainers"]:
        root = tmp_path / container["name"]
        volume = root / container["name"].replace("prepare-", "volumes/")
        volume.mkdir(parents=True)
        script = container["args"][0].replace('"/volumes', f'"{root}/volumes')
        for _ in range(2):
            subprocess.run([sys.executable, "-I", "-c", script], check=True)
        (database,) = (volume / "data").iterdir()
        assert (database.suffix, database.read_bytes()) == (".sqlite3", b"")
        assert stat.S_IMODE(database.stat().st_mode) == 0o600
        database.unlink()
        subprocess.run([sys.executable, "-I", "-c", script], check=True)
        assert not database.exists()


def test_the_rules_are_those_of_the_repository() -> None:
    """The PrometheusRule has every rule of alerts.yml, and one for each job."""
    rules = _objects(*VALUES["watched"])["PrometheusRule", "keep"]["spec"]["groups"]
    alerts = yaml.safe_load((CHART.parents[1] / "observability" / "alerts.yml").read_text())
    jobs = [rule["alert"] for rule in rules.pop()["rules"]]
    assert rules == alerts["groups"]
    assert jobs == ["PqkeepBackupJobOld", "PqkeepDrillJobOld"]
    several = _objects(*CLUSTER, *UPLOADS, *MONITORED)["PrometheusRule", "keep"]["spec"]["groups"]
    left_out = [rule for rule in rules[0]["rules"] if rule not in several[0]["rules"]]
    assert left_out
    assert all("pqkeep_last_backup" in rule["expr"] for rule in left_out)


def test_autoscaling_decides_the_number_of_gateways() -> None:
    """With an autoscaler the Deployment has no number of its own."""
    objects = _objects(*CLUSTER, "cluster.autoscaling.enabled=true")
    assert "replicas" not in objects["Deployment", "keep-gateway"]["spec"]
    target = objects["HorizontalPodAutoscaler", "keep-gateway"]["spec"]["scaleTargetRef"]
    assert objects[target["kind"], target["name"]]


def test_a_certificate_is_mounted_as_the_secret_has_it() -> None:
    """The settings name the mounted secret, which Kubernetes replaces, and no copy of it."""
    objects = _objects()
    settings = tomllib.loads(objects["ConfigMap", "keep-gateway"]["data"]["settings.toml"])
    pod = objects["StatefulSet", "keep"]["spec"]["template"]["spec"]
    (container,) = (each for each in pod["containers"] if each["name"] == "gateway")
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "tls")
    assert "subPath" not in mount  # Kubernetes does not replace those
    assert settings["tls_key"] == f"{mount['mountPath']}/tls.key"
    (volume,) = (each for each in pod["volumes"] if each["name"] == "tls")
    assert volume["secret"]["secretName"] == "pqkeep-tls"


def _each_name(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every name in values."""
    match values:
        case dict():
            for name, value in values.items():
                yield (*path, name)
                yield from _each_name(value, (*path, name))
        case list():
            for number, value in enumerate(values):
                yield from _each_name(value, (*path, number))
        case _:
            pass


def _misspelt(values: Any, path: tuple[str | int, ...]) -> Any:
    changed = copy.deepcopy(values)
    holder = changed
    for name in path[:-1]:
        holder = holder[name]
    name = str(path[-1])
    holder[name[:-1] or "x"] = holder.pop(name)
    return changed


FREE = ("annotations", "labels", "matchLabels", "nodeSelector")
"""Names below these are the user's."""


def test_a_misspelt_name_is_refused_at_each_level() -> None:
    """The values' schema refuses every name that lacks its last letter."""
    import jsonschema  # noqa: PLC0415 - takes longer than all other imports of the tests

    schema = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema.is_valid(values)
    assert schema.is_valid({**values, "global": {"of": "a parent chart"}})
    values["gateway"]["extraEnv"] = [{"name": "TZ", "value": "UTC"}]
    values["gateway"]["extraVolumeMounts"] = [{"name": "a", "mountPath": "/a", "readOnly": True}]
    values["monitors"] = [{"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {}}]
    values["route"]["parents"] = [{"name": "public", "namespace": "a", "sectionName": "https"}]
    values["images"]["pullSecrets"] = [{"name": "registry"}]
    values["tolerations"] = [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]
    values["affinity"] = {"podAffinity": {}}
    assert schema.is_valid(values)
    paths = [path for path in _each_name(values) if not set(FREE) & set(path[:-1])]
    assert len(paths) > 100
    accepted = [path for path in paths if schema.is_valid(_misspelt(values, path))]
    assert accepted == []


@pytest.mark.parametrize(
    "value",
    [
        "gatewy.publicUrl=https://keep.example.org",
        "gateway.publicURL=https://keep.example.org",
        "cluster.autoscaling.max=3",
        "backup.upload.img=rclone",
        "gateway.resources.limit.memory=1Gi",
        "gateway.publicUrl=http://keep.example.org",
        "gateway.database=accounts.sqlite3",
        "service.port=0",
        "cluster.shards[0].named=default",
        "drill.scratch=much",
        "route.kind=TCPRoute",
    ],
)
def test_helm_refuses_values(value: str) -> None:
    """Helm itself refuses a misspelt name and an impossible value, and names it."""
    refused = _render(value)
    assert refused.returncode != 0
    assert "values don't meet the specifications" in refused.stderr


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (("backup.enabled=true", "backup.claim=b"), "backup.recoveryPublicKey is missing"),
        (BACKUPS[:2], "name a volume claim"),
        (("drill.enabled=true",), "drill.secret is missing"),
        (("drill.enabled=true", "drill.secret=d"), "drill: name a volume claim"),
        (("ingress.enabled=true",), "gateway.trustedProxies"),
        (("ingress.enabled=true", "ingress.passthrough=true"), "ingress.hosts is empty"),
        (("route.enabled=true",), "route.parents is empty"),
        (("route.enabled=true", "route.kind=HTTPRoute"), "needs gateway.trustedProxies"),
        ((*POSTGRESQL, "route.enabled=true"), "must be an HTTPRoute"),
        ((*CLUSTER, "cluster.shards[1].name=default"), "two shards have the same name"),
        ((*CLUSTER, "cluster.shards[0].name=first"), "one shard must be named default"),
    ],
)
def test_values_without_what_they_need_are_refused(values: tuple[str, ...], why: str) -> None:
    """The chart renders nothing that could not work, and names the missing value."""
    refused = _render(*values)
    assert refused.returncode != 0
    assert why in refused.stderr


BREAKS = ("\r", "\x85", "\u2028", "\u2029")
"""Line breaks of YAML beside the line feed."""
INJECTED = "kind: Secret"
NOTES = """\
apiVersion: v1
kind: ConfigMap
data:
  notes: |
    {{- tpl (.Files.Get "NOTES") . | nindent 4 }}
"""


@pytest.mark.parametrize("process", ["gateway", "keyservice"])
def test_settings_stay_one_text(process: str) -> None:
    """Settings that look like YAML, or like a template, become no object and no other key."""
    settings = f'# a\n---\n{INJECTED}\n# {{{{ fail "b" }}}}\nsettings.toml: c\n# d'
    objects = _objects(of_file={process: {"settings": settings}})
    assert objects.keys() == _objects().keys()
    data = objects["ConfigMap", f"keep-{process}"]["data"]
    assert data.keys() == {"settings.toml"}
    assert settings in data["settings.toml"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        *(({"gateway": {"settings": f"# a{mark}{INJECTED}"}}, "settings") for mark in BREAKS),
        *(({"keyservice": {"settings": f"# a{mark}{INJECTED}"}}, "settings") for mark in BREAKS),
        ({"gateway": {"database": f"/volumes/gateway/data/a\n{INJECTED}"}}, "database"),
        ({"gateway": {"database": "/volumes/gateway/data/$(id)"}}, "database"),
        ({"gateway": {"database": "/volumes/gateway/data/a'; id; '"}}, "database"),
        ({"keyservice": {"database": '/volumes/keyservice/data/a"b'}}, "database"),
        ({"backup": {"claim": f"a\n{INJECTED}"}}, "claim"),
        ({"backup": {"keep": "14; id"}}, "keep"),
        ({"drill": {"maxAgeHours": "1' && id"}}, "maxAgeHours"),
        ({"drill": {"scratch": f"1Gi\n{INJECTED}"}}, "scratch"),
        ({"storage": {"gateway": f"1Gi\n{INJECTED}"}}, "gateway"),
        ({"service": {"type": f"ClusterIP\n{INJECTED}"}}, "type"),
        ({"images": {"pullPolicy": f"Always\n{INJECTED}"}}, "pullPolicy"),
        ({"monitoring": {"interval": f"1s\n{INJECTED}"}}, "interval"),
        ({"route": {"apiVersion": f"v1\n{INJECTED}"}}, "apiVersion"),
        ({"cluster": {"shards": [{"name": "a]\n"}]}}, "name"),
    ],
)
def test_a_value_that_would_leave_its_place_is_refused(values: Any, named: str) -> None:
    """No value can break out of its YAML line, its setting, or its word in a shell command."""
    refused = _render(of_file=values)
    assert refused.returncode != 0
    assert "values don't meet the specifications" in refused.stderr
    assert named in refused.stderr


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ((), "https://keep.default.svc:443 (inside the cluster)"),
        (("gateway.trustedProxies[0]=192.0.2.0/24",), "http://keep.default.svc:443 (inside"),
        (ROUTED, "https://keep.example.org"),
        ((*ROUTED, "gateway.publicUrl=https://keys.example.org:8443"), "keys.example.org:8443"),
    ],
)
def test_the_notes_begin_with_the_address(
    values: tuple[str, ...], address: str, tmp_path: Path
) -> None:
    """The notes of an installation say at which address clients reach the gateway.

    Without a cluster Helm renders no notes, so a copy of the chart has them in an object.
    """
    chart = tmp_path / "pqkeep"
    shutil.copytree(CHART, chart)
    (chart / "templates/NOTES.txt").rename(chart / "NOTES")
    (chart / "templates/notes.yaml").write_text(NOTES)
    rendered = _render(*values, chart=chart, only="templates/notes.yaml")
    assert rendered.returncode == 0, rendered.stderr
    notes = yaml.safe_load(rendered.stdout)["data"]["notes"].splitlines()
    assert notes[0].endswith("Its address:")
    assert address in notes[1]


@pytest.mark.parametrize("release", ["a" * 46, "a" * 40])
def test_a_release_with_a_long_name_is_refused(release: str) -> None:
    """Kubernetes would refuse the names of jobs or stateful sets only after the installation."""
    refused = _render(*(CLUSTER if len(release) < 46 else ()), release=release)
    assert refused.returncode != 0
    assert "shorter name of the release" in refused.stderr
    assert _render(release="a" * 45).returncode == 0


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


def test_changed_settings_replace_every_pod() -> None:
    """The pods of both processes have the settings' hash, so that an upgrade restarts them."""

    def hashes(*values: str) -> dict[str, str]:
        pods = _pods(_objects(*CLUSTER, *values))
        return {
            name: pod["metadata"]["annotations"]["checksum/settings"]
            for name, pod in pods.items()
            if "annotations" in pod["metadata"] and "test" not in name
        }

    before, after = hashes(), hashes('keyservice.settings=log_level = "debug"')
    assert before.keys() == {"keep-gateway", "keep-keyservice-default", "keep-keyservice-b"}
    assert {name for name in before if before[name] != after[name]} == before.keys() - {
        "keep-gateway"
    }


@pytest.mark.parametrize(
    ("values", "file"),
    [
        ((), "/run/secrets/pqkeep-gateway/redis-sentinel-password"),
        (("gateway.redisSentinelPassword=false",), None),
    ],
)
def test_sentinels_have_a_password(
    values: tuple[str, ...], file: str | None, tmp_path: Path
) -> None:
    """An address with Sentinels needs the file with their password, unless the values say otherwise."""
    sentinels = "gateway.redisUrl=redis+sentinel://pqkeep@a.example\\,b.example/pqkeep"
    objects = _objects(*CLUSTER, sentinels, *values)
    settings = tmp_path / "settings.toml"
    settings.write_text(objects["ConfigMap", "keep-gateway"]["data"]["settings.toml"])
    found = gateway_config.read(settings).redis_sentinel_password_file
    assert found == (None if file is None else Path(file))


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
        "keep-gateway": {"pqkeep-gateway", "pqkeep-tls"},
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
        ("gateway.database=/volumes/gateway/data/a", "gateway.database"),
        ("cluster.shards[1].database=keys.sqlite3", "the database of b"),
    ],
)
def test_several_pods_need_what_they_share(missing: str, why: str) -> None:
    """For several pods, the chart needs a server for each database and Valkey."""
    refused = _render(*CLUSTER, missing)
    assert refused.returncode != 0
    assert why in refused.stderr
