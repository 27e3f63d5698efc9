"""A compliance profile chooses algorithms, and sends nothing that it forbids."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sdk.tests.fault_proxy import FaultProxy

from pqkeep import Client, ComplianceError, ConfigurationError

KEM = "ML-KEM-1024"
SIGNATURE = "ML-DSA-87"
Connect = Callable[..., Client]


@pytest.fixture
def compliant(connect: Connect, proxy: FaultProxy, api_key: str) -> Client:
    """A tenant under the profile, with its requests recorded."""
    return connect(proxy.url, api_key, compliance_profile="cnsa-2.0")


def test_pinned(compliant: Client, proxy: FaultProxy, tmp_path: Path) -> None:
    """By default each request names the profile and its algorithm."""
    compliant.keys.generate(KEM)
    compliant.keys.generate(SIGNATURE)
    sealed = compliant.kem.encrypt(b"a secret")
    assert compliant.kem.decrypt(sealed.ciphertext, key_version=1) == b"a secret"
    made = compliant.kem.encapsulate(key_version=1)
    compliant.kem.decapsulate(made.kem_ciphertext, key_version=1)
    signed = compliant.signatures.sign(b"a contract")
    assert compliant.signatures.verify(b"a contract", signed.signature, key_version=1)
    path = tmp_path / "contract"
    path.write_bytes(b"a contract")
    detached = compliant.signatures.sign_file(path)
    assert compliant.signatures.verify_file(path, detached.signature, key_version=1)
    assert (sealed.algorithm, signed.algorithm, detached.algorithm) == (KEM, SIGNATURE, SIGNATURE)
    assert {seen.headers["x-compliance-profile"] for seen in proxy.seen} == {"cnsa-2.0"}
    bodies = [json.loads(seen.raw.partition(b"\r\n\r\n")[2]) for seen in proxy.seen]
    assert [body["algorithm"] for body in bodies] == [KEM, SIGNATURE, *[KEM] * 4, *[SIGNATURE] * 4]


def test_named(compliant: Client) -> None:
    """The caller may also name the profile's algorithms."""
    compliant.keys.generate(KEM)
    assert compliant.kem.encrypt(b"", algorithm=KEM).algorithm == KEM
    assert [key.algorithm for key in compliant.keys.list(algorithm=KEM)] == [KEM]


def test_refused(compliant: Client, proxy: FaultProxy, tmp_path: Path) -> None:
    """A forbidden algorithm raises ComplianceError, and nothing is sent."""
    kem, signatures, keys = compliant.kem, compliant.signatures, compliant.keys
    digest = bytes(32)
    calls: tuple[Callable[[], object], ...] = (
        lambda: kem.encrypt(b"", algorithm="Kyber768"),
        lambda: kem.decrypt(b"", key_version=1, algorithm="Kyber768"),
        lambda: kem.encapsulate(key_version=1, algorithm="X-Wing"),
        lambda: kem.decapsulate(b"", key_version=1, algorithm="X-Wing"),
        lambda: kem.wrap(bytes(32), key_version=1),
        lambda: kem.wrap(bytes(32), key_version=1, algorithm="Kyber768"),
        lambda: kem.unwrap(b"", key_version=1),
        lambda: kem.data_key(algorithm="XAES-256-GCM"),
        lambda: compliant.macs.compute(b"", algorithm="HMAC-SHA-256"),
        lambda: compliant.macs.verify(b"", b"", key_version=1, algorithm="HMAC-SHA-256"),
        lambda: signatures.sign(b"", algorithm="Dilithium3"),
        lambda: signatures.sign(b"", algorithm=KEM),
        lambda: signatures.verify(b"", b"", key_version=1, algorithm="Composite-ML-DSA"),
        lambda: signatures.sign_hash(digest, hash_algorithm="SHA-256"),
        lambda: signatures.verify_hash(digest, b"", hash_algorithm="SHA-256", key_version=1),
        lambda: signatures.sign_file(tmp_path / "lost", hash_algorithm="SHA-256"),
        lambda: keys.generate("Kyber768"),
        lambda: keys.rotate("Dilithium3"),
        lambda: keys.retire("SLH-DSA-SHA2-256s", key_version=1),
        lambda: keys.active("X-Wing"),
        lambda: keys.get("X-Wing", key_version=1),
        lambda: keys.usage("X-Wing", key_version=1),
        lambda: keys.list(algorithm="X-Wing"),
        lambda: keys.list_usage(algorithm="X-Wing"),
    )
    for call in calls:
        with pytest.raises(ComplianceError, match=r"^cnsa-2\.0 "):
            call()
    assert proxy.seen == []


def test_told(compliant: Client) -> None:
    """A client returns its profile, for local encryption."""
    profile = compliant.compliance_profile
    assert profile is not None
    assert (profile.name, profile.kem, profile.cipher) == ("cnsa-2.0", KEM, "AES-256-GCM")


def test_none(connect: Connect, proxy: FaultProxy, api_key: str) -> None:
    """Without a profile, requests name no algorithm and no profile."""
    client = connect(proxy.url, api_key)
    assert client.compliance_profile is None
    assert client.keys.generate("Kyber768").algorithm == "Kyber768"
    assert client.kem.encrypt(b"").algorithm == "Kyber768"
    assert not any("x-compliance-profile" in seen.headers for seen in proxy.seen)
    assert b"algorithm" not in proxy.seen[1].raw


def test_unknown_profile() -> None:
    """An unknown profile makes no client."""
    with pytest.raises(ConfigurationError, match=r"unknown: use cnsa-2\.0"):
        Client("http://127.0.0.1", "key", compliance_profile="cnsa-1.0")
