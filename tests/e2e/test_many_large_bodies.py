"""A hundred bodies of 1 MiB at once."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from tests.fixtures.caller import API
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE

MIB = 1024 * 1024
MANY = 100


def peak(pid: int) -> int:
    """Return a process's largest memory so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def begun(installation: Installation, request: bytes) -> socket.socket:
    """Send a request except its last byte."""
    url = urlsplit(installation.base_url)
    connection = socket.create_connection((url.hostname, url.port), timeout=PATIENCE)
    connection.sendall(request[:-1])
    return connection


def status(connection: socket.socket) -> int:
    """Send the last byte of a request, and read its response."""
    connection.sendall(b"}")
    with connection.makefile("rb") as response:
        first = response.readline()
        size = 0
        while (line := response.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        assert len(response.read(size)) == size
    return int(first.split()[1])


def test_a_hundred_at_once_have_a_bound(tmp_path: Path) -> None:
    """100 concurrent encryptions of 1 MiB succeed with less than 300 MiB of additional memory."""
    with running(tmp_path) as installation, ExitStack() as sockets:
        tenant, other = installation.new_tenant(), installation.new_tenant()
        for each in (tenant, other):
            each.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
        tenant.post("/kem/encrypt", {"plaintext": "AAAA"})
        body = json.dumps({"plaintext": b64encode(bytes(MIB)).decode()}).encode()
        head = (
            f"POST {API}/kem/encrypt HTTP/1.1\r\nHost: x\r\nX-API-Key: {tenant.api_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        gateway = installation.children()["pqkeep_gateway"]
        before = peak(gateway)
        with ThreadPoolExecutor(MANY) as pool:
            begin = [pool.submit(begun, installation, head.encode() + body) for _ in range(MANY)]
            connections = [sockets.enter_context(each.result()) for each in begin]
            responses = [pool.submit(status, each) for each in connections]
            other.post("/kem/encrypt", {"plaintext": "AAAA"})
            assert {each.result() for each in responses} == {200}
        assert peak(gateway) - before < 300 * MIB
