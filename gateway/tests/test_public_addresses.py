"""Webhooks reach public addresses only, in every spelling of an address."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from tests.patience import PATIENCE

from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.delivery.public_addresses import (
    PublicAddresses,
    RefusedAddressError,
    is_public,
)
from pqkeep_gateway.webhooks import InvalidUrlError, host_of

NOWHERE = PublicAddresses(Networks(()))
REFUSED = (
    "0.0.0.0",  # noqa: S104 - refused
    "10.1.2.3",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.31.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.168.1.1",
    "198.19.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a00:1",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "2002:7f00:1::",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
    "/run/pqkeep/keys.sock",
)
ALLOWED = ("1.1.1.1", "9.9.9.9", "::ffff:1.1.1.1", "2606:4700:4700::1111", "2a00:1450::1")
SPELLINGS = (
    "http://127.0.0.1/",
    "https://127.0.0.1/",
    "https://[::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]:8443/x?y=z",
    "https://169.254.169.254/latest/meta-data/",
    "https://10.0.0.1:6379/",
    "http://hooks.example.com/",
)
NO_URLS = (
    "",
    "hooks.example.com",
    "ftp://hooks.example.com/",
    "unix:///run/pqkeep/keys.sock",
    "http+unix://%2Frun%2Fkeys.sock/",
    "file:///etc/passwd",
    "https:///path",
    "https://ada@hooks.example.com/",
    "https://ada:secret@hooks.example.com/",
    "https://hooks.example.com#@10.0.0.1/",
    "https://hooks.example.com\\@10.0.0.1/",
    "https://hooks.example.com/\r\nHost: other",
    "https://hooks.example.com/ space",
    "https://hooks.example.com:0/",
    "https://hooks.example.com:65536/",
    "https://hooks.example.com:443x/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://127.0.0.1.5/",
    "https://hooks.example.127/",
    "https://①②⑦.0.0.1/",
    "https://bücher.example/",
    "https://[fe80::1%25lo]/",
    "https://[::1/",
    "https://[1.2.3.4]/",
    "https://[abcd]/",
    "https://[:::]/",
    "https://::1/",
    "https://hooks.example.com/" + "x" * 2048,
)


@pytest.mark.threat("webhook-into-the-network")
@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    """Loopback, private, link-local, metadata and embedded addresses are refused, with TLS too."""
    assert not is_public(address)
    assert not NOWHERE.allows(address)


@pytest.mark.parametrize("address", ALLOWED)
def test_public_addresses_are_allowed_with_tls(address: str) -> None:
    """A public address is allowed, and only with TLS."""
    assert is_public(address)
    assert NOWHERE.allows(address)
    assert not NOWHERE.allows(address, has_tls=False)


@pytest.mark.threat("webhook-into-the-network")
@pytest.mark.parametrize("url", NO_URLS)
def test_unusual_spellings_are_no_urls(url: str) -> None:
    """Other schemes, users, numeric hosts, zones and control characters are no webhook's URL."""
    with pytest.raises(InvalidUrlError):
        host_of(url)


@pytest.mark.threat("webhook-into-the-network")
@pytest.mark.parametrize("url", SPELLINGS)
def test_private_hosts_are_refused_when_a_webhook_is_created(url: str) -> None:
    """A URL with a private IP address, or without TLS, is refused at once."""
    assert host_of(url)
    assert not NOWHERE.may_be(url)


def test_networks_of_the_setting_are_allowed_in_either_notation() -> None:
    """An operator's network is allowed with and without TLS, and nothing beside it."""
    here = PublicAddresses(Networks(("127.0.0.0/8", "fd00:1::/64")))
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "fd00:1::5"):
        assert here.allows(address, has_tls=False)
    for address in ("10.0.0.1", "::1", "fd00:2::5", "169.254.169.254"):
        assert not here.allows(address)
    assert here.may_be("http://127.0.0.1:8000/")
    assert here.may_be("https://hooks.example.com/")


def _resolving(*addresses: str) -> Any:
    """Return a resolver that returns the next addresses at each call, and notes its calls."""

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        calls.append(host)
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                0,
                "",
                (address, port, 0, 0) if ":" in address else (address, port),
            )
            for address in addresses
        ]

    calls: list[str] = []
    resolve.calls = calls  # type: ignore[attr-defined] # for the test
    return resolve


@pytest.mark.threat("webhook-into-the-network")
@pytest.mark.parametrize(
    "addresses",
    [("127.0.0.1",), ("1.1.1.1", "10.0.0.1"), ("2606:4700::1", "::1"), ("::ffff:10.0.0.1",), ()],
)
def test_a_name_with_any_address_inside_is_refused(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is refused if one of its addresses is not public, and no connection is made."""
    resolve = _resolving(*addresses)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(RefusedAddressError):
        NOWHERE.connect(("hooks.example.com", 443), 1, deadline=time.monotonic() + 1, has_tls=True)


@pytest.mark.threat("webhook-into-the-network")
def test_a_name_is_resolved_once_and_its_checked_address_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection goes to the address that was checked: the name is not resolved again."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        resolve = _resolving("127.0.0.2")
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        here = PublicAddresses(Networks(("127.0.0.2/32",)))
        deadline = time.monotonic() + PATIENCE
        with here.connect(
            ("hooks.example", port), PATIENCE, deadline=deadline, has_tls=False
        ) as opened:
            assert opened.getpeername() == ("127.0.0.2", port)
        assert resolve.calls == ["hooks.example"]


@pytest.mark.threat("webhook-into-the-network")
@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost"])
def test_the_resolver_s_spellings_are_refused_too(host: str) -> None:
    """What the system's resolver takes for loopback is refused when it is resolved."""
    with pytest.raises(RefusedAddressError):
        NOWHERE.connect((host, 443), 1, deadline=time.monotonic() + 1, has_tls=True)


@pytest.mark.threat("webhook-into-the-network")
def test_a_public_address_of_this_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address of this host is refused, even a public one, and even beyond the first."""
    monkeypatch.setattr(
        "pqkeep_gateway.delivery.public_addresses.NOT_PUBLIC", Networks(("10.0.0.0/8",))
    )
    for address in ("127.0.0.1", "127.0.0.2"):
        assert is_public(address)
        assert not NOWHERE.allows(address)
