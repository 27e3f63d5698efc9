"""Only the key service sees the plaintext of a re-encryption: no gateway's memory has it."""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.secret_encodings import encodings
from tests.fixtures.caller import API, Caller
from tests.fixtures.installation import Installation

from pqkeep.local import Recipient, encrypt_for_service

SOURCE, TARGET = "Kyber768", "X-Wing"
ITEMS = 125
"""In each batch."""
COUNTS = [1_000, pytest.param(10_000, marks=pytest.mark.campaign)]
READABLE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r\S+ \S+ \S+ \S+\s*(.*)")
AT_ONCE = 16 * 1024 * 1024


def memory(pid: int) -> Iterator[bytes]:
    """Yield a process's memory in overlapping pieces."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as content:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            found = READABLE.match(line)
            if found is None or found[3] in {"[vvar]", "[vsyscall]"}:
                continue
            begin, end = int(found[1], 16), int(found[2], 16)
            for at in range(begin, end, AT_ONCE):
                try:
                    yield os.pread(content.fileno(), min(AT_ONCE + 256, end - at), at)
                except OSError:  # it was unmapped since, or is a device's
                    break


def occurs(pid: int, *texts: bytes) -> bool:
    """Return True if any of some texts is in a process's memory."""
    return any(text in piece for piece in memory(pid) for text in texts)


def _sealed(tenant: Caller, canary: bytes, count: int) -> list[str]:
    """Return ciphertexts of the canary that were made offline."""
    key = tenant.get("/kms/keys/1/public-key", algorithm=SOURCE, format="raw")["public_key"]
    recipient = Recipient(
        public_key=base64.b64decode(key), algorithm=SOURCE, key_version=1, keyring="default"
    )
    made = (
        encrypt_for_service(canary, tenant_id=tenant.tenant_id, recipient=recipient)
        for _ in range(count)
    )
    return [base64.b64encode(each.ciphertext).decode() for each in made]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads the memory of a process")
@pytest.mark.parametrize("count", COUNTS)
def test_the_plaintext_is_nowhere(installation: Installation, count: int) -> None:
    """After thousands of re-encryptions, no response, log or gateway has the plaintext."""
    tenant = installation.new_tenant()
    for algorithm in (SOURCE, TARGET):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    canary = secrets.token_bytes(48)
    forms = tuple(set(encodings(canary)))
    sealed = _sealed(tenant, canary, count)
    last = ""
    for begin in range(0, count, ITEMS):
        items = [{"ciphertext": each, "key_version": 1} for each in sealed[begin : begin + ITEMS]]
        body = {"algorithm": SOURCE, "to": {"algorithm": TARGET}, "items": items}
        response = tenant.client.post(f"{API}/kem/re-encrypt/batch", json=body)
        assert response.status_code == 200, response.text
        assert not any(form in response.content for form in forms)
        results = response.json()["data"]["results"]
        assert all(each["data"]["algorithm"] == TARGET for each in results)
        last = results[-1]["data"]["ciphertext"]
    gateway = installation.children()["pqkeep_gateway"]
    assert occurs(gateway, tenant.tenant_id.encode())  # so the search would have found it
    assert not occurs(gateway, *forms)
    output = installation.output.encode()
    assert not any(form in output for form in forms)
    opening = {"ciphertext": last, "key_version": 1, "algorithm": TARGET}
    opened = tenant.post("/kem/decrypt", opening)["plaintext"]
    assert base64.b64decode(opened) == canary
