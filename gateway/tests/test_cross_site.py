"""The origins from which a browser may send changes with its cookies."""

import pytest

from pqkeep_gateway.http.cookies import Cookies

BEHIND_A_PROXY = Cookies(origins=("https://keep.example.org", "https://people.example.org", None))


@pytest.mark.parametrize(
    ("origin", "is_cross_site"),
    [
        (b"https://keep.example.org", False),
        (b"https://KEEP.example.org:443", False),
        (b"https://people.example.org", False),
        (b"http://10.0.0.7:8080", False),
        (b"https://portal.example.org", True),
        (b"https://keep.example.org.example.net", True),
        (b"https://keep.example.org:8443", True),
        (b"null", True),
        (b"https://[", True),
    ],
)
def test_pages_of_the_public_address_are_ours(origin: bytes, is_cross_site: bool) -> None:  # noqa: FBT001
    """Behind a proxy that changes Host, public_url, portal_url and Host are accepted origins."""
    headers = {b"origin": origin, b"host": b"10.0.0.7:8080"}
    assert BEHIND_A_PROXY.is_cross_site("POST", headers) is is_cross_site


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("site", [b"same-site", b"cross-site"])
def test_the_browser_s_word_counts_more(site: bytes, method: str) -> None:
    """A request that the browser marks as cross-site is refused, with any Origin."""
    headers = {b"origin": b"https://keep.example.org", b"sec-fetch-site": site}
    assert BEHIND_A_PROXY.is_cross_site(method, headers)


@pytest.mark.parametrize(
    "headers",
    [{}, {b"origin": b"null"}, {b"sec-fetch-site": b"none"}, {b"sec-fetch-site": b"same-origin"}],
)
def test_what_people_type_or_our_pages_link_to_is_read(headers: dict[bytes, bytes]) -> None:
    """A read without a foreign origin is not refused."""
    assert not BEHIND_A_PROXY.is_cross_site("GET", headers)
