"""The KMS plugin for Kubernetes, as API servers and attackers meet it: one process, and a gRPC client."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import signal
import socket
import stat
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from sdk.tests.cli.conftest import PROGRAM
from sdk.tests.fault_proxy import (
    FaultProxy,
    Seen,
    answered,
    forwarded,
    refused,
    reset_before,
    silence,
)
from tests.patience import PATIENCE

from pqkeep import Client, Key, NewApiKey, Scope
from pqkeep.cli import kms_server
from pqkeep.cli.failures import Refusal
from pqkeep.kubernetes_kms import ANNOTATION

MESSAGES = kms_server._messages()
DEK = bytes(range(32))
KEYRING = "kubernetes"
Sealed = dict[str, Any]


@dataclass
class Plugin:
    """A running plugin, its pqkeep behind a proxy, and its API key's file."""

    process: subprocess.Popen[bytes]
    channel: grpc.Channel
    path: Path
    proxy: FaultProxy
    api_key_file: Path
    log: Path
    owner: Client
    api_key: NewApiKey

    def send(self, method: str, data: bytes) -> bytes:
        """Send bytes, as an API server does."""
        call: Any = self.channel.unary_unary(f"/v2.KeyManagementService/{method}")
        response: bytes = call(data, timeout=PATIENCE, wait_for_ready=True)
        return response

    def ask(self, method: str, **fields: Any) -> Any:
        """Call a method."""
        request = MESSAGES[f"{method}Request"](**fields).SerializeToString()
        return MESSAGES[f"{method}Response"].FromString(self.send(method, request))

    def encrypt(self, plaintext: bytes = DEK) -> Sealed:
        """Return the fields that an API server stores."""
        made = self.ask("Encrypt", plaintext=plaintext, uid="1")
        return {
            "key_id": made.key_id,
            "ciphertext": made.ciphertext,
            "annotations": dict(made.annotations),
        }

    def decrypt(self, sealed: Sealed) -> bytes:
        plaintext: bytes = self.ask("Decrypt", uid="2", **sealed).plaintext
        return plaintext

    def refusal(self, method: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
        """Return the code and the text of a refusal."""
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(method, **fields)
        error: Any = caught.value
        return error.code(), error.details()

    def health(self) -> str:
        reason: str = self.ask("Status").healthz
        return reason

    def healthy(self) -> None:
        """Wait until the plugin is well again."""
        ends = time.monotonic() + PATIENCE
        while (reason := self.health()) != "ok":
            assert time.monotonic() < ends, reason


def started(folder: Path, api_key_file: Path, url: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a plugin that logs to a file in its folder."""
    environment = {"PATH": os.defpath, "HOME": str(folder), "PQKEEP_URL": url}
    endpoint = f"unix://{folder}/kms.sock"
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [PROGRAM, "kms-plugin", "--socket", endpoint, "--api-key-file", api_key_file, *options],
            env=environment,
            stdout=log,
            stderr=log,
        )


@contextmanager
def running(
    folder: Path, owner: Client, proxy: FaultProxy, timeout: str = "60"
) -> Iterator[Plugin]:
    """Run a plugin with the scopes that the documentation names, and a timeout in seconds."""
    key_file, api_key = folder / "api-key", plugin_key(owner)
    key_file.write_text(api_key.api_key)
    key_file.chmod(0o600)
    process = started(folder, key_file, proxy.url, "--timeout", timeout)
    path = folder / "kms.sock"
    try:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            plugin = Plugin(process, channel, path, proxy, key_file, folder / "log", owner, api_key)
            while not path.exists():
                assert process.poll() is None, plugin.log.read_text()
                time.sleep(0.02)
            yield plugin
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def plugin(
    base_url: str, new_api_key: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plugin]:
    """One plugin for most tests."""
    folder = tmp_path_factory.mktemp("kms")
    owner_key = new_api_key()
    with (
        Client(base_url, owner_key) as owner,
        FaultProxy(base_url) as proxy,
    ):
        owner.keyrings.create(KEYRING)
        for algorithm in ("X-Wing", "XAES-256-GCM", "Kyber768"):
            owner.keys.generate(algorithm, keyring=KEYRING)
        with running(folder, owner, proxy) as opened:
            yield opened
        log = opened.log.read_text()
        assert "Traceback" not in log
        assert not any(secret in log for secret in (owner_key, "pqk_", DEK.hex()))


@pytest.fixture(scope="module")
def impatient(plugin: Plugin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """Another plugin at the same proxy, with a short timeout: its tests wait until it is over."""
    folder = tmp_path_factory.mktemp("impatient")
    with running(folder, plugin.owner, plugin.proxy, "3") as opened:
        yield opened


def plugin_key(owner: Client) -> NewApiKey:
    """Return an API key with the plugin's scopes only."""
    scope = Scope(operations=("encrypt", "decrypt", "get-active-key"), keyrings=(KEYRING,))
    return owner.api_keys.create(owner.api_keys.own().tenant_id, scopes=[scope])


def sealed_by(owner: Client, key: Key) -> Sealed:
    """Return what a plugin with another algorithm would have stored."""
    key_id = f"{KEYRING}/{key.algorithm}/{key.key_version}"
    made = owner.kem.encrypt(
        DEK,
        keyring=KEYRING,
        algorithm=key.algorithm,
        associated_data=f"pqkeep/kubernetes-kms/v2 {key_id}".encode(),
    ).ciphertext
    size = {"X-Wing": 1120, "Kyber768": 1088}.get(key.algorithm, 0)
    annotations = {ANNOTATION: made[:size]} if size else {}
    return {"key_id": key_id, "ciphertext": made[size:], "annotations": annotations}


def test_encrypts_and_decrypts_within_the_api_server_s_limits(plugin: Plugin) -> None:
    """The KEM ciphertext is an annotation, and the rest has 60 bytes; other algorithms decrypt too."""
    status = plugin.ask("Status")
    sealed = plugin.encrypt()
    assert (status.version, status.healthz, status.key_id) == ("v2", "ok", sealed["key_id"])
    assert len(sealed["ciphertext"]) == 60
    assert {name: len(value) for name, value in sealed["annotations"].items()} == {ANNOTATION: 1120}
    assert plugin.decrypt(sealed) == DEK
    largest = plugin.encrypt(bytes(996))
    assert (len(largest["ciphertext"]), plugin.decrypt(largest)) == (1024, bytes(996))
    for algorithm, size in (("XAES-256-GCM", 72), ("Kyber768", 60)):
        other = sealed_by(plugin.owner, plugin.owner.keys.active(algorithm, keyring=KEYRING))
        assert (len(other["ciphertext"]), plugin.decrypt(other)) == (size, DEK)


def test_a_rotation_shows_and_old_data_decrypts(plugin: Plugin) -> None:
    """Status and Encrypt name the new version together, and data of the old one decrypts."""
    old = plugin.encrypt()
    rotated = plugin.owner.keys.rotate("X-Wing", keyring=KEYRING)
    new = plugin.encrypt()
    assert plugin.ask("Status").key_id == new["key_id"]
    assert new["key_id"] == f"{KEYRING}/X-Wing/{rotated.key_version}"
    assert new["key_id"] != old["key_id"]
    assert plugin.decrypt(old) == plugin.decrypt(new) == DEK
    swapped = plugin.refusal("Decrypt", **{**old, "key_id": new["key_id"]})
    assert swapped[0] is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.threat("kms-plugin-socket")
def test_refuses_changed_data(plugin: Plugin) -> None:
    """Each change of a ciphertext, an annotation or a key id is refused, also in a batch."""
    sealed = plugin.encrypt()
    kem, name = sealed["annotations"][ANNOTATION], ANNOTATION
    changes: list[Sealed] = [
        {"ciphertext": bytes([sealed["ciphertext"][0] ^ 1]) + sealed["ciphertext"][1:]},
        {"ciphertext": b""},
        {"ciphertext": sealed["ciphertext"][:28]},
        {"ciphertext": bytes(1025)},
        {"annotations": {}},
        {"annotations": {name: kem[:-1]}},
        {"annotations": {name: kem[:-1] + bytes([kem[-1] ^ 1])}},
        {"annotations": {name: bytes(33 * 1024)}},
        {"annotations": {name: kem, "other.pqkeep.internal": b""}},
        {"annotations": {"other.pqkeep.internal": kem}},
        {"key_id": ""},
        {"key_id": "default/X-Wing/1"},
        {"key_id": f"{KEYRING}/XAES-256-GCM/1"},
        {"key_id": f"{KEYRING}/Kyber768/1"},
        {"key_id": f"{KEYRING}/Dilithium3/1"},
        {"key_id": f"{KEYRING}/X-Wing/01"},
        {"key_id": f"{KEYRING}/X-Wing/9999999999"},
        {"key_id": f"../{KEYRING}/X-Wing/1"},
        {"key_id": f"{sealed['key_id']}\n"},
        {"key_id": "x" * 2000},
    ]
    with ThreadPoolExecutor(len(changes) + 1) as threads:
        good = threads.submit(plugin.decrypt, sealed)
        refusals = list(
            threads.map(lambda change: plugin.refusal("Decrypt", **{**sealed, **change}), changes)
        )
        assert good.result() == DEK
    assert {code for code, _ in refusals} == {grpc.StatusCode.INVALID_ARGUMENT}
    missing = plugin.refusal("Decrypt", **{**sealed, "key_id": f"{KEYRING}/X-Wing/99"})
    assert missing[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert plugin.health() == "ok"


@pytest.mark.threat("kms-plugin-socket")
def test_refuses_odd_messages(plugin: Plugin) -> None:
    """Malformed and huge messages, unknown methods and wrong plaintexts are refused, and no call hangs."""
    for method, data, code in (
        ("Decrypt", b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ("Decrypt", b"\x0a\xff\xff\xff\xff\x0f", grpc.StatusCode.INVALID_ARGUMENT),
        ("Encrypt", b"", grpc.StatusCode.INVALID_ARGUMENT),
        ("Encrypt", b"\x0a\x03" + bytes(70_000), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("Sign", b"", grpc.StatusCode.UNIMPLEMENTED),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            plugin.send(method, data)
        error: Any = caught.value
        assert error.code() is code, method
    too_long = plugin.refusal("Encrypt", plaintext=bytes(997))
    assert too_long[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_thousand_decryptions_and_a_hundred_connections(plugin: Plugin) -> None:
    """While a hundred connections idle, 1,000 decryptions at once are few requests, and in time."""
    sealed = plugin.encrypt()
    request = MESSAGES["DecryptRequest"](**sealed).SerializeToString()
    call: Any = plugin.channel.unary_unary("/v2.KeyManagementService/Decrypt")
    idle = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    seen = len(plugin.proxy.seen)
    try:
        for connection in idle:
            connection.connect(str(plugin.path))
        futures = [call.future(request, timeout=PATIENCE) for _ in range(1000)]
        results = {future.result() for future in futures}
    finally:
        for connection in idle:
            connection.close()
    assert {MESSAGES["DecryptResponse"].FromString(result).plaintext for result in results} == {DEK}
    assert len(plugin.proxy.seen) - seen < 500


KEY = {
    "key_version": 1,
    "algorithm": "X-Wing",
    "status": "active",
    "public_key": b64encode(bytes(1216)).decode(),
    "created_at": "2026-01-01T00:00:00Z",
}
SECRET = "pqk_a-text-of-the-service"  # noqa: S105 - a marker


@pytest.mark.threat("kms-plugin-socket")
def test_unusable_responses_are_reasons(impatient: Plugin) -> None:
    """No response of a wrong or hostile service is trusted, repeated, or fatal; the plugin recovers."""

    def data(values: object) -> bytes:
        return json.dumps({"data": values}).encode()

    made = {"ciphertext": b64encode(bytes(1180)).decode(), "key_version": 1, "algorithm": "X-Wing"}
    active, opened = (
        answered(200, data(KEY)),
        {"data": {"plaintext": b64encode(bytes(31)).decode()}},
    )
    for faults, reason in (
        ([answered(302, b"", "Location: https://other.example/")], "not from pqkeep"),
        ([answered(200, b"<html>")], "not from pqkeep"),
        ([answered(200, data({**KEY, "algorithm": "Kyber768"}))], "not from pqkeep"),
        ([answered(200, data({**KEY, "key_version": 0}))], "not from pqkeep"),
        ([active, answered(200, data({**made, "ciphertext": "AAAA"}))], "not from pqkeep"),
        ([active, answered(200, data({**made, "key_version": 2}))], "not from pqkeep"),
        ([active, answered(200, data(made)), answered(200, data({"results": []}))], "not from"),
        (
            [active, answered(200, data(made)), answered(200, data({"results": [opened]}))],
            "not from",
        ),
        (
            [
                answered(
                    403, json.dumps({"error": {"error_code": SECRET, "message": SECRET}}).encode()
                )
            ],
            "denies",
        ),
        ([refused(429, "ERR_RATE_LIMIT_001", "Retry-After: 60")], "rate limit"),
        ([refused(401, "ERR_AUTH_001")] * 2, "ERR_AUTH_001"),
        ([reset_before] * 99, "not available"),
        ([silence], "in time"),
    ):
        impatient.proxy.faults.extend(faults)
        code, said = impatient.refusal("Encrypt", plaintext=DEK)
        assert reason in said, (said, faults)
        assert SECRET not in said
        assert code is not grpc.StatusCode.UNKNOWN
        impatient.proxy.faults.clear()
        impatient.healthy()
    assert SECRET not in impatient.log.read_text()


def test_away_and_back(impatient: Plugin) -> None:
    """While pqkeep is away, Status gives the reason in time; later it is ok without a restart."""
    sealed = impatient.encrypt()
    impatient.proxy.faults.extend([answered(503, b"")] * 200)
    assert "not available" in impatient.health()
    assert impatient.refusal("Decrypt", **sealed)[0] is grpc.StatusCode.UNAVAILABLE
    impatient.proxy.faults.clear()
    impatient.healthy()
    assert impatient.decrypt(sealed) == DEK


def test_a_rotated_and_a_revoked_api_key(plugin: Plugin) -> None:
    """A new API key in the file is used at once; a revoked one is a reason in Status, and no crash."""
    sealed, owner = plugin.encrypt(), plugin.owner
    tenant, second = owner.api_keys.own().tenant_id, plugin_key(owner)
    plugin.api_key_file.write_text(second.api_key)
    owner.api_keys.revoke(tenant, version=plugin.api_key.version)
    assert plugin.decrypt(sealed) == DEK
    owner.api_keys.revoke(tenant, version=second.version)
    assert "does not accept the API key" in plugin.health()
    plugin.api_key_file.chmod(0o644)
    assert "0600" in plugin.health()
    plugin.api_key_file.chmod(0o600)
    plugin.api_key_file.write_text(plugin_key(owner).api_key)
    plugin.healthy()
    assert plugin.decrypt(sealed) == DEK


@pytest.mark.threat("kms-plugin-socket")
def test_the_socket_is_its_own(plugin: Plugin, tmp_path: Path) -> None:
    """Only the user has access, and no socket of a process and no other file is replaced."""
    mode = plugin.path.stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    refusals = {plugin.path: "another process listens"}
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "killed.sock"))
    with socket.socket(socket.AF_UNIX) as other:
        refusals[tmp_path / "other.sock"] = "another process listens"
        other.bind(str(tmp_path / "other.sock"))
        other.listen(1)
        (tmp_path / "file").touch()
        refusals[tmp_path / "file"] = "not a socket"
        for name, mode in (("group", 0o775), ("all", 0o777)):
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(mode)
            refusals[tmp_path / name / "kms.sock"] = "other users"
        for path, reason in refusals.items():
            with pytest.raises(Refusal, match=reason), kms_server._owned(path):
                pass
    assert all(path.exists() for path in (plugin.path, tmp_path / "other.sock", tmp_path / "file"))
    with kms_server._owned(tmp_path / "killed.sock"):
        assert not (tmp_path / "killed.sock").exists()
        with pytest.raises(Refusal, match="listens"), kms_server._owned(tmp_path / "killed.sock"):
            pass
    (tmp_path / "link.lock").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic"), kms_server._owned(tmp_path / "link"):
        pass
    assert plugin.health() == "ok"


@pytest.mark.parametrize(
    "endpoint",
    [
        "/run/kms.sock",
        "unix://@kms",
        "unix://kms.sock",
        "unix:///",
        f"unix:///{'x' * 108}",
        "tcp://h:1",
    ],
)
@pytest.mark.threat("kms-plugin-socket")
def test_refuses_other_endpoints(endpoint: str) -> None:
    """Only a path has permissions: abstract sockets, relative paths and addresses are refused."""
    with pytest.raises(Refusal, match="--socket"):
        kms_server._path(endpoint)


def test_a_group_may_use_the_socket(tmp_path: Path) -> None:
    """With a group the socket has mode 0660. A group that does not exist is refused."""
    path, own = tmp_path / "kms.sock", os.getegid()

    async def listen() -> None:
        server = grpc.aio.server()
        kms_server._listen(server, path, kms_server._group(grp.getgrgid(own).gr_name))
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, own)
        await server.stop(None)

    with pytest.raises(Refusal, match="does not exist"):
        kms_server._group("no-such-group")
    asyncio.run(listen())


def delayed(proxy: FaultProxy, client: socket.socket, seen: Seen) -> None:
    """Forward the response after a moment."""
    proxy.until_gone(client, 0.3)
    forwarded(proxy, client, seen)


def test_ends_after_its_calls(plugin: Plugin) -> None:
    """On SIGTERM the call in progress is answered, the socket goes, and the status is 0."""
    plugin.healthy()
    sealed = plugin.encrypt()
    held = len(plugin.proxy.seen)
    plugin.proxy.faults.extend([delayed])
    request = MESSAGES["DecryptRequest"](**sealed).SerializeToString()
    call: Any = plugin.channel.unary_unary("/v2.KeyManagementService/Decrypt")
    future = call.future(request, timeout=PATIENCE)
    while len(plugin.proxy.seen) == held:
        time.sleep(0.01)
    plugin.process.send_signal(signal.SIGTERM)
    assert MESSAGES["DecryptResponse"].FromString(future.result()).plaintext == DEK
    assert plugin.process.wait(PATIENCE) == 0
    assert not plugin.path.exists()
