"""TLS 1.3 of a listener: its replaceable certificate, and counters of its handshakes.

A certificate is used only after a successful handshake in memory. That handshake also shows the
group that this OpenSSL negotiates with an equal client.
"""

import asyncio
import ssl
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pqkeep_gateway.http.tls_session import TlsError, TlsSession
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import LOOK_SECONDS, ReplacedFiles, check_secret_file
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_protocol.tls_groups import POST_QUANTUM

_LOG = logger(__name__)

_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME. The ssl module has no name for it."""
_FLIGHTS = 3
"""The client's flights in a handshake, including the one after HelloRetryRequest."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    group: str
    """The key exchange group with a client that has the same OpenSSL."""
    expires: float


class TlsServer:
    """Creates the TLS sessions of a listener's connections, and counts their handshakes."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        require_post_quantum: bool,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Load PEM files: the certificate with its chain, and its key, a secret file.

        Raises ConfigError, also if post-quantum key exchange is required but not available.
        """
        self._certificate = certificate
        self._key = key
        self._requires_post_quantum = require_post_quantum
        self._look_seconds = look_seconds
        self._files = ReplacedFiles(certificate, key)
        self.handshakes: Counter[str] = Counter()
        """Successful handshakes by group."""
        self.failures: Counter[str] = Counter()
        """Failed handshakes by OpenSSL's name of the reason."""
        self._loaded = self._load()
        if self.expires <= time.time():
            _LOG.warning("the TLS certificate has expired", certificate=str(certificate))
        if self._loaded.group not in POST_QUANTUM:
            self._allow_classical()

    @property
    def expires(self) -> float:
        """The certificate's expiry, in seconds since 1970."""
        return self._loaded.expires

    def session(self) -> TlsSession:
        """Return the TLS session of a new connection."""
        return TlsSession(
            self._loaded.context,
            self.handshakes,
            require_post_quantum=self._requires_post_quantum,
        )

    def reload(self) -> None:
        """Read the files again for new connections. If they are unusable, nothing changes."""
        self._files.note()
        try:
            loaded = self._load()
            if loaded.expires <= time.time():
                self._refuse("it has expired")
        except ConfigError as error:
            _LOG.error("the TLS certificate is not replaced", error=str(error))
        else:
            self._loaded = loaded
            _LOG.info("the TLS certificate is read again", certificate=str(self._certificate))

    async def run(self) -> None:
        """Reload replaced files, until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds)
            if self._files.settled():
                self.reload()

    def count_failure(self, error: TlsError) -> None:
        """Count a connection with failed TLS."""
        self.failures[str(error)] += 1
        _LOG.info("a TLS connection failed", reason=str(error))

    def _load(self) -> _Loaded:
        check_secret_file(self._key, "key of the TLS certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # every connection has its own key exchange, so no tickets
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without a password argument OpenSSL would prompt on the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
            session = TlsSession(context, Counter())
            names = _shake_hands(session, self._certificate)
            expires = ssl.cert_time_to_seconds(str(names["notAfter"]))
        except (OSError, TlsError) as error:  # ssl.SSLError is an OSError
            self._refuse(_reason(error))
        except ValueError:
            self._refuse("its end is not a time")
        return _Loaded(context, session.group, expires)

    def _allow_classical(self) -> None:
        """Warn about key exchange that is not post-quantum, or raise ConfigError."""
        group = self._loaded.group
        if self._requires_post_quantum:
            raise ConfigError(
                f"require_post_quantum: Python's {ssl.OPENSSL_VERSION} negotiates"
                f" {group}; OpenSSL 3.5 or later has post-quantum groups"
            )
        _LOG.warning(
            "TLS key exchange is not post-quantum", openssl=ssl.OPENSSL_VERSION, group=group
        )

    def _refuse(self, problem: str) -> NoReturn:
        raise ConfigError(
            f"cannot use the TLS certificate in {self._certificate} and its key in {self._key}:"
            f" {problem}"
        )


def certificate_problem(certificate: Path, key: Path, name: str | None) -> str | None:
    """Return why a client that trusts a certificate refuses it now; None if it does not.

    With ``name``, the certificate must also be valid for that host. Raises ConfigError if the files
    are unusable.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = name is not None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        client.load_verify_locations(certificate)
        server.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ConfigError(f"cannot use {certificate} and {key}: {_reason(error)}") from None
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(_FLIGHTS):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return _reason(error)
    return None


def _shake_hands(session: TlsSession, trusted: Path) -> dict[str, object]:
    """Return the certificate that a client sees, at any time. Raises SSLError, TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(trusted)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    for _ in range(_FLIGHTS):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        session.receive(outgoing.read())
        incoming.write(session.to_send())
    return dict(client.getpeercert() or {})


def _reason(error: OSError | TlsError) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return str(error.verify_message)
        case ssl.SSLError():
            return str(error.reason or "a file is not PEM, or the key is encrypted")
        case OSError():
            return str(error.strerror)
        case _:
            return str(error)
