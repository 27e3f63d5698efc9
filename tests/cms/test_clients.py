"""pqkeep cms exchanges messages with Bouncy Castle and OpenSSL 3.5. ``make interop`` gets both."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation

from pqkeep.cms import identifier_of, read_encrypted
from pqkeep.inputs._der import elements, encoded, object_identifier, sequence, single

INTEROP = Path(__file__).parents[2] / ".interop"
BUILT = INTEROP / "bouncycastle"
JAR = BUILT / "bouncy-castle-1.jar"
OPENSSL = INTEROP / "openssl"
LIBRARIES = OPENSSL / f"usr/lib/{platform.machine()}-linux-gnu"
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
CONTENT = b"pay Bob 10 EUR"
pytestmark = pytest.mark.campaign
needs_bouncy_castle = pytest.mark.skipif(not JAR.exists(), reason="make interop builds it")
needs_openssl = pytest.mark.skipif(not LIBRARIES.exists(), reason="make interop unpacks it")
signatures = pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("Dilithium3", "ML-DSA-65"),
        ("ML-DSA-87", "ML-DSA-87"),
        ("SLH-DSA-SHA2-128f", "SLH-DSA-SHA2-128f"),
    ],
)
kems = pytest.mark.parametrize(
    ("algorithm", "name"), [("Kyber768", "ML-KEM-768"), ("ML-KEM-1024", "ML-KEM-1024")]
)
Run = Callable[..., None]

INTEGER, OCTETS, SEQUENCE, SET = 0x02, 0x04, 0x30, 0x31
CONTENT_IN_0, SHARED_KEY, OTHER = 0xA0, 0xA2, 0xA4
"""Tags of ContentInfo, KEKRecipientInfo and OtherRecipientInfo (RFC 5652)."""
KEM_RECIPIENT = object_identifier("1.2.840.113549.1.9.16.13.3")
KEMS = {"ML-KEM-768": "2.16.840.1.101.3.4.4.2", "ML-KEM-1024": "2.16.840.1.101.3.4.4.3"}
HKDF = encoded(SEQUENCE, object_identifier("1.2.840.113549.1.9.16.3.28"))
WRAP = encoded(SEQUENCE, object_identifier("2.16.840.1.101.3.4.1.45"))
"""Algorithms (RFC 9629, RFC 9936, RFC 8619, RFC 3565)."""
KEY_BYTES = 32
LENGTH = encoded(INTEGER, bytes((KEY_BYTES,)))
NAME = b"shared"


@pytest.fixture
def run(installation: Installation, tmp_path: Path) -> Run:
    """Run a program as a new tenant, in a directory with a file."""
    tenant = installation.new_tenant()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = installation.environment(tenant.api_key) | {"PATH": path, "HOME": str(tmp_path)}
    (tmp_path / "report").write_bytes(CONTENT)

    def program(*words: str | Path, status: int = 0) -> None:
        ended = subprocess.run(
            words, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert ended.returncode == status, ended.stdout + ended.stderr

    return program


def bouncy_castle(run: Run, *words: str) -> None:
    run("java", "-cp", f"{JAR}:{BUILT / 'dependency'}/*", "Cms", *words)


def openssl(run: Run, command: str, status: int = 0) -> None:
    """Run Debian's program with the C library that it was built for."""
    loader = LIBRARIES / LOADERS[platform.machine()]
    program = (loader, "--library-path", LIBRARIES, OPENSSL / "usr/bin/openssl")
    run(*program, *command.split(), status=status)


@needs_bouncy_castle
@kems
def test_encryption(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """Bouncy Castle's message to a key of pqkeep opens, and pqkeep's to a key of Bouncy Castle."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    bouncy_castle(run, "encrypt", "key.der", "report", "sealed.p7m")
    run("pqkeep", "cms", "decrypt", "sealed.p7m", "--to", "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT

    bouncy_castle(run, "generate", name, "private.der", "public.der")
    run("pqkeep", "cms", "encrypt", "report", "--public-key", "public.der")
    bouncy_castle(run, "decrypt", "private.der", "report.p7m", "opened")
    assert (tmp_path / "opened").read_bytes() == CONTENT


@needs_bouncy_castle
@signatures
def test_signatures(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """Bouncy Castle verifies what a key of pqkeep signed, and pqkeep what Bouncy Castle signed."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    run("pqkeep", "cms", "sign", "report", "-a", algorithm)
    bouncy_castle(run, "verify", "key.der", "report.p7m", "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT

    bouncy_castle(run, "generate", name, "private.der", "public.der")
    for command in ("sign", "sign-without-attributes"):
        bouncy_castle(run, command, "private.der", "report", f"{command}.p7m")
        read = ("pqkeep", "cms", "verify", f"{command}.p7m", "--to", f"{command}.copy")
        run(*read, "--public-key", "public.der")
        assert (tmp_path / f"{command}.copy").read_bytes() == CONTENT
        run(*read, "--force", "--public-key", "key.der", status=7)


@needs_openssl
@signatures
def test_openssl_verifies(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """OpenSSL verifies what a certified key of pqkeep signed, and refuses other content."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "pem", "--to", "key.pem")
    openssl(run, "req -x509 -newkey ML-DSA-65 -noenc -subj /CN=ca -keyout ca.key -out ca.pem")
    issue = "x509 -new -subj /CN=signer -force_pubkey key.pem -out signer.pem"
    openssl(run, f"{issue} -CA ca.pem -CAkey ca.key")
    sign = ("pqkeep", "cms", "sign", "report", "-a", algorithm, "--certificate", "signer.pem")
    run(*sign)
    verify = "cms -verify -binary -inform DER -CAfile ca.pem -purpose any -out copy -in"
    openssl(run, f"{verify} report.p7m")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    run(*sign, "--detached")
    openssl(run, f"{verify} report.p7s -content report")
    (tmp_path / "other").write_bytes(CONTENT + b"0")
    openssl(run, f"{verify} report.p7s -content other", status=4)


@needs_openssl
@signatures
def test_openssl_signs(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """What OpenSSL signed is good: with a certificate, by a key identifier, detached, in BER."""
    openssl(run, f"req -x509 -newkey {name} -noenc -subj /CN=s -keyout key.pem -out signer.pem")
    openssl(run, "pkey -in key.pem -pubout -out public.pem")
    digest = "sha256" if "128" in name else "sha512"
    sign = f"cms -sign -binary -md {digest} -in report -signer signer.pem -inkey key.pem"
    for options in ("", "-keyid", "-nocerts", "-stream"):
        openssl(run, f"{sign} -outform DER -nodetach {options} -out signed.p7m")
        for key in ("signer.pem", "public.pem"):
            read = ("pqkeep", "cms", "verify", "signed.p7m", "--public-key", key)
            run(*read, "--to", "copy", "--force")
            assert (tmp_path / "copy").read_bytes() == CONTENT
    openssl(run, f"{sign} -outform DER -out signed.p7s")
    detached = ("pqkeep", "cms", "verify", "signed.p7s", "--public-key", "public.pem", "--content")
    run(*detached, "report")
    (tmp_path / "other").write_bytes(CONTENT + b"0")
    run(*detached, "other", status=7)


def key_encryption_key(run: Run, directory: Path) -> str:
    """Have OpenSSL derive the key-encryption key from the file ``secret``. Returns hex."""
    info = encoded(SEQUENCE, WRAP + LENGTH)
    secret = (directory / "secret").read_bytes()
    options = f"-kdfopt digest:SHA256 -kdfopt hexkey:{secret.hex()} -kdfopt hexinfo:{info.hex()}"
    openssl(run, f"kdf -keylen {KEY_BYTES} {options} -binary -out kek HKDF")
    return (directory / "kek").read_bytes().hex()


def with_recipient(message: bytes, recipient: bytes) -> bytes:
    """Return AuthEnvelopedData with another recipient and the same content."""
    kind, content = sequence(message)
    version, _, *rest = sequence(content.content)
    parts = [version, (SET, recipient), *rest]
    body = encoded(SEQUENCE, b"".join(encoded(*part) for part in parts))
    return encoded(SEQUENCE, encoded(*kind) + encoded(CONTENT_IN_0, body))


@needs_openssl
@kems
def test_openssl_decrypts(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """OpenSSL opens a message to its key: it decapsulates, derives, unwraps and decrypts.

    OpenSSL 3.5 cannot read KEMRecipientInfo. The test writes the wrapped key into a
    KEKRecipientInfo, for the key that OpenSSL derived.
    """
    openssl(run, f"genpkey -algorithm {name} -out private.pem")
    openssl(run, "pkey -in private.pem -pubout -outform DER -out public.der")
    run("pqkeep", "cms", "encrypt", "report", "--public-key", "public.der")
    message = (tmp_path / "report.p7m").read_bytes()
    (wrapped,) = read_encrypted(message).recipients
    (tmp_path / "kemct").write_bytes(wrapped.kem_ciphertext)
    openssl(run, "pkeyutl -decap -inkey private.pem -in kemct -secret secret")
    shared = encoded(INTEGER, b"\4") + encoded(SEQUENCE, encoded(OCTETS, NAME)) + WRAP
    shared += encoded(OCTETS, wrapped.encrypted_key)
    (tmp_path / "shared.p7m").write_bytes(with_recipient(message, encoded(SHARED_KEY, shared)))
    read = f"cms -decrypt -inform DER -in shared.p7m -secretkeyid {NAME.hex()} -out copy"
    openssl(run, f"{read} -secretkey {bytes(KEY_BYTES).hex()}", status=4)
    openssl(run, f"{read} -secretkey {key_encryption_key(run, tmp_path)}")
    assert (tmp_path / "copy").read_bytes() == CONTENT


@needs_openssl
@kems
def test_openssl_encrypts(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """A message that OpenSSL encrypted with the key that it encapsulated and derived opens.

    The test writes the wrapped key into a KEMRecipientInfo, which OpenSSL 3.5 cannot write.
    """
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    openssl(run, "pkeyutl -encap -pubin -keyform DER -inkey key.der -out kemct -secret secret")
    write = "cms -encrypt -aes-256-gcm -binary -in report -outform DER -out shared.p7m"
    key = key_encryption_key(run, tmp_path)
    openssl(run, f"{write} -secretkey {key} -secretkeyid {NAME.hex()}")
    message = (tmp_path / "shared.p7m").read_bytes()
    _, recipients, *_ = sequence(sequence(message)[1].content)
    *_, encrypted_key = elements(single(recipients.content).content)
    public_key = sequence((tmp_path / "key.der").read_bytes())[1].content[1:]
    kem = encoded(INTEGER, b"\0") + identifier_of(public_key).encoded
    kem += encoded(SEQUENCE, object_identifier(KEMS[name]))
    kem += encoded(OCTETS, (tmp_path / "kemct").read_bytes()) + HKDF + LENGTH + WRAP
    other = KEM_RECIPIENT + encoded(SEQUENCE, kem + encoded(*encrypted_key))
    (tmp_path / "kem.p7m").write_bytes(with_recipient(message, encoded(OTHER, other)))
    run("pqkeep", "cms", "decrypt", "kem.p7m", "--to", "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
