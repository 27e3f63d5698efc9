"""Certificates for the link: created once, renewed, accepted by both ends, never overwritten."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509

from pqkeep_protocol.link import Identity, LinkTls, Role
from pqkeep_server.link_certificates import Issued, LinkCertificatesError, issue

HOSTS = [(Role.GATEWAY, "gateway.example.org"), (Role.KEY_SERVICE, "192.0.2.7")]
FOLDERS = {Role.GATEWAY: "gateway-gateway.example.org", Role.KEY_SERVICE: "keyservice-192.0.2.7"}


def issued(directory: Path, *hosts: tuple[Role, str], renew: bool = False) -> list[Issued]:
    """Make ECDSA certificates, valid for 90 days."""
    return issue(directory, hosts, algorithm="P-256", days=90, renew=renew)


def contents(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_both_ends_accept_them(tmp_path: Path) -> None:
    """Each folder has the files of its end, private and valid for the requested time."""
    directory = tmp_path / "new" / "link"
    assert [certificate.is_new for certificate in issued(directory, *HOSTS)] == [True, True]
    for role, name in FOLDERS.items():
        folder = directory / name
        files = {path.name: path for path in folder.iterdir()}
        tls = LinkTls(
            Identity(role, files["certificate.pem"], files["key.pem"], files["ca.pem"]),
        )
        assert tls.days_left == 89
        assert {stat.S_IMODE(file.stat().st_mode) for file in files.values()} == {0o600}
    assert stat.S_IMODE((directory / "ca" / "key.pem").stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(
        (directory / FOLDERS[Role.KEY_SERVICE] / "certificate.pem").read_bytes()
    )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [Role.KEY_SERVICE.value, "192.0.2.7"]


def test_made_again_nothing_changes(tmp_path: Path) -> None:
    """A second run with another host changes no existing file."""
    issued(tmp_path, *HOSTS)
    before = contents(tmp_path)
    new = (Role.GATEWAY, "second.example.org")
    assert [certificate.is_new for certificate in issued(tmp_path, *HOSTS, new)] == [
        False,
        True,
        False,
    ]
    assert contents(tmp_path).items() >= before.items()
    assert [certificate.is_new for certificate in issued(tmp_path)] == [False, False, False]


def test_renewal_replaces_keys_and_certificates_and_not_the_ca(tmp_path: Path) -> None:
    """A renewal makes new keys and certificates for every host, under the same CA."""
    issued(tmp_path, *HOSTS)
    before = contents(tmp_path)
    assert all(certificate.is_new for certificate in issued(tmp_path, renew=True))
    after = contents(tmp_path)
    assert before.keys() == after.keys()
    kept = {name for name in before if before[name] == after[name]}
    assert kept == {
        *("ca/certificate.pem", "ca/key.pem"),
        *(f"{folder}/ca.pem" for folder in FOLDERS.values()),
    }
    for role, name in FOLDERS.items():
        files = ("certificate.pem", "key.pem", "ca.pem")
        certificate, key, ca = (tmp_path / name / file for file in files)
        LinkTls(Identity(role, certificate, key, ca))


@pytest.mark.parametrize(
    "host", ["", "a/b", "..", "a:1", "-a", "a b", "a.", "x" * 254, "ä.example"]
)
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    """An invalid host name or address creates no file."""
    with pytest.raises(LinkCertificatesError):
        issued(tmp_path / "link", (Role.GATEWAY, host))
    assert not (tmp_path / "link").exists()


def test_without_the_ca_nothing_is_made(tmp_path: Path) -> None:
    """Without hosts no CA is made; without the CA's right key, no certificate."""
    with pytest.raises(LinkCertificatesError, match="name hosts with"):
        issued(tmp_path)
    issued(tmp_path, *HOSTS)
    key = tmp_path / "ca" / "key.pem"
    foreign = (tmp_path / FOLDERS[Role.GATEWAY] / "key.pem").read_bytes()
    before = key.read_bytes()
    for content, problem in ((foreign, "is not the key"), (b"", "damaged"), (None, "missing")):
        key.unlink()
        if content is not None:
            key.touch(0o600)
            key.write_bytes(content)
        with pytest.raises(LinkCertificatesError, match=problem):
            issued(tmp_path, renew=True)
    key.touch(0o644)
    key.write_bytes(before)
    with pytest.raises(LinkCertificatesError, match="other users have access"):
        issued(tmp_path, renew=True)


def test_the_command_says_what_to_keep_offline(
    pqkeepd_command: Sequence[str | Path], tmp_path: Path
) -> None:
    """Pqkeepd certificates names each folder and the CA's key, and reports errors in one line."""
    command = [*pqkeepd_command, "certificates", tmp_path / "link", "--days", "30"]
    made = subprocess.run(
        [*command, "--gateway", "gateway.example.org"], capture_output=True, text=True, check=True
    )
    assert str(tmp_path / "link" / "gateway-gateway.example.org") in made.stdout
    assert f"{tmp_path / 'link' / 'ca' / 'key.pem'} can make certificates" in made.stdout
    refused = subprocess.run(
        [*command, "--gateway", "a/b"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr == "pqkeepd: a host must be a name or an address without a port\n"


def test_an_algorithm_is_the_cas(tmp_path: Path) -> None:
    """With ML-DSA-65 all keys use it; a CA of another algorithm issues nothing."""
    issue(tmp_path, HOSTS, algorithm="ML-DSA-65", days=90, renew=False)
    for path in tmp_path.rglob("certificate.pem"):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        assert certificate.signature_algorithm_oid.dotted_string == "2.16.840.1.101.3.4.3.18"
        assert certificate.public_key_algorithm_oid.dotted_string == "2.16.840.1.101.3.4.3.18"
    with pytest.raises(LinkCertificatesError, match="does not use P-256"):
        issued(tmp_path, *HOSTS)
