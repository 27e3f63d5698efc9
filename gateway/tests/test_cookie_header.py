"""Reading Cookie headers: the result, the cost, and the deletion of duplicate names."""

from collections.abc import Mapping
from time import process_time

import pytest

from pqkeep_gateway.http.connection import MAX_HEAD
from pqkeep_gateway.http.cookies import ACCESS, MAX_DELETIONS, REFRESH, Cookies
from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.people.sessions import Tokens

SECURE = Cookies()
LOOPBACK = Cookies(secure=False)
HOST = b"keep.example.org:8443"
PATH = "/api/v1/auth/me"
BROWSER = (b"sec-fetch-site", b"same-origin")


def read(*headers: bytes, cookies: Cookies = SECURE) -> Mapping[str, str]:
    """Return the values of Cookie headers of a browser."""
    return cookies.read([BROWSER, *((b"cookie", header) for header in headers)]).values


def twice(*headers: bytes, cookies: Cookies = SECURE) -> frozenset[str]:
    """Return the duplicate names."""
    return cookies.read([(b"host", HOST), *((b"cookie", header) for header in headers)]).twice


@pytest.mark.parametrize(
    ("header", "cookies"),
    [
        (b"", {}),
        (b"a=1; b = 2 ;c=3=4", {"a": "1", "b": "2", "c": "3=4"}),
        (b"a=1; a=2", {"a": "2"}),
        (b'a="\\141"', {"a": '"\\141"'}),
        (b"a=\xe9", {"a": "\xe9"}),
        (b"a; b=1", {"b": "1"}),
        (b"=a=1; b=2", {"": "a=1", "b": "2"}),
    ],
)
def test_cookies_by_name(header: bytes, cookies: dict[str, str]) -> None:
    """A value is the text between its first = and the next semicolon, with quotes."""
    assert read(header) == cookies


@pytest.mark.parametrize(
    "name",
    [
        ACCESS,
        REFRESH,
        SECURE.operator,
        SECURE.single_sign_on,
        SECURE.binding,
        SECURE.proof,
        SECURE.reauthentication,
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "{0}=1; {0}=2",
        "{0}=1; {0}=1",
        "{0}=1; a=b; {0}=",
        "{0} =1;\t{0}=2",
        "{0}=1;{0}=2;" + "a=b;" * 300,
        "a=b;" * 300 + "{0}=1;{0}=2",
    ],
)
def test_a_name_of_ours_is_there_once(name: str, form: str) -> None:
    """Duplicates of our names are reported at any position, without a value."""
    header = form.format(name).encode()
    assert twice(header) == {name}
    assert name not in read(header)


def test_several_headers_are_one() -> None:
    """Cookies in a second Cookie header are read like cookies in the first one."""
    assert twice(f"{ACCESS}=1".encode(), f"{ACCESS}=2".encode()) == {ACCESS}
    assert read(b"a=1", b"b=2") == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    "header",
    [
        f"{ACCESS}=1; {ACCESS.upper()}=2",
        f"{ACCESS}=1; {ACCESS}",
        f"{SECURE.proof}=1; ={SECURE.proof}=2",
        f"{SECURE.proof}=1; {LOOPBACK.proof}=2; {LOOPBACK.proof}=3",
        f"{SECURE.proof}=1; {SECURE.proof.lower()}=2",
        "a=1; a=2",
    ],
)
def test_another_name_is_another_cookie(header: str) -> None:
    """Cookies with other names, in another case or without a value are not duplicates."""
    assert not twice(header.encode())


def test_what_was_sent_twice_is_deleted_wherever_it_can_be() -> None:
    """The response deletes a duplicate cookie for the host, its domains and parts of the path."""
    cookies = LOOPBACK.read([(b"cookie", f"{ACCESS}=1; {ACCESS}=2".encode())])
    deleted = LOOPBACK.deletions(cookies, HOST, "/api/v1")
    places = {"", "; Domain=keep.example.org", "; Domain=example.org"}
    expected = {
        f"{ACCESS}=; Path={path}; Max-Age=0{place}"
        for path in ("/", "/api", "/api/", "/api/v1")
        for place in places
    }
    nameless = {entry.replace(f"{ACCESS}=", "=gone") for entry in expected if "Domain" in entry}
    assert set(deleted) == expected | nameless


def test_a_cookie_of_this_host_only_is_deleted_as_such() -> None:
    """A __Host- cookie is deleted for the host and the path / only, as browsers require."""
    name = SECURE.proof
    sent = SECURE.read([(b"cookie", f"{name}=1; {name}=2".encode())])
    named = [
        deletion for deletion in SECURE.deletions(sent, HOST, PATH) if deletion.startswith(name)
    ]
    assert named == [f"{name}=; Path=/; Max-Age=0; Secure"]


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (b"a.b.c.d.keep.example.org", "/portal/" + "x/" * 40),
        (b"127.0.0.1:8443", PATH),
        (b"[::1]:8443", PATH),
        (b"localhost", PATH),
        (b"", ""),
        (b"a; Secure.example.org", PATH),
        (b"a.example.org\r\nX: y", "/a;Domain=b\r\nX: y"),
        (b"\xe9.example.org", "/\xe9"),
    ],
)
def test_deletions_are_few_and_as_written_here(host: bytes, path: str) -> None:
    """No host or path injects text into a response, or makes it larger than a proxy accepts."""
    sent = SECURE.read([(b"cookie", f"{ACCESS}=1; {ACCESS}=2; {REFRESH}=1; {REFRESH}=2".encode())])
    deleted = SECURE.deletions(sent, host, path)
    assert 0 < len(deleted) <= MAX_DELETIONS
    assert sum(map(len, deleted)) < 3800
    for item in deleted:
        assert item.isascii()
        assert item.isprintable()
        assert item.split("; ")[2] == "Max-Age=0"
        assert len(item.split(";")) <= 5


def test_a_request_with_a_cookie_twice_is_refused() -> None:
    """A duplicate cookie gets 401 with its name and a remedy, but not its value."""
    sent = SECURE.read([(b"cookie", f"{ACCESS}=secret; {ACCESS}=planted".encode())])
    with pytest.raises(ApiError) as refused:
        SECURE.require_once(sent, HOST, PATH, needs_session=True)
    error = refused.value
    assert error.code.code == "ERR_AUTH_001"
    assert ACCESS in error.message
    assert error.cookies
    assert "secret" not in error.message + "".join(error.cookies)
    once = SECURE.read([(b"cookie", f"{ACCESS}=secret".encode())])
    SECURE.require_once(once, HOST, PATH, needs_session=True)


MINE = Tokens("pqa_mine", "pqr_mine")
OTHERS = Tokens("pqa_others", "pqr_others")


def bound(tokens: Tokens) -> str:
    """Return the cookie that binds a session's tokens to this host."""
    return next(cookie.split(";")[0] for cookie in SECURE.of(tokens) if SECURE.binding in cookie)


@pytest.mark.threat("sibling-host")
@pytest.mark.parametrize(
    ("header", "access", "refresh"),
    [
        ("{ACCESS}=pqa_mine; {REFRESH}=pqr_mine; {mine}", "pqa_mine", "pqr_mine"),
        ("{ACCESS}=pqa_others; {REFRESH}=pqr_others", None, None),
        ("{ACCESS}=pqa_others; {REFRESH}=pqr_others; {mine}", None, None),
        ("{ACCESS}=pqr_mine; {REFRESH}=pqa_mine; {mine}", None, None),
        ("{ACCESS}=pqa_others; {ACCESS}=pqa_mine; {mine}", "pqa_mine", None),
        ("{ACCESS}=pqa_mine; {mine}; {ACCESS}=pqa_others; {ACCESS}=", "pqa_mine", None),
        ("{REFRESH}=pqr_mine; {REFRESH}=pqr_others; {mine}", None, "pqr_mine"),
        ("{ACCESS}=pqa_mine; {ACCESS}=pqa_mine; {mine}", "pqa_mine", None),
        ("{ACCESS}=pqa_mine; {REFRESH}=pqr_mine; {mine}; {others}", None, None),
        ("{ACCESS}=pqa_mine; {binding}=", None, None),
        ("{ACCESS}=; {REFRESH}=; {binding}=.", None, None),
        ("{ACCESS}=pqa_mine; {binding}=" + "é" * 43, None, None),
        ("{ACCESS}=pqa_others; {plain_others}", None, None),
    ],
)
def test_only_tokens_that_this_host_has_set_count(
    header: str, access: str | None, refresh: str | None
) -> None:
    """A token that another host could have set is ignored, at any position and in any number."""
    names = {
        "ACCESS": ACCESS,
        "REFRESH": REFRESH,
        "binding": SECURE.binding,
        "mine": bound(MINE),
        "others": bound(OTHERS),
        "plain_others": bound(OTHERS).removeprefix("__Host-"),
    }
    values = read(header.format_map(names).encode("latin-1"))
    assert (values.get(ACCESS), values.get(REFRESH)) == (access, refresh)


def test_a_program_sends_the_two_cookies_of_the_specification() -> None:
    """Without the headers of browsers, tokens are accepted; an existing binding still decides."""
    tokens = f"{ACCESS}=pqa_mine; {REFRESH}=pqr_mine"
    sent = SECURE.read([(b"cookie", tokens.encode())])
    assert (sent.values[ACCESS], sent.values[REFRESH]) == ("pqa_mine", "pqr_mine")
    crossed = SECURE.read([(b"cookie", f"{tokens}; {bound(OTHERS)}".encode())])
    assert not {ACCESS, REFRESH} & crossed.values.keys()


def test_where_cookies_are_not_secure_none_binds_another() -> None:
    """On loopback, where any host could set the binding cookie, tokens are accepted without it."""
    assert not [cookie for cookie in LOOPBACK.of(MINE) if LOOPBACK.binding in cookie]
    assert read(f"{ACCESS}=pqa_mine".encode(), cookies=LOOPBACK)[ACCESS] == "pqa_mine"


def test_a_request_without_need_of_a_session_ignores_what_is_not_bound() -> None:
    """Signing in works with planted tokens, but a duplicate __Host- cookie is refused."""
    planted = f"{ACCESS}=1; {ACCESS}=2; {REFRESH}=1; {REFRESH}=2".encode()
    sent = SECURE.read([BROWSER, (b"cookie", planted)])
    SECURE.require_once(sent, HOST, PATH, needs_session=False)
    twice = SECURE.read([(b"cookie", f"{SECURE.binding}=1; {SECURE.binding}=2".encode())])
    with pytest.raises(ApiError):
        SECURE.require_once(twice, HOST, PATH, needs_session=False)


def test_on_loopback_one_response_deletes_all() -> None:
    """Without a proxy, one response deletes all duplicates."""
    sent = LOOPBACK.read(
        [(b"cookie", f"{ACCESS}=1; {ACCESS}=2; {REFRESH}=1; {REFRESH}=2".encode())]
    )
    deleted = LOOPBACK.deletions(sent, HOST, "/api/v1/auth/refresh")
    for name in (ACCESS, REFRESH, ""):
        for path in ("/", "/api", "/api/v1", "/api/v1/auth/", "/api/v1/auth/refresh"):
            start = f"{name}={'' if name else 'gone'}; Path={path}; Max-Age=0; Domain="
            assert {f"{start}keep.example.org", f"{start}example.org"} <= set(deleted)


@pytest.mark.threat("stranger")
@pytest.mark.parametrize(
    "many",
    [
        b'a="' + b"\\a" * (MAX_HEAD // 2) + b'"',
        b"a=b;" * (MAX_HEAD // 4),
        f"{ACCESS}=b;".encode() * (MAX_HEAD // 23),
    ],
)
def test_no_header_is_costly(many: bytes) -> None:
    """The largest possible header takes milliseconds, with any content."""
    began = process_time()
    sent = SECURE.read([(b"cookie", many)])
    SECURE.deletions(sent, HOST, PATH)
    assert process_time() - began < 0.1
