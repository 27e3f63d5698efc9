"""Only the key service sees the plaintext of a re-encryption: no gateway's memory has it."""

from __future__ import annotations

import base64
import os
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from tests.e2e.secret_encodings import encodings
from tests.fixtures.caller import API, Caller
from tests.fixtures.installation import Installation

from pqkeep.local import Recipient, encrypt_for_service
from pqkeep_keyservice.crypto.dem import key_info
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC
from pqkeep_keyservice.keys.key_versions import SealedSeed
from pqkeep_keyservice.keys.sealing import Sealer, associated_data
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId

SOURCE, CIPHER = "Kyber768", "XAES-256-GCM"
TARGETS = (CIPHER, "X-Wing", CIPHER, "ML-KEM-1024", CIPHER, "Kyber768", CIPHER)
"""One after the other."""
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


reads_memory = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root reads the memory of a process"
)


@reads_memory
@pytest.mark.parametrize("count", COUNTS)
def test_the_plaintext_is_nowhere(installation: Installation, count: int) -> None:
    """Many ciphertexts move to XAES-256-GCM and back, for each KEM. Only the key service sees them.

    No response, log line, record, database or gateway has the plaintext.
    """
    tenant = installation.new_tenant()
    for algorithm in {SOURCE, *TARGETS}:
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    canary = secrets.token_bytes(48)
    forms = tuple(set(encodings(canary)))
    ciphertexts, source = _sealed(tenant, canary, count), SOURCE
    for number, target in enumerate(TARGETS):
        moving = ciphertexts if number == 0 else ciphertexts[:ITEMS]
        ciphertexts = [
            moved
            for begin in range(0, len(moving), ITEMS)
            for moved in _moved(tenant, source, target, moving[begin : begin + ITEMS], forms)
        ]
        source = target
    _assert_only_the_key_service_knows(installation, tenant, forms)
    opening = {"ciphertext": ciphertexts[-1], "key_version": 1, "algorithm": source}
    opened = tenant.post("/kem/decrypt", opening)["plaintext"]
    assert base64.b64decode(opened) == canary


@reads_memory
def test_a_data_key_without_its_plaintext_is_nowhere(installation: Installation) -> None:
    """With plaintext false, a data key stays in the key service, also if it moves to a KEM and back."""
    tenant = installation.new_tenant()
    for algorithm in (CIPHER, "X-Wing"):
        tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    made = tenant.post("/kem/data-key", {"algorithm": CIPHER, "plaintext": False, "size": 64})
    wrapped = made["wrapped_key"]
    for source, target in ((CIPHER, "X-Wing"), ("X-Wing", CIPHER)):
        body = {"wrapped_key": wrapped, "key_version": 1, "algorithm": source}
        wrapped = tenant.post("/kem/re-encrypt", {**body, "to": {"algorithm": target}})[
            "wrapped_key"
        ]
    data_key = _unwrapped(installation, tenant, base64.b64decode(wrapped))
    _assert_only_the_key_service_knows(installation, tenant, tuple(set(encodings(data_key))))
    body = {"wrapped_key": wrapped, "key_version": 1, "algorithm": CIPHER}
    opened = tenant.post("/kem/key/unwrap", body)["symmetric_key"]
    assert base64.b64decode(opened) == data_key


def _moved(
    tenant: Caller, source: str, target: str, ciphertexts: list[str], forms: tuple[bytes, ...]
) -> list[str]:
    items = [{"ciphertext": ciphertext, "key_version": 1} for ciphertext in ciphertexts]
    body = {"algorithm": source, "to": {"algorithm": target}, "items": items}
    response = tenant.client.post(f"{API}/kem/re-encrypt/batch", json=body)
    assert response.status_code == 200, response.text
    assert not any(form in response.content for form in forms)
    results = response.json()["data"]["results"]
    assert all(result["data"]["algorithm"] == target for result in results)
    return [result["data"]["ciphertext"] for result in results]


def _unwrapped(installation: Installation, tenant: Caller, wrapped_key: bytes) -> bytes:
    """Open a wrapped key of XAES-256-GCM with the root key, as only this test may."""
    owner = TenantId(UUID(tenant.tenant_id))
    with closing(sqlite3.connect(installation.data / "keyservice" / "keys.sqlite3")) as database:
        ((check_value, sealed),) = database.execute(
            "SELECT public_key, sealed_seed FROM keys WHERE tenant_id = ? AND algorithm = ?",
            (owner.hex, CIPHER),
        )
    of_key = (Algorithm.XAES_256_GCM, KeyVersion(1))
    where = associated_data(owner, "default", *of_key, check_value)
    sealer = Sealer({1: read_root_key(installation.data / "keyservice" / "root.key")})
    with sealer.unseal(SealedSeed(sealed), where) as seed:
        key = SYMMETRIC[Algorithm.XAES_256_GCM].load_seed(seed)
    info = key_info(b"wrap", owner, *of_key, "default")
    return key.decrypt(wrapped_key, info=info, associated_data=b"")


def _assert_only_the_key_service_knows(
    installation: Installation, tenant: Caller, forms: tuple[bytes, ...]
) -> None:
    """Look for a secret in the gateway's memory, the output, the records and the databases."""
    gateway = installation.children()["pqkeep_gateway"]
    assert occurs(gateway, tenant.tenant_id.encode())  # so the search would have found it
    assert not occurs(gateway, *forms)
    places = [installation.output.encode(), tenant.ask("GET", "/audit/records").content]
    places += [path.read_bytes() for path in installation.data.rglob("*.sqlite3*")]
    assert not any(form in place for place in places for form in forms)
