"""Where address and credential come from, what is refused, and who is trusted."""

import datetime as dt
import ipaddress
import os
import re
import ssl
import threading
from collections.abc import Callable
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
    """Return one profile's lines."""
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
    """Address and API key come from the environment, the key by itself or in a file."""
    monkeypatch.setenv("PQKEEP_URL", base_url)
    monkeypatch.setenv("PQKEEP_API_KEY", idle_api_key)
    assert connect().keys.list() == ()
    monkeypatch.delenv("PQKEEP_API_KEY")
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(key_file))
    assert connect().keys.list() == ()
    monkeypatch.setenv("PQKEEP_API_KEY", idle_api_key)
    with pytest.raises(ConfigurationError, match="not both"):
        connect()


def test_arguments_come_first(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, base_url: str, idle_api_key: str
) -> None:
    """What is given as an argument wins over the environment."""
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
    """Address and API key of the environment win over those of a profile."""
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
    """A profile is named by argument or environment; else it is the default one."""
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
    """A profile's API key is not sent to another address."""
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
    """A profile that is not understood is refused, and nothing of it shown."""
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
    """A profile file of somebody else is refused."""
    path = write_profiles(profile("default", NOWHERE, f'api_key = "{NEVER_MADE}"'))
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigurationError, match="yours"):
        Client()


def test_a_profile_is_taken_alone() -> None:
    """A whole profile and another setting beside it are refused."""
    whole = Profile(url="http://localhost", api_key="pqk_any")
    with pytest.raises(ConfigurationError):
        Client(profile=whole, ca_file="ca.pem")


def test_nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without an address, or without an API key, there is no client."""
    with pytest.raises(ConfigurationError, match=r"config\.toml cannot be read"):
        Client()
    with pytest.raises(ConfigurationError, match="no API key"):
        Client(NOWHERE)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(tmp_path / "lost"))
    with pytest.raises(ConfigurationError, match="the API key's file"):
        Client(NOWHERE)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_file_that_others_may_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    """An API key that somebody else can read or change is not used."""
    file = tmp_path / "api-key"
    file.write_text("pqk_any")
    file.chmod(mode)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(file))
    with pytest.raises(ConfigurationError, match="must be yours, and its mode 0600"):
        Client(NOWHERE)


def test_a_key_from_a_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is no regular file has no mode that counts: a password manager may write to a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o644)
    monkeypatch.setenv("PQKEEP_API_KEY_FILE", str(pipe))
    writer = threading.Thread(target=pipe.write_text, args=("two words",))
    writer.start()
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        Client(NOWHERE)
    writer.join()


@pytest.mark.parametrize("api_key", ["", "two words", "line\nbreak", "clé", "nul\0"])
def test_impossible_api_keys(api_key: str) -> None:
    """What cannot be an API key is refused before it is used, and not repeated."""
    with pytest.raises(ConfigurationError, match="the API key must be") as caught:
        Client("http://127.0.0.1", api_key)
    assert not api_key or api_key not in str(caught.value)


@pytest.mark.parametrize(
    "base_url",
    ["", "127.0.0.1:8080", "ftp://h", "http://", "http://h:x", "https://u:p@h", "https://h/?a=b"],
)
def test_impossible_addresses(base_url: str) -> None:
    """What cannot be the service's address is refused before it is used."""
    with pytest.raises(ConfigurationError, match="the base URL must be"):
        Client(base_url, NEVER_MADE)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_impossible_timeouts(timeout: float) -> None:
    """No time at all is no timeout."""
    with pytest.raises(ConfigurationError, match="more than 0 seconds"):
        Client(NOWHERE, NEVER_MADE, timeout=timeout)


@pytest.mark.parametrize(
    "host", ["pqkeep.example", "192.0.2.1", "localhost.example", "[2001:db8::1]"]
)
def test_plain_http(host: str) -> None:
    """Plain HTTP is for this machine, unless it is allowed."""
    with pytest.raises(ConfigurationError, match="http:// is for this machine only"):
        Client(f"http://{host}", NEVER_MADE)
    Client(f"http://{host}", NEVER_MADE, allow_plain_http=True).close()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_this_machine(host: str) -> None:
    """These are this machine."""
    Client(f"http://{host}:9", NEVER_MADE).close()


def test_no_proxy_for_plain_http(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, base_url: str, idle_api_key: str
) -> None:
    """What is not encrypted goes to the service itself, whatever proxy the environment names."""
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    monkeypatch.setenv("ALL_PROXY", NOWHERE)
    assert connect(base_url, idle_api_key).keys.list() == ()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a certificate of 127.0.0.1 that only itself vouches for, and its key beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
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
    path = tmp_path / "ca.pem"
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
    """A certificate is accepted if the CA file vouches for it, and otherwise nothing is sent."""
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
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "has no certificate in PEM"),
        ("no certificate", "has no certificate in PEM"),
    ],
)
def test_impossible_ca_files(tmp_path: Path, content: str | None, problem: str) -> None:
    """A CA file that is not there, or none, makes no client; the error names it and says which."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=f"^the CA file {re.escape(str(path))} {problem}$"):
        Client("https://pqkeep.example", NEVER_MADE, ca_file=path)
