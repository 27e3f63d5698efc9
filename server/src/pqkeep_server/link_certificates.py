"""Certificates for the link between hosts: a private CA, and one certificate for each host and role.

DIRECTORY/ca/                certificate.pem  key.pem
DIRECTORY/gateway-HOST/      certificate.pem  key.pem  ca.pem
DIRECTORY/keyservice-HOST/   certificate.pem  key.pem  ca.pem

Copy one folder to each host. Keep the CA's key where certificates are renewed.
"""

import ipaddress
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pqkeep_protocol.link import Role
from pqkeep_protocol.startup.secret_files import read_secret_file
from pqkeep_protocol.startup.settings import ConfigError, read_file
from pqkeep_server.atomic_files import sync, write_atomically

MAX_DAYS = 398
"""A certificate's longest validity."""
CA_DAYS = 3650
_CLOCK_SKEW = timedelta(minutes=5)
_LABEL = re.compile(r"(?!-)[0-9A-Za-z-]{1,63}(?<!-)")
_MAX_HOST = 253

PrivateKey = ec.EllipticCurvePrivateKey | mldsa.MLDSA65PrivateKey


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A signature algorithm of certificates."""

    kind: type[PrivateKey]
    generate: Callable[[], PrivateKey]
    digest: hashes.SHA256 | None


ALGORITHMS: Mapping[str, Algorithm] = {
    "ML-DSA-65": Algorithm(mldsa.MLDSA65PrivateKey, mldsa.MLDSA65PrivateKey.generate, None),
    "P-256": Algorithm(
        ec.EllipticCurvePrivateKey,
        lambda: ec.generate_private_key(ec.SECP256R1()),
        hashes.SHA256(),
    ),
}
_FOLDERS: Mapping[Role, str] = {Role.GATEWAY: "gateway", Role.KEY_SERVICE: "keyservice"}
_USAGES: Mapping[Role, x509.ObjectIdentifier] = {
    Role.GATEWAY: ExtendedKeyUsageOID.CLIENT_AUTH,
    Role.KEY_SERVICE: ExtendedKeyUsageOID.SERVER_AUTH,
}


class LinkCertificatesError(Exception):
    """Certificates cannot be made. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A host's folder and certificate."""

    folder: Path
    expires: datetime
    is_new: bool


def default_algorithm() -> str:
    """Return ML-DSA-65 if this machine's ssl supports it (OpenSSL 3.5), else P-256."""
    return "ML-DSA-65" if ssl.OPENSSL_VERSION_INFO >= (3, 5) else "P-256"


def issue(
    directory: Path,
    hosts: Sequence[tuple[Role, str]],
    *,
    algorithm: str | None,
    days: int,
    renew: bool,
) -> list[Issued]:
    """Make a CA and the hosts' certificates unless they exist, and return all certificates.

    ``renew`` also makes new keys and certificates for hosts that have a folder. Nothing else is
    overwritten. Raises LinkCertificatesError.
    """
    for _, host in hosts:
        _general_name(host)
    try:
        authority = _Authority.prepare(directory, algorithm, makes=bool(hosts))
        issued = {
            certificate.folder: certificate for certificate in authority.renewed(days, renew=renew)
        }
        for role, host in hosts:
            folder = directory / f"{_FOLDERS[role]}-{host}"
            if folder not in issued:
                issued[folder] = authority.issue(folder, role, host, days)
    except ConfigError as error:
        raise LinkCertificatesError(str(error)) from None
    except OSError as error:
        raise LinkCertificatesError(f"cannot make certificates in {directory}: {error}") from None
    return [issued[folder] for folder in sorted(issued)]


class _Authority:
    """The private CA of one directory."""

    def __init__(self, directory: Path, key: PrivateKey, certificate: x509.Certificate) -> None:
        self._directory = directory
        self._key = key
        self._certificate = certificate

    @classmethod
    def prepare(cls, directory: Path, algorithm: str | None, *, makes: bool) -> "_Authority":
        """Read the CA, or make it if ``makes``. Raises LinkCertificatesError, ConfigError, OSError."""
        folder = directory / "ca"
        if not folder.exists():
            if not makes:
                raise LinkCertificatesError(
                    "no host is named: name hosts with --gateway and --keyservice"
                )
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            key = ALGORITHMS[algorithm or default_algorithm()].generate()
            _write_folder(folder, key, _new_ca(key), None)
        key, certificate = _read_ca(folder)
        if algorithm is not None and _algorithm(key) is not ALGORITHMS[algorithm]:
            raise LinkCertificatesError(
                f"the CA in {folder} does not use {algorithm}: name another directory for a new CA"
            )
        return cls(directory, key, certificate)

    def renewed(self, days: int, *, renew: bool) -> Iterator[Issued]:
        """Yield every host's folder, with a new key and certificate if ``renew``."""
        for role, prefix in _FOLDERS.items():
            for folder in self._directory.glob(f"{prefix}-*"):
                host = folder.name.removeprefix(f"{prefix}-")
                if renew:
                    yield self.issue(folder, role, host, days)
                    continue
                certificate = _read_certificate(folder / "certificate.pem")
                yield Issued(folder, certificate.not_valid_after_utc, is_new=False)

    def issue(self, folder: Path, role: Role, host: str, days: int) -> Issued:
        """Make a host's folder, or replace the files in it."""
        key = _algorithm(self._key).generate()
        certificate = self._sign(key, role, host, days)
        _write_folder(folder, key, certificate, self._certificate)
        return Issued(folder, certificate.not_valid_after_utc, is_new=True)

    def _sign(self, key: PrivateKey, role: Role, host: str, days: int) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.UniformResourceIdentifier(role), _general_name(host)]
        issuer = self._certificate.public_key()
        builder = (
            _builder(f"pqkeep {_FOLDERS[role]}", self._certificate.subject, key)
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(min(now + timedelta(days), self._certificate.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([_USAGES[role]]), critical=True)
            .add_extension(_key_usage(is_ca=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer),  # type: ignore[arg-type]
                critical=False,
            )
        )
        return builder.sign(self._key, _algorithm(self._key).digest)


def _new_ca(key: PrivateKey) -> x509.Certificate:
    now = datetime.now(UTC)
    number = (
        x509.random_serial_number() % 2**32
    )  # distinguishes an old and a new CA during a change
    subject = _name(f"pqkeep link CA {number:08x}")
    return (
        _builder(f"pqkeep link CA {number:08x}", subject, key)
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .sign(key, _algorithm(key).digest)
    )


def _builder(name: str, issuer: x509.Name, key: PrivateKey) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    """Return a host's name or address for a certificate. Raises LinkCertificatesError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > _MAX_HOST or not all(map(_LABEL.fullmatch, host.split("."))):
        raise LinkCertificatesError("a host must be a name or an address without a port")
    return x509.DNSName(host)


def _algorithm(key: PrivateKey) -> Algorithm:
    return next(algorithm for algorithm in ALGORITHMS.values() if isinstance(key, algorithm.kind))


def _read_ca(folder: Path) -> tuple[PrivateKey, x509.Certificate]:
    path = folder / "key.pem"
    if not path.exists():
        raise LinkCertificatesError(
            f"{path} is missing: make certificates where the CA's key is kept"
        )
    certificate = _read_certificate(folder / "certificate.pem")
    try:
        key = load_pem_private_key(read_secret_file(path, "key of the CA"), None)
        if not isinstance(key, PrivateKey) or key.public_key() != certificate.public_key():
            raise LinkCertificatesError(f"{path} is not the key of the CA's certificate")
        certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature):
        raise LinkCertificatesError(f"the CA in {folder} is damaged") from None
    return key, certificate


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(read_file(path, "certificate"))
    except ValueError:
        raise LinkCertificatesError(f"{path} is not a PEM certificate") from None


def _write_folder(
    folder: Path, key: PrivateKey, certificate: x509.Certificate, ca: x509.Certificate | None
) -> None:
    """Write a new folder, which appears when it is complete, or replace an old folder's files."""
    files = {
        "key.pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "certificate.pem": certificate.public_bytes(Encoding.PEM),
    }
    if ca is not None:
        files["ca.pem"] = ca.public_bytes(Encoding.PEM)
    if folder.exists():
        for name, data in files.items():
            write_atomically(folder / name, data, 0o600, replace=True)
        return
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as temporary:
        draft = Path(temporary) / folder.name
        draft.mkdir(mode=0o700)
        for name, data in files.items():
            write_atomically(draft / name, data, 0o600)
        draft.rename(folder)
    sync(folder.parent)
