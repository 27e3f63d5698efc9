"""The two cookies of a signed-in person, and where requests with cookies may come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import cookie_parser

from pqkeep_gateway.people.sessions import ACCESS_LIFETIME, REFRESH_LIFETIME, Tokens

ACCESS = "service_access_token"
REFRESH = "service_refresh_token"
REFRESH_PATH = "/api/v1/auth/refresh"
SAFE_METHODS = frozenset({"GET", "HEAD"})
_OURS = frozenset({b"same-origin", b"none"})
_PORTS: Mapping[str, str] = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Cookies:
    """Writes the cookies, as the installation is set up."""

    secure: bool = True
    public_url: str | None = None
    """Where browsers reach the gateway, if a proxy does not pass their Host header on."""

    def of(self, tokens: Tokens) -> tuple[str, ...]:
        """Return the headers' values that hand tokens out."""
        return (
            self._cookie(ACCESS, tokens.access, "/", int(ACCESS_LIFETIME.total_seconds())),
            self._cookie(
                REFRESH, tokens.refresh, REFRESH_PATH, int(REFRESH_LIFETIME.total_seconds())
            ),
        )

    def gone(self) -> tuple[str, ...]:
        """Return the headers' values that take them back."""
        return (self._cookie(ACCESS, "", "/", 0), self._cookie(REFRESH, "", REFRESH_PATH, 0))

    def is_cross_site(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether another site's page makes a browser send this, to change something.

        Programs send neither header; browsers send at least one, and pages cannot choose it.
        """
        if method in SAFE_METHODS:
            return False
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site not in _OURS
        origin = headers.get(b"origin")
        if origin is None:
            return False
        hosts = {headers.get(b"host", b"").decode("latin-1").lower()}
        if self.public_url is not None:
            hosts.add(_host(self.public_url))
        return _host(origin.decode("latin-1")) not in hosts

    def _cookie(self, name: str, value: str, path: str, seconds: int) -> str:
        secure = "; Secure" if self.secure else ""
        return f"{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"


def read_cookies(header: bytes | None) -> Mapping[str, str]:
    """Return the cookies of a Cookie header, by name."""
    return cookie_parser(header.decode("latin-1")) if header else {}


def _host(origin: str) -> str:
    """Return host and port of an origin as a Host header has them; of none, what no host is."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return "?"
    default = _PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(default) or "?"
