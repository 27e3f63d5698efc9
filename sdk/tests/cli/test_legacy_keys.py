"""Keys, ciphertexts and signatures of OpenSSL: imported, moved to X-Wing and verified."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.patience import PATIENCE

from pqkeep import Client, InvalidRequestError, UnreadableInputError
from pqkeep.algorithms import LEGACY, LEGACY_DECRYPTING
from pqkeep.key_import import read_private_key, wrap

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

OPENSSL = shutil.which("openssl") or "openssl"
SECRET = b"a canary in a mine, 32 bytes lon"
CURVES = {"ECDSA-P-256": "P-256", "ECDSA-P-384": "P-384", "ECDSA-P-521": "P-521"}
DIGESTS = {"ECDSA-P-256": "sha256", "ECDSA-P-384": "sha384", "ECDSA-P-521": "sha512"}


def openssl(directory: Path, *arguments: str) -> bytes:
    """Return the output of a command of OpenSSL."""
    return subprocess.run(
        [OPENSSL, *arguments], cwd=directory, capture_output=True, check=True, timeout=PATIENCE
    ).stdout


def make_rsa(directory: Path, bits: int) -> None:
    """Make an RSA key as PKCS#1 and as PKCS#8."""
    openssl(directory, "genrsa", "-traditional", "-out", f"rsa-{bits}-pkcs1.pem", str(bits))
    source = ("-in", f"rsa-{bits}-pkcs1.pem")
    openssl(directory, "pkcs8", "-topk8", "-nocrypt", *source, "-out", f"rsa-{bits}.pem")


@cache
def keys() -> Path:
    """Return a directory with keys, certificates and a message."""
    directory = Path(tempfile.mkdtemp())
    make_rsa(directory, 2048)
    for name, curve in CURVES.items():
        openssl(directory, "ecparam", "-name", curve, "-genkey", "-out", f"{name}-sec1.pem")
        openssl(directory, "pkey", "-in", f"{name}-sec1.pem", "-out", f"{name}.pem")
    for name in ("rsa-2048", *CURVES):
        openssl(directory, "pkey", "-in", f"{name}.pem", "-pubout", "-out", f"{name}-public.pem")
        der = ("-pubout", "-outform", "DER", "-out", f"{name}-public.der")
        openssl(directory, "pkey", "-in", f"{name}.pem", *der)
        request = ("req", "-x509", "-new", "-subj", "/CN=old", "-out", f"{name}-certificate.pem")
        openssl(directory, *request, "-key", f"{name}.pem")
    (directory / "secret").write_bytes(SECRET)
    return directory


def sealed(key: str, digest: str) -> bytes:
    """Return a ciphertext of RSA-OAEP for a private key's public half."""
    padding = ("-pkeyopt", "rsa_padding_mode:oaep", "-pkeyopt", f"rsa_oaep_md:{digest}")
    encrypting = ("pkeyutl", "-encrypt", "-inkey", f"{key}.pem", "-in", "secret")
    return openssl(keys(), *encrypting, *padding)


def signed(algorithm: str) -> bytes:
    if algorithm in CURVES:
        return openssl(
            keys(), "dgst", f"-{DIGESTS[algorithm]}", "-sign", f"{algorithm}.pem", "secret"
        )
    digest = f"-sha{algorithm.rsplit('-', 1)[1]}"
    padding = ("-sigopt", "rsa_padding_mode:pss") if "PSS" in algorithm else ()
    return openssl(keys(), "dgst", digest, *padding, "-sign", "rsa-2048.pem", "secret")


@pytest.mark.threat("legacy-keys")
def test_from_openssl_to_x_wing(command: Command, tenant: Client) -> None:
    """Each hash moves to X-Wing in one call, and cannot be decrypted before."""
    tenant.keys.generate("X-Wing")
    cases = [
        ("RSA-OAEP-SHA-1", "rsa-2048", "sha1"),
        ("RSA-OAEP-SHA-256", "rsa-2048-pkcs1", "sha256"),
        ("RSA-OAEP-SHA-384", "rsa-2048", "sha384"),
        ("RSA-OAEP-SHA-512", "rsa-2048-pkcs1", "sha512"),
    ]
    for algorithm, file, digest in cases:
        expect = ("--expect-public-key", str(keys() / "rsa-2048-public.pem"))
        ended = command("keys", "import", algorithm, str(keys() / f"{file}.pem"), *expect)
        assert ended.status == 0, ended.err
        key = tenant.keys.active(algorithm)
        assert (key.legacy, key.imported, key.key_version) == (True, True, 1)
        ciphertext = sealed(file, digest)
        named: dict[str, Any] = {"algorithm": algorithm, "key_version": 1, "to_algorithm": "X-Wing"}
        moved = tenant.kem.re_encrypt(ciphertext, **named)
        assert moved.ciphertext is not None
        opened = tenant.kem.decrypt(moved.ciphertext, algorithm="X-Wing", key_version=1)
        assert opened == SECRET
        wrapped = tenant.kem.re_encrypt(wrapped_key=ciphertext, **named).wrapped_key
        assert wrapped is not None
        unwrapped = tenant.kem.unwrap(wrapped, algorithm="X-Wing", key_version=1)
        assert unwrapped == SECRET
        with pytest.raises(InvalidRequestError, match="re-encrypt"):
            tenant.kem.decrypt(ciphertext, algorithm=algorithm, key_version=1)
        with pytest.raises(InvalidRequestError, match="re-encrypt"):
            tenant.kem.unwrap(ciphertext, algorithm=algorithm, key_version=1)
        with pytest.raises(InvalidRequestError, match="algorithm is required"):
            tenant.kem.re_encrypt(ciphertext, algorithm=algorithm, key_version=1)
        damaged = bytes((ciphertext[0] ^ 1,)) + ciphertext[1:]
        with pytest.raises(InvalidRequestError, match="cannot be decrypted with this key"):
            tenant.kem.re_encrypt(damaged, **named)
    assert [key.algorithm for key in tenant.keys.list()] == ["X-Wing"]
    assert {key.algorithm for key in tenant.keys.list(legacy=True)} - {"X-Wing"} == set(
        LEGACY_DECRYPTING
    )
    assert {used.algorithm for used in tenant.keys.list_usage()} == {"X-Wing"}
    assert len(list(tenant.keys.list_usage(legacy=True))) == 5
    assert "RSA" not in command("keys", "list").out.decode()
    assert "RSA-OAEP-SHA-1" in command("keys", "list", "--legacy").out.decode()


def test_signatures_by_the_command(command: Command, tenant: Client) -> None:
    """The command verifies a signature of OpenSSL with the named legacy algorithm."""
    for algorithm, name in (("ECDSA-P-384", "ECDSA-P-384"), ("RSA-PSS-SHA-256", "rsa-2048")):
        issued = tenant.keys.get_import_key(algorithm)
        public = (keys() / f"{name}-public.pem").read_bytes()
        tenant.keys.import_key(issued, wrap(issued, public))
        (command.directory / "secret").write_bytes(SECRET)
        (command.directory / "secret.sig").write_bytes(signed(algorithm))
        ended = command("verify", "secret", "--algorithm", algorithm)
        assert (ended.status, ended.err) == (0, "")
        (command.directory / "secret").write_bytes(SECRET + b".")
        assert command("verify", "secret", "--algorithm", algorithm).status == 7


@pytest.mark.campaign
@pytest.mark.parametrize("bits", [3072, 4096])
def test_larger_keys(command: Command, tenant: Client, bits: int) -> None:
    """RSA keys of 3072 and 4096 bits are imported, and their ciphertexts move."""
    make_rsa(keys(), bits)
    file = str(keys() / f"rsa-{bits}.pem")
    assert command("keys", "import", "RSA-OAEP-SHA-256", file).status == 0
    tenant.keys.generate("X-Wing")
    ciphertext = sealed(f"rsa-{bits}", "sha256")
    moved = tenant.kem.re_encrypt(
        ciphertext, algorithm="RSA-OAEP-SHA-256", key_version=1, to_algorithm="X-Wing"
    )
    assert moved.ciphertext is not None
    opened = tenant.kem.decrypt(moved.ciphertext, algorithm="X-Wing", key_version=1)
    assert opened == SECRET


def test_signatures_of_openssl(tenant: Client) -> None:
    """Private keys, public keys and certificates are imported to verify; no private key is sent."""
    files = ["{}.pem", "{}-public.pem", "{}-public.der", "{}-certificate.pem"]
    for at, algorithm in enumerate(sorted(LEGACY - LEGACY_DECRYPTING)):
        name = algorithm if algorithm in CURVES else "rsa-2048"
        forms = [*files, "{}-sec1.pem"] if algorithm in CURVES else [*files, "{}-pkcs1.pem"]
        found = {
            read_private_key((keys() / form.format(name)).read_bytes(), algorithm).pkcs8
            for form in forms
        }
        assert found == {(keys() / f"{name}-public.der").read_bytes()}
        file = keys() / forms[at % len(forms)].format(name)
        issued = tenant.keys.get_import_key(algorithm)
        tenant.keys.import_key(issued, wrap(issued, file.read_bytes()))
        signature = signed(algorithm)
        named: dict[str, Any] = {"algorithm": algorithm, "key_version": 1}
        assert tenant.signatures.verify(SECRET, signature, **named)
        assert not tenant.signatures.verify(SECRET + b".", signature, **named)
        digest = DIGESTS.get(algorithm, f"sha{algorithm[-3:]}")
        hashed = openssl(keys(), "dgst", f"-{digest}", "-binary", "secret")
        hash_algorithm = f"SHA-{digest[3:]}"
        assert tenant.signatures.verify_hash(
            hashed, signature, hash_algorithm=hash_algorithm, **named
        )
        with pytest.raises(InvalidRequestError, match="only reads: it has verify"):
            tenant.signatures.sign(SECRET, **named)
        with pytest.raises(InvalidRequestError, match="have no context"):
            tenant.signatures.verify(SECRET, signature, context=b"x", **named)
        with pytest.raises(InvalidRequestError, match="send its key_version"):
            tenant.signatures.verify(SECRET, signature, algorithm=algorithm, public_key=b"key")
        shown = tenant.keys.public_key(algorithm, key_version=1, format="der")
        assert shown.public_key == (keys() / f"{name}-public.der").read_bytes()
    with pytest.raises(InvalidRequestError, match="hash_algorithm must be SHA-256"):
        tenant.signatures.verify_hash(
            sha256(b"").digest() + bytes(16),
            b"signature",
            hash_algorithm="SHA-384",
            algorithm="RSA-PSS-SHA-256",
            key_version=1,
        )


@pytest.mark.parametrize(
    ("algorithm", "file", "said"),
    [
        ("RSA-OAEP-SHA-256", "ECDSA-P-256.pem", "a private key for RSA-OAEP-SHA-256 is needed"),
        ("RSA-OAEP-SHA-256", "rsa-2048-public.pem", "a private key for RSA-OAEP-SHA-256 is needed"),
        ("ECDSA-P-256", "ECDSA-P-384.pem", "a key for ECDSA-P-256 is needed"),
        ("ECDSA-P-256", "rsa-2048-certificate.pem", "a key for ECDSA-P-256 is needed"),
        ("RSA-PSS-SHA-256", "ECDSA-P-256-public.pem", "a key for RSA-PSS-SHA-256 is needed"),
        ("RSA-PSS-SHA-256", "secret", "a key for RSA-PSS-SHA-256 is needed"),
        ("Kyber768", "rsa-2048.pem", "a private key of Kyber768"),
    ],
)
def test_other_keys_are_refused_before_sending(algorithm: str, file: str, said: str) -> None:
    """The message names the file's key and the needed one."""
    with pytest.raises(UnreadableInputError, match=said):
        read_private_key((keys() / file).read_bytes(), algorithm)


def test_an_expected_public_key_must_match() -> None:
    """A key with an unexpected public key is refused."""
    data = (keys() / "rsa-2048.pem").read_bytes()
    for expected in ("rsa-2048-public.pem", "rsa-2048-certificate.pem"):
        public = (keys() / expected).read_bytes()
        read_private_key(data, "RSA-OAEP-SHA-256", expected_public_key=public)
    other = (keys() / "ECDSA-P-256-public.pem").read_bytes()
    openssl(keys(), "ecparam", "-name", "P-256", "-genkey", "-out", "another.pem")
    another = (keys() / "another.pem").read_bytes()
    with pytest.raises(UnreadableInputError, match="another public key than the expected one"):
        read_private_key(another, "ECDSA-P-256", expected_public_key=other)


def test_nothing_is_made_with_them(tenant: Client) -> None:
    """Legacy keys refuse unsupported operations, and the error names the supported ones."""
    tenant.keys.generate("Kyber768", if_absent=True)
    for algorithm in sorted(LEGACY):
        named: dict[str, Any] = {"algorithm": algorithm, "key_version": 1}
        sealed_now = tenant.kem.encrypt(b"data")
        attempts: list[Callable[[], object]] = [
            partial(tenant.keys.generate, algorithm),
            partial(tenant.keys.rotate, algorithm),
            partial(tenant.kem.encrypt, b"data", algorithm=algorithm),
            partial(tenant.kem.encrypt_to_public_key, b"data", b"key", algorithm=algorithm),
            partial(tenant.kem.decrypt, bytes(256), **named),
            partial(tenant.kem.encapsulate, **named),
            partial(tenant.kem.decapsulate, bytes(256), **named),
            partial(tenant.kem.wrap, bytes(32), **named),
            partial(tenant.kem.unwrap, bytes(256), **named),
            partial(tenant.kem.data_key, algorithm=algorithm),
            partial(
                tenant.kem.re_encrypt, sealed_now.ciphertext, key_version=1, to_algorithm=algorithm
            ),
            partial(tenant.signatures.sign, b"data", algorithm=algorithm),
            partial(tenant.signatures.sign_jws, b"data", algorithm=algorithm),
            partial(tenant.signatures.sign_mu, bytes(64), algorithm=algorithm),
            partial(tenant.signatures.verify_mu, bytes(64), bytes(64), **named),
            partial(tenant.macs.compute, b"data", algorithm=algorithm),
            partial(tenant.macs.verify, b"data", bytes(32), **named),
        ]
        for attempt in attempts:
            with pytest.raises(
                InvalidRequestError, match="is a legacy algorithm, which only reads"
            ):
                attempt()
