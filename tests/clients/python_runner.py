"""Runs the cases of the behaviour suite with the Python client: see driver.py."""

import base64
import dataclasses
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pqkeep import Client, PqkeepError, local

THREADS = 16
ENVIRONMENT = threading.Lock()
BYTES = frozenset(
    {
        *("plaintext", "ciphertext", "kem_ciphertext", "wrapped_key", "symmetric_key", "salt"),
        *("associated_data", "context", "message", "signature", "digest", "mac", "content"),
        "public_key",
    }
)
"""Names of arguments that are bytes."""
VALUES: Mapping[str, str] = {
    "kem.decrypt": "plaintext",
    "kem.decrypt_envelope": "plaintext",
    "kem.decapsulate": "shared_secret",
    "kem.unwrap": "symmetric_key",
    "signatures.verify": "valid",
    "signatures.verify_hash": "valid",
    "macs.verify": "valid",
    "audit.export": "records",
    "local.encrypt": "ciphertext",
    "local.decrypt": "plaintext",
}
"""The names of single values that methods return."""


class Case:
    """The calls of a case, and the results."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self._case = case
        self._values: list[Mapping[str, Any]] = []

    def line(self) -> str:
        """Return the line about the case."""
        made: Client | PqkeepError
        try:
            made = _client(**self._case["client"])
        except PqkeepError as error:
            made = error
        results = [self._result(made, **call) for call in self._case["calls"]]
        if isinstance(made, Client):
            made.close()
        return json.dumps({"name": self._case["name"], "results": results})

    def _result(
        self, client: Client | PqkeepError, call: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        began = time.monotonic()
        value: Mapping[str, Any] = {}
        result: dict[str, Any]
        with TemporaryDirectory() as folder:
            try:
                if isinstance(client, PqkeepError):
                    raise client
                given = {name: self._given(name, member) for name, member in arguments.items()}
                value = _made(client, call, given, Path(folder))
                result = {"value": _shown(value)}
            except LookupError:
                result = {"skipped": "result"}
            except PqkeepError as error:
                names = ("status", "field", "request_id", "retry_after", "message")
                shown = {name: getattr(error, name) for name in names}
                kind = {"kind": type(error).__name__, "code": error.error_code}
                result = {"error": {**kind, **shown}, "left": _left(Path(folder))}
        self._values.append(value)
        return {**result, "seconds": time.monotonic() - began}

    def _given(self, name: str, value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"result", "field"}:
            return self._values[value["result"]][value["field"]]
        return _bytes(name, value)


def _bytes(name: str, value: Any) -> Any:
    return base64.b64decode(value) if name in BYTES and isinstance(value, str) else value


def _client(
    *,
    base_url: str,
    api_key: str | None = None,
    token_file: str = "",
    role: str = "",
    **options: Any,
) -> Client:
    """Return a client. A workload's settings are read from the environment."""
    with ENVIRONMENT:
        if token_file:
            os.environ.update(PQKEEP_TOKEN_FILE=token_file, PQKEEP_ROLE=role)
        try:
            return Client(base_url, api_key, **options)
        finally:
            for name in ("PQKEEP_TOKEN_FILE", "PQKEEP_ROLE"):
                os.environ.pop(name, None)


def _made(client: Client, call: str, given: dict[str, Any], folder: Path) -> Mapping[str, Any]:
    """Make a call, and return the fields of its result."""
    resource, _, method = call.partition(".")
    if call == "local.decrypt_with":
        secrets = {name: base64.b64decode(secret) for name, secret in given["secrets"].items()}
        return {
            "plaintext": local.decrypt(
                given["ciphertext"], decapsulate=lambda *_, algorithm, **__: secrets[algorithm]
            )
        }
    if call in {"local.encrypt_file", "local.decrypt_file"}:
        source, target = folder / "source", folder / "target"
        source.write_bytes(given.pop("content"))
        getattr(client.local, method)(source, target, **given)
        mode = f"{stat.S_IMODE(target.stat().st_mode):o}"
        return {"content": target.read_bytes(), "mode": mode, "left": _left(folder, "target")}
    if call == "local.encrypt" and "recipients" in given:
        given["recipients"] = [
            local.Recipient(
                public_key=key.public_key, algorithm=key.algorithm, key_version=key.key_version
            )
            for key in map(client.keys.active, given["recipients"])
        ]
    if method.endswith("_many"):
        items = [
            {name: _bytes(name, member) for name, member in item.items()}
            if isinstance(item, Mapping)
            else dataclasses.asdict(item)
            for item in given["items"]
        ]
        results = getattr(client.kem, method)(items)
        return {"items": [{"plaintext": one} if isinstance(one, bytes) else one for one in results]}
    if call == "audit.export":
        given = {"path": folder / "export"}
    value = getattr(getattr(client, resource), method)(**given)
    if call in VALUES:
        return {VALUES[call]: value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"items": list(value)}


def _shown(value: Any) -> Any:
    """Return a value as JSON's."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, PqkeepError):
        return {"error": {"code": value.error_code}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _shown(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {name: _shown(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(member) for member in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _left(folder: Path, *known: str) -> list[str]:
    names = {path.name for path in folder.iterdir()}
    return sorted(names - {"source", *known})


def main() -> None:
    """Run the cases of a file."""
    cases = json.loads(Path(sys.argv[1]).read_text())["cases"]
    with ThreadPoolExecutor(THREADS) as pool:
        for line in pool.map(lambda case: Case(case).line(), cases):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
