"""OpenBao as in production: sealed storage on disk, an audit file, and Transit.

One server with integrated storage (raft), without replicas and TLS. By default the token may use
only Transit. The program is not part of pqkeep.
"""

import shutil
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_bytes
from typing import Any

import msgspec
from tests.fixtures.processes import free_port

from benchmarks.errors import BenchmarkError
from benchmarks.installation import POLL_SECONDS, READY_SECONDS, exchange, written
from benchmarks.load import Target
from benchmarks.processes import output_of, running

PROGRAM = "bao"
HEADER = "X-Vault-Token"
POLICY = 'path "transit/*" { capabilities = ["create", "read", "update"] }'
VERSION_SECONDS = 10
BUILD_SECONDS = 3600
"""Seconds. On two cores the first build takes ten minutes or more, later ones seconds."""
TOKENS: Mapping[str, Mapping[str, object] | None] = {
    "service": {"policies": ["transit"], "no_default_policy": True},
    "default-policy": {"policies": ["transit"]},
    "batch": {"policies": ["transit"], "no_default_policy": True, "type": "batch"},
    "root": None,
}
"""How each kind of token is made. Logins give the second kind by default."""


def require_openbao(path: Path | None) -> Path:
    """Return the path of OpenBao: the given one, or ``bao`` on PATH. Raises BenchmarkError."""
    found = shutil.which(PROGRAM if path is None else path)
    if found is None:
        raise BenchmarkError(
            f"{path or PROGRAM} is not a program that can be run: install OpenBao 2.4 or later, "
            "and name its program or its source with --openbao PATH unless it is on PATH"
        )
    return Path(found).absolute()


@contextmanager
def built(path: Path | None, report: Callable[[str], None]) -> Iterator[Path]:
    """Yield OpenBao's program: the given path, ``bao`` on PATH, or Go's build of a source.

    Raises BenchmarkError.
    """
    if path is None or not path.is_dir():
        yield require_openbao(path)
        return
    if not (path / "go.mod").is_file():
        raise BenchmarkError(f"{path} is neither OpenBao's program nor its source")
    go = shutil.which("go")
    if go is None:
        raise BenchmarkError(f"{path} is a source, and go, which would build it, is not on PATH")
    with tempfile.TemporaryDirectory(prefix="pqkeep-openbao-") as directory:
        program = Path(directory) / PROGRAM
        report(f"building OpenBao from {path}, which takes some minutes the first time")
        command = [go, "-C", str(path), "build", "-buildvcs=false", "-o", str(program), "."]
        output_of(command, seconds=BUILD_SECONDS)
        yield program


def version(program: Path) -> str:
    """Return OpenBao's description of itself. Raises BenchmarkError."""
    return output_of([str(program), "version"], seconds=VERSION_SECONDS).strip()


@contextmanager
def openbao(
    program: Path, directory: Path, *, size: int, token: str
) -> Iterator[dict[str, Target]]:
    """Run OpenBao for a ``with`` block; yield a prepared request for each operation.

    Messages and plaintexts have ``size`` bytes; ``token`` is one of TOKENS.
    """
    directory.mkdir()
    storage, audit, log = directory / "raft", directory / "audit.log", directory / "openbao.log"
    storage.mkdir()
    address, cluster = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    settings = directory / "settings.json"
    settings.write_bytes(msgspec.json.encode(_settings(address, cluster, storage, audit)))
    with (
        log.open("wb") as output,
        running(
            [str(program), "server", f"-config={settings}"], output=output, errors=subprocess.STDOUT
        ) as process,
    ):
        server = _Server(f"http://{address}/v1", process, log)
        requests = server.prepared(size, token)
        if not audit.stat().st_size:
            raise BenchmarkError("OpenBao writes no audit")
        yield {
            operation: Target(
                url=f"{server.url}/{path}",
                body=written(directory / f"{operation}.json", body),
                api_key=server.token,
                credential_header=HEADER,
                front=process.pid,
                back=None,
            )
            for operation, (path, body) in requests.items()
        }


def _settings(address: str, cluster: str, storage: Path, audit: Path) -> dict[str, object]:
    return {
        "listener": {"tcp": {"address": address, "cluster_address": cluster, "tls_disable": True}},
        "storage": {"raft": {"path": str(storage), "node_id": "one"}},
        "api_addr": f"http://{address}",
        "cluster_addr": f"http://{cluster}",
        "audit": [{"type": "file", "path": "file", "options": {"file_path": str(audit)}}],
        "log_level": "warn",
    }


class _Server:
    """A server that was just started."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.url, self.token = url, ""
        self._process, self._log = process, log

    def prepared(self, size: int, token: str) -> dict[str, tuple[str, dict[str, object]]]:
        """Return path and body for each operation, after each has succeeded once."""
        self._unseal()
        self._put("sys/mounts/transit", {"type": "transit"})
        for name, kind in (("encryption", "aes256-gcm96"), ("signing", "ecdsa-p256")):
            self._put(f"transit/keys/{name}", {"type": kind})
        parameters = TOKENS[token]
        if parameters is not None:
            self._put("sys/policies/acl/transit", {"policy": POLICY})
            made = self._put("auth/token/create", dict(parameters))
            self.token = made["auth"]["client_token"]
        return self._requests(size)

    def _unseal(self) -> None:
        self._wait("sys/seal-status", {"initialized": False})
        made = self._put("sys/init", {"secret_shares": 1, "secret_threshold": 1})
        self.token = made["root_token"]
        self._put("sys/unseal", {"key": made["keys_base64"][0]})
        self._wait("sys/leader", {"is_self": True})

    def _requests(self, size: int) -> dict[str, tuple[str, dict[str, object]]]:
        message = b64encode(token_bytes(size)).decode()
        encrypt, sign = "transit/encrypt/encryption", "transit/sign/signing/sha2-256"
        ciphertext = self._data(encrypt, {"plaintext": message})["ciphertext"]
        signature = self._data(sign, {"input": message})["signature"]
        requests: dict[str, tuple[str, dict[str, object]]] = {
            "encrypt": (encrypt, {"plaintext": message}),
            "decrypt": ("transit/decrypt/encryption", {"ciphertext": ciphertext}),
            "sign": (sign, {"input": message}),
            "verify": (
                "transit/verify/signing/sha2-256",
                {"input": message, "signature": signature},
            ),
            "data_key": ("transit/datakey/plaintext/encryption", {}),
        }
        responses = {operation: self._data(*request) for operation, request in requests.items()}
        if responses["decrypt"]["plaintext"] != message or responses["verify"]["valid"] is not True:
            raise BenchmarkError("OpenBao did not recover a plaintext, or refused a signature")
        return requests

    def _data(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        data: dict[str, Any] = self._put(path, body)["data"]
        return data

    def _put(self, path: str, body: dict[str, object]) -> dict[str, Any]:
        response = exchange("PUT", f"{self.url}/{path}", body, {HEADER: self.token})
        if "errors" in response:
            raise BenchmarkError(f"OpenBao refused {path}: {response['errors']}")
        return response

    def _wait(self, path: str, expected: Mapping[str, object]) -> None:
        """Wait for the server's expected state. Raises BenchmarkError."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                response = exchange("GET", f"{self.url}/{path}", {}, {})
            except BenchmarkError:
                response = {}
            if expected.items() <= response.items():
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError("OpenBao did not start:\n" + self._log.read_text())
            time.sleep(POLL_SECONDS)
