"""Accepts only request heads that every reader of RFC 9112 must understand in the same way.

The parser accepts more: two spaces in a request line, other versions and protocols, other codings
of a body, targets that are not paths. A proxy in front could understand those differently.
"""

import re
from collections.abc import Mapping

from pqkeep_gateway.http.errors import invalid

MAX_HEADERS = 100
NOT_HTTP = "the request is not HTTP"
TOO_MANY_HEADERS = "the request has too many headers"

SINGLE = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"idempotency-key",
        b"origin",
        b"sec-fetch-site",
        b"stripe-signature",
        b"transfer-encoding",
        b"x-api-key",
        b"x-request-id",
        b"x-step-up-token",
        b"x-vault-namespace",
        b"x-vault-token",
        b"x-vault-wrap-ttl",
    }
)
"""Headers that may occur only once.

Of two values, a proxy and this service could use different ones.
"""

_PATH = re.compile(rb"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
"""The characters of RFC 3986, section 3.3. A ``%`` that begins no escape is a literal."""
_ABSOLUTE = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(rb"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
_REQUEST_LINES = {"1.0": b"%b %b HTTP/1.0", "1.1": b"%b %b HTTP/1.1"}


def check_head(
    line: bytes, method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]]
) -> dict[bytes, bytes]:
    """Return a head's headers by their lower-case names.

    ``line`` is the received request line, the other arguments are the parser's results. Raises
    ApiError.
    """
    expected = _REQUEST_LINES.get(version)
    if expected is None or line != expected % (method, target):
        raise invalid("the request line must be METHOD TARGET HTTP/1.1, separated by single spaces")
    if len(headers) > MAX_HEADERS:
        raise invalid(TOO_MANY_HEADERS)
    named = dict(headers)
    if len(named) < len(headers):
        given = [name for name, _ in headers if name in SINGLE]
        if len(set(given)) < len(given):
            name = next(name for name in given if given.count(name) > 1).decode()
            raise invalid(f"the header {name} occurs twice", name)
    host = named.get(b"host")
    if host is None:
        if version != "1.0":
            raise invalid("the Host header is missing")
    elif not _HOST.fullmatch(host):
        raise invalid("the Host header must be a host name or address, with an optional port")
    _check_framing(named, version)
    return named


def path_of(target: bytes, host: bytes | None) -> tuple[bytes, bytes]:
    """Return the path and the query of a request's target. Raises ApiError.

    The target is a path, or an http or https address of the host in the Host header.
    """
    if not target.startswith(b"/"):
        target = _without_authority(target, host)
    path, _, query = target.partition(b"?")
    if b"%" in path and b"%2f" in path.lower():
        raise invalid("the path has an encoded slash")
    if not _PATH.fullmatch(path) or b"#" in query:
        raise invalid("the request's target must be a path, with a query or without")
    return path, query


def _check_framing(named: Mapping[bytes, bytes], version: str) -> None:
    """Raise ApiError if readers could disagree about the end of the body."""
    coding = named.get(b"transfer-encoding")
    if coding is not None and (version == "1.0" or coding.lower() != b"chunked"):
        raise invalid("Transfer-Encoding must be chunked, in HTTP/1.1")
    if named.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise invalid("Expect must be 100-continue")


def _without_authority(target: bytes, host: bytes | None) -> bytes:
    """Return the path and query of an absolute target; RFC 9112, section 3.2.2. Raises ApiError."""
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise invalid("the request's target must be a path, with a query or without")
    authority, rest = absolute.groups()
    if not _HOST.fullmatch(authority) or (host or authority).lower() != authority.lower():
        raise invalid("the hosts in the request's target and in the Host header differ")
    return rest if rest.startswith(b"/") else b"/" + rest
