"""Names of clients from User-Agent headers, which clients can choose freely."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_gateway.people.sessions import MAX_USER_AGENT, client_name, stored_user_agent

MOZILLA = "Mozilla/5.0 "
WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko) "
NAME = frozenset(string.ascii_letters + string.digits + "._+- ")


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        (
            MOZILLA + "(X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
            "Firefox on Linux",
        ),
        (
            MOZILLA + f"(Linux; Android 10; K) {WEBKIT}Chrome/126.0.0.0 Mobile Safari/537.36",
            "Chrome on Android",
        ),
        (
            MOZILLA
            + f"(Windows NT 10.0; Win64; x64) {WEBKIT}Chrome/126.0 Safari/537.36 Edg/126.0.2",
            "Edge on Windows",
        ),
        (
            MOZILLA + "(Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko)"
            " Version/17.5 Safari/605.1.15",
            "Safari on macOS",
        ),
        (
            MOZILLA
            + "(iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko)"
            " CriOS/126.0 Mobile/15E148 Safari/604.1",
            "Chrome on iOS",
        ),
        ("curl/8.5.0", "curl"),
        ("python-httpx2/2.16.0", "python-httpx2"),
        ("Firefox", "Firefox"),
        ("<script>alert(1)</script>", None),
        ("  curl", None),
        ("", None),
    ],
)
def test_clients_are_named(user_agent: str, name: str | None) -> None:
    """Browsers are named with their system, and other clients by their first product."""
    assert client_name(user_agent) == name


@given(st.binary(max_size=1024))
def test_whatever_is_sent_is_plain(header: bytes) -> None:
    """Stored names are printable, bounded, and have no character with a special meaning."""
    stored = stored_user_agent(header)
    assert stored.isprintable()
    assert len(stored) <= MAX_USER_AGENT
    assert set(client_name(stored) or "") <= NAME
