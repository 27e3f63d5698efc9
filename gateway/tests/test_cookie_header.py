"""What is read of a Cookie header, and what that costs."""

from time import process_time

import pytest

from pqkeep_gateway.http.cookies import MAX_COOKIES, read_cookies
from pqkeep_gateway.http.protocol import MAX_HEAD


@pytest.mark.parametrize(
    ("header", "cookies"),
    [
        (None, {}),
        (b"", {}),
        (b"a=1; b = 2 ;c=3=4", {"a": "1", "b": "2", "c": "3=4"}),
        (b"a=1; a=2", {"a": "2"}),
        (b'a="\\141"', {"a": '"\\141"'}),
        (b"a=\xe9", {"a": "\xe9"}),
    ],
)
def test_cookies_by_name(header: bytes | None, cookies: dict[str, str]) -> None:
    """Each value is what is between its first = and the next semicolon, quotes and all."""
    assert read_cookies(header) == cookies


@pytest.mark.parametrize(
    "many", [b'a="' + b"\\a" * (MAX_HEAD // 2) + b'"', b"a=b;" * (MAX_HEAD // 4)]
)
def test_no_header_is_costly(many: bytes) -> None:
    """A header as long as a head may be takes milliseconds, whatever is in it: anyone can send it."""
    began = process_time()
    assert len(read_cookies(many)) <= MAX_COOKIES + 1
    assert process_time() - began < 0.1
