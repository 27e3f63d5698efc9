"""A gateway with wrong settings does not start: exit status 78 and one clear message."""

import json
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fixtures.certificate import new_certificate
from tests.fixtures.preloaded import preloaded
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import PEPPER_SIZE

SETTINGS = f"""\
key_service_socket = "keyservice.sock"
database = "accounts.sqlite3"
pepper_file = "pepper"
operator_digest = "{"0f" * 32}"
port = 0
management_address = "127.0.0.1:0"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with correct settings."""
    (tmp_path / "settings.toml").write_text(SETTINGS)
    (tmp_path / "accounts.sqlite3").touch(0o600)
    (tmp_path / "pepper").write_bytes(bytes(PEPPER_SIZE))
    (tmp_path / "pepper").chmod(0o400)
    return tmp_path


def _set(folder: Path, line: str) -> None:
    with (folder / "settings.toml").open("a") as settings:
        settings.write(line + "\n")


def _plans(folder: Path, text: str) -> None:
    (folder / "plans.toml").write_text(text)
    _set(folder, 'plans_file = "plans.toml"')


def _policies(folder: Path, text: str) -> None:
    (folder / "policies").mkdir()
    (folder / "policies" / "own.cedar").write_text(text)
    _set(folder, 'policy_directory = "policies"')


def _open_password(folder: Path) -> None:
    (folder / "password").write_text("redis-or-smtp-secret")
    (folder / "password").chmod(0o644)
    _set(folder, 'redis_password_file = "password"\nredis_url = "redis://127.0.0.1:1"')


def _earlier_database(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "accounts.sqlite3")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('0009')")


def _stripe(folder: Path, **changes: str) -> None:
    """Set Stripe up correctly, except for the changes."""
    for name in ("stripe-key", "stripe-webhook"):
        (folder / name).write_text("redis-or-smtp-secret")
        (folder / name).chmod(0o600)
    values = {
        "secret_key_file": '"stripe-key"',
        "webhook_secret_file": '"stripe-webhook"',
        "return_url": '"https://portal.example.org/billing"',
        "prices": '{ starter = "price_1", growth = "price_2" }',
        **changes,
    }
    _set(folder, "[stripe]\n" + "\n".join(f"{k} = {v}" for k, v in values.items() if v))


def _open_stripe(folder: Path) -> None:
    _stripe(folder)
    (folder / "stripe-webhook").chmod(0o644)


def _empty_stripe(folder: Path) -> None:
    _stripe(folder)
    (folder / "stripe-key").write_text("\n")


def _cookies(folder: Path, host: str) -> None:
    _set(folder, f'cookies = "loopback"\nhost = "{host}"')


def _tls(folder: Path, certificate: str = "certificate.pem") -> None:
    new_certificate(folder)
    _set(folder, f'tls_certificate = "{certificate}"\ntls_key = "key.pem"')


def _classical(folder: Path) -> None:
    """Require post-quantum key exchange of an OpenSSL without it."""
    _tls(folder)
    _set(folder, "require_post_quantum = true")
    (folder / "openssl.cnf").write_text(CLASSICAL)


CLASSICAL = """\
openssl_conf = all
[all]
ssl_conf = ssl
[ssl]
system_default = groups
[groups]
Groups = X25519
"""
EVERYWHERE = "0.0.0.0"  # noqa: S104 - it is the mistake
MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unknown setting": (lambda at: _set(at, "colour = 1"), "colour"),
    "an unknown tier": (lambda at: _plans(at, "[gold]\napi_keys = 1\n"), "plans.toml"),
    "no requests": (lambda at: _plans(at, "[free]\nrequests_per_minute = 0\n"), "plans.toml"),
    "a database of an earlier version": (_earlier_database, "created by another version of pqkeep"),
    "a lost database": (
        lambda at: (at / "accounts.sqlite3").unlink(),
        'the runbook \\"A database is lost\\"',
    ),
    "no plans": (lambda at: _set(at, 'plans_file = "missing.toml"'), "missing.toml"),
    "a policy without a name": (
        lambda at: _policies(at, "forbid (principal, action, resource);"),
        "needs a unique name",
    ),
    "no policies": (lambda at: _set(at, 'policy_directory = "missing"'), "missing"),
    "an open pepper": (lambda at: (at / "pepper").chmod(0o444), "0400"),
    "an open password": (_open_password, "0400"),
    "a password in the address": (
        lambda at: _set(at, 'redis_url = "redis://:redis-or-smtp-secret@127.0.0.1:1/0"'),
        "put it into redis_password_file",
    ),
    "a password in the address's query": (
        lambda at: _set(
            at, 'redis_url = "unix:///run/redis.sock?db=1&password=redis-or-smtp-secret"'
        ),
        "put it into redis_password_file",
    ),
    "cookies without TLS on every address": (
        lambda at: _cookies(at, EVERYWHERE),
        f"not {EVERYWHERE}",
    ),
    "cookies without TLS on another address": (
        lambda at: _cookies(at, "192.0.2.7"),
        "not 192.0.2.7",
    ),
    "no TLS on every address": (lambda at: _set(at, f'host = "{EVERYWHERE}"'), "tls_certificate"),
    "a missing certificate": (lambda at: _tls(at, "missing.pem"), "missing.pem"),
    "post-quantum with an OpenSSL that has none": (_classical, ssl.OPENSSL_VERSION),
    "an open secret of Stripe's": (_open_stripe, "0400"),
    "an empty secret of Stripe's": (_empty_stripe, "stripe-key"),
    "no secret of Stripe's": (
        lambda at: _stripe(at, secret_key_file='"none"'),  # noqa: S106 - no secret
        "none",
    ),
    "an unnamed secret of Stripe's": (lambda at: _stripe(at, webhook_secret_file=""), "webhook"),
    "a secret of Stripe's in the settings": (
        lambda at: _stripe(at, secret_key='"redis-or-smtp-secret"'),  # noqa: S106 - no secret
        "secret_key",
    ),
    "a price of no tier": (lambda at: _stripe(at, prices='{ gold = "price_1" }'), "prices"),
    "a price of nothing": (lambda at: _stripe(at, prices="{ }"), "prices"),
    "a price of what is free": (lambda at: _stripe(at, prices='{ free = "price_1" }'), "free"),
    "one price of two tiers": (
        lambda at: _stripe(at, prices='{ starter = "price_1", growth = "price_1" }'),
        "a different price for each tier",
    ),
    "Stripe without TLS": (lambda at: _stripe(at, api='"http://api.stripe.com"'), "stripe.api"),
    "a way back without TLS": (
        lambda at: _stripe(at, return_url='"http://portal.example.org/"'),
        "stripe.return_url",
    ),
    "another kind of address": (
        lambda at: _set(at, 'redis_url = "memcached://127.0.0.1:1"'),
        "redis_url",
    ),
}


PYTHON = (sys.executable, "-P")
GATEWAY = (*PYTHON, "-m", "pqkeep_gateway")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str | Path]]:
    """The command that starts an already imported gateway."""
    folder = tmp_path_factory.mktemp("gateway")
    with preloaded(folder, "pqkeep_gateway.process:main", "stripe") as words:
        yield words


def _start(
    folder: Path,
    *options: str,
    fds: tuple[int, ...] = (),
    program: Sequence[str | Path] = GATEWAY,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*program, folder / "settings.toml", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.defpath, "OPENSSL_CONF": str(folder / "openssl.cnf")},
        pass_fds=fds,
        text=True,
    )


def _refusal(process: subprocess.Popen[str]) -> str:
    """Return the single error line of a gateway that does not start."""
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == os.EX_CONFIG, said
    assert said.count("\n") == 1
    return said


@pytest.mark.threat("network-observer")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_setup_is_refused(
    gateway: Sequence[str | Path], folder: Path, mistake: str
) -> None:
    """The process ends with status 78 and one line with the mistake and no secret."""
    make, expected = MISTAKES[mistake]
    make(folder)
    said = _refusal(_start(folder, program=gateway))
    assert expected in said
    assert "redis-or-smtp-secret" not in said


@pytest.mark.threat("network-observer")
def test_cookies_fit_the_socket_that_is_handed_over(folder: Path) -> None:
    """A socket on every address is not loopback, even if the settings name a loopback address."""
    _cookies(folder, "127.0.0.1")
    with socket.create_server((EVERYWHERE, 0)) as listener:
        fd = listener.fileno()
        assert f"not {EVERYWHERE}" in _refusal(_start(folder, f"--fd={fd}", fds=(fd,)))


@pytest.mark.parametrize(
    ("cookies", "host"),
    [("loopback", "127.0.0.1"), ("loopback", "localhost"), ("secure", EVERYWHERE)],
)
def test_cookies_that_fit(
    gateway: Sequence[str | Path], folder: Path, cookies: str, host: str
) -> None:
    """Cookies may go without TLS on loopback only; with secure cookies any address is allowed."""
    _set(folder, f'cookies = "{cookies}"\nhost = "{host}"\ntrusted_proxies = ["192.0.2.1/32"]')
    process = _start(folder, program=gateway)
    assert process.stdout is not None
    with process:
        try:
            said = next(line for line in process.stdout if "running on" in line)
        finally:
            process.terminate()
            process.stdout.read()
    assert f"//{host}:" in said


@contextmanager
def connected(address: tuple[str, int], context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    """Connect with TLS."""
    with (
        socket.create_connection(address) as connection,
        context.wrap_socket(connection, server_hostname=address[0]) as client,
    ):
        yield client


def test_a_certificate_is_replaced_while_serving(
    gateway: Sequence[str | Path], folder: Path
) -> None:
    """After SIGHUP new connections use the new certificate; open connections continue."""
    _tls(folder)
    old = ssl.create_default_context(cafile=folder / "certificate.pem")
    process = _start(folder, program=gateway)
    assert process.stdout is not None
    with process:
        try:
            said = next(line for line in process.stdout if "running on" in line)
            address = ("127.0.0.1", urlsplit(json.loads(said)["address"]).port or 0)
            with connected(address, old) as client:
                new = new_certificate(folder).client()
                process.send_signal(signal.SIGHUP)
                assert any("certificate is read again" in line for line in process.stdout)
                with connected(address, new):
                    pass
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 503"
        finally:
            process.terminate()
            process.stdout.read()


WITHOUT_STRIPE = """
import sys
sys.modules["stripe"] = None  # as where it is not installed
from pqkeep_gateway.process import main
sys.exit(main())
"""


def test_without_stripe_s_package(folder: Path) -> None:
    """With Stripe settings but without its package, the message names the extra to install."""
    _stripe(folder)
    said = _refusal(_start(folder, program=(*PYTHON, "-c", WITHOUT_STRIPE)))
    assert "-py3-none-any.whl[stripe]'" in said


UNWATCHED = """
import asyncio, sys
from pqkeep_gateway import process

async def fail(connections, _):
    while not connections:
        await asyncio.sleep(0.01)
    raise LookupError

process.watch_connections = fail
sys.exit(process.main())
"""


def test_a_gateway_whose_connections_nobody_watches_ends(folder: Path) -> None:
    """A failed background task is logged, and ends the process with a status for a restart."""
    process = _start(folder, program=(*PYTHON, "-c", UNWATCHED))
    assert process.stdout is not None
    with process.stdout as log:
        running = next(line for line in log if "running on" in line)
        address = urlsplit(json.loads(running)["address"])
        assert address.port is not None
        with socket.create_connection(("127.0.0.1", address.port), PATIENCE):
            said = log.read()
    assert process.wait(PATIENCE) == os.EX_TEMPFAIL
    assert "a background task failed, and the process ends" in said
    assert [path.name for path in folder.glob("accounts*")] == ["accounts.sqlite3"]


def test_a_gateway_that_is_told_to_stop_closes_its_database(folder: Path) -> None:
    """SIGTERM and SIGINT end the gateway with status 0, and leave the database as one file."""
    for number in (signal.SIGTERM, signal.SIGINT):
        process = _start(folder)
        assert process.stdout is not None
        with process.stdout as log:
            assert any("running on" in line for line in log)
            process.send_signal(number)
            log.read()
        assert process.wait(PATIENCE) == 0
        assert [path.name for path in folder.glob("accounts*")] == ["accounts.sqlite3"]
