"""TLS of the gateway's server: groups, handshakes, certificates, and closing."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from gateway.tests.served import Server
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.fixtures.certificate import Certificate, new_certificate
from tests.patience import PATIENCE

from pqkeep_gateway.http.tls_server import TlsServer
from pqkeep_gateway.http.tls_session import TlsError, TlsSession
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_protocol.tls_groups import group_of

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def server_hello(group: int, *, share: int) -> bytes:
    """Return the beginning of a server's flight (RFC 8446)."""
    key_share = group.to_bytes(2) + (share.to_bytes(2) + bytes(share) if share else b"")
    extensions = b"\0\x2b\0\2\3\4" + b"\0\x33" + len(key_share).to_bytes(2) + key_share
    body = b"\3\3" + bytes(32) + b"\x20" + bytes(32) + b"\x13\2\0"
    body += len(extensions).to_bytes(2) + extensions
    message = b"\2" + len(body).to_bytes(3) + body
    return b"\x16\3\3" + len(message).to_bytes(2) + message + b"\x14\3\3\0\1\1"


@pytest.mark.parametrize("share", [1120, 0], ids=["ServerHello", "HelloRetryRequest"])
@pytest.mark.parametrize(
    ("number", "name"),
    [(0x11EC, "X25519MLKEM768"), (0x11EB, "SecP256r1MLKEM768"), (0x1D, "x25519"), (1, "0x0001")],
)
def test_the_group_is_read_from_the_server_s_message(number: int, name: str, share: int) -> None:
    """ServerHello and HelloRetryRequest reveal the group, even an unknown one."""
    assert group_of(server_hello(number, share=share)) == name


@pytest.mark.parametrize("flight", [b"", b"\x16\3\3", bytes((21, 3, 3, 0, 2, 2, 40)) + bytes(99)])
def test_what_is_no_server_hello_has_no_group(flight: bytes) -> None:
    """An alert or a truncated head has no group."""
    assert group_of(flight) == ""


def talk(session: TlsSession, client: ssl.SSLContext, request: bytes = b"") -> tuple[bytes, str]:
    """Let a client shake hands and send a request; return the received bytes and the protocol."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        session.receive(outgoing.read())
        incoming.write(session.to_send())
    tls.write(request)
    return session.receive(outgoing.read()), str(tls.version())


@pytest.mark.parametrize("curve", ["X25519", "prime256v1", "secp384r1"])
def test_the_group_of_a_real_handshake(certificate: Certificate, curve: str) -> None:
    """The group that OpenSSL negotiates is read, and counted once."""
    client = certificate.client()
    try:
        client.set_ecdh_curve(curve)
    except ssl.SSLError:  # before 3.11.3 Python knows no curve but NIST's
        pytest.skip(f"this Python cannot offer {curve} alone")
    handshakes: Counter[str] = Counter()
    session = TlsSession(certificate.context, handshakes)
    assert talk(session, client, GET) == (GET, "TLSv1.3")
    assert session.group == curve.lower().replace("prime256v1", "secp256r1")
    assert handshakes == {session.group: 1}


def test_the_group_after_a_retry(certificate: Certificate, tmp_path: Path) -> None:
    """After a retry with another group, that group is read."""
    server = new_certificate(tmp_path).context
    server.set_ecdh_curve("secp521r1")
    client = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    session = TlsSession(server, Counter())
    assert talk(session, client, GET) == (GET, "TLSv1.3")
    assert session.group == "secp521r1"


def test_a_replaced_certificate_needs_no_signal(tmp_path: Path) -> None:
    """New connections get a replaced certificate after some seconds; a bad one changes nothing."""
    old = new_certificate(tmp_path)
    tls = TlsServer(old.path, old.key, require_post_quantum=False, look_seconds=0.001)

    async def do() -> None:
        running = asyncio.create_task(tls.run())
        context = tls.session().context
        old.path.write_text("no PEM")
        await asyncio.sleep(0.02)
        assert tls.session().context is context
        new = new_certificate(tmp_path)
        async with asyncio.timeout(PATIENCE):
            while tls.session().context is context:  # noqa: ASYNC110 - a reload has no event
                await asyncio.sleep(0.001)
        assert (await ask(server, new.client())).startswith(b"https")
        running.cancel()

    server = Server(tls)
    serve(server, hello, do)


@pytest.mark.threat("network-observer")
def test_a_classical_client_is_refused_where_post_quantum_is_required(
    certificate: Certificate,
) -> None:
    """A classical client gets the alert for no common group at once, and is not counted."""
    client = certificate.client()
    client.set_ecdh_curve("prime256v1")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    handshakes: Counter[str] = Counter()
    session = TlsSession(certificate.context, handshakes, require_post_quantum=True)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    with pytest.raises(TlsError, match="NO_POST_QUANTUM_GROUP"):
        session.receive(outgoing.read())
    incoming.write(session.to_send())
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        tls.do_handshake()
    assert not session.is_established
    assert not handshakes


def first_flight(client: ssl.SSLContext, name: str | None) -> bytes:
    """Return a client's first bytes."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("protocols", [["h2"], ["h2", "http/1.1"], [f"p{n}" for n in range(200)]])
@pytest.mark.parametrize("name", [None, "other.example.org", ".".join(["a" * 62] * 4)])
def test_whatever_name_and_protocols_a_client_has_it_is_served(
    certificate: Certificate, tls: TlsServer, name: str | None, protocols: list[str]
) -> None:
    """A client's SNI and ALPN have no effect: there is one certificate and one protocol."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate.path)
    client.set_alpn_protocols(protocols)
    session = tls.session()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = client.wrap_bio(incoming, outgoing, server_hostname=name)
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
        session.receive(outgoing.read())
        incoming.write(session.to_send())
    assert session.is_established
    assert end.selected_alpn_protocol() in {None, "http/1.1"}


def test_a_first_message_in_records_of_a_byte(certificate: Certificate, tls: TlsServer) -> None:
    """A ClientHello in records of one byte gets the same response as in one record."""
    flight = first_flight(certificate.client(), "127.0.0.1")
    session = tls.session()
    for byte in flight[5:]:
        session.receive(flight[:3] + b"\0\1" + bytes([byte]))
    assert session.group
    assert session.to_send()


def test_a_damaged_first_message_fails_and_does_no_more(
    certificate: Certificate, tls: TlsServer
) -> None:
    """Any changed byte of a ClientHello raises only TlsError, and the handshake fails."""
    flight = first_flight(certificate.client(), "name.example.org")
    for at in range(len(flight)):
        for value in (0, 0xFF):
            session = tls.session()
            with suppress(TlsError):
                session.receive(flight[:at] + bytes([value]) + flight[at + 1 :])
            assert not session.is_established


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with everything known about the connection."""
    text = f"{scope['scheme']} {scope['state'].get('tls_group')}".encode()
    headers = [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with five million bytes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(5_000_000)})


def serve(server: Server, app: ASGIApp, client: Callable[[], Awaitable[None]]) -> None:
    """Connect a client to a running server."""

    async def run() -> None:
        async with server.serving(app):
            await asyncio.wait_for(client(), PATIENCE)

    uvloop.run(run())


@pytest.fixture
def tls(certificate: Certificate) -> TlsServer:
    """TLS with a certificate."""
    return TlsServer(certificate.path, certificate.key, require_post_quantum=False)


async def ask(server: Server, client: ssl.SSLContext) -> bytes:
    """Return the body of a response on a new connection that the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=client)
    writer.write(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    response = await reader.read()
    writer.close()
    return response.partition(b"\r\n\r\n")[2]


def test_a_request_over_tls(certificate: Certificate, tls: TlsServer) -> None:
    """A request over TLS has the scheme https, and its connection's group is known."""
    server = Server(tls)
    client = certificate.client()
    client.set_ecdh_curve("prime256v1")

    async def do() -> None:
        assert await ask(server, client) == b"https secp256r1"

    serve(server, hello, do)
    assert tls.handshakes == {"secp256r1": 1}
    assert not tls.failures


def test_no_connection_is_resumed(certificate: Certificate, tls: TlsServer) -> None:
    """The server sends no session ticket after the handshake."""
    session = tls.session()
    talk(session, certificate.client(), GET)
    assert session.is_established
    assert session.to_send() == b""


def test_a_long_answer_over_tls(certificate: Certificate, tls: TlsServer) -> None:
    """A response of many records arrives completely, and ends with close_notify."""
    server = Server(tls)

    async def do() -> None:
        def receive() -> int:
            with (
                socket.create_connection(("127.0.0.1", server.port)) as connection,
                certificate.client().wrap_socket(
                    connection, server_hostname="127.0.0.1", suppress_ragged_eofs=False
                ) as client,
            ):
                client.sendall(GET.replace(b"1.1", b"1.0"))
                return sum(len(piece) for piece in iter(lambda: client.recv(65_536), b""))

        assert await asyncio.to_thread(receive) > 5_000_000

    serve(server, large, do)


def test_a_handshake_and_a_request_byte_by_byte(certificate: Certificate) -> None:
    """A handshake and a request that arrive in single bytes are handled as usual."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificate.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    session = TlsSession(certificate.context, Counter())
    received = b""
    for step in (
        client.do_handshake,
        client.do_handshake,
        lambda: client.write(2 * GET),
        client.unwrap,
    ):
        with suppress(ssl.SSLWantReadError):
            step()
        for byte in outgoing.read():
            received += session.receive(bytes((byte,)))
            incoming.write(session.to_send())
    assert received == 2 * GET
    assert session.has_ended


def test_a_client_that_ends_its_side_is_hung_up_on(
    certificate: Certificate, tls: TlsServer
) -> None:
    """A request before close_notify is executed, and the connection is closed."""
    server = Server(tls)
    executed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        executed.set()
        await hello(scope, receive, send)

    async def do() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = certificate.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(outgoing.read())
        while client.version() is None or not outgoing.pending:
            incoming.write(await reader.read(65_536))
            with suppress(ssl.SSLWantReadError):
                client.do_handshake()
        client.write(GET)
        with suppress(ssl.SSLWantReadError):
            client.unwrap()
        writer.write(outgoing.read())
        await reader.read()
        writer.close()
        await executed.wait()

    serve(server, app, do)


def test_plain_http_is_closed_without_a_reset(tls: TlsServer) -> None:
    """A plain HTTP request of any size ends with an orderly close, and is counted."""
    server = Server(tls)

    async def do() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(GET)
        await server.until(lambda: bool(tls.failures))
        writer.write(bytes(1_000_000))
        await writer.drain()
        assert b"HTTP" not in await reader.read()
        writer.close()

    serve(server, hello, do)
    assert tls.failures == {"HTTP_REQUEST": 1}


def test_an_answer_before_the_body_is_read_after_it(
    certificate: Certificate, tls: TlsServer
) -> None:
    """A client that sends a refused body completely can still read the response."""
    server = Server(tls)
    answered = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await hello(scope, receive, send)
        answered.set()

    async def do() -> None:
        def send_and_read() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", server.port)) as connection,
                certificate.client().wrap_socket(
                    connection, server_hostname="127.0.0.1", suppress_ragged_eofs=False
                ) as client,
            ):
                client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n")
                answered.wait(PATIENCE)
                for _ in range(20):
                    client.sendall(bytes(100_000))
                return b"".join(iter(lambda: client.recv(65_536), b""))

        response = await asyncio.to_thread(send_and_read)
        assert response.endswith(b"https " + tls_group(tls))
        assert b"connection: close" in response

    serve(server, app, do)


@pytest.mark.threat("stranger")
def test_a_connection_counts_from_before_its_handshake(
    certificate: Certificate, tls: TlsServer
) -> None:
    """Connections without a handshake count: an address with too many loses the oldest."""
    server = Server(tls, per_address=2)

    async def do() -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        await server.until(lambda: len(server.state.connections) == 2)
        assert await ask(server, certificate.client()) == b"https " + tls_group(tls)
        with suppress(ConnectionResetError):
            assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()

    serve(server, hello, do)


def test_a_connection_without_room_is_closed_unanswered(
    certificate: Certificate, tls: TlsServer
) -> None:
    """If all connections of an address are busy, a new one is closed before its handshake."""
    server = Server(tls, per_address=1)
    began, done = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await done.wait()
        await hello(scope, receive, send)

    async def do() -> None:
        first = asyncio.create_task(ask(server, certificate.client()))
        await began.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        writer.close()
        done.set()
        assert await first == b"https " + tls_group(tls)

    serve(server, app, do)


def tls_group(tls: TlsServer) -> bytes:
    """Return the negotiated group, of which there must be one."""
    (group,) = tls.handshakes
    return group.encode()


class Updates:
    """Requests new keys repeatedly: a client's side of RFC 8446, 4.6.3 and 7.2."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def next(self) -> bytes:
        """Return a record with KeyUpdate, and switch to the next sending keys."""
        key, iv = self._derived(b"key", 32), self._derived(b"iv", 12)
        content = b"\x18\0\0\1\1" + b"\x16"
        header = b"\x17\3\3" + (len(content) + 16).to_bytes(2)
        sealed = AESGCM(key).encrypt(iv, content, header)  # the first under these keys
        self._secret = self._derived(b"traffic upd", 48)
        return header + sealed

    def _derived(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = size.to_bytes(2) + bytes((len(label),)) + label + b"\0"
        return HKDFExpand(hashes.SHA384(), size, info).derive(self._secret)


@pytest.mark.threat("stranger")
def test_updates_of_keys_are_limited(certificate: Certificate, tmp_path: Path) -> None:
    """A client that only requests key updates is refused after some."""
    client = certificate.client()
    client.keylog_filename = str(tmp_path / "keys")
    session = TlsSession(certificate.context, Counter())
    talk(session, client)
    (secret,) = [
        line.split()[2]
        for line in (tmp_path / "keys").read_text().splitlines()
        if line.startswith("CLIENT_TRAFFIC_SECRET_0")
    ]
    updates = Updates(bytes.fromhex(secret))
    few = b"".join(updates.next() for _ in range(500))
    assert session.receive(few) == b""
    assert 0 < len(session.to_send()) <= len(few)
    with pytest.raises(TlsError, match="TOO_LITTLE_CONTENT"):
        session.receive(b"".join(updates.next() for _ in range(500)))


@pytest.mark.parametrize(("size", "is_read"), [(1, False), (30, True), (16_384, True)])
def test_records_of_a_byte_are_limited(
    certificate: Certificate, size: int, *, is_read: bool
) -> None:
    """A client with much overhead for little content is refused; small records are allowed."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificate.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    session = TlsSession(certificate.context, Counter())
    for _ in range(2):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        session.receive(outgoing.read())
        incoming.write(session.to_send())
    for _ in range(2000):
        client.write(bytes(size))
    sent = outgoing.read()
    if not is_read:
        with pytest.raises(TlsError, match="TOO_LITTLE_CONTENT"):
            session.receive(sent)
        return
    received = sum(
        len(session.receive(sent[at : at + 10_000])) for at in range(0, len(sent), 10_000)
    )
    assert received == 2000 * size


def _copy(certificate: Certificate, folder: Path) -> Certificate:
    for path in (certificate.path, certificate.key):
        shutil.copy(path, folder)
    path, key = folder / certificate.path.name, folder / certificate.key.name
    return Certificate(path, key, certificate.context)


def _mismatch(folder: Path) -> None:
    (folder / "other").mkdir()
    shutil.copy(new_certificate(folder / "other").key, folder)


def _encrypt(folder: Path) -> None:
    key = load_pem_private_key((folder / "key.pem").read_bytes(), None)
    password = BestAvailableEncryption(b"secret-of-the-key")
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, password)
    (folder / "key.pem").write_bytes(text)


def _mistime(folder: Path) -> None:
    path = folder / "certificate.pem"
    der = ssl.PEM_cert_to_DER_cert(path.read_text())
    head, _, tail = der.rpartition(b"\x17\x0d")  # the last UTCTime: notAfter
    broken = head + b"\x17\x0d" + b"x" * 12 + tail[12:]
    path.write_text(ssl.DER_cert_to_PEM_cert(broken))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no certificate": (lambda at: (at / "certificate.pem").unlink(), "No such file"),
    "no PEM": (lambda at: (at / "certificate.pem").write_text("x"), "not PEM"),
    "no key": (lambda at: (at / "key.pem").unlink(), "No such file"),
    "an open key": (lambda at: (at / "key.pem").chmod(0o644), "0600"),
    "another's key": (_mismatch, "MISMATCH"),
    "an encrypted key": (_encrypt, "encrypted"),
    "no time": (_mistime, "not a time"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_certificate_is_refused(certificate: Certificate, tmp_path: Path, how: str) -> None:
    """A bad certificate stops the start; at a reload the old one remains."""
    copy = _copy(certificate, tmp_path)
    tls = TlsServer(copy.path, copy.key, require_post_quantum=False)
    context, expires = tls.session().context, tls.expires
    make, expected = BAD[how]
    make(tmp_path)
    with pytest.raises(ConfigError, match=expected) as refused:
        TlsServer(copy.path, copy.key, require_post_quantum=False)
    assert "secret-of-the-key" not in str(refused.value)
    tls.reload()
    assert tls.session().context is context
    assert tls.expires == expires


def test_an_expired_certificate_does_not_replace_another(tmp_path: Path) -> None:
    """An expired certificate is accepted at the start, but not at a reload."""
    expired = new_certificate(tmp_path, expires=timedelta(days=-1))
    tls = TlsServer(expired.path, expired.key, require_post_quantum=False)
    context = tls.session().context
    new_certificate(tmp_path)
    tls.reload()
    valid = tls.session().context
    assert valid is not context
    new_certificate(tmp_path, expires=timedelta(days=-1))
    tls.reload()
    assert tls.session().context is valid


def test_a_new_certificate_is_for_new_connections(tmp_path: Path) -> None:
    """After a reload, open connections continue, and new connections use the new certificate."""
    old = new_certificate(tmp_path)
    trusts_old = old.client()
    tls = TlsServer(old.path, old.key, require_post_quantum=False)
    server = Server(tls)

    async def do() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusts_old)
        new = new_certificate(tmp_path)
        tls.reload()
        assert (await ask(server, new.client())).startswith(b"https")
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(server, trusts_old)
        writer.write(GET)
        assert (await reader.readline()).endswith(b"200 OK\r\n")
        writer.close()

    serve(server, hello, do)


@pytest.mark.threat("network-observer")
def test_post_quantum_is_refused_where_openssl_has_none(certificate: Certificate) -> None:
    """Post-quantum TLS requires OpenSSL 3.5 or later; the error names an older version."""

    def start() -> TlsServer:
        return TlsServer(certificate.path, certificate.key, require_post_quantum=True)

    if ssl.OPENSSL_VERSION_INFO >= (3, 5):
        assert talk(start().session(), certificate.client(), GET)[0] == GET
    else:
        with pytest.raises(ConfigError, match=re.escape(ssl.OPENSSL_VERSION)):
            start()
