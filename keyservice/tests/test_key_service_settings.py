"""The key service's settings: paths, and refused values."""

from pathlib import Path

import pytest

from pqkeep_keyservice import config
from pqkeep_keyservice.config import RootKeySource
from pqkeep_protocol.startup.settings import ConfigError

GOOD = {
    "socket": '"keys.sock"',
    "gateway_uid": "1",
    "database": '"keys.sqlite3"',
    "root_key_file": '"root.key"',
}

ONE = "exactly one of file, credential, pkcs11 and command"
LINK = '{listen = "h:1", certificate = "c", key = "k", ca = "a"}'
A_KEY = 'library = "/l", token = "t", key = "k"'
SOURCES = {
    "": ONE,
    'file = "a", credential = "b"': ONE,
    'credential = "../b"': r"`str` matching regex .*`\$\.root_keys",
    'credential = ".."': r"`str` matching regex .*`\$\.root_keys",
    "command = []": r"length >= 1",
    'command = ["fetch", "/a"]': "an absolute path as the first item",
    f"pkcs11 = {{{A_KEY}}}": "either pin_file or pin_credential",
    f'pkcs11 = {{{A_KEY}, pin_file = "a", pin_credential = "b"}}': "either pin_file or pin_cred",
    f'pkcs11 = {{{A_KEY}, pin = "1234"}}': "unknown field `pin`",
}
"""Invalid root keys, each with its error."""


def write(folder: Path, settings: dict[str, str]) -> Path:
    """Write a settings file."""
    path = folder / "settings.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """Paths of socket, database, root keys and OpenSSL library are relative to the settings."""
    more = {"openssl_library": '"lib/libcrypto.so"'}
    settings = config.read(write(tmp_path, {**GOOD, **more}))
    here = tmp_path.resolve()
    assert settings.socket == here / "keys.sock"
    assert settings.database.location == str(here / "keys.sqlite3")
    assert settings.root_key_sources == {1: RootKeySource(file=here / "root.key")}
    assert settings.openssl_library == str(here / "lib/libcrypto.so")


def test_a_library_s_name_is_no_path(tmp_path: Path) -> None:
    """A library name without a slash is left to the system's search."""
    settings = config.read(write(tmp_path, {**GOOD, "openssl_library": '"libcrypto.so.4"'}))
    assert settings.openssl_library == "libcrypto.so.4"


def test_root_keys_by_id(tmp_path: Path) -> None:
    """Several root keys are named by their ids."""
    more = {"root_keys": '{1 = {file = "a"}, 2 = {credential = "b"}}'}
    without = {name: value for name, value in GOOD.items() if name != "root_key_file"}
    here = tmp_path.resolve()
    settings = config.read(write(tmp_path, without | more))
    assert settings.root_key_sources == {
        1: RootKeySource(file=here / "a"),
        2: RootKeySource(credential="b"),
    }


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("root_keys", '{1 = {file = "a"}}', "either root_key_file or root_keys"),
        ("root_key_file", None, "either root_key_file or root_keys"),
        *(("root_keys", f"{{1 = {{{source}}}}}", problem) for source, problem in SOURCES.items()),
        ("rootkey", '"a"', r"no setting rootkey; did you mean root_keys\?"),
        ("database", '"mysql://role@localhost/name"', r"`\$.database`"),
        ("socket", None, "set both socket and gateway_uid"),
        ("gateway_uid", None, "set both socket and gateway_uid"),
        ("log_format", '"xml"', r"`\$.log_format`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, value: str | None, problem: str) -> None:
    """Contradicting, unknown and wrong settings stop the start; file and setting are named."""
    settings = {
        key: setting for key, setting in {**GOOD, name: value}.items() if setting is not None
    }
    with pytest.raises(ConfigError, match=rf"settings\.toml: .*{problem}"):
        config.read(write(tmp_path, settings))


def test_gateways_of_other_hosts_need_no_socket(tmp_path: Path) -> None:
    """A key service can serve only a link, but needs some listener, and a user for a socket."""
    without = {name: GOOD[name] for name in ("database", "root_key_file")}
    assert config.read(write(tmp_path, {**without, "link": LINK})).socket is None
    with pytest.raises(ConfigError, match="no gateway can connect"):
        config.read(write(tmp_path, without))
    with pytest.raises(ConfigError, match="set both"):
        config.read(write(tmp_path, {**without, "link": LINK, "socket": '"keys.sock"'}))
