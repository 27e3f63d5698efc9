"""Settings are read once; a mistake stops the start and is named."""

from pathlib import Path

import pytest

from pqkeep_gateway import config, redis_address
from pqkeep_protocol.startup.settings import ConfigError

GOOD = {
    "key_service_socket": '"../keys.sock"',
    "database": '"accounts.sqlite3"',
    "pepper_file": '"pepper"',
    "operator_digest": '"' + "0f" * 32 + '"',
}


def write(folder: Path, settings: dict[str, str]) -> Path:
    """Write a settings file."""
    path = folder / "settings.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Relative paths begin at the settings file, and absolute paths are unchanged.

    The socket's path is resolved: the kernel accepts at most 107 bytes.
    """
    absolute = str(tmp_path / "elsewhere")
    settings = config.read(write(tmp_path, {**GOOD, "pepper_file": f'"{absolute}"'}))
    assert settings.database.location == str(tmp_path.resolve() / "accounts.sqlite3")
    assert settings.key_service_socket == tmp_path.resolve().parent / "keys.sock"
    assert settings.pepper_file == Path(absolute)


def test_stripe_s_files_too(tmp_path: Path) -> None:
    """The paths of Stripe's secrets are relative to the settings."""
    stripe = {
        "secret_key_file": '"key"',
        "webhook_secret_file": f'"{tmp_path}/webhook"',
        "return_url": '"https://portal.example.org/billing"',
        "prices": '{ growth = "price_1" }',
    }
    settings = config.read(
        write(tmp_path, GOOD | {f"stripe.{name}": value for name, value in stripe.items()})
    ).stripe
    assert settings is not None
    assert Path(settings.secret_key_file) == tmp_path.resolve() / "key"
    assert Path(settings.webhook_secret_file) == tmp_path / "webhook"
    assert settings.api == "https://api.stripe.com"


def test_defaults_are_the_careful_ones(tmp_path: Path) -> None:
    """By default only operators create tenants, and only loopback is served."""
    settings = config.read(write(tmp_path, GOOD))
    assert (settings.signup, settings.host) == ("operator", "127.0.0.1")
    assert settings.api_key_overlap_seconds == 30


@pytest.mark.parametrize("name", sorted(GOOD.keys() - {"operator_digest"}))
def test_what_has_no_default_is_required(tmp_path: Path, name: str) -> None:
    """A missing setting is named."""
    settings = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(ConfigError, match=name):
        config.read(write(tmp_path, settings))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prot", "8080"),
        ("port", "65536"),
        ("port", "-1"),
        ("port", '"8080"'),
        ("signup", '"everyone"'),
        ("trusted_proxies", '["10.0.0.1/8"]'),
        ("trusted_proxies", '["fe80::1%eth0"]'),
        ("trusted_proxies", '["proxy.example.org"]'),
        ("api_key_overlap_seconds", "-1"),
        ("api_key_overlap_seconds", "86401"),
        ("api_key_overlap_seconds", "0.5"),
        ("password_costs", "{memory_kib = 19455}"),
        ("password_costs", "{passes = 1}"),
        ("password_costs", "{lanes = 0}"),
        ("password_costs", "{rounds = 3}"),
        ("operator_digest", '"' + "0F" * 32 + '"'),
        ("operator_digest", '"' + "0f" * 31 + '"'),
        ("operator_digest", '"' + "0f" * 33 + '"'),
        ("operator_digest", '""'),
        ("database", "1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, value: str) -> None:
    """An unknown or malformed setting is named with its file."""
    path = write(tmp_path, {**GOOD, name: value})
    with pytest.raises(ConfigError, match=name) as raised:
        config.read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "days"),
    [({}, 7), ({"cookies": '"loopback"'}, 0)],
)
def test_keys_are_destroyed_at_once_in_development_only(
    tmp_path: Path, settings: dict[str, str], days: int
) -> None:
    """Keys are destroyed without delay in development only, otherwise after a week."""
    assert config.read(write(tmp_path, GOOD | settings)).min_archive_days == days


@pytest.mark.parametrize("content", [b"{", b"# \xff", b"port = 1\nport = 2"])
def test_what_is_no_toml(tmp_path: Path, content: bytes) -> None:
    """A file that is not TOML is named."""
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        config.read(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        config.read(tmp_path / "missing.toml")


def test_the_database_may_be_on_a_server(tmp_path: Path) -> None:
    """A PostgreSQL address is unchanged, and its password file is relative to the settings."""
    address = "postgresql://role@database.example.org/name"
    more = {"database": f'"{address}"', "database_password_file": '"passwords"'}
    settings = config.read(write(tmp_path, {**GOOD, **more}))
    assert settings.database.location == address
    assert settings.database_password_file == tmp_path.resolve() / "passwords"


SMTP = {"host": '"smtp.example.org"', "sender": '"pqkeep@example.org"'}


def write_smtp(folder: Path, settings: dict[str, str], **others: str) -> Path:
    """Write a settings file with a mail server."""
    path = write(folder, {**GOOD, "public_url": '"https://keep.example.org"', **others})
    with path.open("a") as file:
        file.write("[smtp]\n")
        file.writelines(f"{name} = {value}\n" for name, value in settings.items())
    return path


@pytest.mark.parametrize(
    ("more", "port"),
    [
        ({}, 587),
        ({"security": '"starttls"'}, 587),
        ({"security": '"tls"'}, 465),
        ({"security": '"none"', "host": '"127.0.0.1"'}, 25),
        ({"security": '"none"', "host": '"::1"'}, 25),
        ({"security": '"none"', "host": '"localhost"'}, 25),
        ({"port": "2525"}, 2525),
    ],
)
def test_a_mail_server_has_its_port(tmp_path: Path, more: dict[str, str], port: int) -> None:
    """The default port is the usual one, and encryption is on by default."""
    smtp = config.read(write_smtp(tmp_path, SMTP | more)).smtp
    assert smtp is not None
    assert smtp.port == port
    assert smtp.security == more.get("security", '"starttls"').strip('"')


def test_a_mail_server_s_files_are_beside_the_settings(tmp_path: Path) -> None:
    """Paths of the password and certificates are relative to the settings file."""
    more = {"user": '"pqkeep"', "password_file": '"secret"', "ca_file": '"ca.pem"'}
    smtp = config.read(write_smtp(tmp_path, SMTP | more)).smtp
    assert smtp is not None
    here = tmp_path.resolve()
    assert (smtp.password_file, smtp.ca_file) == (here / "secret", here / "ca.pem")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"security": '"none"'}, "for a server on this machine"),
        ({"security": '"none"', "host": '"192.0.2.7"'}, "for a server on this machine"),
        ({"security": '"none"', "host": '"localhost.example.org"'}, "for a server on this machine"),
        ({"security": '"maybe"'}, "security"),
        ({"user": '"pqkeep"'}, "or neither"),
        ({"password_file": '"secret"'}, "or neither"),
        ({"password": '"secret"'}, "password"),
        ({"port": "65536"}, "port"),
    ],
)
def test_a_mail_server_that_cannot_be(tmp_path: Path, more: dict[str, str], problem: str) -> None:
    """Half a user, a remote server without encryption, and unknown settings are refused."""
    with pytest.raises(ConfigError, match=problem):
        config.read(write_smtp(tmp_path, SMTP | more))


def test_mail_needs_to_know_where_people_come_in(tmp_path: Path) -> None:
    """A mail server without public_url is refused, because mails would have no links."""
    path = write(tmp_path, GOOD)
    with path.open("a") as file:
        file.write('[smtp]\nhost = "smtp.example.org"\nsender = "a@example.org"\n')
    with pytest.raises(ConfigError, match="public_url"):
        config.read(path)


def test_there_is_one_way_for_mail(tmp_path: Path) -> None:
    """A mail server together with a mailbox is refused."""
    with pytest.raises(ConfigError, match="mailbox"):
        config.read(write_smtp(tmp_path, SMTP, mailbox='"mailbox"'))


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_certificate": '"certificate.pem"'},
        {"tls_key": '"key.pem"'},
        {"require_post_quantum": "true"},
    ],
)
def test_tls_needs_a_certificate_and_its_key(tmp_path: Path, settings: dict[str, str]) -> None:
    """Half a pair of certificate and key, and requirements without TLS, are refused."""
    with pytest.raises(ConfigError, match="tls_certificate"):
        config.read(write(tmp_path, {**GOOD, **settings}))


@pytest.mark.parametrize(
    "sink",
    [
        "file:///var/log/pqkeep/audit.jsonl",
        "syslog+unix:///dev/log",
        "syslog+udp://127.0.0.1:514",
        "syslog+tcp://[::1]:601",
        "https://collector.example.org/v1/logs",
        "http://127.0.0.1:9000/",
    ],
)
def test_audit_sinks(tmp_path: Path, sink: str) -> None:
    """Every kind of sink address is accepted."""
    assert config.read(write(tmp_path, {**GOOD, "audit_sink": f'"{sink}"'})).audit_sink == sink


@pytest.mark.parametrize(
    ("sink", "more"),
    [
        ("audit.jsonl", {}),
        ("file://relative", {}),
        ("syslog+udp://localhost", {}),
        ("syslog+tcp://:601", {}),
        ("syslog+tcp://host:port", {}),
        ("http://collector.example.org/", {}),
        ("http://127.0.0.1.example.org/", {}),
        ("https://user:secret@example.org/", {}),
        ("https://example.org/?token=secret", {}),
        ("https:///v1/logs", {}),
        ("ftp://example.org/", {}),
        ("syslog+unix:///dev/log", {"audit_sink_token_file": '"token"'}),
        ("file:///audit", {"audit_sink_ca_file": '"ca.pem"'}),
        ("syslog+tcp://host:601", {"audit_sink_ca_file": '"ca.pem"'}),
        ("syslog+tls://host:6514", {"audit_sink_token_file": '"token"'}),
        ("syslog+tls://host", {}),
    ],
)
def test_unsafe_sinks_are_refused(tmp_path: Path, sink: str, more: dict[str, str]) -> None:
    """A sink without encryption, with a secret or without a destination is refused by name."""
    with pytest.raises(ConfigError, match=r"audit_sink\b|audit_sink_") as refused:
        config.read(write(tmp_path, {**GOOD, "audit_sink": f'"{sink}"', **more}))
    assert "secret" not in str(refused.value)


SENTINEL_PASSWORD = {"redis_sentinel_password_file": '"password"'}


@pytest.mark.parametrize(
    ("url", "servers", "service"),
    [
        ("redis://localhost", [("localhost", 6379)], None),
        ("rediss://pqkeep@[::1]:7000/3?ssl_ca_certs=/ca.pem", [("::1", 7000)], None),
        ("unix:///run/valkey.sock?db=1", [], None),
        ("redis+sentinel://a/pqkeep", [("a", 26379)], "pqkeep"),
        (
            "rediss+sentinel://pqkeep@a:1,10.0.0.2,[::3],[::4]:5/my.primary/2?ssl_ca_certs=/ca.pem",
            [("a", 1), ("10.0.0.2", 26379), ("::3", 26379), ("::4", 5)],
            "my.primary",
        ),
    ],
)
def test_addresses_of_the_rate_limits(
    tmp_path: Path, url: str, servers: list[tuple[str, int]], service: str | None
) -> None:
    """One server, a socket, and Sentinels with different ports are accepted."""
    assert config.read(write(tmp_path, {**GOOD, "redis_url": f'"{url}"'})).redis_url == url
    address = redis_address.parse(url)
    assert (list(address.servers), address.service) == (servers, service)
    assert "pqkeep@" not in address.shown
    assert "ca.pem" not in address.shown


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("memcached://a", {}),
        ("redis://", {}),
        ("redis://a/name", {}),
        ("redis://a?ssl_cert_reqs=none", {}),
        ("redis://a,b", {}),
        ("redis://u:secret@a", {}),
        ("redis+sentinel://a,b", {}),
        ("redis+sentinel://a,b/", {}),
        ("redis+sentinel://a,,b/pqkeep", {}),
        ("redis+sentinel://a,b,a:26379/pqkeep", {}),
        ("redis+sentinel://a:x/pqkeep", {}),
        ("redis+sentinel://a:70000/pqkeep", {}),
        ("redis+sentinel:///pqkeep", {}),
        ("redis+sentinel://u:secret@a,b/pqkeep", {}),
        ("redis+sentinel://a,b/pqkeep?password=secret", {}),
        ("redis+sentinel://a,b/pqkeep?ssl_check_hostname=false", {}),
        ("redis+sentinel://a,b/pqkeep/x", {}),
        ("redis+sentinel://a,b/pq keep", {}),
        ("unix+sentinel://a,b/pqkeep", {}),
        ("redis://a", SENTINEL_PASSWORD),
        ("redis://a", {"rate_limit_unavailable": '"local"'}),
    ],
)
def test_wrong_addresses_of_the_rate_limits(tmp_path: Path, url: str, more: dict[str, str]) -> None:
    """An unusable address, or one with a password or weaker TLS, is refused without being shown."""
    with pytest.raises(ConfigError, match=r"redis_|rate_limit_") as refused:
        config.read(write(tmp_path, {**GOOD, "redis_url": f'"{url}"', **more}))
    assert "secret" not in str(refused.value)


SHARDS = '\n[shards.default]\nsockets = ["../a.sock"]\n'
B = '[shards.b]\nsockets = ["../b.sock", "../c.sock"]\n'
LINK = '[link]\ncertificate = "c"\nkey = "k"\nca = "a"\n'


def _with_shards(folder: Path, text: str, **others: str) -> Path:
    settings = {name: value for name, value in GOOD.items() if name != "key_service_socket"}
    path = write(folder, settings | others)
    path.write_text(path.read_text() + text)
    return path


def test_each_shard_has_its_key_services(tmp_path: Path) -> None:
    """Without [shards] there is one shard; with it every shard has sockets, addresses or both."""
    one = config.read(write(tmp_path, GOOD)).key_services
    assert {name: value.sockets for name, value in one.items()} == {
        "default": (tmp_path.resolve().parent / "keys.sock",)
    }
    linked = _with_shards(tmp_path, LINK + 'key_service = "k:1"\n')
    (address,) = config.read(linked).key_services["default"].addresses
    assert (address.host, address.port) == ("k", 1)
    both = config.read(
        _with_shards(tmp_path, SHARDS + B + 'addresses = ["k:1"]\n' + LINK)
    ).key_services
    folder = tmp_path.resolve().parent
    assert both["default"].sockets == (folder / "a.sock",)
    assert both["b"].sockets == (folder / "b.sock", folder / "c.sock")
    assert [address.host for address in both["b"].addresses] == ["k"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "set either key_service_socket or"),
        (LINK, "set either key_service_socket or"),
        (B, "one shard must be named default"),
        ("[shards.default]\n", "expected sockets or addresses"),
        (SHARDS + "socket = 1\n", "socket"),
        (SHARDS + "[shards.B]\nsockets = ['b']\n", "shards"),
        (SHARDS + "[shards.b]\nsockets = ['../a.sock']\n", "occurs twice"),
        (SHARDS + "[shards.b]\naddresses = ['k:1']\n", r"set \[link\]"),
        (SHARDS + LINK, "no shard has addresses"),
        (SHARDS + "addresses = ['k:1']\n" + LINK + "key_service = 'k:2'\n", "link.key_service"),
    ],
)
def test_shards_that_contradict_each_other_are_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    """A shard without an address, or with two entries or kinds of address, stops the start."""
    with pytest.raises(ConfigError, match=problem):
        config.read(_with_shards(tmp_path, text))


def test_one_socket_beside_shards_is_refused(tmp_path: Path) -> None:
    """key_service_socket together with [shards] is refused."""
    with pytest.raises(ConfigError, match="key_service_socket: move it into"):
        config.read(_with_shards(tmp_path, SHARDS, key_service_socket='"../keys.sock"'))
