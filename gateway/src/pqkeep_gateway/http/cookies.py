"""The cookies of people and operators, and where requests with cookies may come from.

A browser is a person's or an operator's: whoever signs in takes the other's cookies away. A request
that has both all the same is the operator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from pqkeep_gateway.people.sessions import ACCESS_LIFETIME, REFRESH_LIFETIME, Tokens
from pqkeep_gateway.tenancy.operator_sessions import LIFETIME as OPERATOR_LIFETIME

ACCESS = "service_access_token"
REFRESH = "service_refresh_token"
OPERATOR = "service_operator_token"
REFRESH_PATH = "/api/v1/auth/refresh"
MAX_COOKIES = 256
"""That are read. Browsers keep fewer for a site."""
SAFE_METHODS = frozenset({"GET", "HEAD"})
_OURS = frozenset({b"same-origin", b"none"})
_PORTS: Mapping[str, str] = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Cookies:
    """Writes the cookies, as the installation is set up."""

    secure: bool = True
    origins: tuple[str | None, ...] = ()
    """Where browsers reach the gateway, if a proxy does not pass their Host header on."""

    def of(self, tokens: Tokens) -> tuple[str, ...]:
        """Return the headers' values that hand a person's tokens out."""
        return (
            *self.operator_gone(),
            self._cookie(ACCESS, tokens.access, "/", int(ACCESS_LIFETIME.total_seconds())),
            self._cookie(
                REFRESH, tokens.refresh, REFRESH_PATH, int(REFRESH_LIFETIME.total_seconds())
            ),
        )

    def gone(self) -> tuple[str, ...]:
        """Return the headers' values that take them back."""
        return (self._cookie(ACCESS, "", "/", 0), self._cookie(REFRESH, "", REFRESH_PATH, 0))

    def of_operator(self, token: str) -> tuple[str, ...]:
        """Return the headers' values that hand an operator's token out."""
        return (*self.gone(), self._operator_cookie(token, int(OPERATOR_LIFETIME.total_seconds())))

    def operator_gone(self) -> tuple[str, ...]:
        """Return the headers' values that take it back."""
        return (self._operator_cookie("", 0),)

    @property
    def single_sign_on(self) -> str:
        """The name of the cookie of whoever is at a provider: no other host can have set it."""
        return "__Host-pqkeep_sso" if self.secure else "pqkeep_sso"

    def at_provider(self, value: str, lifetime: timedelta) -> str:
        """Return the header's value for somebody who goes to a provider."""
        return self._cookie(self.single_sign_on, value, "/", int(lifetime.total_seconds()))

    def back_from_provider(self) -> str:
        """Return the header's value that takes it back."""
        return self._cookie(self.single_sign_on, "", "/", 0)

    def is_cross_site(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether another site's page makes a browser send this.

        Programs send neither header; browsers send the first, or with a change at least the second,
        and pages cannot choose them.
        """
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site not in _OURS
        origin = headers.get(b"origin")
        if origin is None or method in SAFE_METHODS:
            return False
        hosts = {headers.get(b"host", b"").decode("latin-1").lower()}
        hosts.update(_host(each) for each in self.origins if each is not None)
        return _host(origin.decode("latin-1")) not in hosts

    def _operator_cookie(self, value: str, seconds: int) -> str:
        return self._cookie(OPERATOR, value, "/", seconds, same_site="Strict")

    def _cookie(
        self, name: str, value: str, path: str, seconds: int, same_site: str = "Lax"
    ) -> str:
        secure = "; Secure" if self.secure else ""
        attributes = f"Path={path}; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"
        return f"{name}={value}; {attributes}"


def read_cookies(header: bytes | None) -> Mapping[str, str]:
    """Return the cookies of a Cookie header, by name.

    Quotes and backslashes stay as they are. No value of ours has any, and up to Python 3.11.9 and
    3.12.5 ``http.cookies`` takes more than a second to unquote 30 KB (CVE-2024-7592).
    """
    if not header:
        return {}
    found = (each.partition("=") for each in header.decode("latin-1").split(";", MAX_COOKIES))
    return {name.strip(): value.strip() for name, _, value in found}


def _host(origin: str) -> str:
    """Return host and port of an origin as a Host header has them; of none, what no host is."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return "?"
    default = _PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(default) or "?"
