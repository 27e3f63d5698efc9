"""One end's TLS: the certificates it accepts, reloads and warns about."""

from __future__ import annotations

import asyncio
import ssl
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from tests.fixtures.link import ANY, HOST
from tests.patience import PATIENCE

from pqkeep_protocol.link import Identity, LinkTls, Role, _check_own_group, _check_peers_group
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_protocol.tls_groups import NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.link import LinkCa

    from pqkeep_protocol.tls_groups import GroupContext

DAY = 24 * 3600
OTHER = {Role.GATEWAY: Role.KEY_SERVICE, Role.KEY_SERVICE: Role.GATEWAY}


@pytest.mark.parametrize("role", Role)
def test_a_certificate_of_its_role_is_used(link_ca: LinkCa, role: Role) -> None:
    """Each end starts with a certificate of its role, with TLS 1.3 only and without tickets."""
    tls = link_ca.tls(role)
    assert tls.context.minimum_version.name == "TLSv1_3"
    assert tls.context.verify_mode.name == "CERT_REQUIRED"
    assert role is Role.GATEWAY or tls.context.num_tickets == 0
    assert tls.days_left == 89


def refusal(identity: Identity) -> str:
    """Return the error of an end with these files."""
    with pytest.raises(ConfigError) as caught:
        LinkTls(identity)
    return str(caught.value)


@pytest.mark.parametrize("role", Role)
def test_a_certificate_that_the_other_end_would_refuse_is_refused(
    link_ca: LinkCa, other_ca: LinkCa, role: Role
) -> None:
    """A certificate that is expired, or of another CA, usage or role, is refused at the start."""
    strange = other_ca.identity(role)
    foreign = Identity(role, strange.certificate, strange.key, link_ca.folder / "ca.pem")
    other_usage = link_ca.identity(OTHER[role], uris=[role])
    misused = Identity(role, other_usage.certificate, other_usage.key, other_usage.ca)
    assert "has expired" in refusal(link_ca.identity(role, days=-1))
    assert "unable to get local issuer certificate" in refusal(foreign)
    assert "purpose" in refusal(misused)
    assert "it needs the extended key usage" in refusal(link_ca.identity(role, has_usage=False))
    assert refusal(link_ca.identity(role, usage=ANY))
    assert refusal(link_ca.identity(role, is_ca=True))
    for uris in ([OTHER[role]], list(Role), []):
        assert "as the only URI" in refusal(link_ca.identity(role, uris=uris))


def test_unreadable_files_are_refused(link_ca: LinkCa) -> None:
    """A readable, foreign or encrypted key, and a file that is not PEM, are refused."""
    own, another = link_ca.identity(Role.GATEWAY), link_ca.identity(Role.GATEWAY)
    assert "KEY_VALUES_MISMATCH" in refusal(
        Identity(own.role, own.certificate, another.key, own.ca)
    )
    no_certificate = Identity(own.role, own.certificate, own.key, own.key)
    assert "NO_CERTIFICATE_OR_CRL_FOUND" in refusal(no_certificate)
    encrypted = BestAvailableEncryption(b"passphrase")
    key = load_pem_private_key(own.key.read_bytes(), None)
    own.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
    assert "the key is encrypted" in refusal(own)
    another.key.chmod(0o644)
    assert "other users have access" in refusal(another)
    own.certificate.unlink()
    assert "No such file" in refusal(own)


def test_an_end_that_is_no_time_is_refused(link_ca: LinkCa, tmp_path: Path) -> None:
    """A CA file with a second certificate with an unreadable end is refused, also in a reload."""
    own = link_ca.identity(Role.GATEWAY)
    der = ssl.PEM_cert_to_DER_cert(own.ca.read_text())
    head, _, tail = der.rpartition(b"\x17\x0d")  # the last UTCTime: notAfter
    broken = ssl.DER_cert_to_PEM_cert(head + b"\x17\x0d" + b"x" * 12 + tail[12:])
    both = tmp_path / "ca.pem"
    both.write_text(own.ca.read_text())
    identity = Identity(own.role, own.certificate, own.key, both)
    tls = LinkTls(identity)
    both.write_text(own.ca.read_text() + broken)
    assert "the end of one is not a time" in refusal(identity)
    tls.reload()
    assert tls.days_left > 0


def test_a_reload_takes_new_files_over_and_nothing_else(
    link_ca: LinkCa, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload uses new files for new connections. Unusable files are logged and change nothing."""
    identity = link_ca.identity(Role.GATEWAY, name="own")
    tls = LinkTls(identity)
    first = tls.context
    link_ca.identity(Role.GATEWAY, days=200, name="own")
    tls.reload()
    second = tls.context
    assert second is not first
    assert tls.days_left == 199
    link_ca.identity(Role.GATEWAY, days=-1, name="own")
    tls.reload()
    assert tls.context is second
    assert tls.days_left == 199
    assert caplog.text.count("the link's certificate is not reloaded") == 1


async def test_replaced_files_are_taken_over_without_a_signal(
    link_ca: LinkCa, caplog: pytest.LogCaptureFixture
) -> None:
    """A running end reloads replaced files by itself, each replacement once."""
    identity = link_ca.identity(Role.KEY_SERVICE, name="own")
    caplog.set_level("INFO")
    tls = LinkTls(identity, look_seconds=0.001)
    running = asyncio.create_task(tls.run())
    for days in (200, 100):
        link_ca.identity(Role.KEY_SERVICE, days=days, name="own")
        async with asyncio.timeout(PATIENCE):
            while tls.days_left != days - 1:  # noqa: ASYNC110 - a reload has no event
                await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    running.cancel()
    assert caplog.text.count("the link's certificate is reloaded") == 2


def test_key_exchange_without_a_post_quantum_group_is_refused_or_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An OpenSSL with post-quantum groups must negotiate one. An older one logs a warning."""
    _check_own_group("X25519MLKEM768", required=True)
    assert not caplog.text
    if ssl.OPENSSL_VERSION_INFO >= (3, 5):
        with pytest.raises(ConfigError, match="negotiates x25519"):
            _check_own_group("x25519", required=False)
    else:
        with pytest.raises(ConfigError, match="require_post_quantum needs OpenSSL"):
            _check_own_group("x25519", required=True)
        _check_own_group("x25519", required=False)
        assert caplog.text.count("the link's key exchange is not post-quantum") == 1


def handshake(client: GroupContext, server: GroupContext, size: int) -> None:
    """Run a handshake of two contexts in memory, in pieces of ``size`` bytes. Raises SSLError."""
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        (client.wrap_bio(downwards, to_client := ssl.MemoryBIO(), server_hostname=HOST), to_client),
        (server.wrap_bio(upwards, to_server := ssl.MemoryBIO(), server_side=True), to_server),
    )
    is_done = {end: False for end, _ in ends}
    while not all(is_done.values()):
        for (end, written), received in zip(ends, (upwards, downwards), strict=True):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                is_done[end] = True
            received.write(written.read(size))


@pytest.mark.parametrize("size", [1, 100, 16384])
@pytest.mark.parametrize("end", Role)
def test_each_handshake_s_group_is_looked_at(link_ca: LinkCa, end: Role, size: int) -> None:
    """Each end learns the negotiated group once per handshake, however the bytes arrive."""
    contexts = {role: link_ca.tls(role).context for role in Role}
    seen: list[str] = []
    contexts[end].on_group = seen.append
    for expected in (1, 2):
        handshake(contexts[Role.GATEWAY], contexts[Role.KEY_SERVICE], size)
        assert len(seen) == expected
    assert set(seen) <= set(NAMES.values())


@pytest.mark.parametrize("end", Role)
def test_a_peer_without_a_post_quantum_group_is_refused(link_ca: LinkCa, end: Role) -> None:
    """An end that requires post-quantum key exchange refuses a handshake with another group."""
    contexts = {role: link_ca.tls(role).context for role in Role}
    contexts[Role.GATEWAY].set_ecdh_curve("prime256v1")
    contexts[end].on_group = partial(_check_peers_group, required=True)
    with pytest.raises(ssl.SSLError, match="NO_POST_QUANTUM_GROUP"):
        handshake(contexts[Role.GATEWAY], contexts[Role.KEY_SERVICE], 16384)


@pytest.mark.parametrize(("days", "lines"), [(31, 0), (29, 1), (-1, 1)])
def test_expiry_is_warned_of(
    link_ca: LinkCa, days: int, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning is logged from 30 days before a certificate expires."""
    identity = link_ca.identity(Role.GATEWAY, days=90)
    LinkTls(identity, lambda: time.time() + (90 - days) * DAY).warn()
    assert caplog.text.count("the link's certificate expires soon") == lines


def test_the_ca_expires_too(link_ca: LinkCa) -> None:
    """A certificate is valid no longer than its CA."""
    identity = link_ca.identity(Role.GATEWAY, days=800)
    assert LinkTls(identity).days_left == 399
