"""The source address of requests through proxies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pqkeep_gateway.access.trusted_proxies import Client, TrustedProxies

PROXY, OTHER_PROXY = "10.0.0.1", "fd00::1"
CLIENT, INVENTED = "192.0.2.7", "203.0.113.9"
PROXIES = TrustedProxies(["10.0.0.0/8", "fd00::/8"])


def client_of(*headers: str, peer: str = PROXY, proxies: TrustedProxies = PROXIES) -> str:
    """Return the client's address for a request with given headers."""
    pairs = (header.encode("latin-1").split(b": ", 1) for header in headers)
    client = proxies.client_of(peer, [(b"host", b"x"), *((name, value) for name, value in pairs)])
    assert client.is_known
    return client.address


@pytest.mark.threat("hostile-proxy")
@pytest.mark.parametrize("peer", [CLIENT, "2001:db8::1", "", "/run/socket", "::ffff:192.0.2.7"])
@pytest.mark.parametrize("header", ["x-forwarded-for: {}", "forwarded: for={}"])
def test_strangers_choose_no_address(peer: str, header: str) -> None:
    """The headers of an untrusted peer have no effect."""
    assert client_of(header.format(INVENTED), peer=peer) == peer


@pytest.mark.parametrize("peer", [PROXY, OTHER_PROXY, CLIENT])
def test_without_trusted_proxies_every_peer_is_a_client(peer: str) -> None:
    """Without trusted proxies, headers have no effect."""
    no_proxies = TrustedProxies([])
    assert client_of(f"x-forwarded-for: {INVENTED}", peer=peer, proxies=no_proxies) == peer


@pytest.mark.parametrize("peer", [PROXY, OTHER_PROXY, "::ffff:10.0.0.1"])
@pytest.mark.parametrize(
    "headers",
    [
        ("x-forwarded-for: 192.0.2.7",),
        ("x-forwarded-for: 192.0.2.7:4711",),
        ("x-forwarded-for: ::ffff:192.0.2.7",),
        ("x-forwarded-for: 203.0.113.9, 192.0.2.7",),
        ("x-forwarded-for: 203.0.113.9,192.0.2.7 , 10.9.9.9",),
        ("x-forwarded-for: nonsense, 192.0.2.7, fd00::2, [fd00::3]:80",),
        ("x-forwarded-for: 203.0.113.9", "x-forwarded-for: 192.0.2.7"),
        ("x-forwarded-for: 192.0.2.7", "x-forwarded-for: 10.0.0.2"),
        ("forwarded: for=192.0.2.7",),
        ("forwarded: For=192.0.2.7;proto=https;by=10.0.0.1",),
        ('forwarded: for="192.0.2.7:4711"',),
        ("forwarded: for=203.0.113.9, proto=http;for=192.0.2.7;host=x",),
        ('forwarded: for=_hidden, for=192.0.2.7, for="[fd00::2]:80"',),
        ("forwarded: for=203.0.113.9", "forwarded: for=192.0.2.7"),
        (r'forwarded: for=203.0.113.9;x="\", for=10.0.0.9", for=192.0.2.7',),
    ],
)
def test_the_client_is_the_right_most_address_that_is_not_trusted(
    headers: tuple[str, ...], peer: str
) -> None:
    """Addresses further left can be invented, and addresses further right are proxies."""
    assert client_of(*headers, peer=peer) == CLIENT


def test_an_address_is_canonical() -> None:
    """Every notation of an address has the same form in records and limits."""
    for written in ("2001:DB8:0:0::1", "[2001:db8::1]", "[2001:0db8::0001]:443"):
        assert client_of(f"x-forwarded-for: {written}") == "2001:db8::1"


def test_a_request_of_a_proxy_s_own_network_has_its_address() -> None:
    """If all addresses are trusted, the client is the most distant one."""
    assert client_of("x-forwarded-for: 10.0.0.9, 10.0.0.8") == "10.0.0.9"


@pytest.mark.parametrize(
    "headers",
    [
        ("x-forwarded-for: ",),
        ("x-forwarded-for: unknown",),
        ("x-forwarded-for: 192.0.2.7, ",),
        ("x-forwarded-for: 192.0.2.7, example.org",),
        ("x-forwarded-for: 192.0.2.7, 192.0.2.300",),
        ("x-forwarded-for: 192.0.2.7 192.0.2.8",),
        ("x-forwarded-for: fe80::1%eth0",),
        ("x-forwarded-for: [192.0.2.7",),
        ("x-forwarded-for: 192.0.2.7:port",),
        ("forwarded: for=unknown",),
        ("forwarded: for=_hidden",),
        ("forwarded: proto=https",),
        ("forwarded: for=192.0.2.7, proto=https",),
        ("forwarded: for=192.0.2.7;for=192.0.2.8",),
        ('forwarded: for="192.0.2.7',),
        ('forwarded: for=203.0.113.9, for="192.0.2.7, for=198.51.100.1',),
        ("forwarded: for = 192.0.2.7",),
        ("forwarded: 192.0.2.7",),
        ("forwarded: for=192.0.2.7,",),
        ("forwarded: for=192.0.2.7", "x-forwarded-for: 192.0.2.7"),
        ("forwarded: ", "x-forwarded-for: 192.0.2.7"),
        ("forwarded: ",),
    ],
)
def test_a_header_that_is_not_clear_leaves_the_proxy_s_address(headers: tuple[str, ...]) -> None:
    """Ambiguous headers lead to the proxy's address, marked as such."""
    pairs = (header.encode("latin-1").split(b": ", 1) for header in headers)
    assert PROXIES.client_of(PROXY, [(name, value) for name, value in pairs]) == Client(
        PROXY, is_known=False
    )


def test_without_headers_it_is_the_proxy_itself() -> None:
    """A request without headers comes from the proxy itself."""
    assert client_of() == PROXY


@given(st.text(st.characters(max_codepoint=255)), st.sampled_from(["x-forwarded-for", "forwarded"]))
def test_nothing_that_is_sent_is_an_error(text: str, name: str) -> None:
    """Any header value yields an address."""
    headers = [(name.encode(), text.encode("latin-1"))]
    assert PROXIES.client_of(PROXY, headers).address


@given(
    invented=st.text(st.characters(max_codepoint=255)),
    is_new=st.booleans(),
)
def test_a_client_cannot_choose_what_its_proxy_adds(*, invented: str, is_new: bool) -> None:
    """The proxy's own entry in X-Forwarded-For decides, after any entries of the client."""
    sent = [(b"x-forwarded-for", invented.encode("latin-1"))]
    added = CLIENT.encode()
    appended = [(b"x-forwarded-for", sent[0][1] + b", " + added)]
    headers = [*sent, (b"x-forwarded-for", added)] if is_new else appended
    assert PROXIES.client_of(PROXY, headers) == Client(CLIENT)


@pytest.mark.parametrize("network", ["10.0.0.1/8", "10.0.0.0/33", "proxy.example.org", ""])
def test_what_is_no_network_is_refused(network: str) -> None:
    """A network with bits beyond its prefix, or a name, raises ValueError."""
    with pytest.raises(ValueError, match=r"host bits|does not appear"):
        TrustedProxies([network])
