"""Any number of an attacker's connections leaves others served."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.connections.conftest import Client, Gateway
from tests.fixtures.processes import HOST, free_port
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_gateway.access.networks import network_of
from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.access.trusted_proxies import TrustedProxies
from pqkeep_gateway.http.connection import LIMITS
from pqkeep_gateway.http.connections import Connections
from pqkeep_gateway.http.static_document import PIECE
from pqkeep_gateway.http.watching import CHECK_SECONDS, to_end
from pqkeep_gateway.process import OTHER_FILES
from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.settings_file import edited

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
ARRIVALS = SourceBudget(Limit(1000, 1), lambda: 1000.0)
"""Enough new connections per second for all clients."""
STRANGERS = [f"127.0.0.{last}" for last in range(2, 8)]


@pytest.fixture(scope="module")
def small(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway for few connections, with long timeouts."""
    return start_gateway(connections=40, per_address=10, request_seconds=30)


def _many(stack: ExitStack, gateway: Gateway, count: int, source: str, send: bytes) -> list[Client]:
    clients = [stack.enter_context(gateway.client(source=source)) for _ in range(count)]
    for client in clients:
        client.send(send)
    return clients


@pytest.mark.parametrize("sent", [b"", HEALTH[:9], HEALTH], ids=["nothing", "half", "idle"])
@pytest.mark.parametrize("source", [HOST, STRANGERS[0]], ids=["own address", "another's"])
def test_a_flood_shuts_nobody_out(small: Gateway, source: str, sent: bytes) -> None:
    """An address with too many connections loses its oldest; new connections are served."""
    with ExitStack() as stack:
        for each in _many(stack, small, 30, source, sent):
            with suppress(ConnectionResetError):  # which the oldest have for an answer
                each.socket.recv(1 if sent == HEALTH else 0)
        with small.client() as client:
            assert client.ask(HEALTH).status == 503
            assert b"unavailable" in client.ask(HEALTH).body
            assert small.connections() <= 20


@pytest.mark.threat("flood")
def test_a_flood_from_many_addresses_shuts_nobody_out(small: Gateway) -> None:
    """If all connections are taken, the address with the most loses one."""
    with ExitStack() as stack:
        for source in STRANGERS:
            _many(stack, small, 10, source, b"")
        for _ in range(5):
            client = stack.enter_context(small.client())
            assert client.ask(HEALTH).status == 503
        assert small.connections() <= 41


@pytest.mark.threat("flood")
def test_a_connection_in_use_outlasts_a_flood(small: Gateway) -> None:
    """A client that keeps sending requests stays connected while its address opens more."""
    with ExitStack() as stack, small.client() as client:
        for _ in range(10):
            assert client.ask(HEALTH).status == 503
            _many(stack, small, 4, HOST, b"")


class Known:
    """A connection as the limiter sees it."""

    def __init__(self, *, was_used: bool = False, answering: bool = False) -> None:
        self.was_used = was_used
        self.answering = answering
        self.evicted = False

    def is_answering(self) -> bool:
        """Return the configured state."""
        return self.answering

    def evict(self) -> None:
        """Remember it."""
        self.evicted = True


def test_a_connection_that_waits_for_its_answer_is_not_evicted() -> None:
    """If every connection waits for a response, a new one is refused."""
    connections = Connections(8, 4, ARRIVALS)
    busy = [Known(answering=True) for _ in range(4)]
    assert all(connections.add(each, "192.0.2.1") for each in busy)
    assert not connections.add(Known(), "192.0.2.1")
    assert connections.add(Known(), "192.0.2.2")
    connections.remove(busy[0], "192.0.2.1")
    assert connections.add(Known(), "192.0.2.1")
    assert not any(each.evicted for each in busy)


def test_unused_connections_go_first() -> None:
    """The oldest connection without a recent response is closed first, then the oldest idle one."""
    connections = Connections(8, 3, ARRIVALS)
    first, second, third = (Known(was_used=used) for used in (True, True, False))
    for each in (first, second, third):
        assert connections.add(each, "192.0.2.1")
    assert connections.add(fourth := Known(was_used=True), "192.0.2.1")
    assert [first.evicted, second.evicted, third.evicted] == [False, False, True]
    assert connections.add(Known(), "192.0.2.1")
    assert [first.evicted, second.evicted, fourth.evicted] == [True, False, False]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=60))
def test_the_fullest_network_gives_way(steps: list[tuple[int, bool]]) -> None:
    """If all is full, a network with the most connections always loses one."""
    connections = Connections(10, 10, ARRIVALS)
    held: dict[str, list[Known]] = {f"192.0.2.{last}": [] for last in range(1, 6)}
    for last, closes in steps:
        address = f"192.0.2.{last}"
        if closes and held[address]:
            connections.remove(held[address].pop(), address)
            continue
        sizes = {each: len(found) for each, found in held.items()}
        new = Known()
        assert connections.add(new, address)
        held[address].append(new)
        for each, found in held.items():
            for lost in [known for known in found if known.evicted]:
                assert sizes[each] == max(sizes.values())
                found.remove(lost)
        assert connections.count == sum(map(len, held.values())) == min(sum(sizes.values()) + 1, 10)


def test_what_is_unread_of_many_is_cut_where_most_is() -> None:
    """The address with the most unread bytes loses its largest responses; others lose none."""
    unread = [*(("192.0.2.1", size) for size in (5, 0, 9, 7)), ("192.0.2.2", 8)]
    assert to_end(unread, 29) == []
    assert to_end(unread, 20) == [2]
    assert to_end(unread, 13) == [2, 3]
    assert to_end(unread, 0) == [2, 3, 4, 0]


LARGE = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.threat("flood")
def test_answers_that_nobody_reads_have_a_bound(start_gateway: Callable[..., Gateway]) -> None:
    """Unread responses of one address are bounded; clients that read get their responses."""
    gateway = start_gateway(unread=16 * PIECE, write_seconds=300)
    with ExitStack() as stack, gateway.client() as client:
        size = len(client.ask(LARGE).body)
        for source in [STRANGERS[0]] * 30 + [STRANGERS[1]] * 2:
            unread = stack.enter_context(gateway.client(source=source, read_buffer=4096))
            unread.send(LARGE)
            unread.socket.recv(1, socket.MSG_PEEK)
        deadline = time.monotonic() + PATIENCE
        while (kept := gateway.connections() - 1) > 16:
            assert time.monotonic() < deadline
            assert len(client.ask(LARGE).body) == size
        assert kept >= 2
        assert len(unread.respond().body) == size


def test_documents_are_sent_as_they_are_read(start_gateway: Callable[..., Gateway]) -> None:
    """A gateway buffers only a few pieces of a document that a client does not read."""
    gateway = start_gateway(unread=8 * 4 * PIECE, write_seconds=300)
    with ExitStack() as stack, gateway.client() as client:
        assert len(client.ask(LARGE).body) > 10 * PIECE
        for _ in range(8):
            unread = stack.enter_context(gateway.client(read_buffer=4096))
            unread.send(LARGE)
            unread.socket.recv(1, socket.MSG_PEEK)
        time.sleep(4 * CHECK_SECONDS)
        assert gateway.connections() == 9


def test_a_trusted_proxy_is_not_one_address() -> None:
    """A trusted proxy may use all connections, and other clients are still served."""
    connections = Connections(8, 2, ARRIVALS, TrustedProxies(["192.0.2.1/32"]))
    proxied = [Known(answering=True) for _ in range(7)]
    assert all(connections.add(each, "192.0.2.1") for each in proxied)
    assert connections.add(Known(answering=True), "192.0.2.2")
    assert not connections.add(Known(), "192.0.2.1")


def test_new_connections_of_an_address_are_limited() -> None:
    """New connections per second are limited for each address or /64, but not for a trusted proxy."""
    now = [1000.0]
    arrivals = SourceBudget(Limit(2, 1), lambda: now[0])
    connections = Connections(8, 8, arrivals, TrustedProxies(["192.0.2.1/32"]))
    for address in ("192.0.2.2", "2001:db8:1:2::1", "2001:db8:1:3::1"):
        assert [connections.may_arrive(address) for _ in range(3)] == [True, True, False]
    assert not connections.may_arrive("2001:db8:1:2::2")
    assert all(connections.may_arrive("192.0.2.1") for _ in range(100))
    now[0] += 1
    assert connections.may_arrive("192.0.2.2")


def test_a_flood_of_new_connections_is_cut_off(start_gateway: Callable[..., Gateway]) -> None:
    """Connections beyond the limit are closed without a response; another address is served."""
    gateway = start_gateway(new_per_second=1)
    answered = [_is_answered(gateway, STRANGERS[0]) for _ in range(50)]
    assert True in answered
    assert False in answered
    assert _is_answered(gateway, STRANGERS[1])


def _is_answered(gateway: Gateway, source: str) -> bool:
    try:
        with gateway.client(source=source) as client:
            client.send(HEALTH)
            return b"503" in client.socket.recv(4096)
    except ConnectionError:
        return False


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("", ""),
    ],
)
def test_ipv6_counts_by_64(address: str, network: str) -> None:
    """All addresses of an IPv6 /64 count as one."""
    assert network_of(address) == network


def _start(folder: Path, soft: int, hard: int) -> subprocess.Popen[str]:
    layout = Layout(folder / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    settings = layout.gateway_settings
    changed = {"port": free_port(), "management_address": "off"}
    settings.write_text(edited(settings.read_text(), changed))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "pqkeep_gateway", layout.gateway_settings],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.defpath},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),  # noqa: PLW1509
        text=True,
    )


def test_too_few_open_files_are_refused(tmp_path: Path) -> None:
    """A gateway that may not open enough files ends with status 78 and one line."""
    process = _start(tmp_path, 1024, LIMITS.connections)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == os.EX_CONFIG
    assert output.count("\n") == 1
    assert str(LIMITS.connections + OTHER_FILES) in output


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    """The process raises its limit of open files above the limit of connections, if it may."""
    process = _start(tmp_path, 256, LIMITS.connections + OTHER_FILES)
    assert process.stdout is not None
    with process:
        assert any("running on" in line for line in process.stdout)
        soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        process.terminate()
        process.stdout.read()
    assert soft == LIMITS.connections + OTHER_FILES
