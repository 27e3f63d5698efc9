"""Sources of address and credential, refused values, and trusted certificates."""

import datetime as dt
import ipaddress
import os
import re
import ssl
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from sdk.tests.fault_proxy import FaultProxy

from pqkeep import Client, ConfigurationError, ConnectionFailedError
from pqkeep.profiles import Profile, profile_file

NEVER_MADE = "pqk_" + "0" * 49
NOWHERE = "http://127.0.0.1:9"
Connect = Callable[..., Client]
Write = Callable[[str], Path]


@pytest.fixture
def write_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the profile file."""

    def write(text: str) -> Path:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        path = profile_file()
        path.parent.mkdir(exist_ok=True)
        path.touch(0o600)
        path.write_text(text)
        return path

    return write


def profile(name: str, url: str, rest: str) -> str:
    """Return the lines of one profile."""
    return f'[profiles.{name}]\nurl = "{url}"\n{rest}\n'


@pytest.fixture
def key_file(tmp_path: Path, idle_api_key: str) -> Path:
    """Return a file with the API key and a line feed."""
    path = tmp_path / "api-key"
    path.write_text(f"{idle_api_key}\n")
    path.chmod(0o600)
    return path


def test_environment(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    base_url: str,
    idle_api_key: str,
    key_file: Path,
) -> None:
    """Address and API key come from the environment, the key as a value or a file."""
    monkeypatch.setenv("PQKEEP_URL", base_url)
    monkeypatch.setenv("PQKEEP_API_KEY", idle_api_key)
    assert connect().keys.list() == ()
    monkeypatch.delenv("PQKEEP_API_KEY")
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(key_file))
    assert connect().keys.list() == ()
    monkeypatch.setenv("PQKEEP_API_KEY", idle_api_key)
    with pytest.raises(ConfigurationError, match="are both set"):
        connect()


def test_arguments_come_first(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, base_url: str, idle_api_key: str
) -> None:
    """Arguments override the environment."""
    monkeypatch.setenv("PQKEEP_URL", NOWHERE)
    monkeypatch.setenv("PQKEEP_API_KEY", NEVER_MADE)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", "/nowhere")
    assert connect(base_url, idle_api_key).keys.list() == ()


def test_environment_comes_before_the_profile(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    write_profiles: Write,
    base_url: str,
    idle_api_key: str,
) -> None:
    """The environment's address and API key override those of a profile."""
    write_profiles(profile("default", NOWHERE, f'api_key = "{NEVER_MADE}"'))
    monkeypatch.setenv("PQKEEP_URL", base_url)
    monkeypatch.setenv("PQKEEP_API_KEY", idle_api_key)
    assert connect().keys.list() == ()
    assert connect(profile="default").keys.list() == ()


def test_profiles(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    write_profiles: Write,
    base_url: str,
    idle_api_key: str,
    key_file: Path,
) -> None:
    """An argument or the environment names the profile; otherwise it is the default one."""
    write_profiles(
        profile("default", base_url, f'api_key = "{idle_api_key}"')
        + profile("by-file", base_url, f'api_key_file = "{key_file}"')
        + profile(
            "strict", base_url, f'api_key = "{idle_api_key}"\ncompliance_profile = "cnsa-2.0"'
        )
        + profile("other", NOWHERE, f'api_key = "{NEVER_MADE}"')
    )
    assert connect().keys.list() == ()
    assert connect(profile="by-file").keys.list() == ()
    assert connect(profile="strict").compliance_profile is not None
    assert connect().compliance_profile is None
    monkeypatch.setenv("PQKEEP_PROFILE", "other")
    with pytest.raises(ConnectionFailedError):
        connect().keys.list()
    assert connect(profile="default").keys.list() == ()


def test_a_profiles_key_stays_with_its_address(connect: Connect, write_profiles: Write) -> None:
    """A profile's API key is never sent to another address."""
    write_profiles(profile("default", NOWHERE, f'api_key = "{NEVER_MADE}"'))
    for options in ({}, {"profile": "default"}):
        with pytest.raises(ConfigurationError) as caught:
            connect("http://127.0.0.1:10", **options)
        assert NEVER_MADE not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "no TOML",
        "[profiles.default]\nurl = 'http://127.0.0.1'\nurl = 'http://127.0.0.1'",
        "profiles = 1",
        "[profiles]\ndefault = 'http://127.0.0.1'",
        "[profiles.default]\napi_key = 'SECRET'",
        "[profiles.default]\nurl = 'http://127.0.0.1'",
        "[profiles.default]\nurl = 'http://127.0.0.1'\napi_key = 7",
        "[profiles.default]\nurl = 'http://127.0.0.1'\napi_key = 'SECRET'\nverify = false",
        "[profiles.default]\nurl = 'http://127.0.0.1'\napi_key = 'SECRET'\napi_key_file = '/x'",
        "[profiles.default]\nurl = 'http://127.0.0.1'\napi_key_file = '/nowhere'",
        "[profiles.default]\nurl = 'http://h'\napi_key = 'SECRET'\nallow_plain_http = 'yes'",
        "[profiles.other]\nurl = 'http://127.0.0.1'\napi_key = 'SECRET'",
        "default = 'other'\n[profiles.default]\nurl = 'http://127.0.0.1'\napi_key = 'SECRET'",
    ],
)
def test_broken_profiles(write_profiles: Write, text: str) -> None:
    """An invalid profile is refused and not quoted."""
    write_profiles(text)
    with pytest.raises(ConfigurationError) as caught:
        Client()
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_profiles_that_others_can_read(write_profiles: Write, mode: int) -> None:
    """A profile file that others can read or write is refused."""
    path = write_profiles(profile("default", NOWHERE, f'api_key = "{NEVER_MADE}"'))
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="0600"):
        Client()
    path.chmod(0o600)
    Client().close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_somebody_elses_profiles(write_profiles: Write) -> None:
    """Another user's profile file is refused."""
    path = write_profiles(profile("default", NOWHERE, f'api_key = "{NEVER_MADE}"'))
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigurationError, match="belong to you"):
        Client()


def test_a_profile_is_taken_alone() -> None:
    """A Profile object beside another setting is refused."""
    whole = Profile(url="http://localhost", api_key="pqk_any")
    with pytest.raises(ConfigurationError):
        Client(profile=whole, ca_file="ca.pem")


def test_nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without an address or an API key there is no client."""
    with pytest.raises(ConfigurationError, match=r"the profile file .*config\.toml does not exist"):
        Client()
    with pytest.raises(ConfigurationError, match="the API key is missing"):
        Client(NOWHERE)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(tmp_path / "lost"))
    with pytest.raises(ConfigurationError, match="the API key's file"):
        Client(NOWHERE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("mode", [0o440, 0o640, 0o400, 0o600])
def test_a_key_file_of_root_that_a_group_may_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    """A secret mounted by Kubernetes belongs to root, and the fsGroup may read it."""
    file = tmp_path / "api-key"
    file.write_text(NEVER_MADE)
    file.chmod(mode)
    os.chown(file, 0, 54_321)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(file))
    Client(NOWHERE).close()
    os.chown(file, 54_321, 54_321)
    with pytest.raises(ConfigurationError, match="must belong to you"):
        Client(NOWHERE)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o444])
def test_a_key_file_that_others_may_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    """An API key's file that others can read or change is refused."""
    file = tmp_path / "api-key"
    file.write_text("pqk_any")
    file.chmod(mode)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(file))
    with pytest.raises(ConfigurationError, match="must belong to you and have mode 0600"):
        Client(NOWHERE)


def test_a_key_from_a_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mode of a pipe does not matter: a password manager may write to it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(pipe))
    writer = threading.Thread(target=pipe.write_text, args=("two words",))
    writer.start()
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        Client(NOWHERE)
    writer.join()


@pytest.mark.parametrize("blank", ["\n", "\r\n", " ", "\t", "\ufeff", "\n\n \r\n"])
def test_what_stands_around_a_value_is_no_part_of_it(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    write_profiles: Write,
    key_file: Path,
    base_url: str,
    idle_api_key: str,
    blank: str,
) -> None:
    """Line breaks, spaces and a byte-order mark around address and API key are ignored."""
    monkeypatch.setenv("PQKEEP_URL", f"{blank}{base_url}{blank}")
    monkeypatch.setenv("PQKEEP_API_KEY", f"{blank}{idle_api_key}{blank}")
    assert connect().keys.list() == ()
    assert connect(f"{base_url}/{blank}", f"{idle_api_key}{blank}").keys.list() == ()
    monkeypatch.delenv("PQKEEP_API_KEY")
    key_file.write_bytes(f"\ufeff{idle_api_key}{blank}".encode())
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", f"{key_file}{blank}")
    assert connect().keys.list() == ()
    monkeypatch.delenv("PQKEEP_API_KEY_FILE")
    monkeypatch.setenv("PQKEEP_URL", blank)
    written = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    quoted = "".join(written.get(field, field) for field in blank)
    text = profile("default", base_url + quoted, f'api_key = "{idle_api_key}{quoted}"')
    write_profiles("\ufeff" + text)
    assert connect().keys.list() == ()


@pytest.mark.parametrize(
    ("api_key", "said"),
    [
        (f'"{NEVER_MADE}"', "quotation marks around it"),
        (f"\u201c{NEVER_MADE}\u201d", "quotation marks around it"),
        (f"X-API-Key: {NEVER_MADE}", "a space inside"),
        (f"{NEVER_MADE}\u00a0{NEVER_MADE}", "a space inside"),
        (f"{NEVER_MADE}\n{NEVER_MADE}", "several lines"),
        (f"{NEVER_MADE}\x1b[0m", "a control character"),
        (f"pqk\u2011{NEVER_MADE}", "a character that is not ASCII"),
    ],
)
def test_what_is_wrong_with_an_api_key_is_said(
    monkeypatch: pytest.MonkeyPatch, key_file: Path, api_key: str, said: str
) -> None:
    """The error names the variable or file and the kind of character, and never quotes the key."""
    monkeypatch.setenv("PQKEEP_API_KEY", api_key)
    with pytest.raises(ConfigurationError, match=f"^PQKEEP_API_KEY must be .* {said}$") as caught:
        Client(NOWHERE)
    assert NEVER_MADE not in str(caught.value)
    monkeypatch.delenv("PQKEEP_API_KEY")
    key_file.write_text(api_key)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(key_file))
    name = re.escape(str(key_file))
    with pytest.raises(ConfigurationError, match=f"the API key in {name} must be .* {said}$"):
        Client(NOWHERE)


@pytest.mark.parametrize("content", ["pqk_1".encode("utf-16"), b"\xff", b""])
def test_a_key_file_without_text(
    monkeypatch: pytest.MonkeyPatch, key_file: Path, content: bytes
) -> None:
    """An empty file, or one in another encoding, has no API key."""
    key_file.write_bytes(content)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(key_file))
    with pytest.raises(ConfigurationError, match=r"has no API key|is empty"):
        Client(NOWHERE)


@pytest.mark.parametrize("end", ["/api/v1", "/api/v1/", "/", "//", ""])
def test_an_address_may_end_as_the_reference_has_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, base_url: str, idle_api_key: str, end: str
) -> None:
    """An address with /api/v1 or a final slash means the same address."""
    assert connect(f"{base_url}{end}", idle_api_key).keys.list() == ()
    monkeypatch.setenv("PQKEEP_URL", f"{base_url}{end}")
    assert connect(api_key=idle_api_key).keys.list() == ()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("pqkeep.example", "it has no scheme; put https:// before it"),
        ("localhost:8080", "it has no scheme"),
        ("//pqkeep.example", "it has no scheme"),
        ("ftp://pqkeep.example", "it has another scheme"),
        ("https:/pqkeep.example", "it has no scheme"),
        ("https://", "it has no host"),
        ("https:///api/v1", "it has no host"),
        ("https://pqkeep example", "a space or a control character"),
        ("https://pqkeep.example\thttps://x", "a space or a control character"),
        ("'https://pqkeep.example'", "quotation marks"),
        ("https://ada:secret@pqkeep.example", "it has a user"),
        ("https://pqkeep.example?key=secret", "a query or a fragment"),
        ("https://pqkeep.example/#secret", "a query or a fragment"),
        ("https://pqkeep.example?", "a query or a fragment"),
        ("https://::1", "an IPv6 address needs brackets"),
        ("https://2001:db8::1/x", "an IPv6 address needs brackets"),
        ("https://pqkeep.example:port", "host or port is wrong"),
        ("https://pqkeep.example:99999", "host or port is wrong"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(
    monkeypatch: pytest.MonkeyPatch, url: str, said: str
) -> None:
    """The error names the address's source and the mistake, without the password."""
    with pytest.raises(ConfigurationError, match=r"^the base URL must be") as caught:
        Client(url, NEVER_MADE)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("PQKEEP_URL", url)
    with pytest.raises(ConfigurationError, match=r"^PQKEEP_URL must be"):
        Client(api_key=NEVER_MADE)


def test_an_address_of_ipv6_or_with_a_path() -> None:
    """An IPv6 address in brackets, a port, capitals and a reverse proxy's path are valid."""
    for url in ("https://[2001:db8::1]", "HTTPS://pqkeep.example:8443/keys", "http://[::1]:80/"):
        Client(url, NEVER_MADE).close()


PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove all proxies from the environment."""
    for name in (*PROXY_VARIABLES, "NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("variable", PROXY_VARIABLES)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("socks5://127.0.0.1:1080", "a proxy with socks5, which needs the package socksio"),
        ("socks5h://ada:secret@127.0.0.1:1080", "a proxy with socks5h, which needs"),
        ("SOCKS5://127.0.0.1:1080", "a proxy with socks5, which needs"),
        ("socks4://127.0.0.1:1080", "a proxy with socks4: only http"),
        ("socks://127.0.0.1:1080", "a proxy with socks: only http"),
        ("ftp://127.0.0.1", "a proxy with ftp: only http"),
        ("<secret>://127.0.0.1", "a proxy with another scheme: only http"),
        ("http://", "the host is missing, or the port is wrong"),
        ("http://proxy.example:port", "the host is missing, or the port is wrong"),
        ("http://proxy.example:99999", "the host is missing, or the port is wrong"),
        ("http://ada:secret@:3128", "the host is missing, or the port is wrong"),
        ("http://[::1", "the host is missing, or the port is wrong"),
        ("proxy example", "the host is missing, or the port is wrong"),
    ],
)
def test_a_proxy_that_is_none_is_named(
    connect: Connect, no_proxies: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    """An unusable proxy raises ConfigurationError with the variable's name.

    With the host in NO_PROXY, and for plain HTTP, the variable is ignored.
    """
    no_proxies.setenv(variable, value)
    with pytest.raises(ConfigurationError) as caught:
        connect("https://pqkeep.example", NEVER_MADE)
    assert variable in str(caught.value)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    connect("http://127.0.0.1:9", NEVER_MADE)
    no_proxies.setenv("NO_PROXY", "pqkeep.example")
    connect("https://pqkeep.example", NEVER_MADE)


@pytest.mark.parametrize(
    ("no_proxy", "url", "is_bypassed"),
    [
        ("*", "https://pqkeep.example", True),
        ("other, *", "https://pqkeep.example", True),
        ("example", "https://pqkeep.example", True),
        (".example", "https://pqkeep.example", True),
        ("*.example", "https://pqkeep.example", True),
        (".pqkeep.example", "https://pqkeep.example", True),
        ("PQKEEP.Example", "https://pqkeep.example", True),
        ("pqkeep.example.", "https://pqkeep.example", True),
        ("other pqkeep.example", "https://pqkeep.example", True),
        ("keep.example", "https://pqkeep.example", False),
        ("pqkeep.example.org", "https://pqkeep.example", False),
        ("pqkeep.example:443", "https://pqkeep.example", True),
        ("pqkeep.example:443", "https://pqkeep.example:8443", False),
        ("pqkeep.example:8443", "https://pqkeep.example:8443", True),
        ("192.0.2.7", "https://192.0.2.7", True),
        ("192.0.2.0/24", "https://192.0.2.7", True),
        ("192.0.2.0/24", "https://198.51.100.7", False),
        ("2.7", "https://192.0.2.7", False),
        ("2001:db8::/32", "https://[2001:db8::7]", True),
        ("[2001:db8::7]", "https://[2001:db8::7]", True),
        ("[2001:db8::7]:443", "https://[2001:db8::7]", True),
        ("2001:db8::8", "https://[2001:db8::7]", False),
        ("localhost", "https://localhost:8443", True),
        ("", "https://pqkeep.example", False),
        (",, ,", "https://pqkeep.example", False),
        ("://", "https://pqkeep.example", False),
    ],
)
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_no_proxy_comes_first(
    no_proxies: pytest.MonkeyPatch, variable: str, no_proxy: str, url: str, *, is_bypassed: bool
) -> None:
    """NO_PROXY has names, suffixes, ports, addresses and networks, by curl's rules."""
    no_proxies.setenv("HTTPS_PROXY", "socks4://127.0.0.1")
    no_proxies.setenv(variable, no_proxy)
    if is_bypassed:
        Client(url, NEVER_MADE).close()
    else:
        with pytest.raises(ConfigurationError, match="HTTPS_PROXY has a proxy with socks4"):
            Client(url, NEVER_MADE)


def test_a_proxy_out_of_reach_is_named(connect: Connect, no_proxies: pytest.MonkeyPatch) -> None:
    """If nothing listens at the proxy's address, the message names the variable."""
    no_proxies.setenv("https_proxy", "127.0.0.1:9")
    with pytest.raises(ConnectionFailedError, match="the proxy that https_proxy names, or the"):
        connect("https://pqkeep.example", NEVER_MADE).keys.list()


def test_a_proxy_that_refuses_is_named(
    connect: Connect, no_proxies: pytest.MonkeyPatch, response: Callable[..., str]
) -> None:
    """A proxy's refusal is shown, with the variable's name."""
    no_proxies.setenv("ALL_PROXY", response(b"", 407))
    with pytest.raises(ConnectionFailedError, match="the proxy that ALL_PROXY names refused"):
        connect("https://pqkeep.example", NEVER_MADE).keys.list()


@pytest.mark.parametrize("api_key", ["", "two words", "line\nbreak", "clé", "nul\0"])
def test_impossible_api_keys(api_key: str) -> None:
    """An impossible API key is refused before use, and not quoted."""
    with pytest.raises(ConfigurationError, match="the API key must be") as caught:
        Client("http://127.0.0.1", api_key)
    assert not api_key or api_key not in str(caught.value)


@pytest.mark.parametrize(
    "base_url",
    ["", "127.0.0.1:8080", "ftp://h", "http://", "http://h:x", "https://u:p@h", "https://h/?a=b"],
)
def test_impossible_addresses(base_url: str) -> None:
    """An impossible address is refused before use."""
    with pytest.raises(ConfigurationError, match="the base URL must be"):
        Client(base_url, NEVER_MADE)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_impossible_timeouts(timeout: float) -> None:
    """A timeout must be positive."""
    with pytest.raises(ConfigurationError, match="more than 0 seconds"):
        Client(NOWHERE, NEVER_MADE, timeout=timeout)


@pytest.mark.parametrize(
    "host", ["pqkeep.example", "192.0.2.1", "localhost.example", "[2001:db8::1]"]
)
def test_plain_http(host: str) -> None:
    """Plain HTTP is only for this machine, unless allowed."""
    with pytest.raises(ConfigurationError, match="http:// is for this machine only"):
        Client(f"http://{host}", NEVER_MADE)
    Client(f"http://{host}", NEVER_MADE, allow_plain_http=True).close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_this_machine(host: str) -> None:
    """This machine's own addresses need no TLS."""
    Client(f"http://{host}:9", NEVER_MADE).close()


def test_no_proxy_for_plain_http(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, base_url: str, idle_api_key: str
) -> None:
    """Plain HTTP goes to the service directly, without the environment's proxy."""
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    monkeypatch.setenv("ALL_PROXY", NOWHERE)
    assert connect(base_url, idle_api_key).keys.list() == ()


@pytest.fixture
def certificate(certificate_of: Callable[[int], Path]) -> Path:
    """Make a self-signed certificate of 127.0.0.1, and its key."""
    return certificate_of(0)


@pytest.fixture
def certificate_of(tmp_path: Path) -> Callable[[int], Path]:
    """Make certificates that are valid for two days, starting some days from now."""
    return partial(_certificate, tmp_path)


def _certificate(folder: Path, days: int) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "ca.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def test_ca_file(
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    write_profiles: Write,
    certificate: Path,
    base_url: str,
    idle_api_key: str,
) -> None:
    """A certificate is accepted only if the CA file signed it; otherwise nothing is sent."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    with FaultProxy(base_url, tls) as proxy:
        with pytest.raises(
            ConnectionFailedError, match=r"CERTIFICATE_VERIFY_FAILED.*PQKEEP_CA_FILE"
        ):
            connect(proxy.url, idle_api_key).keys.list()
        assert proxy.seen == []
        assert connect(proxy.url, idle_api_key, ca_file=certificate).keys.list() == ()
        rest = f'api_key = "{idle_api_key}"\nca_file = "{certificate}"'
        write_profiles(profile("default", proxy.url, rest))
        assert connect().keys.list() == ()
        monkeypatch.setenv("PQKEEP_CA_FILE", str(certificate))
        assert connect(proxy.url, idle_api_key).keys.list() == ()


@pytest.mark.parametrize(
    ("variable", "content", "said"),
    [
        ("SSL_CERT_FILE", None, "cannot be read: No such file"),
        ("SSL_CERT_FILE", "", "has no PEM certificate"),
        ("SSL_CERT_DIR", None, "is not a directory"),
        ("SSL_CERT_DIR", "a file", "is not a directory"),
    ],
)
def test_trust_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, content: str | None, said: str
) -> None:
    """An OpenSSL variable with a missing path makes no client, unless a CA file is named."""
    path = tmp_path / "trusted"
    if content is not None:
        path.write_text(content)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv(variable, str(path))
    with pytest.raises(ConfigurationError, match=f"^{variable}: {path} {said}"):
        Client("https://pqkeep.example", NEVER_MADE)
    Client(NOWHERE, NEVER_MADE).close()


def test_trust_of_other_programs_is_said_to_be_theirs(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, certificate: Path, base_url: str
) -> None:
    """If another program's variable would trust the certificate, the error says so."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with (
        FaultProxy(base_url, tls) as proxy,
        pytest.raises(ConnectionFailedError, match="pqkeep does not use REQUESTS_CA_BUNDLE"),
    ):
        connect(proxy.url, NEVER_MADE).keys.list()


def test_a_service_without_tls(connect: Connect, base_url: str) -> None:
    """An https:// address fails with a clear message if the server speaks plain HTTP."""
    with pytest.raises(ConnectionFailedError, match=r"does not speak TLS: try http://"):
        connect(base_url.replace("http://", "https://"), NEVER_MADE).keys.list()


@pytest.mark.parametrize("days", [-10, 10])
def test_a_certificate_of_another_time(
    connect: Connect, certificate_of: Callable[[int], Path], base_url: str, days: int
) -> None:
    """An expired or future certificate is reported with this machine's clock."""
    path = certificate_of(days)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(path, path.with_suffix(".key"))
    year = dt.datetime.now(dt.UTC).year
    with (
        FaultProxy(base_url, tls) as proxy,
        pytest.raises(ConnectionFailedError, match=f"this machine's clock shows {year}-"),
    ):
        connect(proxy.url, NEVER_MADE, ca_file=path).keys.list()


def test_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home directory the message names the alternatives."""
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    with pytest.raises(ConfigurationError, match="set HOME or XDG_CONFIG_HOME"):
        Client()
    Client(NOWHERE, NEVER_MADE).close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "has no PEM certificate"),
        ("no certificate", "has no PEM certificate"),
    ],
)
def test_impossible_ca_files(tmp_path: Path, content: str | None, problem: str) -> None:
    """A missing or invalid CA file makes no client; the error names it and the reason."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"^the CA file {re.escape(str(path))} {problem}$"):
        Client("https://pqkeep.example", NEVER_MADE, ca_file=path)
