"""The cookies of people and operators, and the origins of requests with cookies.

A browser has either a person's session or an operator's: each sign-in deletes the other's cookies.
If a request has both kinds, it is the operator's, provided that the operator's session is known.

Any host of a domain can set cookies for all of its hosts, and a request does not show which host
set them. For Secure cookies, our own names begin with ``__Host-``: browsers accept these only from
the host itself. The two names of the interface specification have no prefix. A third cookie with
the prefix binds them: it has the digests of both tokens. A token without its digest there is
ignored if it comes from a browser. A program may send the two alone, since no other host can set
its cookies.

Browsers send two cookies with one name if they were set for different domains or paths. If no
digest identifies ours, the request is refused, and both are deleted.
"""

import re
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from itertools import product
from secrets import SystemRandom
from typing import NamedTuple
from urllib.parse import urlsplit

from pqkeep_gateway.http.errors import ambiguous_cookies
from pqkeep_gateway.languages import chosen
from pqkeep_gateway.people.passkeys import BROWSER_LIFETIME
from pqkeep_gateway.people.sessions import ACCESS_LIFETIME, REFRESH_LIFETIME, Tokens
from pqkeep_gateway.people.single_sign_on import REAUTHENTICATION_LIFETIME
from pqkeep_gateway.people.step_up import LIFETIME as PROOF_LIFETIME
from pqkeep_gateway.storage.operators import SESSION_LIFETIME as OPERATOR_LIFETIME

ACCESS = "service_access_token"
REFRESH = "service_refresh_token"
BOUND = frozenset({ACCESS, REFRESH})
"""The cookies with digests in the binding cookie, if cookies are Secure."""
REFRESH_PATH = "/api/v1/auth/refresh"
SAFE_METHODS = frozenset({"GET", "HEAD"})
MAX_DELETIONS = 28
"""Set-Cookie headers that delete cookies in one response, if cookies are Secure. Some proxies
accept no head above 4 KiB."""
_LANGUAGE_LIFETIME = timedelta(days=365)
_HOST_PREFIX = "__Host-"
_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){1,8}")
_PATH = re.compile(r"[A-Za-z0-9/._~-]{1,128}")
_MAX_DEPTH = 6
"""Segments of a path that are examined. The API has no longer paths."""
_OURS = frozenset({b"same-origin", b"none"})
_PORTS: Mapping[str, str] = {"http": ":80", "https": ":443"}


class SentCookies(NamedTuple):
    """The cookies of a request."""

    values: Mapping[str, str]
    """By name; without those in ``twice``, and without unbound tokens."""
    twice: frozenset[str] = frozenset()
    """Our cookie names that occur more than once, if the digests do not identify ours."""
    refused: frozenset[str] = frozenset()
    """The part of ``twice`` with which no request is served. The other values belong to other
    hosts' sessions, so requests without a session are served."""


NO_COOKIES = SentCookies({})


@dataclass(frozen=True, slots=True)
class Cookies:
    """Reads and writes the cookies, for the installation's settings."""

    secure: bool = True
    origins: tuple[str | None, ...] = ()
    """The gateway's addresses for browsers, if a proxy changes their Host header."""

    def of(self, tokens: Tokens) -> tuple[str, ...]:
        """Return the Set-Cookie values for a person's tokens."""
        refresh_seconds = int(REFRESH_LIFETIME.total_seconds())
        bound = f"{_digest(tokens.access)}.{_digest(tokens.refresh)}"
        return (
            *self.operator_gone(),
            self._cookie(ACCESS, tokens.access, "/", int(ACCESS_LIFETIME.total_seconds())),
            self._cookie(REFRESH, tokens.refresh, REFRESH_PATH, refresh_seconds),
            *((self._cookie(self.binding, bound, "/", refresh_seconds),) if self.secure else ()),
        )

    def gone(self) -> tuple[str, ...]:
        """Return the Set-Cookie values that delete a person's cookies."""
        return (
            self._cookie(ACCESS, "", "/", 0),
            self._cookie(REFRESH, "", REFRESH_PATH, 0),
            *((self._cookie(self.binding, "", "/", 0),) if self.secure else ()),
            self._cookie(self.proof, "", "/", 0, same_site="Strict"),
        )

    def of_proof(self, proof: str) -> str:
        """Return the Set-Cookie value for a session's proof of identity."""
        seconds = int(PROOF_LIFETIME.total_seconds())
        return self._cookie(self.proof, proof, "/", seconds, same_site="Strict")

    def of_browser(self, token: str) -> str:
        """Return the Set-Cookie value for a browser that signs in with a passkey."""
        seconds = int(BROWSER_LIFETIME.total_seconds())
        return self._cookie(self.browser, token, "/", seconds, same_site="Strict")

    def of_reauthentication(self, token: str) -> str:
        """Return the Set-Cookie value for one step-up after the provider's callback."""
        seconds = int(REAUTHENTICATION_LIFETIME.total_seconds())
        return self._cookie(self.reauthentication, token, "/", seconds, same_site="Strict")

    def reauthentication_gone(self) -> str:
        """Return the Set-Cookie value that deletes the reauthentication cookie."""
        return self._cookie(self.reauthentication, "", "/", 0, same_site="Strict")

    def of_operator(self, token: str, lifetime: timedelta = OPERATOR_LIFETIME) -> tuple[str, ...]:
        """Return the Set-Cookie values for an operator's token."""
        return (*self.gone(), self._operator_cookie(token, int(lifetime.total_seconds())))

    def operator_gone(self) -> tuple[str, ...]:
        """Return the Set-Cookie values that delete an operator's cookie."""
        return (self._operator_cookie("", 0),)

    def of_language(self, language: str) -> str:
        """Return the Set-Cookie value for the language that a person chose."""
        return self._cookie(self.language, language, "/", int(_LANGUAGE_LIFETIME.total_seconds()))

    def language_of(self, cookies: Mapping[str, str], accepted: bytes) -> str:
        """Return the language of a request, from its cookies and its Accept-Language header."""
        return chosen(cookies.get(self.language), accepted.decode("latin-1"))

    @property
    def language(self) -> str:
        """The cookie name of the chosen language."""
        return self._name("pqkeep_language")

    @property
    def operator(self) -> str:
        """The cookie name of an operator's session."""
        return self._name("service_operator_token")

    @property
    def single_sign_on(self) -> str:
        """The cookie name of a browser at a provider."""
        return self._name("pqkeep_sso")

    @property
    def binding(self) -> str:
        """The name of the cookie that binds a session's tokens to this host."""
        return self._name("pqkeep_session")

    @property
    def browser(self) -> str:
        """The cookie name of a browser that signs in with a passkey."""
        return self._name("pqkeep_browser")

    @property
    def proof(self) -> str:
        """The cookie name of a session's proof of identity."""
        return self._name("pqkeep_proof")

    @property
    def reauthentication(self) -> str:
        """The cookie name of a step-up after the provider's callback."""
        return self._name("pqkeep_reauthentication")

    def read(self, headers: Iterable[tuple[bytes, bytes]]) -> SentCookies:
        """Return the cookies in a request's headers."""
        cookie_headers: list[bytes] = []
        is_browser = False
        for header, text in headers:
            if header == b"cookie":
                cookie_headers.append(text)
            elif header == b"sec-fetch-site":
                is_browser = True
        sent = b";".join(cookie_headers)
        if not sent:
            return NO_COOKIES
        ours = {
            ACCESS,
            REFRESH,
            self.operator,
            self.single_sign_on,
            self.binding,
            self.proof,
            self.reauthentication,
            self.browser,
        }
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, value in _pairs(sent):
            found[name].append(value)
        twice = {name for name in ours if len(found.get(name, ())) > 1}
        values = {name: sent_values[-1] for name, sent_values in found.items() if name not in twice}
        is_bound = self.secure and (is_browser or self.binding in found)
        if not is_bound:
            return SentCookies(values, frozenset(twice), frozenset(twice))
        access_digest, _, refresh_digest = values.get(self.binding, "").partition(".")
        for name, digest in ((ACCESS, access_digest), (REFRESH, refresh_digest)):
            values.pop(name, None)
            for value in found.get(name, ()):
                if _digest(value) == digest:
                    values[name] = value
                    twice.discard(name)
        return SentCookies(values, frozenset(twice), frozenset(twice - BOUND))

    def require_once(
        self, sent: SentCookies, host: bytes, path: str, *, needs_session: bool
    ) -> None:
        """Raise ApiError if one of our cookies occurs more than once; its response deletes them."""
        twice = sent.refused | (sent.twice & {ACCESS} if needs_session else frozenset())
        if twice:
            raise ambiguous_cookies(sorted(twice), self.deletions(sent, host, path))

    def deletions(self, sent: SentCookies, host: bytes, path: str) -> tuple[str, ...]:
        """Return the Set-Cookie values that delete ambiguous cookies.

        A cookie is deleted by its name, domain and path. The cookies of a request belong to a
        domain of its host, and to a prefix of its path. A nameless cookie can look like one of
        ours. If cookies are Secure and these are too many for one response, a random part is
        returned.
        """
        if not sent.twice:
            return ()
        paths, domains = _paths(path), tuple(self._domains(host))
        plain = sorted(name for name in sent.twice if not name.startswith(_HOST_PREFIX))
        deleted = [
            *(self._gone(name) for name in sorted(sent.twice)),
            *(
                self._gone(name, path, domain)
                for path, name, domain in product(paths, plain, ("", *domains))
            ),
            *(self._gone("", path, domain) for path, domain in product(paths, domains)),
        ]
        if not self.secure or len(deleted) <= MAX_DELETIONS:
            return tuple(deleted)
        return tuple(SystemRandom().sample(deleted, MAX_DELETIONS))

    def _domains(self, host: bytes) -> Iterator[str]:
        """Yield the domains for which a host's cookies can be, the host's own first."""
        hosts = [host.decode("latin-1").rpartition(":")[0] or host.decode("latin-1")]
        hosts += [urlsplit(origin).hostname or "" for origin in self.origins if origin is not None]
        seen = set()
        for name in hosts:
            labels = name.lower().split(".")
            if not _HOST.fullmatch(name.lower()) or labels[-1].isdigit():
                continue
            for first in range(len(labels) - 1):
                domain = ".".join(labels[first:])
                if domain not in seen:
                    seen.add(domain)
                    yield domain

    def _gone(self, name: str, path: str = "/", domain: str = "") -> str:
        """Return the Set-Cookie value that deletes a cookie; a nameless one must have a value."""
        secure = "; Secure" if self.secure else ""
        place = f"; Domain={domain}" if domain else ""
        return f"{name}={'' if name else 'gone'}; Path={path}; Max-Age=0{place}{secure}"

    def _name(self, name: str) -> str:
        return f"{_HOST_PREFIX}{name}" if self.secure else name

    def at_provider(self, value: str, lifetime: timedelta) -> str:
        """Return the Set-Cookie value for a browser that goes to a provider."""
        return self._cookie(self.single_sign_on, value, "/", int(lifetime.total_seconds()))

    def back_from_provider(self) -> str:
        """Return the Set-Cookie value that deletes a cookie."""
        return self._cookie(self.single_sign_on, "", "/", 0)

    def is_cross_site(self, method: str, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether another site's page made the browser send this request.

        Programs send neither header. Browsers send Sec-Fetch-Site, or at least Origin with a
        change, and pages cannot change them.
        """
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            return site not in _OURS
        origin = headers.get(b"origin")
        if origin is None or method in SAFE_METHODS:
            return False
        hosts = {headers.get(b"host", b"").decode("latin-1").lower()}
        hosts.update(_host(origin) for origin in self.origins if origin is not None)
        return _host(origin.decode("latin-1")) not in hosts

    def _operator_cookie(self, value: str, seconds: int) -> str:
        return self._cookie(self.operator, value, "/", seconds, same_site="Strict")

    def _cookie(
        self, name: str, value: str, path: str, seconds: int, same_site: str = "Lax"
    ) -> str:
        secure = "; Secure" if self.secure else ""
        attributes = f"Path={path}; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"
        return f"{name}={value}; {attributes}"


def _pairs(header: bytes) -> Iterator[tuple[str, str]]:
    """Yield names and values of a Cookie header. An entry without "=" is a value without a name.

    Quotes and backslashes are kept. Our values are never quoted, and up to Python 3.11.9 and 3.12.5
    ``http.cookies`` takes more than a second to unquote 30 KB (CVE-2024-7592).
    """
    for cookie in header.decode("latin-1").split(";"):
        name, equals, value = cookie.partition("=")
        if equals:
            yield name.strip(" \t"), value.strip(" \t")


def _digest(token: str) -> str:
    """Return the SHA-256 of a token (43 characters), which has 32 random bytes."""
    return urlsafe_b64encode(sha256(token.encode("latin-1")).digest()).decode().rstrip("=")


def _paths(path: str) -> tuple[str, ...]:
    """Return the cookie paths that match a request's path."""
    if not _PATH.fullmatch(path):
        return ("/",)
    found = ["/"]
    for at in [slash.start() for slash in re.finditer("/", path)][1 : _MAX_DEPTH + 1]:
        found += [path[:at], path[: at + 1]]
    if not path.endswith("/"):
        found.append(path)
    return tuple(dict.fromkeys(found))


def _host(origin: str) -> str:
    """Return an origin's host and port in the form of a Host header; "?" if it has none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return "?"
    default = _PORTS.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(default) or "?"
