"""Mutual TLS between a gateway and a key service on two hosts, with the standard library's ssl.

Both ends have a certificate from one private CA. A URI in it names the holder's role. Each end
accepts only the other role, with the matching extended key usage, in a certificate that is not a
CA's. OpenSSL alone would accept a certificate without any usage. Only TLS 1.3 is used, without
session tickets, so that each connection begins with both certificates. On one host a Unix socket
needs no TLS: the kernel identifies the peer process.
"""

import asyncio
import math
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pqkeep_protocol.der import SEQUENCE, DerError, elements, only
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import LOOK_SECONDS, ReplacedFiles, check_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_protocol.tls_groups import POST_QUANTUM, GroupContext

_UCRED = struct.Struct("=iII")  # pid, uid, gid; see unix(7), SO_PEERCRED


class UnixConnection(Protocol):
    """A connected Unix socket, of the standard library or of asyncio."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """See ``socket.socket.getsockopt``."""


class Peer(NamedTuple):
    """The process at the other end of a Unix socket."""

    pid: int
    uid: int


def peer_of(connection: UnixConnection) -> Peer:
    """Return the process that connected or listens. Raises OSError."""
    pid, uid, _ = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return Peer(pid, uid)


_LOG = logger(__name__)

HANDSHAKE_SECONDS = 5.0
"""The limit for connecting, and again for the handshake."""
WARNING_DAYS = 30
_DAY_SECONDS = 24 * 3600
_SILENCE_MS = 10_000
"""A peer that acknowledges nothing for this long is gone."""
_EXPLAINED: Mapping[str | None, str] = {
    None: "it is not PEM, or the key is encrypted",
    "EE_KEY_TOO_SMALL": "its algorithm is not known; ML-DSA-65 needs OpenSSL 3.5",
}
"""Better texts for OpenSSL's unclear reasons."""
_HAS_POST_QUANTUM = ssl.OPENSSL_VERSION_INFO >= (3, 5)


class Role(StrEnum):
    """The role in a certificate: its only URI, a SPIFFE ID."""

    GATEWAY = "spiffe://pqkeep/gateway"
    KEY_SERVICE = "spiffe://pqkeep/keyservice"


_OTHER: Mapping[Role, Role] = {
    Role.GATEWAY: Role.KEY_SERVICE,
    Role.KEY_SERVICE: Role.GATEWAY,
}
_USAGE: Mapping[Role, bytes] = {
    Role.GATEWAY: bytes.fromhex("2b06010505070302"),
    Role.KEY_SERVICE: bytes.fromhex("2b06010505070301"),
}
"""The contents of the object identifiers id-kp-clientAuth and id-kp-serverAuth: RFC 5280, section
4.2.1.12."""
_USAGES, _CONSTRAINTS = bytes.fromhex("551d25"), bytes.fromhex("551d13")
"""The extensions extKeyUsage and basicConstraints."""
_NO_CONSTRAINTS = memoryview(bytes((SEQUENCE, 0)))
_EXTENSIONS_TAG, _BOOLEAN = 0xA3, 0x01


@dataclass(frozen=True, slots=True)
class Identity:
    """The files in PEM with which one end authenticates itself and its peer."""

    role: Role
    certificate: Path
    """The own certificate, with any intermediate certificates."""
    key: Path
    """The certificate's unencrypted private key: a secret file."""
    ca: Path
    """The CA certificates that sign accepted peers."""
    require_post_quantum: bool = False
    """Whether to refuse a peer without post-quantum key exchange."""


class LinkTls:
    """One end's TLS. New connections use the files as they were last read."""

    def __init__(
        self,
        identity: Identity,
        now: Callable[[], float] = time.time,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Read the files. Raises ConfigError if the other end would reject them."""
        self._identity = identity
        self._look_seconds = look_seconds
        self._now = now
        self._files = ReplacedFiles(identity.certificate, identity.key, identity.ca)
        self.context, self.expires_at = _load(identity)
        self.peer_expires_at = 0.0
        """When the newest peer's certificate expires, in Unix seconds; 0 before the first peer."""

    def reload(self) -> None:
        """Read the files again, for new connections. If they are unusable, nothing changes."""
        self._files.note()
        try:
            self.context, self.expires_at = _load(self._identity)
        except ConfigError as error:
            _LOG.error("the link's certificate is not reloaded", error=str(error))
        else:
            _LOG.info("the link's certificate is reloaded", days=self.days_left)
            self.warn()

    @property
    def days_left(self) -> int:
        """Whole days until the certificate or the CA expires."""
        return int((self.expires_at - self._now()) // _DAY_SECONDS)

    @property
    def expires_soon(self) -> bool:
        """Whether the certificate or the CA expires within 30 days."""
        return self.days_left < WARNING_DAYS

    def warn(self) -> None:
        """Log a warning from 30 days before the certificate expires."""
        if self.expires_soon:
            _LOG.warning("the link's certificate expires soon", days=self.days_left)

    async def run(self) -> None:
        """Reload replaced files, and call ``warn`` once a day, until cancelled."""
        warned_at = -math.inf
        while True:
            if self._now() - warned_at >= _DAY_SECONDS:
                warned_at = self._now()
                self.warn()
            await asyncio.sleep(self._look_seconds)
            if self._files.settled():
                self.reload()

    def accepts(self, transport: asyncio.Transport) -> bool:
        """Return whether a verified peer certificate has the other end's role."""
        certificate = transport.get_extra_info("peercert") or {}
        encoded = transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        role = _OTHER[self._identity.role]
        if _has_role(certificate, role) and _is_for(encoded, role):
            _keep_alive(transport.get_extra_info("socket"))
            self.peer_expires_at = ssl.cert_time_to_seconds(certificate["notAfter"])
            return True
        address, *_ = transport.get_extra_info("peername") or ("",)
        _LOG.warning("refused a peer with a certificate of another role", address=address)
        return False


def reason(error: BaseException) -> str:
    """Return on one line why a connection failed or ended."""
    of_openssl = getattr(error, "reason", None)
    return str(of_openssl or getattr(error, "strerror", None) or str(error) or type(error).__name__)


def _load(identity: Identity) -> tuple[GroupContext, float]:
    """Return a context, and the earlier expiry of certificate and CA, in Unix seconds."""
    check_secret_file(identity.key, "private key of the link's certificate")
    is_server = identity.role is Role.KEY_SERVICE
    context = _new_context(identity, is_server=is_server, verifies=True)
    certificate, encoded = _verified_certificate(identity)
    if not _has_role(certificate, identity.role):
        raise ConfigError(
            f"cannot use the certificate in {identity.certificate}: it needs {identity.role} as the"
            " only URI among its names"
        )
    if not _is_for(encoded, identity.role):
        side = "servers" if is_server else "clients"
        raise ConfigError(
            f"cannot use the certificate in {identity.certificate}: it needs the extended key usage"
            f" for {side}, and must not be a CA certificate"
        )
    context.on_group = partial(_check_peers_group, required=identity.require_post_quantum)
    ends = (str(presented["notAfter"]) for presented in (certificate, *context.get_ca_certs()))
    try:
        return context, min(map(ssl.cert_time_to_seconds, ends))
    except ValueError:
        raise ConfigError(
            f"cannot use the certificates in {identity.certificate} and {identity.ca}: the end of one"
            " is not a time"
        ) from None


def _new_context(identity: Identity, *, is_server: bool, verifies: bool) -> GroupContext:
    context = GroupContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if is_server:
        context.num_tickets = 0
    if verifies:
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        context.load_verify_locations(identity.ca)
    except (OSError, ssl.SSLError) as error:
        raise _refusal("CA", identity.ca, error) from None
    try:
        context.load_cert_chain(identity.certificate, identity.key, password="")
    except (OSError, ssl.SSLError) as error:
        raise _refusal("certificate", identity.certificate, error) from None
    return context


def _verified_certificate(identity: Identity) -> tuple[Mapping[str, Any], bytes]:
    """Return the certificate and its DER, verified as the other end does: by a handshake in memory.

    Raises ConfigError if the other end would reject it: expired, from another CA, for the other
    role.
    """
    is_server = identity.role is Role.KEY_SERVICE
    client = _new_context(identity, is_server=False, verifies=is_server)
    server = _new_context(identity, is_server=True, verifies=not is_server)
    client.on_group = partial(_check_own_group, required=identity.require_post_quantum)
    client.check_hostname = False  # the host name is in the gateway's settings
    upwards, downwards = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(downwards, upwards)
    server_end = server.wrap_bio(upwards, downwards, server_side=True)
    try:
        for end in (client_end, server_end):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        for end in (client_end, server_end):
            with suppress(ssl.SSLWantReadError):  # after a HelloRetryRequest
                end.do_handshake()
        for end in (client_end, server_end):
            end.do_handshake()
    except ssl.SSLError as error:
        raise _refusal("certificate", identity.certificate, error) from None
    end = client_end if is_server else server_end
    return end.getpeercert() or {}, end.getpeercert(binary_form=True) or b""


def _check_peers_group(group: str, *, required: bool) -> None:
    """Refuse a peer's key exchange that is not post-quantum, or log a warning. Raises SSLError."""
    if group in POST_QUANTUM:
        return
    if required:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, "NO_POST_QUANTUM_GROUP")
    _LOG.warning("a connection of the link is not post-quantum", group=group)


def _check_own_group(group: str, *, required: bool) -> None:
    """Refuse key exchange that is not post-quantum, or log a warning if OpenSSL has no other.

    Raises ConfigError.
    """
    if group in POST_QUANTUM:
        return
    if required and not _HAS_POST_QUANTUM:
        raise ConfigError(
            f"require_post_quantum needs OpenSSL 3.5 or later: Python uses {ssl.OPENSSL_VERSION},"
            f" which negotiates {group}"
        )
    if _HAS_POST_QUANTUM:
        raise ConfigError(
            f"the configuration of {ssl.OPENSSL_VERSION} negotiates {group}, which is not"
            " post-quantum: let it allow a post-quantum group"
        )
    _LOG.warning(
        "the link's key exchange is not post-quantum", openssl=ssl.OPENSSL_VERSION, group=group
    )


def _has_role(certificate: Mapping[str, Any], role: Role) -> bool:
    names = certificate.get("subjectAltName", ())
    return [name for kind, name in names if kind == "URI"] == [role]


def _is_for(certificate: bytes, role: Role) -> bool:
    """Return whether a DER certificate has the usage of a role's side, and is not a CA's."""
    try:
        signed = elements(elements(only(memoryview(certificate), SEQUENCE))[0].content)
        (last,) = elements(signed[-1].content) if signed[-1].tag == _EXTENSIONS_TAG else ()
        values = {
            bytes(parts[0].content): parts[-1].content
            for parts in (elements(extension.content) for extension in elements(last.content))
        }
        usages = elements(only(values[_USAGES], SEQUENCE))
        constraints = elements(only(values.get(_CONSTRAINTS, _NO_CONSTRAINTS), SEQUENCE))
    except (DerError, IndexError, KeyError, ValueError):
        return False
    is_ca = any(element.tag == _BOOLEAN and any(element.content) for element in constraints)
    return not is_ca and _USAGE[role] in {bytes(usage.content) for usage in usages}


def _keep_alive(connection: socket.socket) -> None:
    """Make the kernel end a connection after the other host has gone silently."""
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS),
    ):
        connection.setsockopt(level, option, value)


def _refusal(what: str, path: Path, error: OSError) -> ConfigError:
    if isinstance(error, ssl.SSLCertVerificationError):
        problem = error.verify_message
    elif isinstance(error, ssl.SSLError):
        problem = _EXPLAINED.get(error.reason, error.reason)
    else:
        problem = str(error.strerror)
    return ConfigError(f"cannot use the link's {what} in {path}: {problem}")
