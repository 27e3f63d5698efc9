"""The address of the rate limits' server: one Redis or Valkey, or the Sentinels that know it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from pqkeep_protocol.startup.settings import NetworkAddress

REDIS_PORT = 6379
SENTINEL_PORT = 26379

_SENTINEL = "+sentinel://"
_FORM = (
    "expected redis://, rediss:// or unix://, or redis+sentinel:// or rediss+sentinel:// with"
    " hosts and a name, such as redis+sentinel://a,b,c/pqkeep"
)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_OPTIONS = frozenset({"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A checked address, without a password."""

    url: str
    """The server's URL for the client library. With Sentinels, the first of them is its host."""
    shown: str
    """The address for messages, without user and options."""
    servers: Sequence[tuple[str, int]]
    """Host and port of the server or of each Sentinel; empty for a Unix socket."""
    service: str | None = None
    """The name by which the Sentinels know the primary. None: there are no Sentinels."""

    @property
    def is_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.url.startswith("rediss://")


def parse(text: str) -> RedisAddress:
    """Return the address. Raises ValueError. Its message never repeats the address."""
    if _SENTINEL not in text:
        return _of_server(text)
    scheme, _, rest = text.partition(_SENTINEL)
    before, question, query = rest.partition("?")
    authority, _, path = before.partition("/")
    user, at, hosts = authority.rpartition("@")
    service, slash, database = path.partition("/")
    if scheme not in {"redis", "rediss"} or not _NAME.fullmatch(service):
        raise ValueError(_FORM)
    servers = tuple(_sentinel(host) for host in hosts.split(","))
    if len(set(servers)) < len(servers):
        raise ValueError("a Sentinel occurs twice")
    first = hosts.partition(",")[0]
    address = _of_server(f"{scheme}://{user}{at}{first}{slash}{database}{question}{query}")
    return RedisAddress(address.url, f"{scheme}{_SENTINEL}{hosts}/{service}", servers, service)


def _of_server(url: str) -> RedisAddress:
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
        port = parts.port
    except ValueError:
        raise ValueError(_FORM) from None
    if parts.password is not None or "password" in options:
        raise ValueError("remove the password and put it into redis_password_file")
    if not options.keys() <= _OPTIONS or parts.fragment:
        raise ValueError(f"unknown option: expected {', '.join(sorted(_OPTIONS))}")
    if parts.scheme == "unix" and parts.path and not parts.hostname:
        return RedisAddress(url, f"unix://{parts.path}", ())
    place, database = parts.netloc.rpartition("@")[2], parts.path.removeprefix("/")
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname or "," in place:
        raise ValueError(_FORM)
    if database and not database.isdecimal():
        raise ValueError("the path of a server's URL is the number of its database")
    return RedisAddress(url, f"{parts.scheme}://{place}", ((parts.hostname, port or REDIS_PORT),))


def _sentinel(text: str) -> tuple[str, int]:
    has_port = ":" in text.rpartition("]")[2]
    try:
        address = NetworkAddress(text if has_port else f"{text}:{SENTINEL_PORT}")
    except ValueError as error:
        raise ValueError(f"Sentinels: {error}") from None
    return address.host, address.port
