"""``make differential``: two versions of the product give the same responses, records and counts.

Each version runs as an installation and gets the same raw requests in order: ordinary, hostile,
pipelined, split and cut. Random values (identifiers, times, ciphertexts, keys) are compared only by
form and length.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import unified_diff
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.installation import Launcher, ask, service
from benchmarks.processes import ROOT
from tests.differential.cases import API, MESSAGE, Case, Material, cases

RESPONSE_SECONDS = 30.0
SHOWN = 20
PARTS = ("protocol", "keyservice", "gateway", "server", "sdk")
RUN = "from pqkeep_server.cli import app; app()"
RATE = 1_000_000
BY_CHANCE: Sequence[tuple[re.Pattern[bytes], bytes]] = (
    (re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), b"<uuid>"),
    (re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), b"<time>"),
    (re.compile(rb"(?i)(ratelimit[^:]*: )[^\r]*"), rb"\1<rate>"),
    (re.compile(rb"(?i)(date: )[^\r]*"), rb"\1<date>"),
    (re.compile(rb"\b([0-9a-f]{32}){1,2}\b"), b"<random>"),
)
BASE64 = re.compile(rb'"[A-Za-z0-9+/]{40,}={0,2}"')


def main() -> int:
    """Compare the working tree with a revision. Exit status 1: they differ."""
    parser = argparse.ArgumentParser(prog="make differential", description=__doc__)
    parser.add_argument("--against", default="HEAD", help="a revision; HEAD as default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _tree(Path(folder), arguments.against) as other:
        outcomes = [
            _outcome(Path(folder) / name, tree) for name, tree in (("old", other), ("new", ROOT))
        ]
    return _report(*outcomes)


@contextmanager
def _tree(folder: Path, revision: str) -> Iterator[Path]:
    """Check a revision's files out for a block."""
    tree = folder / "tree"
    tree.mkdir()
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "-x"], cwd=tree, check=True, input=archive)
    yield tree


def _outcome(folder: Path, tree: Path) -> Mapping[str, str]:
    """Return an installation's responses to all cases, and its final records and counts."""
    path = os.pathsep.join(str(tree / part / "src") for part in PARTS)
    launcher = Launcher((sys.executable, "-P", "-c", RUN), "pqkeep_keyservice")
    with service(folder, launcher, environment={"PYTHONPATH": path}) as (_, ready):
        material = _material(ready)
        address = urlsplit(ready["base_url"])
        found: dict[str, str] = {}
        for case in cases(material):
            assert case.name not in found, f"two cases are called {case.name}"
            found[case.name] = _answer((str(address.hostname), int(address.port or 0)), case)
        found["audit records"] = "\n".join(_records(ready))
        found["usage"] = _without_chance(json.dumps(_get(ready, "/usage"), indent=1).encode())
    return found


def _material(ready: Mapping[str, str]) -> Material:
    tenant = f"{ready['base_url']}{API}/tenants/{ready['tenant_id']}"
    ask("PATCH", tenant, {"requests_per_minute": RATE}, ready["operator_key"])

    def post(path: str, body: dict[str, object]) -> dict[str, Any]:
        return ask("POST", ready["base_url"] + API + path, body, ready["api_key"])

    for algorithm in ("Kyber768", "Dilithium3"):
        post("/kms/keys/generate", {"algorithm": algorithm, "if_absent": True})
    key = b64encode(bytes(32)).decode()
    hashed = {"hash": key, "hash_algorithm": "SHA-256"}
    return Material(
        api_key=ready["api_key"],
        operator_key=ready["operator_key"],
        tenant_id=ready["tenant_id"],
        ciphertext=post("/kem/encrypt", {"plaintext": MESSAGE})["ciphertext"],
        kem_ciphertext=post("/kem/encapsulate", {"key_version": 1})["kem_ciphertext"],
        wrapped_key=post("/kem/key/wrap", {"symmetric_key": key, "key_version": 1})["wrapped_key"],
        signature=post("/signature/sign", {"message": MESSAGE})["signature"],
        hash_signature=post("/signature/sign-hash", {**hashed})["signature"],
    )


def _answer(address: tuple[str, int], case: Case) -> str:
    """Return all responses on a connection until the gateway closes it."""
    received = bytearray()
    with socket.create_connection(address, RESPONSE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the gateway did not read all: what it answered counts
            for piece in case.pieces:
                connection.sendall(piece)
            if case.ends:
                connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                received += data
    return _without_chance(bytes(received))


def _without_chance(data: bytes) -> str:
    for pattern, replacement in BY_CHANCE:
        data = pattern.sub(replacement, data)
    return BASE64.sub(lambda text: b'"<%d>"' % len(text.group()), data).decode("latin-1")


def _get(ready: Mapping[str, str], path: str) -> dict[str, Any]:
    headers = {"X-API-Key": ready["api_key"]}
    connection = HTTPConnection(urlsplit(ready["base_url"]).netloc, timeout=RESPONSE_SECONDS)
    connection.request("GET", API + path, headers=headers)
    data: dict[str, Any] = json.loads(connection.getresponse().read())["data"]
    connection.close()
    return data


def _records(ready: Mapping[str, str]) -> Iterator[str]:
    """Yield the tenant's audit records, oldest first."""
    after = 0
    while page := _get(ready, f"/audit/records?order=asc&limit=100&after={after}")["records"]:
        after = page[-1]["id"]
        for record in page:
            del record["id"]  # records of the log's own keys come between
            yield _without_chance(json.dumps(record, sort_keys=True).encode())


def _report(old: Mapping[str, str], new: Mapping[str, str]) -> int:
    different = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    for name in different[:SHOWN]:
        print(f"--- {name}")
        before, after = (str(outcome.get(name, "")).splitlines() for outcome in (old, new))
        print("\n".join(unified_diff(before, after, lineterm="", n=1)))
    statuses = Counter(
        status
        for text in new.values()
        for status in re.findall(r"^HTTP/1\.\d (\d+)", text, re.MULTILINE)
    )
    records = new["audit records"].count("\n") + 1
    print(f"{len(new)} cases, {len(different)} differ; {records} audit records; {dict(statuses)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
